"""What happens to scores on their way into weights: scale, cap, sinks, size, shifts."""

from __future__ import annotations

import math

from attncheck.core.claims import OperatorClaims
from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial, accepts, skip

MAGNITUDES = (1e-3, 1.0, 30.0, 1e3, 1e5)


def _softmax(claims: OperatorClaims) -> str | None:
    return claimed("reference=softmax")(claims)


@law("default_scale", family="scores", needs=claimed("scale"))
def default_scale(trial: Trial) -> None:
    """Without a scale the claimed one is applied: giving it as an argument changes nothing."""
    if not accepts(trial.operator, "scale"):
        raise skip("the operator takes no scale")
    trial = trial.but(scale=None)
    found = trial.call(scale=trial.claims.scale_for(trial.query.shape[-1]))
    trial.agree(found, trial.output, 2 * trial.tolerance(), f"output with scale={trial.claims.scale}, against none given")


def _scaled(claims: OperatorClaims) -> str | None:
    return "claims.qk_norm undoes what the query is multiplied with" if claims.qk_norm else claimed("scale")(claims)


@law("given_scale", family="scores", needs=_scaled, sweeps=True)
def given_scale(trial: Trial) -> None:
    """A scale that is given acts as if the query had been multiplied by it."""
    if not accepts(trial.operator, "scale"):
        raise skip("the operator takes no scale")
    trial = trial.but(scale=None)
    default = trial.claims.scale_for(trial.query.shape[-1])
    for scale in (0.31 * default, 2.7 * default, 1.0):
        found = trial.call(scale=scale)
        wanted = trial.call(query=trial.query * (scale / default))
        sharper = trial.expected.sharpness * max(1.0, scale / default)
        limit = 4 * trial.tolerance(sharper)
        if not (trial.claims.normalised or trial.claims.reference):
            limit = limit + 1e-5 * wanted.double().abs().amax((-2, -1), keepdim=True)  # weights grow with the scale, by any power
        trial.agree(found, wanted, limit, f"output with scale={scale:.4g}, against the query multiplied")


@law("signed_scale", family="scores", needs=claimed("signed_scale"))
def signed_scale(trial: Trial) -> None:
    """A scale of 0 makes every score 0, and a negative one turns the order of the keys around, as a negative query does."""
    import torch

    if not accepts(trial.operator, "scale"):
        raise skip("the operator takes no scale")
    trial = trial.but(scale=0.5)
    for scale, query in ((0.0, torch.zeros_like(trial.query)), (-0.5, -trial.query)):
        found, wanted = trial.call(scale=scale), trial.call(query=query)
        trial.agree(
            found,
            wanted,
            4 * trial.tolerance(),
            f"output with scale={scale}, against the query multiplied",
            then=f"print(operator(q, k, v, **{{**options, 'scale': {scale}}}))",
        )


@law("magnitudes", family="scores", needs=_softmax, sweeps=True)
def magnitudes(trial: Trial) -> None:
    """Scores of any size from 1e-3 to 1e5 give finite outputs that equal the formula."""
    for magnitude in MAGNITUDES:
        changed = trial.but(magnitude=magnitude)
        changed.agree(changed.output, changed.expected.output, changed.tolerance(), f"output at scores of about {magnitude:g}")


@law("row_shift", family="scores", needs=claimed("normalised", "mask=additive"), sweeps=True)
def row_shift(trial: Trial) -> None:
    """Adding one number to all scores of a row changes nothing, from −1e4 to 1e4."""
    import torch

    if trial.example.sinks:
        trial = trial.but(sinks=False)
    if trial.example.mask != "additive":
        trial = trial.but(mask="additive", causal=False)
    mask = trial.options.get("attn_mask")
    if mask is None:
        raise skip("no additive mask goes with this example")
    for shift in (-1e4, -300.0, 300.0, 1e4):
        found = trial.call(attn_mask=mask + torch.full((), shift, dtype=mask.dtype))
        limit = trial.tolerance() + trial.tolerance(trial.expected.sharpness + abs(shift))
        trial.agree(found, trial.output, limit, f"output after {shift:g} was added to every score")


@law("key_shift", family="scores", needs=claimed("causal", "normalised"))
def key_shift(trial: Trial) -> None:
    """Scores far below zero hide nothing and show nothing: the weights of keys that must be unread stay exactly zero."""
    shifted = trial.but(inputs="shifted", scale=1.0 if accepts(trial.operator, "scale") else None, magnitude=1.0, sinks=False)
    if isinstance(shifted.claims.softcap, float) or shifted.example.softcap:
        shifted = shifted.but(softcap=None)
    weights = shifted.weights().masked_fill(shifted.visible | ~shifted.rows()[..., None], 0)
    worst = float(weights.abs().nan_to_num(nan=1.0).max())
    if worst > 0:
        raise LawViolation(
            f"with scores of about {float(shifted.expected.scores.abs().nan_to_num(posinf=0).max()):.3g}, a masked weight is {worst:.3g}"
        )


@law("softcap", family="scores", needs=claimed("softcap"))
def softcap(trial: Trial) -> None:
    """No two weights of a row differ by more than the factor exp(2·cap), and small scores pass the cap unchanged."""
    import torch

    fixed = trial.claims.softcap
    cap = float(fixed) if isinstance(fixed, int | float) else 2.0
    changed = trial.but(softcap=None if isinstance(fixed, int | float) else cap, magnitude=50.0, bias=False, inputs="gaussian", scale=None)
    if changed.options.get("attn_mask") is not None and changed.options["attn_mask"].dtype != torch.bool:
        changed = changed.but(mask="none")
    if changed.claims.position_bias == "alibi" or cap > 15:
        raise skip("the weights would be too small to compare")
    weights = changed.weights().masked_fill(~changed.rows()[..., None], 1.0)
    largest = weights.masked_fill(~changed.visible, 0).amax(-1)
    least = weights.masked_fill(~changed.visible, torch.inf).amin(-1)
    spread = (largest / least.clamp(min=1e-300)).masked_fill(~changed.rows(), 1.0)
    most = math.exp(2 * cap)
    if float(spread.max()) > 1.01 * most:
        raise LawViolation(f"weights of one row differ by a factor {float(spread.max()):.4g}; a cap of {cap} allows {most:.4g}")
    if fixed == "argument":
        small = trial.but(softcap=1e4, magnitude=1.0, inputs="gaussian")
        found = small.call(without=("softcap",))
        small.agree(small.output, found, 4 * small.tolerance() + 1e-6, "output with a cap far above all scores, against none")


@law("sinks", family="scores", needs=claimed("sinks"))
def sinks(trial: Trial) -> None:
    """A sink of −1e4 takes nothing; a sink s takes exp(s) / (exp(s) + Σ exp(scores)) of each row, at any number of queries."""
    import torch

    trial = trial.but(sinks=True, magnitude=min(trial.example.magnitude, 1.0), inputs="gaussian")
    heads = trial.query.shape[1]
    low = torch.full((heads,), -1e4, dtype=trial.query.dtype)
    trial.agree(trial.call(sinks=low), trial.call(without=("sinks",)), 2 * trial.tolerance(), "output with a sink of −1e4, against none")
    if trial.claims.reference:
        ones = torch.ones_like(trial.value)
        left = trial.expected.weights.sum(-1, keepdim=True)
        trial.agree(
            trial.call(value=ones), left.expand(*left.shape[:-1], ones.shape[-1]), trial.tolerance(None, ones), "share that the sink leaves"
        )


@law("key_permutation", family="scores", needs=claimed("positional=none"))
def key_permutation(trial: Trial) -> None:
    """Where no position enters, keys and values in another order give the same."""
    import torch

    trial = trial.but(causal=False, mask="none")
    if not bool(trial.visible.all()):
        raise skip("a position enters")
    order = torch.randperm(trial.key.shape[-2], generator=trial.generator)
    found = trial.call(key=trial.key[..., order, :], value=trial.value[..., order, :])
    trial.agree(found, trial.output, 2 * trial.tolerance(), "output after keys and values were permuted together")
