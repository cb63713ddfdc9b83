"""Which keys a query reads: no others, all of those, whatever form the mask has."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from attncheck.laws.picture import of_weights
from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial, skip

if TYPE_CHECKING:
    from torch import Tensor

POISON = 1e4


def _gentle(trial: Trial) -> Trial:
    """The same places with scores of ordinary size, so that every visible weight is measurable."""
    return trial.but(magnitude=1.0, inputs="gaussian", dtype="float32", scale=None)


def _measurable(trial: Trial) -> Tensor:
    """Pairs whose score is within 14 of the row's largest, so that a softmax would give them a weight above 1e-6 / M."""
    scores = trial.expected.scores
    return scores.amax(-1, keepdim=True) - scores < 14


def pairs(trial: Trial) -> None:
    """Raise where the operator's own weights contradict the declared pairs, either way."""
    weights, seen = trial.weights(), trial.visible
    rows = trial.rows()[..., None]
    extra = (weights.abs() > 1e-6) & ~seen & rows
    missing = (weights.abs() < 1e-9) & seen & _measurable(trial)
    # a weight may be 0 by chance where rows are not softmax; those are told by a second draw
    if not (trial.claims.reference or trial.claims.nonnegative) and bool(missing.any()):
        again = trial.but(seed=trial.example.seed + 1000)
        missing &= (weights == 0) & (again.weights() == 0) & again.visible
    for found, what in ((extra, "reads a key that it must not"), (missing, "does not read a key that it may")):
        if bool(found.any()):
            b, h, i, j = (int(n) for n in found.nonzero()[0])
            raise LawViolation(
                f"query {i} {what}: key {j} (batch {b}, head {h}), weight {float(weights[b, h, i, j]):.3g}; "
                f"{int(found.sum())} of {found.numel()} pairs are wrong",
                f"v.zero_(); v[{b}, :, {j}] = 1; print(operator(q, k, v, **options)[{b}, {h}, {i}])",
                functools.partial(of_weights, trial, b, h, cells=[(int(n), int(m)) for n, m in found[b, h].nonzero()]),
            )


@law("influence", family="masks", needs=claimed("causal"))
def influence(trial: Trial) -> None:
    """The pairs of query and key that have influence are exactly those that causality, window and mask declare."""
    pairs(_gentle(trial))


@law("exact_zeros", family="masks", needs=claimed("causal"))
def exact_zeros(trial: Trial) -> None:
    """A key that a query may not read has weight exactly 0, at any size of scores."""
    import torch

    weights = trial.weights().masked_fill(trial.visible | ~trial.rows()[..., None], 0)
    worst = float(weights.abs().nan_to_num(nan=1.0).max())
    if worst > 0:
        b, h, *_ = (int(n) for n in torch.unravel_index(weights.abs().nan_to_num(nan=1.0).argmax(), weights.shape))
        raise LawViolation(
            f"{int((weights != 0).sum())} masked weights are not 0; the largest is {worst:.3g}",
            picture=functools.partial(of_weights, trial, b, h, cells=[(int(n), int(m)) for n, m in (weights[b, h] != 0).nonzero()]),
        )


def _unread(trial: Trial) -> tuple[int, Tensor]:
    """First query, from the front, below which some keys are unread by every query; the keys' mask [batch, kv_heads, M]."""
    import torch

    seen = trial.visible
    N = seen.shape[-2]
    groups = trial.query.shape[1] // trial.key.shape[1]
    for rows in (N, max(1, (N + 1) // 2), 1):
        read = seen[..., :rows, :].any(-2)
        read = read.view(read.shape[0], trial.key.shape[1], groups, -1).any(2)
        if trial.claims.qk_norm == "width":  # a key enters the norm of all heads
            read = read.any(1, keepdim=True).expand_as(read)
        if not bool(read.all()):
            return rows, ~read
    return 0, torch.zeros(0)


@law("poison", family="masks", needs=claimed("causal"))
def poison(trial: Trial) -> None:
    """Keys and values that no query of a range may read can be replaced by 1e4 and change nothing for that range."""
    _poisoned(trial, POISON, "1e4")


@law("poison_nan", family="masks", needs=claimed("nan_safe", "causal"))
def poison_nan(trial: Trial) -> None:
    """Where NaN safety is claimed, keys and values that must be unread may be NaN."""
    _poisoned(trial, float("nan"), "NaN")


def _poisoned(trial: Trial, amount: float, name: str) -> None:
    rows, unread = _unread(trial)
    if not rows:
        raise skip("every key is read by every query")
    hidden = unread[..., None]
    key, value = trial.key.masked_fill(hidden, amount), trial.value.masked_fill(hidden, amount)
    # both alone and together: a leak through the denominator shows in keys only
    for k, v, what in ((key, trial.value, "keys"), (trial.key, value, "values"), (key, value, "keys and values")):
        found = trial.call(key=k, value=v)[..., :rows, :]
        trial.agree(
            found,
            trial.output[..., :rows, :],
            trial.tolerance()[..., :rows, :],
            f"output of queries 0..{rows - 1} after unread {what} became {name}",
            rows=trial.rows()[..., :rows],
        )


@law("all_ones", family="masks", needs=claimed("mask"))
def all_ones(trial: Trial) -> None:
    """A mask that hides nothing gives the same as no mask."""
    import torch

    base = trial.but(mask="none")
    if base.options.get("is_causal") and base.claims.mask_with_causal != "allowed":
        base = base.but(causal=False)
    if base.claims.causal is True and base.claims.mask_with_causal != "allowed":
        raise skip("claims.mask_with_causal is not allowed and the operator is always causal")
    N, M = base.query.shape[-2], base.key.shape[-2]
    for kind in base.claims.mask or ():
        keep = base.claims.mask_polarity == "keep"
        mask = torch.full((N, M), keep) if kind == "bool" else torch.zeros(N, M, dtype=base.query.dtype)
        found = base.call(attn_mask=mask)
        base.agree(found, base.output, 2 * base.tolerance(), f"output with a {kind} mask that hides nothing, against no mask")


@law("forms", family="masks", needs=claimed("mask"))
def forms(trial: Trial) -> None:
    """A broadcast mask gives what the same mask gives when written out in full, as booleans and as −inf or the dtype's least number."""
    import torch

    trial = trial.but(decay=False)  # which heeds masks of padding alone
    trial = trial if trial.options.get("attn_mask") is not None else trial.but(mask=(trial.claims.mask or ("bool",))[0], causal=False)
    mask = trial.options.get("attn_mask")
    if mask is None:
        raise skip("no mask goes with these claims")
    shape = (trial.query.shape[0], trial.query.shape[1], trial.query.shape[-2], trial.key.shape[-2])
    written = [("written out in full", mask.expand(shape).contiguous())]
    if mask.dtype == torch.bool and "additive" in (trial.claims.mask or ()):
        keep = mask if trial.claims.mask_polarity == "keep" else ~mask
        least = torch.finfo(trial.query.dtype).min
        for fill, name in ((-torch.inf, "-inf"), (least, "the least number")):
            written.append((f"as {name}", torch.zeros(keep.shape, dtype=trial.query.dtype).masked_fill(~keep, fill)))
    for name, other in written:
        trial.agree(trial.call(attn_mask=other), trial.output, 2 * trial.tolerance(), f"output with the mask {name}")


@law("empty_rows", family="masks", needs=claimed("empty_rows", "mask"))
def empty_rows(trial: Trial) -> None:
    """A row that may read no key gives what is claimed for it, zero, NaN or the mean of the values, and leaves other rows alone."""
    import torch

    wanted = trial.claims.empty_rows
    if wanted == "unspecified":
        raise skip("claims.empty_rows is unspecified")
    if trial.example.pattern != "empty" or trial.example.mask == "none":
        kind = (trial.claims.mask or ("bool",))[0] if trial.example.mask == "none" else trial.example.mask
        trial = trial.but(pattern="empty", mask=kind, mask_shape="full", causal=False)
    empty = ~trial.rows()
    if not bool(empty.any()):
        raise skip("no row is empty")
    found = trial.output[empty].double()
    if wanted == "nan":
        right = bool(found.isnan().all())
    else:
        group = trial.query.shape[1] // trial.value.shape[1]
        mean = trial.value.double().mean(-2, keepdim=True).repeat_interleave(group, 1).expand(trial.output.shape)
        goal = torch.zeros_like(found) if wanted == "zero" else mean[empty]
        right = bool(((found - goal).abs() <= 1e-4 * float(trial.value.abs().max())).all())
    if not right:
        raise LawViolation(f"rows that see nothing give {[round(x, 4) for x in found[0, :4].tolist()]}, not {wanted}", "print(out)")
    filled = trial.options["attn_mask"]
    keep = filled.dtype == torch.bool and trial.claims.mask_polarity == "keep"
    some = torch.ones_like(filled) if keep else torch.zeros_like(filled)
    if filled.shape != trial.visible.shape:
        return
    other = torch.where(empty[..., None], some, filled)
    trial.agree(trial.call(attn_mask=other), trial.output, 2 * trial.tolerance(), "other rows once the empty rows see every key")
