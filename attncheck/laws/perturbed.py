"""A subject whose attention goes wrong, for the self-test of `laws:`: an operator wrapped, a copy of a model with a hook."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attncheck.core.evidence import LoadedSubject

Operator = Callable[..., Any]


def perturbed(subject: LoadedSubject, name: str) -> LoadedSubject:
    """The subject under a perturbation of `instruments.perturbations`; as it is where that one cannot be done to it from outside."""
    if subject.operator is not None and name in OPERATORS:
        return replace(subject, operator=_wrapped(subject.operator, OPERATORS[name]))
    if subject.model is not None and name in MODELS:
        model = copy.deepcopy(subject.model)
        _block(model).register_forward_hook(lambda module, given, made: _changed(made, MODELS[name]))
        return replace(subject, model=model)
    return subject


def _wrapped(operator: Operator, change: Callable[[Any, Tensor, Tensor, Tensor], Any]) -> Operator:
    def wrong(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        return change(lambda *tensors: operator(*tensors, **options), query, key, value)

    return wrong


def _on_output(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Tensor, Tensor, Tensor], Any]:
    def changed(call: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        made = call(query, key, value)
        return (change(made[0], value), *made[1:]) if isinstance(made, tuple) else change(made, value)

    return changed


def _leaking(output: Tensor, value: Tensor) -> Tensor:
    """The first query reads the last key, a twentieth of it."""
    output = output.clone()
    output[:, :, 0] += 0.05 * value[:, :, -1].repeat_interleave(output.shape[1] // value.shape[1], 1)
    return output


OPERATORS: dict[str, Callable[[Any, Tensor, Tensor, Tensor], Any]] = {
    "scale": lambda call, query, key, value: call(2 * query, key, value),
    "kernel-rows": _on_output(lambda output, value: 1.01 * output),
    "leak": _on_output(_leaking),
    "kernel-heads": _on_output(lambda output, value: output.roll(1, 1)),
    "output": _on_output(lambda output, value: 1.05 * output),
}
MODELS: dict[str, Callable[[Tensor], Tensor]] = {
    "leak": lambda hidden: hidden + 0.1 * hidden.roll(-1, 1),
    "kernel-heads": lambda hidden: hidden + 0.1 * hidden.roll(1, 0),
}
"""Of hidden states [batch, length, width]: a token reads the next one, a row of the batch its neighbour."""


def _block(model: nn.Module) -> nn.Module:
    """The first of the model's blocks."""
    from torch.nn import ModuleList

    return next((module[0] for module in model.modules() if isinstance(module, ModuleList) and len(module)), model)


def _changed(made: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return (change(made[0]), *made[1:]) if isinstance(made, tuple) else change(made)
