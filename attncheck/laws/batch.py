"""Rows of a batch do not know of each other."""

from __future__ import annotations

from typing import Any

from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial, skip


def _rows(trial: Trial, rows: Any) -> dict[str, Any]:
    options = dict(trial.options)
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 4 and mask.shape[0] > 1:
        options["attn_mask"] = mask[rows]
    for name in ("segment_ids", "block_ids", "decay", "position_ids"):
        if name in options:
            options[name] = options[name][rows]
    return options


def _batched(trial: Trial) -> Trial:
    return trial if trial.example.batch > 1 else trial.but(batch=3)


@law("order", family="batch")
def order(trial: Trial) -> None:
    """Rows of a batch in another order give the same outputs in that order."""
    import torch

    trial = _batched(trial)
    rows = torch.arange(trial.query.shape[0]).roll(1)
    found = trial.call(trial.query[rows], trial.key[rows], trial.value[rows], **_rows(trial, rows))
    trial.agree(found, trial.output[rows], 2 * trial.tolerance()[rows], "output of a batch in another order", rows=trial.rows()[rows])


@law("alone", family="batch")
def alone(trial: Trial) -> None:
    """A row gives alone what it gives in a batch."""
    trial = _batched(trial)
    for row in (0, trial.query.shape[0] - 1):
        part = slice(row, row + 1)
        found = trial.call(trial.query[part], trial.key[part], trial.value[part], **_rows(trial, part))
        trial.agree(
            trial.output[part],
            found,
            2 * trial.tolerance()[part],
            f"output of row {row} in its batch, against alone",
            rows=trial.rows()[part],
        )


@law("neighbours", family="batch")
def neighbours(trial: Trial) -> None:
    """What stands in the other rows of a batch changes nothing."""
    trial = _batched(trial)
    query, key, value = trial.query.clone(), trial.key.clone(), trial.value.clone()
    query[1:], key[1:], value[1:] = query[1:] * 3 + 1, -key[1:], value[1:] + 100
    found = trial.call(query, key, value)
    trial.agree(
        found[:1], trial.output[:1], 2 * trial.tolerance()[:1], "output of row 0 after its neighbours changed", rows=trial.rows()[:1]
    )


@law("twins", family="batch")
def twins(trial: Trial) -> None:
    """Rows that are the same give the same, each what it gives alone."""
    part = slice(0, 1)
    options = _rows(trial, part)
    query, key, value = (tensor[part] for tensor in (trial.query, trial.key, trial.value))
    wanted = trial.call(query, key, value, **options)

    def twice(tensor: Any) -> Any:
        return tensor.repeat(2, *[1] * (tensor.ndim - 1))

    mask = options.get("attn_mask")
    for name in ("segment_ids", "block_ids", "decay", "position_ids"):
        if name in options:
            options[name] = twice(options[name])
    if mask is not None and mask.ndim == 4:
        options["attn_mask"] = twice(mask)
    found = trial.call(twice(query), twice(key), twice(value), **options)
    for row, name in ((found[:1], "first"), (found[1:], "second")):
        trial.agree(
            row, wanted, 2 * trial.tolerance()[part], f"output of the {name} of two equal rows, against alone", rows=trial.rows()[part]
        )


@law("bitwise", family="batch", needs=claimed("deterministic=batch"))
def bitwise(trial: Trial) -> None:
    """Where batch invariance is claimed, a row gives the same bits in a batch of any size."""
    trial = _batched(trial)
    part = slice(0, 1)
    found = trial.call(trial.query[part], trial.key[part], trial.value[part], **_rows(trial, part))
    difference = (found - trial.output[part]).abs()
    different = (found != trial.output[part]) & trial.rows()[part][..., None]
    if bool(different.any()):
        raise LawViolation(
            f"{int(different.sum())} of {different.numel()} numbers of row 0 differ between a batch of 1 and of {trial.query.shape[0]}, "
            f"by up to {float(difference.max()):.3g}",
            "print((operator(q[:1], k[:1], v[:1], **options) - out[:1]).abs().max())",
        )


@law("longer_keys", family="batch")
def longer_keys(trial: Trial) -> None:
    """Every row of a batch is computed, also where there are many more keys than queries."""
    if trial.claims.causal and not trial.claims.alignment:
        raise skip("claims.alignment is not claimed")
    trial = trial.but(batch=3, queries=2, keys=70, mask="none", layout="contiguous")
    if not bool(trial.rows().all()):
        raise skip("some rows are empty")
    part = slice(2, 3)
    found = trial.call(trial.query[part], trial.key[part], trial.value[part], **_rows(trial, part))
    trial.agree(
        trial.output[part], found, 2 * trial.tolerance()[part], "output of row 2 in its batch, against alone", rows=trial.rows()[part]
    )
