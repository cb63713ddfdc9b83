"""Rows of a batch do not know of each other."""

from __future__ import annotations

from typing import Any

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial


def _batched(trial: ModelTrial) -> ModelTrial:
    return trial if trial.example.batch > 1 else trial.but(batch=3)


def _rows(trial: ModelTrial, rows: Any) -> dict[str, Any]:
    import torch

    return {name: value[rows] for name, value in trial.inputs.items() if isinstance(value, torch.Tensor)}


@model_law("order", family="batch", needs=claims("batch"))
def order(trial: ModelTrial) -> None:
    """Rows of a batch in another order give the same outputs in that order."""
    import torch

    trial = _batched(trial)
    rows = torch.arange(trial.example.batch).roll(1)
    found = trial.run(_rows(trial, rows))
    trial.agree(
        found.output,
        trial.plain.output[rows],
        "output of a batch in another order",
        where=trial.real[rows],
        then=f"rows = {rows.tolist()}\nother = model(**{{k: v[rows] if torch.is_tensor(v) else v for k, v in inputs.items()}})\n"
        "print((other[0] - out[0][rows]).abs().max())",
    )


@model_law("alone", family="batch", needs=claims("batch"))
def alone(trial: ModelTrial) -> None:
    """A row gives alone what it gives in a batch."""
    trial = _batched(trial)
    for row in sorted({0, trial.example.batch - 1}):
        part = slice(row, row + 1)
        found = trial.run(_rows(trial, part))
        trial.agree(
            trial.plain.output[part],
            found.output,
            f"output of row {row} in its batch, against alone",
            where=trial.real[part],
            then=f"alone = model(**{{k: v[{row}:{row + 1}] if torch.is_tensor(v) else v for k, v in inputs.items()}})\n"
            f"print((alone[0] - out[0][{row}:{row + 1}]).abs().max())",
        )


@model_law("neighbours", family="batch", needs=claims("batch"))
def neighbours(trial: ModelTrial) -> None:
    """What stands in the other rows of a batch changes nothing, after every block and in the output."""
    trial = _batched(trial)
    other = trial.others(trial.ids)
    other[:1] = trial.ids[:1]
    found = trial.run({trial.main: other})
    where = trial.real.clone()
    where[1:] = False
    trial.agree_everywhere(found, trial.plain, "output of row 0 after its neighbours changed", where=where)
