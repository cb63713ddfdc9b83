"""How an attention that is no softmax is seen in a running model: the module calls its operator through `attend`.

    class Mine(nn.Module):
        def forward(self, hidden):
            ...
            return attend(self, my_operator, query, key, value, is_causal=True)

Nobody listens: `attend` is the call of the operator and nothing else. While attncheck observes a model, its capture listens, counts
the call, and reads the weights off the operator with values of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from attncheck.core.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor, nn

Rows = Literal["kernel", "formula"]
Listener = Callable[["nn.Module", Callable[..., Any], "Tensor", "Tensor", "Tensor", Mapping[str, Any], Rows], Any]

_listeners: list[Listener] = []


def attend(
    module: nn.Module, operator: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, *, rows: Rows = "kernel", **options: Any
) -> Any:
    """What `operator(query, key, value, **options)` returns, announced to whoever observes the model that `module` belongs to.

    query [batch, heads, N, d], key [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v]; the operator returns
    [batch, heads, N, d_v], or a tuple that begins with it, and is linear in its values. rows: how the weights are read: "kernel" asks
    the operator itself, whatever it computes (up to 512 keys); "formula" takes softmax(cap(q kᵀ · scale) + bias + mask, sinks) of the
    options scale, softcap, position_bias, attn_mask, is_causal and sinks, and holds the operator to it.
    """
    if rows not in ("kernel", "formula"):
        raise MeasurementError(f"attend: rows: {rows!r}; allowed: 'kernel', 'formula'")
    if not _listeners:
        return operator(query, key, value, **options)
    return _listeners[-1](module, operator, query, key, value, options, rows)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While this is open the listener makes the calls, and returns what the operator returned."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
