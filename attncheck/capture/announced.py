"""Route 4: attention that is no softmax. A module calls its operator through `attncheck.variants.attend`, and capture listens.

The operator is called as it would have been, unwatched, so that not a bit changes; its call is counted in the census under "attend".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from attncheck.capture.state import Given, Observation, Randomness, autocast_of, ordinary, recomputing, restored_randomness, stack_of
from attncheck.core.errors import MeasurementError
from attncheck.core.evidence import AttentionCall
from attncheck.variants.route import Rows, listening

if TYPE_CHECKING:
    from torch import Tensor, nn


@contextmanager
def announced(observation: Observation, model: nn.Module) -> Iterator[None]:
    """Every operator that a part of `model` calls through `attend` while this is open is measured."""
    paths = {id(module): name for name, module in model.named_modules()}
    ours = get_ident()

    def listener(
        module: nn.Module, operator: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, Any], rows: Rows
    ) -> Any:
        # What runs in another thread cannot be paused here; the hooks report it.
        if observation.inside or recomputing() or get_ident() != ours:
            return operator(query, key, value, **options)
        if id(module) not in paths:
            observation.ran_outside(next(iter(observation.strangers), module))
            with observation.paused():
                return operator(query, key, value, **options)
        randomness = Randomness.now() if module.training or options.get("dropout_p") else None
        autocast = autocast_of(query)
        before = Given(query=query, key=key, value=value, **options)
        with observation.paused():
            result = operator(query, key, value, **options)
        path = paths[id(module)] or type(module).__name__
        if before.written_over():
            observation.unseen.append(f"{path}: its operator {before.written_over()}")
            return result
        output = _output(result).detach()
        expected = (*query.shape[:3], value.shape[-1])
        if tuple(output.shape) != expected:
            raise MeasurementError(
                f"{path}: an operator called through attend returned shape {tuple(output.shape)}; "
                f"expected [batch, heads, N, d_v] = {expected}"
            )
        held = {name: ordinary(part) if isinstance(part, torch.Tensor) else part for name, part in options.items()}
        query, key, value = ordinary(query), ordinary(key), ordinary(value)

        def replay(other: Tensor) -> Tensor:
            with restored_randomness(randomness), torch.autocast(**autocast):
                return _output(operator(query, key, other, **held))

        stack = stack_of(path, module)
        layer, path = observation.number(path, stack)
        call = call_of(operator, query, key, value, held, output, rows)
        call.layer, call.stack, call.path, call.replay = layer, stack, path, replay
        observation.seen(call, "attend")
        return result

    with listening(listener):
        yield


def call_of(
    operator: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, Any], output: Tensor, rows: Rows
) -> AttentionCall:
    """The call by the arguments that operators share; whatever else an operator takes is known to it alone."""
    scale, softcap, sinks = options.get("scale"), options.get("softcap"), options.get("sinks")
    return AttentionCall(
        layer=0,
        stack="self",
        path="",
        implementation=_name(operator),
        query=query,
        key=key,
        value=value,
        output=output,
        scale=float(scale) if scale is not None else query.shape[-1] ** -0.5,
        mask=options.get("attn_mask"),
        is_causal=bool(options.get("is_causal", False)),
        softcap=None if softcap is None else float(softcap),
        sinks=query.new_full((query.shape[1],), float(sinks)) if isinstance(sinks, int | float) else sinks,
        bias=options.get("position_bias"),
        dropout=float(options.get("dropout_p") or 0.0),
        rows_from_kernel=rows == "kernel",
    )


def _output(result: Any) -> Tensor:
    output: Tensor = result[0] if isinstance(result, tuple | list) else result
    return output


def _name(operator: Callable[..., Any]) -> str:
    inner = inspect.unwrap(operator)
    while hasattr(inner, "func"):
        inner = inner.func
    return str(getattr(inner, "__name__", type(inner).__name__))
