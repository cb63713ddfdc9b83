"""Positions: what is told is used, row by row; shifted together they change nothing where only differences enter."""

from __future__ import annotations

from typing import Any

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import LawViolation, NotApplicable


def _told(trial: ModelTrial) -> tuple[ModelTrial, Any]:
    """The example without padding, and its positions."""
    import torch

    trial = trial.but(pad="none")
    if trial.subject.kind == "pixels" or trial.subject.encoder_decoder or not trial.subject.takes("position_ids"):
        raise NotApplicable("the model takes no position_ids")
    return trial, torch.arange(trial.ids.shape[1])[None].expand(trial.ids.shape)


@model_law("default", family="positions", needs=claims("positional"))
def default(trial: ModelTrial) -> None:
    """Positions 0, 1, 2, ... are what a model takes where none are told."""
    trial, places = _told(trial)
    trial.agree_everywhere(trial.run(position_ids=places), trial.plain, "output with positions 0, 1, 2, ... told, against none told")


@model_law("shift", family="positions", needs=claims("positional=relative"))
def shift(trial: ModelTrial) -> None:
    """Where only relative positions enter, adding the same number to all of them changes nothing."""
    trial, places = _told(trial)
    room = trial.subject.longest - trial.ids.shape[1]
    for step in (1, 7, 64):
        if step <= room:
            # angles of larger positions are rounded more coarsely
            trial.agree(
                trial.run(position_ids=places + step).output,
                trial.plain.output,
                f"output with positions moved by {step}",
                scale=4 + step / 4,
                then=f"moved = model(**inputs, position_ids=torch.arange({step}, {step} + ids.shape[1])[None])\n"
                "print((moved[0] - out[0]).abs().max())",
            )


@model_law("rows", family="positions", needs=claims("positional"))
def rows(trial: ModelTrial) -> None:
    """Each row has its own positions: a row gives alone, with them, what it gives in a batch whose rows have others."""
    import torch

    trial, places = _told(trial)
    trial = trial if trial.example.batch > 1 else trial.but(batch=2)
    length = trial.ids.shape[1]
    room = trial.subject.longest - length
    places = torch.arange(length)[None] + (torch.arange(trial.example.batch)[:, None] * 5).clamp(max=max(room, 0))
    found = trial.run(position_ids=places).output
    for row in range(trial.example.batch):
        part = slice(row, row + 1)
        alone = trial.run({trial.main: trial.ids[part]}, position_ids=places[part], **_mask(trial, part)).output
        trial.agree(found[part], alone, f"output of row {row}, with positions of its own, in a batch against alone", scale=2)


def _mask(trial: ModelTrial, part: slice) -> dict[str, Any]:
    return {"attention_mask": trial.inputs["attention_mask"][part]} if "attention_mask" in trial.inputs else {}


@model_law("used", family="positions", needs=claims("positional"))
def used(trial: ModelTrial) -> None:
    """Positions that are told are used: a gap among them changes the output, unless no positions enter at all."""
    trial, places = _told(trial)
    length = trial.ids.shape[1]
    if trial.claims.positional == "none" or length < 4 or trial.subject.longest < length + 9:
        raise NotApplicable("no positions enter, or there is no room for a gap")
    other = places.clone()
    other[:, length // 2 :] += 9
    found = trial.run(position_ids=other, use_cache=False) if "use_cache" in trial.inputs else trial.run(position_ids=other)
    if not bool(((found.output - trial.plain.output)[:, length // 2 :].double().abs() > trial.tolerance()).any()):
        raise LawViolation(
            f"a gap of 9 positions before token {length // 2} changes nothing",
            "places = torch.arange(ids.shape[1])[None] + 9 * (torch.arange(ids.shape[1]) >= ids.shape[1] // 2)\n"
            "print((model(**inputs, position_ids=places)[0] - out[0]).abs().max())",
        )


@model_law("order", family="positions", needs=claims("positional=none", "causal=False"))
def order(trial: ModelTrial) -> None:
    """Where no positions enter, tokens in another order give the same outputs in that order."""
    import torch

    trial = trial.but(pad="none")
    turn = torch.arange(trial.ids.shape[1]).roll(1)
    trial.agree(trial.run({trial.main: trial.ids[:, turn]}).output, trial.plain.output[:, turn], "output of tokens in another order")


@model_law("rotary_table", family="positions", needs=claims("rotary"), once=True)
def rotary_table(trial: ModelTrial) -> None:
    """Rotary angles are those that the configuration says, in float64, for near and far positions."""
    from attncheck.laws.models.rotary import check

    check(trial)
