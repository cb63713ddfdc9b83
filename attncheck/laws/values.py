"""Attention as a map of its values: linear, inside their convex hull, with rows that sum to what is claimed."""

from __future__ import annotations

from attncheck.core.claims import OperatorClaims
from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial, skip


def _hull(claims: OperatorClaims) -> str | None:
    return claimed("normalised", "nonnegative")(claims)


@law("linear", family="values", needs=claimed("linear_in_values"))
def linear(trial: Trial) -> None:
    """Attention of 2·v1 − 3·v2 is 2 times that of v1 minus 3 times that of v2."""
    import torch

    other = torch.randn(trial.value.shape, generator=trial.generator).to(trial.value.dtype)
    both = 2 * trial.value - 3 * other
    found = trial.call(value=both)
    wanted = 2 * trial.output.double() - 3 * trial.call(value=other).double()
    limit = 3 * trial.tolerance(0.0) + 3 * trial.tolerance(0.0, other) + trial.tolerance(0.0, both)
    if not trial.claims.nonnegative:
        limit = limit + 1e-5 * wanted.abs().amax(-1, keepdim=True)
    trial.agree(found, wanted, limit, "output of 2·v1 − 3·v2", then="print(operator(q, k, 2 * v, **options) - 2 * out)")


@law("convex_hull", family="values", needs=_hull)
def convex_hull(trial: Trial) -> None:
    """Every output lies between the least and the largest of the values that its query may read, with 0 among them if there are sinks."""
    import torch

    group = trial.query.shape[1] // trial.value.shape[1]
    value = trial.value.double().repeat_interleave(group, 1)[:, :, None]
    seen = trial.visible[..., None]
    low = value.masked_fill(~seen, torch.inf).amin(-2)
    high = value.masked_fill(~seen, -torch.inf).amax(-2)
    if trial.options.get("sinks") is not None:
        low, high = low.clamp(max=0), high.clamp(min=0)
    found = trial.output.double()
    inside = torch.minimum(torch.maximum(found, low), high)
    trial.agree(found, inside, trial.tolerance(0.0), "output outside the hull of its values; nearest inside")


@law("row_sums", family="values", needs=claimed("normalised"))
def row_sums(trial: Trial) -> None:
    """Rows of weights sum to 1; with sinks, to the share that the sink leaves."""
    import torch

    wanted = torch.ones(trial.query.shape[:-1], dtype=torch.float64)
    if trial.options.get("sinks") is not None:
        if not trial.claims.reference:
            raise skip("what a sink takes follows from a claimed reference")
        wanted = trial.expected.weights.sum(-1)
    sums = trial.weights().sum(-1)
    ones = torch.ones_like(trial.value)
    limit = trial.tolerance(None if trial.options.get("sinks") is not None else 0.0, ones)
    trial.agree(sums[..., None], wanted[..., None], limit, "sum of a row's weights")


@law("signs", family="values", needs=claimed("nonnegative"))
def signs(trial: Trial) -> None:
    """No weight is negative."""
    weights = trial.weights().masked_fill(~trial.rows()[..., None], 0)
    if float(weights.min()) < 0:
        raise LawViolation(f"a weight is {float(weights.min()):.3g}; {int((weights < 0).sum())} are below 0")
