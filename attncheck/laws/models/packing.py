"""Documents packed into one row give what they give alone."""

from __future__ import annotations

from typing import Any

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import NotApplicable


def _packed(trial: ModelTrial, batch: int = 1, **options: Any) -> None:
    """Rows of two documents, told apart by positions that begin anew, against each document alone."""
    import torch

    trial = trial.but(batch=batch, pad="none", cache=False, ask=False, length=max(trial.example.length, 7))
    if trial.subject.encoder_decoder or trial.subject.kind == "pixels" or not trial.subject.takes("position_ids"):
        raise NotApplicable("the model takes no position_ids")
    length = trial.ids.shape[1]
    cut = length // 3
    places = torch.cat((torch.arange(cut), torch.arange(length - cut)))[None].expand(batch, -1)
    given = {"position_ids": places, **options}
    plain = ("use_cache", "attention_mask")
    found = trial.run(given, without=tuple(name for name in plain if name not in given)).output
    said = "".join(f", {name}={'ones' if hasattr(value, 'shape') else value}" for name, value in options.items())
    for part in (slice(0, cut), slice(cut, length)):
        alone = trial.run({trial.main: trial.ids[:, part]}, without=("attention_mask",), use_cache=False).output
        text = said.replace("=ones", "=torch.ones_like(ids)")
        trial.agree(
            found[:, part],
            alone,
            f"output of tokens {part.start} to {part.stop - 1}, packed behind others{said or ' as a call does by default'}, against alone",
            scale=2,
            first=part.start,
            then=f"places = torch.cat((torch.arange({cut}), torch.arange({length - cut})))[None].expand({batch}, -1)\n"
            f"packed = model(input_ids=ids, position_ids=places{text})\n"
            f"alone = model(input_ids=ids[:, {part.start}:{part.stop}], use_cache=False)\n"
            f"print((packed[0][:, {part.start}:{part.stop}] - alone[0]).abs().max())",
        )


@model_law("separate", family="packing", needs=claims("packing"))
def separate(trial: ModelTrial) -> None:
    """Documents packed into a row, told apart by their positions, give without a cache what they give alone."""
    _packed(trial, use_cache=False)


@model_law("default", family="packing", needs=claims("packing"))
def default(trial: ModelTrial) -> None:
    """Packed documents give what they give alone also where nothing is said of a cache, as in an ordinary call."""
    _packed(trial)


@model_law("ones", family="packing", needs=claims("packing"))
def ones(trial: ModelTrial) -> None:
    """Packed documents give what they give alone also beside an attention mask of ones."""
    import torch

    inner = trial.but(batch=1, pad="none", length=max(trial.example.length, 7))
    _packed(trial, use_cache=False, attention_mask=torch.ones_like(inner.ids))


@model_law("rows", family="packing", needs=claims("packing"))
def rows(trial: ModelTrial) -> None:
    """Packed documents give what they give alone also where the batch has several rows."""
    _packed(trial, batch=2, use_cache=False)
