"""Route 1: transformers' attention interface. What the model would have called is called, then handed on.

The method `AttentionInterface.get_interface` is wrapped inside a context; the implementation's name, the mask registry and the config
stay untouched, so that sparse, chunked and upcast branches run as in production (NUMERICS, finding 1).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from attncheck.capture.state import Observation, restored_randomness, stack_of
from attncheck.core.evidence import AttentionCall

if TYPE_CHECKING:
    from torch import Tensor, nn

WRITES_A_CACHE = ("block_table", "block_tables", "k_cache", "v_cache", "cache_seqlens")


@contextmanager
def wrapped_interface(observation: Observation, model: nn.Module) -> Iterator[None]:
    """Every attention function that any model fetches from transformers while this is open is measured, if it belongs to `model`."""
    from transformers.modeling_utils import AttentionInterface

    paths = {id(module): name for name, module in model.named_modules()}
    original = AttentionInterface.get_interface

    @functools.wraps(original)
    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, attn_implementation, default)
        name = "eager" if function is default else attn_implementation

        @functools.wraps(function)
        def measured(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, *rest: Any, **named: Any) -> Any:
            recomputing = torch._C._current_graph_task_id() != -1
            if observation.inside or recomputing or id(module) not in paths:
                return function(module, query, key, value, mask, *rest, **named)
            randomness = torch.get_rng_state() if module.training else None
            with observation.paused():
                result = function(module, query, key, value, mask, *rest, **named)

            def replay(other: Tensor) -> Tensor:
                with restored_randomness(randomness):
                    again = function(module, query.detach(), key.detach(), other, mask, *rest, **named)
                return again[0].transpose(1, 2)  # type: ignore[no-any-return]

            path = paths[id(module)] or type(module).__name__
            stack = stack_of(path, module)
            layer, full_path = observation.number(path, stack)
            refused = next((f"it writes a cache ({word})" for word in WRITES_A_CACHE if named.get(word) is not None), "")
            with torch.no_grad():
                call = build_call(
                    module, name, query.detach(), key.detach(), value.detach(), mask, named, output=result[0].detach().transpose(1, 2)
                )
            call.layer, call.stack, call.path = layer, stack, full_path
            call.replay, call.replay_refused = (None, refused) if refused else (replay, "")
            call.rotary, call.rotary_interleaved = _rotary(observation, module)
            observation.seen(call, "interface")
            return result

        return measured

    AttentionInterface.get_interface = get_interface  # type: ignore[method-assign]
    try:
        yield
    finally:
        AttentionInterface.get_interface = original  # type: ignore[method-assign]


def build_call(
    module: nn.Module,
    implementation: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    named: dict[str, Any],
    *,
    output: Tensor,
) -> AttentionCall:
    """What the wrapped function reads of its arguments, and nothing that it ignores (NUMERICS, finding 7)."""
    queries, keys = query.shape[2], key.shape[2]
    scaling = named.get("scaling")
    causal_by_kernel = False
    softcap = sinks = None
    dense: Tensor | None = mask if isinstance(mask, torch.Tensor) else None
    if implementation == "sdpa":
        causal = named.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        causal_by_kernel = bool(causal) and mask is None and queries > 1
        if causal_by_kernel and keys > queries:
            key, value = key[:, :, :queries], value[:, :, :queries]
    elif implementation == "flex_attention":
        softcap, sinks = named.get("softcap"), named.get("s_aux")
        if mask is not None and dense is None:
            dense = _materialised(mask, query, key)
    elif "flash" in implementation:
        softcap, sinks = named.get("softcap"), named.get("s_aux")
        dense = _flash_mask(module, query, key, dense, named)
    else:
        softcap = named.get("softcap")
        sinks = named["s_aux"] if named.get("s_aux") is not None else getattr(module, "sinks", None)
    if dense is not None and dense.dim() == 4 and dense.shape[-1] > key.shape[2]:
        dense = dense[..., : key.shape[2]]
    return AttentionCall(
        layer=0,
        stack="",
        path="",
        implementation=implementation,
        query=query,
        key=key,
        value=value,
        output=output,
        scale=float(scaling) if scaling is not None else query.shape[-1] ** -0.5,
        mask=dense,
        is_causal=causal_by_kernel,
        softcap=float(softcap) if softcap else None,
        sinks=sinks.detach().reshape(-1) if isinstance(sinks, torch.Tensor) else None,
        bias=named["position_bias"].detach() if isinstance(named.get("position_bias"), torch.Tensor) else None,
        window=named.get("sliding_window") if isinstance(named.get("sliding_window"), int) else None,
    )


def _materialised(block_mask: Any, query: Tensor, key: Tensor) -> Tensor:
    """A flex BlockMask as a bool mask."""
    from torch.nn.attention.flex_attention import create_mask

    return create_mask(block_mask.mask_mod, query.shape[0], None, query.shape[2], key.shape[2], device=str(query.device))


def _flash_mask(module: nn.Module, query: Tensor, key: Tensor, padding: Tensor | None, named: dict[str, Any]) -> Tensor | None:
    """Flash kernels read a 2-D padding mask, a causal flag (bottom-right aligned) and a window."""
    causal = named.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    queries, keys = query.shape[2], key.shape[2]
    window = named.get("sliding_window")
    if not causal and padding is None and not window:
        return None
    rows = torch.arange(queries, device=query.device)[:, None] + keys - queries
    columns = torch.arange(keys, device=query.device)[None, :]
    seen = columns <= rows if causal else torch.ones(queries, keys, dtype=torch.bool, device=query.device)
    if window:
        seen = seen & (rows - columns < window)
    seen = seen[None, None]
    if padding is not None and padding.dim() == 2:
        seen = seen & padding.bool()[:, None, None, -keys:]
    return seen


def _rotary(observation: Observation, module: nn.Module) -> tuple[tuple[Tensor, Tensor] | None, bool]:
    """The rotary table of this layer: the only one, or the one of its layer type."""
    tables = observation.rotary
    if not tables:
        return None, False
    kind = str(getattr(module, "layer_type", None) or getattr(module, "attention_type", None) or "")
    table = tables.get(kind) or (next(iter(tables.values())) if len(tables) == 1 else None)
    if table is None:
        return None, False
    cos = table[0]
    half = cos.shape[-1] // 2
    halves = half > 0 and torch.equal(cos[..., :half], cos[..., half:])
    return table, not halves and half > 0 and torch.equal(cos[..., 0::2], cos[..., 1::2])
