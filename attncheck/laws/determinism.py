"""Repeating, dropout, history and half precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from attncheck.core.claims import OperatorClaims
from attncheck.laws import dense
from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial, skip


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@law("repeats", family="determinism", needs=claimed("deterministic=forward"))
def repeats(trial: Trial) -> None:
    """The same call gives the same bits again, whatever the state of the random number generator."""
    with _seeded(1):
        first = trial.call()
    with _seeded(2):
        again = trial.call()
    different = (first != again) & ~(first.isnan() & again.isnan())
    if bool(different.any()):
        raise LawViolation(
            f"{int(different.sum())} of {different.numel()} numbers differ between two calls, "
            f"by up to {float((first - again).abs().max()):.3g}",
            "print((operator(q, k, v, **options) - out).abs().max())",
        )


@law("history", family="determinism", needs=claimed("deterministic=forward"), sweeps=True)
def history(trial: Trial) -> None:
    """Calls of other lengths, with gradients if those are claimed, leave no trace: the same call gives the same bits afterwards."""
    first = trial.call()
    for queries in (2 * trial.example.queries + 70, 1):
        other = trial.but(queries=queries, keys=queries if trial.example.queries == trial.example.keys else trial.example.keys)
        recorded = bool(trial.claims.differentiable)
        other.call(*(tensor.detach().clone().requires_grad_(recorded) for tensor in (other.query, other.key, other.value)))
    again = trial.call()
    different = (first != again) & ~(first.isnan() & again.isnan())
    if bool(different.any()):
        raise LawViolation(f"after a longer and a shorter call {int(different.sum())} of {different.numel()} numbers differ")


@law("backward_repeats", family="determinism", needs=claimed("deterministic=backward", "differentiable"))
def backward_repeats(trial: Trial) -> None:
    """Two backward passes of the same call give the same bits."""
    import torch

    runs = []
    for _ in range(2):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (trial.query, trial.key, trial.value)]
        runs.append(torch.autograd.grad(trial.call(*leaves).sum(), leaves))
    for name, a, b in zip(("query", "key", "value"), *runs, strict=True):
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            raise LawViolation(f"the gradient of {name} differs between two backward passes")


@law("dropout_off", family="determinism", needs=claimed("dropout"))
def dropout_off(trial: Trial) -> None:
    """A dropout of 0 drops nothing."""
    with _seeded(1):
        found = trial.call(dropout_p=0.0)
    with _seeded(2):
        again = trial.call()
    trial.agree(found, again, 0.0, "output with dropout_p=0, against a second call without it")


def _dropped(claims: OperatorClaims) -> str | None:
    return claimed("dropout=weights_rescaled")(claims)


@law("dropout_mean", family="determinism", needs=_dropped, sweeps=True)
def dropout_mean(trial: Trial) -> None:
    """The mean over dropouts is the output without, and the masked keys stay masked."""
    import torch

    runs = 64
    with _seeded(3):
        weights = torch.stack([trial.but(seed=trial.example.seed).call(dropout_p=0.5) for _ in range(runs)]).double()
    mean, without = weights.mean(0), trial.output.double()
    spread = weights.std(0) / runs**0.5
    # 10 standard errors: a false alarm in far less than one of a million numbers
    limit = 10 * spread + 0.1 * float(trial.value.abs().max()) + trial.tolerance()
    trial.agree(mean, without, limit, f"mean of {runs} outputs with dropout_p=0.5")


@law("dropout_support", family="determinism", needs=_dropped)
def dropout_support(trial: Trial) -> None:
    """Under dropout a query still reads no key that it must not."""
    with _seeded(4):
        gentle = trial.but(magnitude=1.0, inputs="gaussian")
        width = gentle.value.shape[-1]
        hidden = ~gentle.visible
        if not bool((hidden & gentle.rows()[..., None]).any()):
            raise skip("no key is masked")
        import torch

        value = torch.zeros_like(gentle.value, memory_format=torch.contiguous_format)
        found = []
        for start in range(0, gentle.key.shape[-2], width):
            probe = value.clone()
            stop = min(start + width, gentle.key.shape[-2])
            probe[..., torch.arange(start, stop), torch.arange(stop - start)] = 1.0
            found.append(gentle.call(value=probe, dropout_p=0.2)[..., : stop - start])
        weights = torch.cat(found, -1)
    leaked = (weights.abs() > 1e-6) & hidden & gentle.rows()[..., None]
    if bool(leaked.any()):
        b, h, i, j = (int(n) for n in leaked.nonzero()[0])
        raise LawViolation(
            f"with dropout_p=0.2 query {i} reads key {j}, which is masked (batch {b}, head {h})",
            "print(operator(q, k, v, dropout_p=0.2, **options))",
        )


@law("dropout_backward", family="determinism", needs=lambda claims: _dropped(claims) or claimed("differentiable")(claims))
def dropout_backward(trial: Trial) -> None:
    """Forward and backward drop the same weights: the output is linear in the values, so ⟨output, g⟩ = ⟨values, their gradient⟩."""
    import torch

    value = trial.value.detach().clone().requires_grad_()
    weight = torch.randn(trial.output.shape, generator=trial.generator).masked_fill(~trial.rows()[..., None], 0.0)
    if not bool(trial.rows().all()):
        raise skip("rows are empty")
    with _seeded(5):
        output = trial.call(value=value, dropout_p=0.5)
        (gradient,) = torch.autograd.grad((output * weight).sum(), [value])
    one, other = (output.detach().double() * weight).sum(), (value.detach().double() * gradient).sum()
    size = (output.detach().double() * weight).abs().sum() + (value.detach().double() * gradient).abs().sum()
    every = torch.ones(1, 1, dtype=torch.bool)
    trial.agree(
        other.view(1, 1, 1),
        one.view(1, 1, 1),
        1e-5 * size + 1e-9,
        "⟨values, gradient⟩, against ⟨output, g⟩ of the same dropout",
        rows=every,
    )


def _half(claims: OperatorClaims) -> str | None:
    if missing := claimed("reference", "dtypes")(claims):
        return missing
    return None if set(claims.dtypes or ()) & {"float16", "bfloat16"} else f"claims.dtypes is {claims.dtypes}, without float16 or bfloat16"


@law("half_precision", family="determinism", needs=_half, sweeps=True)
def half_precision(trial: Trial) -> None:
    """In float16 and bfloat16 the error is at most a small multiple of that of the plain formula with float32 softmax in the same dtype."""
    import torch

    for name in trial.claims.dtypes or ():
        if name not in ("float16", "bfloat16"):
            continue
        changed = trial.but(dtype=name, magnitude=min(trial.example.magnitude, 40.0))
        if changed.example.inputs == "shifted":
            raise skip("keys of 500 lose their differences in half precision")
        options = {k: v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in changed.options.items()}
        twin = dense.attention(changed.claims, changed.query, changed.key, changed.value, options)
        group = changed.query.shape[1] // changed.value.shape[1]
        value = changed.value.repeat_interleave(group, 1)
        rounded = (twin.weights.to(changed.query.dtype).double() @ value.double()).to(changed.query.dtype).double()
        rows = changed.rows()[..., None]
        error = ((changed.output.double() - twin.output).abs() * rows).nan_to_num(nan=torch.inf).amax()
        usual = ((rounded - twin.output).abs() * rows).amax()
        # scores may be kept in the half dtype too: their rounding, relative to their size, moves weights as much
        size = float(twin.scores.masked_fill(~twin.visible, 0.0).abs().max())
        limit = 8 * float(usual) + torch.finfo(changed.query.dtype).eps * (4 + min(size, 20.0) * 2) * float(value.abs().max())
        if not float(error) <= limit:
            raise LawViolation(
                f"in {name} the error is {float(error):.3g}; the plain formula in {name} has {float(usual):.3g}, and {limit:.3g} is allowed"
            )


@law("half_range", family="determinism", needs=lambda claims: claimed("normalised", "dtypes=float16")(claims))
def half_range(trial: Trial) -> None:
    """In float16, products q·k above 65504 that the scale brings below it give finite outputs inside the values' range."""
    import torch

    changed = trial.but(dtype="float16", scale=None, inputs="gaussian", magnitude=1.0, width=64, layout="contiguous")
    if changed.claims.scale_for(64) > 0.2:
        raise skip("the scale is not below 0.2 at d=64")
    # all-equal vectors: every product is 64 · 40 · 40 = 102400, and an eighth of it where the scale is 1/√64
    query, key = torch.full_like(changed.query, 40.0), torch.full_like(changed.key, 40.0)
    found = changed.call(query, key).double()
    outside = ~(found.abs() <= 1.01 * float(changed.value.abs().max())) & changed.rows()[..., None]
    if bool(outside.any()):
        worst = float(found[outside][0])
        raise LawViolation(f"with products of 102400, {int(outside.sum())} of {outside.numel()} outputs are not finite or outside: {worst}")
