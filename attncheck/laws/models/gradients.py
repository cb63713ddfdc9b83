"""Gradients of the parameters, against float64 and between ways of computing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import MULTIPLE, ModelTrial
from attncheck.laws.registry import LawViolation, NotApplicable

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 20_000_000
"""Parameters; a model with more is not differentiated in float64 beside all else."""


def parameters(trial: ModelTrial, *, exact: bool = False) -> dict[str, Tensor]:
    """Gradients by name of a fixed random projection of the output at real places."""
    import torch

    subject = trial.subject
    if sum(p.numel() for p in subject.model.parameters()) > LARGEST:
        raise NotApplicable(f"the model has more than {LARGEST:,} parameters")
    # what is checkpointed runs again in the backward pass, and must find the same implementation there
    with subject.implementation(None if exact else trial.example.implementation), torch.enable_grad():
        model = subject.twin if exact else subject.model
        named = {name: p for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}
        output = subject.run(trial.inputs, exact=True, gradients=True).output if exact else trial.run(gradients=True).output
        output = output[trial.real]
        push = torch.randn(output.shape, generator=trial.generator).to(output.dtype)
        if not output.requires_grad:
            raise LawViolation("the output does not depend on any parameter", "print(out[0].requires_grad)")
        found = torch.autograd.grad((output * push).sum(), list(named.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if grad is None else grad.detach() for (name, p), grad in zip(named.items(), found, strict=True)}


def compared(trial: ModelTrial, found: dict[str, Any], wanted: dict[str, Any], what: str, least: float = 1e-3) -> None:
    """Raise where a parameter's gradient differs, relative to its norm, by more than the rounding of the forward explains."""
    relative, _ = trial.noise()
    limit = max(least, 4 * MULTIPLE * relative)
    scale = max((float(value.double().norm()) for value in wanted.values()), default=0.0)
    worst, name = 0.0, ""
    for key, value in wanted.items():
        # a gradient that is nothing but rounding is compared with what others have
        size = max(float(value.double().norm()), 1e-4 * scale, 1e-30)
        off = float((found[key].double() - value.double()).norm()) / size
        if not off <= worst:
            worst, name = off, key
    if not worst <= limit:
        raise LawViolation(
            f"gradient of {name} {what}: off by {worst:.3g} of its norm, rounding explains {limit:.2g}",
            f"(model(**inputs)[0] * torch.randn(out[0].shape, generator=g)).sum().backward()\nprint(model.get_parameter({name!r}).grad)",
        )


@model_law("float64", family="gradients", needs=claims("deterministic=backward"), once=True)
def float64(trial: ModelTrial) -> None:
    """Gradients of the parameters are those of the model in float64, up to rounding."""
    trial = trial.but(ask=False, cache=False)
    compared(trial, parameters(trial), parameters(trial, exact=True), "against float64", least=5e-3)


@model_law("directional", family="gradients", once=True)
def directional(trial: ModelTrial) -> None:
    """The gradient of each parameter is the slope of the forward along a step of it, in float64: nothing is detached or rewritten."""
    import torch

    trial = trial.but(ask=False, cache=False, length=min(trial.example.length, 6), batch=1)
    subject = trial.subject
    if sum(p.numel() for p in subject.model.parameters()) > LARGEST // 20:
        raise NotApplicable(f"the model has more than {LARGEST // 20:,} parameters")
    if trial.example.implementation not in (None, getattr(subject.config, "_attn_implementation", None)):
        raise NotApplicable("the float64 copy runs under the model's own implementation")
    found = parameters(trial, exact=True)
    largest = max(float(grad.norm()) for grad in found.values())
    judged = 0
    for name, grad in found.items():
        step = torch.randn(grad.shape, generator=trial.generator, dtype=torch.float64)
        slope = _slope(trial, name, step)
        if slope is None:
            continue
        judged += 1
        told, spread = float((grad * step).sum()), float(grad.norm())
        if abs(slope - told) > 0.1 * (abs(slope) + spread) + 1e-3 * largest:
            raise LawViolation(
                f"gradient of {name} along a random step is {told:.5g}, the forward's slope there is {slope:.5g}",
                f"(model.double()(**inputs)[0]).sum().backward()\nprint(model.get_parameter({name!r}).grad.norm())",
            )
    if not judged:
        raise NotApplicable("the forward is too rough for slopes")


def _slope(trial: ModelTrial, name: str, step: Tensor) -> float | None:
    """Central difference of the projected output along a step of one parameter; None where two sizes of the step disagree, since parts
    that round to float32 spoil small ones, and bends of the function spoil large ones."""
    import torch

    subject = trial.subject
    parameter = subject.twin.get_parameter(name)
    kept = parameter.detach().clone()
    unit = max(float(kept.norm()), 0.1 * kept.numel() ** 0.5) / (float(step.norm()) + 1e-30)
    slopes: list[float] = []
    for size in (1e-3 * unit, 3e-4 * unit, 1e-4 * unit):
        values = []
        for sign in (-1.0, 1.0):
            with torch.no_grad():
                parameter.copy_(kept + sign * size * step)
            try:
                output = subject.run(trial.inputs, exact=True).output[trial.real]
            finally:
                with torch.no_grad():
                    parameter.copy_(kept)
            push = torch.randn(output.shape, generator=trial.generator).to(output.dtype)
            values.append(float((output * push).sum()))
        slopes.append((values[1] - values[0]) / (2 * size))
        if len(slopes) > 1 and abs(slopes[-1] - slopes[-2]) <= 0.01 * abs(slopes[-1]):
            return slopes[-1]
    return None


@model_law("repeat", family="gradients", needs=claims("deterministic=backward"), once=True)
def repeat(trial: ModelTrial) -> None:
    """Two backward passes give the same bits."""
    import torch

    trial = trial.but(ask=False, cache=False)
    first, again = parameters(trial), parameters(trial)
    for name, value in first.items():
        if not torch.equal(value, again[name]):
            raise LawViolation(
                f"gradient of {name} differs between two equal calls by up to {float((value - again[name]).abs().max()):.3g}"
            )


@model_law("checkpointing", family="gradients", once=True)
def checkpointing(trial: ModelTrial) -> None:
    """Gradient checkpointing changes no gradient, in training mode and with dropout at 0."""
    trial = trial.but(ask=False, cache=False)
    with trial.under():
        _checkpointed(trial)


def _switch(model: Any, *, on: bool) -> None:
    """transformers renamed gradient_checkpointing_* to activation_checkpointing_* in 5.2x."""
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    if on:
        getattr(model, f"{kind}_checkpointing_enable")(**{f"{kind}_checkpointing_kwargs": {"use_reentrant": False}})
    else:
        getattr(model, f"{kind}_checkpointing_disable")()


def _checkpointed(trial: ModelTrial) -> None:
    import torch

    model: Any = trial.subject.model
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise NotApplicable("the model does not support gradient checkpointing")
    # nn.Dropout has p, stochastic depth drop_prob, and functional calls read numbers of many names
    held = [
        (module, name, rate)
        for module in model.modules()
        for name, rate in vars(module).items()
        if isinstance(rate, float) and rate > 0 and ("drop" in name or (name == "p" and "drop" in type(module).__name__.lower()))
    ]
    wanted = parameters(trial)
    model.train()
    try:
        for module, name, _ in held:
            setattr(module, name, 0.0)
        plainly, again = parameters(trial), parameters(trial)
        if not all(torch.equal(grad, again[name]) for name, grad in plainly.items()):
            raise NotApplicable("in training mode the model is random by more than dropout that can be set to 0")
        _switch(model, on=True)
        found = parameters(trial)
    finally:
        _switch(model, on=False)
        for module, name, rate in held:
            setattr(module, name, rate)
        model.eval()
    compared(trial, found, plainly, "with checkpointing, against without")
    compared(trial, plainly, wanted, "in training mode without dropout, against eval mode")
