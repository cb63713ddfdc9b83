"""A budget of keys: how many are kept, that only those are read, and that causality goes by where they were."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attncheck.laws import dense
from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial, skip

if TYPE_CHECKING:
    from torch import Tensor

RATIOS = (0.2, 0.5, 0.75, 0.95)
"""Shares of keys that are evicted."""


def _kept(trial: Trial, ratio: Any) -> tuple[Tensor, Tensor]:
    """Output and kept keys [batch, kv_heads, M]."""
    import torch

    found = trial.returned(trial.query, trial.key, trial.value, **trial.options, ratio=ratio)
    shape = (*trial.key.shape[:2], trial.key.shape[-2])
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], torch.Tensor)):
        raise LawViolation(f"with ratio={ratio} the operator returned {type(found).__name__}, not its output and the kept keys")
    if tuple(found[1].shape) != shape or found[1].dtype != torch.bool:
        raise LawViolation(f"the kept keys are {found[1].dtype} {list(found[1].shape)}, not booleans {list(shape)}")
    return found[0], found[1]


def _counted(trial: Trial, ratio: Any, share: float) -> None:
    M = trial.key.shape[-2]
    counts = _kept(trial, ratio)[1].sum(-1)
    # a product of shares may lie a rounding below a whole number
    least, most = max(1, math.floor(M * share - 1e-6)), max(1, math.ceil(M * share + 1e-6))
    wrong = (counts < least) | (counts > most)
    if bool(wrong.any()):
        raise LawViolation(
            f"of {M} keys {int(counts[wrong][0])} are kept with ratio={ratio}, not {least}" + (f" to {most}" if most > least else ""),
            f"print(operator(q, k, v, **options, ratio={ratio})[1].sum(-1))",
        )


@law("count", family="budget", needs=claimed("budget"), sweeps=True)
def count(trial: Trial) -> None:
    """Of M keys M·(1 − ratio) are kept, rounded either way, and never none."""
    for keys in (1, 2, 3, trial.example.keys, 40):
        for ratio in RATIOS:
            _counted(trial.but(queries=keys, keys=keys, pattern="ones"), ratio, 1 - ratio)


@law("composed", family="budget", needs=claimed("budget"), sweeps=True)
def composed(trial: Trial) -> None:
    """Two evictions, one after the other, leave the product of what each leaves."""
    for first, second in ((0.5, 0.5), (0.2, 0.75)):
        _counted(trial.but(queries=40, keys=40, pattern="ones"), (first, second), (1 - first) * (1 - second))


@law("nothing", family="budget", needs=claimed("budget"))
def nothing(trial: Trial) -> None:
    """With a ratio of 0 every key is kept, and the output is that without a budget."""
    output, kept = _kept(trial, 0.0)
    if not bool(kept.all()):
        raise LawViolation(f"with ratio=0 {int((~kept).sum())} of {kept.numel()} keys are evicted")
    trial.agree(output, trial.output, 2 * trial.tolerance(), "output with ratio=0, against none")


@law("kept_keys", family="budget", needs=claimed("budget"))
def kept_keys(trial: Trial) -> None:
    """With a budget the output is that over the kept keys alone, each of which is where it was: a query reads those that are not later."""
    import torch

    claims = trial.claims
    trial = trial.but(mask="none")
    masked = "bool" in (claims.mask or ()) and (not trial.example.causal or claims.mask_with_causal == "allowed")
    if not masked and not claims.reference:
        raise skip("neither a mask nor a reference says what attention over some keys is")
    group = trial.query.shape[1] // trial.key.shape[1]
    for ratio in RATIOS[:3]:
        output, kept = _kept(trial, ratio)
        keep = kept.repeat_interleave(group, 1)[:, :, None].expand(*trial.query.shape[:-1], -1)
        rows = (trial.visible & keep).any(-1)
        options = {**trial.options, "attn_mask": keep if claims.mask_polarity == "keep" else ~keep}
        if masked:
            wanted = trial.call(**options)
        else:
            wanted = dense.attention(claims, trial.query, trial.key, trial.value, options).output.to(torch.float64)
        trial.agree(output, wanted, 2 * trial.tolerance(), f"output with ratio={ratio}, against attention over the kept keys", rows=rows)


@law("least_weight", family="budget", needs=claimed("budget", "evicts=least_weight"))
def least_weight(trial: Trial) -> None:
    """What is evicted has no more weight, summed over the queries that read the key, than anything that is kept."""
    trial = trial.but(mask="none", magnitude=min(trial.example.magnitude, 5.0))
    weights = trial.weights()
    group = trial.query.shape[1] // trial.key.shape[1]
    mass = weights.sum(-2).view(len(weights), trial.key.shape[1], group, -1).sum(2)
    for ratio in RATIOS[:3]:
        kept = _kept(trial, ratio)[1]
        excess = mass.masked_fill(kept, -math.inf).amax(-1) - mass.masked_fill(~kept, math.inf).amin(-1)
        # equal ones may go either way
        worst = float(excess.max())
        if worst > 1e-4 * max(1.0, float(mass.max())):
            raise LawViolation(f"with ratio={ratio} a key is evicted that has {worst:.3g} more weight than one that is kept")
