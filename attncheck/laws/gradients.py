"""Gradients of query, key and value: those of the formula, finite, and those of the forward pass that was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncheck.core.claims import OperatorClaims
from attncheck.laws import dense
from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial, skip

if TYPE_CHECKING:
    from torch import Tensor


def _gradients(trial: Trial, output: Tensor, inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    import torch

    if not output.requires_grad:
        raise LawViolation("the output carries no gradient, though the inputs require one")
    found = torch.autograd.grad((output * weight).sum(), inputs, allow_unused=True)
    names = ("query", "key", "value", "position_bias")
    for name, gradient in zip(names, found, strict=False):
        if gradient is None:
            raise LawViolation(f"the gradient of {name} is missing: it is detached on the way")
    return [gradient for gradient in found if gradient is not None]


def _applicable(trial: Trial) -> None:
    if not bool(trial.rows().all()) and trial.claims.empty_rows not in ("zero",):
        raise skip("rows are empty, and claims.empty_rows is not zero")


@law("float64_autograd", family="gradients", needs=claimed("differentiable", "reference"))
def float64_autograd(trial: Trial) -> None:
    """Gradients of query, key, value and bias equal those of the formula in float64, on gaussian, structured and outlier-heavy inputs."""
    import torch

    _applicable(trial)
    if trial.example.magnitude > 100:
        raise skip("weights are all 0 or 1, and gradients are rounding")
    # leaves are views of their storage as the example has them, so that strides reach the backward pass
    leaves = [
        tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in (trial.query, trial.key, trial.value)
    ]
    options = dict(trial.options)
    exact = [tensor.detach().double().requires_grad_() for tensor in (trial.query, trial.key, trial.value)]
    precise = dict(trial.options)
    if options.get("position_bias") is not None:
        leaves.append(options["position_bias"].clone().requires_grad_())
        exact.append(options["position_bias"].double().requires_grad_())
        options["position_bias"], precise["position_bias"] = leaves[-1], exact[-1]
    weight = torch.randn(trial.output.shape, generator=trial.generator)
    weight = weight.masked_fill(~trial.rows()[..., None], 0.0)
    found = _gradients(trial, trial.call(*leaves[:3], **options), leaves, weight)
    twin = dense.attention(trial.claims, exact[0], exact[1], exact[2], precise)
    wanted = torch.autograd.grad((twin.output * weight.double()).sum(), exact)
    epsilon = torch.finfo(trial.query.dtype).eps
    scale = abs(trial.example.scale or trial.claims.scale_for(trial.query.shape[-1]))
    through = float((weight.double().abs().amax() * trial.value.double().abs().amax()) * trial.value.shape[-1])
    sharp = 32 + 8 * float(twin.sharpness.detach().max())
    group = trial.query.shape[1] // trial.key.shape[1]
    N = trial.query.shape[-2] * group
    sizes = (
        through * scale * float(trial.key.double().abs().max()),
        through * scale * float(trial.query.double().abs().max()) * min(N, 8),
        float(weight.abs().max()) * min(N, 8),
        through,
    )
    if trial.claims.qk_norm:
        # their size is divided out, and that of the gradient grows as they are small
        roots = [tensor.double().square().mean(-1).sqrt().amin().clamp(min=1e-6) for tensor in (trial.query, trial.key)]
        wide = through * scale * trial.query.shape[-1] ** 0.5
        sizes = (wide / float(roots[0]), wide / float(roots[1]) * min(N, 8), *sizes[2:])
    for name, a, b, size in zip(("query", "key", "value", "position_bias"), found, wanted, sizes, strict=False):
        every = torch.ones(a.shape[:-1], dtype=torch.bool)
        trial.agree(a, b, epsilon * sharp * size, f"gradient of {name}, against float64 autograd of the formula", rows=every)


@law("finite", family="gradients", needs=claimed("differentiable"))
def finite(trial: Trial) -> None:
    """Gradients are finite at any size of scores, and where rows see nothing if those are claimed to give zero."""
    import torch

    _applicable(trial)
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (trial.query, trial.key, trial.value)]
    found = _gradients(trial, trial.call(*leaves), leaves, torch.ones_like(trial.output))
    for name, gradient in zip(("query", "key", "value"), found, strict=True):
        wrong = ~gradient.isfinite()
        if bool(wrong.any()):
            place = [int(i) for i in wrong.nonzero()[0]]
            raise LawViolation(f"the gradient of {name} is not finite at {place}; {int(wrong.sum())} of {wrong.numel()} numbers are not")


@law("empty_rows", family="gradients", needs=claimed("differentiable", "mask", "empty_rows=zero"))
def empty_rows(trial: Trial) -> None:
    """Rows that see nothing send no gradient anywhere, and none of it is NaN."""
    import torch

    kind = trial.example.mask if trial.example.mask != "none" else (trial.claims.mask or ("bool",))[0]
    trial = trial.but(mask=kind, pattern="empty", causal=False, mask_shape="full")
    empty = ~trial.rows()
    if not bool(empty.any()):
        raise skip("no row is empty")
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (trial.query, trial.key, trial.value)]
    weight = torch.zeros_like(trial.output).masked_fill(empty[..., None], 1.0)
    for name, gradient in zip(("query", "key", "value"), _gradients(trial, trial.call(*leaves), leaves, weight), strict=True):
        worst = float(gradient.abs().nan_to_num(nan=torch.inf).max())
        if worst > 0:
            raise LawViolation(f"the gradient of {name} through rows that see nothing is {worst:.3g}, not 0")


@law("unread", family="gradients", needs=claimed("differentiable", "causal"))
def unread(trial: Trial) -> None:
    """Keys and values that no query reads get no gradient."""
    import torch

    _applicable(trial)
    seen = trial.visible.any(-2)
    group = trial.query.shape[1] // trial.key.shape[1]
    read = seen.view(seen.shape[0], trial.key.shape[1], group, -1).any(2)
    if trial.claims.qk_norm == "width":
        read = read.any(1, keepdim=True).expand_as(read)
    if bool(read.all()):
        raise skip("every key is read")
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (trial.query, trial.key, trial.value)]
    found = _gradients(trial, trial.call(*leaves), leaves, torch.ones_like(trial.output))
    for name, gradient in zip(("key", "value"), found[1:], strict=True):
        worst = float(gradient[~read].abs().nan_to_num(nan=torch.inf).max())
        if worst > 0:
            raise LawViolation(f"the gradient of a {name} that no query reads is {worst:.3g}, not 0")


def _no_reference(claims: OperatorClaims) -> str | None:
    if claims.reference:
        return "claims.reference gives exact gradients, checked by gradients-float64_autograd"
    return claimed("differentiable")(claims)


@law("finite_difference", family="gradients", needs=_no_reference)
def finite_difference(trial: Trial) -> None:
    """The gradient along a direction equals the difference quotient along it, in float64."""
    import torch

    _applicable(trial)
    if trial.example.magnitude > 1 or trial.example.inputs != "gaussian":
        raise skip("difference quotients need scores of ordinary size")
    options: dict[str, Any] = {
        name: given.double() if isinstance(given, torch.Tensor) and given.is_floating_point() else given
        for name, given in trial.options.items()
    }
    leaves = [tensor.detach().double().clone().requires_grad_() for tensor in (trial.query, trial.key, trial.value)]
    output = trial.call(leaves[0], leaves[1], leaves[2], **options)
    if output.dtype != torch.float64:
        raise skip("the operator does not compute in float64")
    weight = torch.randn(output.shape, generator=trial.generator, dtype=torch.float64).masked_fill(~trial.rows()[..., None], 0.0)
    found = _gradients(trial, output, leaves, weight)
    for at, name in enumerate(("query", "key", "value")):
        step = torch.randn(leaves[at].shape, generator=trial.generator, dtype=torch.float64)
        sides = []
        for sign in (1e-5, -1e-5):
            moved = [leaf.detach() + sign * step if index == at else leaf.detach() for index, leaf in enumerate(leaves)]
            sides.append((trial.call(moved[0], moved[1], moved[2], **options) * weight).sum())
        quotient = (sides[0] - sides[1]) / 2e-5
        along = (found[at] * step).sum()
        size = float((found[at] * step).abs().sum()) + 1e-3 * float(weight.abs().sum())
        every = torch.ones(1, 1, dtype=torch.bool)
        trial.agree(along.view(1, 1, 1), quotient.view(1, 1, 1), 1e-5 * size, f"derivative along a direction of {name}", rows=every)
