"""Padding: its side, its amount and what stands in it do not matter to the tokens that are real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import NotApplicable

if TYPE_CHECKING:
    from torch import Tensor


def _padded(trial: ModelTrial) -> ModelTrial:
    """The example with padding on a claimed side."""
    side = trial.example.pad if trial.example.pad != "none" else (trial.claims.padding or ("right",))[trial.example.seed % 2 - 1]
    found = trial.but(pad=side, length=max(trial.example.length, 4))
    if found.example.pad == "none" or "attention_mask" not in found.inputs:
        raise NotApplicable("the model takes no attention_mask")
    return found


@model_law("content", family="padding", needs=claims("padding"))
def content(trial: ModelTrial) -> None:
    """What stands at padded places changes nothing at real ones."""
    trial = _padded(trial)
    ids, mask = trial.inputs["input_ids"], trial.inputs["attention_mask"]
    other = ids.where(mask.bool(), trial.others(ids))
    trial.agree_everywhere(
        trial.run(input_ids=other),
        trial.plain,
        "output of real tokens after the padded ones changed",
        then="other = ids.clone(); other[mask == 0] += 1\n"
        "changed = model(**{**inputs, 'input_ids': other})\nprint((changed[0] - out[0])[mask.bool()].abs().max())",
    )


def _alone(trial: ModelTrial, row: int) -> tuple[dict[str, Tensor], slice]:
    """The row without its padding."""
    pads, length = trial.example.pads(row), trial.inputs["input_ids"].shape[1]
    kept = slice(pads, length) if trial.example.pad == "left" else slice(0, length - pads)
    return {"input_ids": trial.inputs["input_ids"][row : row + 1, kept]}, kept


@model_law("none", family="padding", needs=claims("padding"))
def without(trial: ModelTrial) -> None:
    """A padded row gives at its real tokens what it gives without padding, alone, with no mask."""
    trial = _padded(trial)
    for row in range(trial.example.batch):
        inputs, kept = _alone(trial, row)
        if trial.subject.encoder_decoder:
            inputs["decoder_input_ids"] = trial.ids[row : row + 1]
            kept = slice(None)
        found = trial.run(inputs, without=("attention_mask", "position_ids"))
        part = slice(row, row + 1)
        trial.agree(
            trial.plain.output[part, kept],
            found.output,
            f"output of row {row}, padded on the {trial.example.pad}, against the row without padding",
            then=f"alone = model(input_ids={inputs_text(trial, row)})\n"
            f"print((alone[0] - out[0][{row}:{row + 1}, {_text(kept)}]).abs().max())",
        )


def inputs_text(trial: ModelTrial, row: int) -> str:
    pads = trial.example.pads(row)
    return f"ids[{row}:{row + 1}, {f'{pads}:' if trial.example.pad == 'left' else f':{-pads or None}'}]"


def _text(part: slice) -> str:
    return ":".join("" if edge is None else str(edge) for edge in (part.start, part.stop))


@model_law("ones", family="padding", needs=claims("padding"))
def ones(trial: ModelTrial) -> None:
    """A mask of ones is no mask."""
    import torch

    trial = trial.but(pad="none", ones=False)
    if not trial.subject.takes("attention_mask") or trial.subject.kind == "pixels":
        raise NotApplicable("the model takes no attention_mask")
    found = trial.run(attention_mask=torch.ones_like(trial.inputs["input_ids"]))
    trial.agree_everywhere(
        found,
        trial.plain,
        "output with a mask of ones, against none",
        then="masked = model(**inputs, attention_mask=torch.ones_like(ids))\nprint((masked[0] - out[0]).abs().max())",
    )


@model_law("positions", family="padding", needs=claims("padding=left", "positional=relative"))
def positions(trial: ModelTrial) -> None:
    """Where only relative positions enter, left padding changes nothing even if positions are not told."""
    trial = trial.but(pad="left", length=max(trial.example.length, 4))
    if "position_ids" not in trial.inputs:
        raise NotApplicable("the model takes no position_ids, or no mask")
    # angles of larger positions are rounded more coarsely, and every block works with them
    further = 4 + max(trial.example.pads(row) for row in range(trial.example.batch)) / 4
    found = trial.run(without=("position_ids",))
    trial.agree(found.output, trial.plain.output, "output without position_ids, against with them", where=trial.real, scale=further)


@model_law("finite", family="padding", needs=claims("padding"))
def finite(trial: ModelTrial) -> None:
    """Padding makes nothing infinite or not a number, at padded places either."""
    import torch

    from attncheck.laws.registry import LawViolation

    trial = _padded(trial)
    wrong = ~torch.isfinite(trial.plain.output)
    if bool(wrong.any()):
        row, token = (int(i) for i in wrong.flatten(2).any(-1).nonzero()[0])
        raise LawViolation(f"the output of row {row}, token {token} is not finite", "print(torch.isfinite(out[0]).flatten(2).all(-1))")
