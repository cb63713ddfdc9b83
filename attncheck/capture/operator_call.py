"""An operator as an attention call: any callable with the signature of torch's scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from attncheck.capture.state import Given, OnCall
from attncheck.core.errors import MeasurementError, raised
from attncheck.core.evidence import AttentionCall

if TYPE_CHECKING:
    from torch import Tensor


def observe_operator(operator: Callable[..., Any], arguments: Mapping[str, Any], on_call: OnCall, *, name: str) -> Tensor:
    """Call the operator on `query`, `key`, `value` and its further arguments; hand the call on; return the output.

    Raises MeasurementError where the operator raises, or its output has another shape than [batch, heads, N, d_v].
    """
    given = dict(arguments)
    query, key, value = given.pop("query"), given.pop("key"), given.pop("value")

    def run(values: Tensor) -> Tensor:
        result = operator(query, key, values, **given)
        return result[0] if isinstance(result, tuple | list) else result  # type: ignore[no-any-return]

    before = Given(query=query, key=key, value=value, **given)
    with torch.no_grad():
        try:
            output = run(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() too: it would end the tests and not the measuring
            raise MeasurementError(f"the operator {name} raised {raised(error)}") from error
        if before.written_over():
            raise MeasurementError(f"the operator {name} {before.written_over()}")
        expected = (*query.shape[:3], value.shape[-1])
        if not isinstance(output, torch.Tensor):
            raise MeasurementError(
                f"the operator {name} returned {type(output).__name__}; expected a tensor [batch, heads, N, d_v] = {expected}"
            )
        if tuple(output.shape) != expected:
            raise MeasurementError(
                f"the operator {name} returned shape {tuple(output.shape)}; expected [batch, heads, N, d_v] = {expected}"
            )
        mask = given.get("attn_mask")
        scale, softcap, sinks = given.get("scale"), given.get("softcap"), given.get("sinks")
        call = AttentionCall(
            layer=0,
            stack="self",
            path=name,
            implementation=name,
            query=query,
            key=key,
            value=value,
            output=output,
            scale=float(scale) if scale is not None else query.shape[-1] ** -0.5,
            mask=mask,
            is_causal=bool(given.get("is_causal", False)),
            softcap=softcap,
            sinks=sinks,
            bias=given.get("position_bias"),
            replay=run,
        )
        on_call(call)
    return output
