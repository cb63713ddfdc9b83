"""Route 1: transformers' attention interface. What the model would have called is called, then handed on.

The method `AttentionInterface.get_interface` is wrapped inside a context; the implementation's name, the mask registry and the config
stay untouched, so that sparse, chunked and upcast branches run as in production (NUMERICS, finding 1).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from attncheck.capture.masks import hidden_in
from attncheck.capture.state import Given, Observation, Randomness, autocast_of, ordinary, recomputing, restored_randomness, stack_of
from attncheck.core.errors import MeasurementError
from attncheck.core.evidence import AttentionCall

if TYPE_CHECKING:
    from torch import Tensor, nn

WRITES_A_CACHE = ("block_table", "block_tables", "k_cache", "v_cache", "cache_seqlens", "cache")


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
        def measured(module: nn.Module, *given: Any, **named: Any) -> Any:
            if observation.inside or recomputing():
                return function(module, *given, **named)
            if id(module) not in paths:
                observation.ran_outside(next(iter(observation.strangers), module))
                with observation.paused():
                    return function(module, *given, **named)
            told = _named(function, given, named)
            query, key, value = (ordinary(told[part]) for part in ("query", "key", "value"))
            randomness = Randomness.now() if module.training or told.get("dropout") else None
            autocast = autocast_of(query)
            before = Given(**{name: told.get(name) for name in ("query", "key", "value", "attention_mask", "position_bias")})
            with observation.paused():
                result = function(module, *given, **named)

            def replay(other: Tensor) -> Tensor:
                short = value.shape[2] - other.shape[2]
                if short:  # keys that the kernel cuts off are not part of the call's value either
                    other = torch.cat([other, other.new_zeros(*other.shape[:2], short, other.shape[3])], 2)
                again = {**told, "query": query, "key": key, "value": other}
                with restored_randomness(randomness), torch.autocast(**autocast):
                    return function(module, *(again.pop(name) for name in order), **again)[0].transpose(1, 2)  # type: ignore[no-any-return]

            order = list(told)[: len(given)]
            path = paths[id(module)] or type(module).__name__
            stack = stack_of(path, module)
            layer, full_path = observation.number(path, stack)
            if before.written_over():
                observation.unseen.append(f"{full_path}: its kernel ({name}) {before.written_over()}")
                return result
            with torch.no_grad():
                output = result[0].detach().transpose(1, 2)
                call = build_call(module, name, told, stack, output=output, written_out=observation.block_masks)
            call.layer, call.path = layer, full_path
            refused = refusal(name, told)
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


def _named(function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """All arguments after the module by name, the first four under the names of the interface: query, key, value, attention_mask.

    Raises MeasurementError where an attention function was called without them.
    """
    names = ["query", "key", "value", "attention_mask"]
    if len(given) > len(names):
        names += [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][len(names) + 1 :]
    told = {**dict(zip(names, given, strict=False)), **named}
    missing = [name for name in names[:3] if not isinstance(told.get(name), torch.Tensor)]
    if missing:
        raise MeasurementError(f"an attention function was called without {', '.join(missing)}; it got {', '.join(told) or 'nothing'}")
    return told


def refusal(implementation: str, told: Mapping[str, Any]) -> str:
    """Why the kernel must not be run again with other values, or an empty text."""
    for word in WRITES_A_CACHE:
        if told.get(word) is not None:
            return f"it writes a cache ({word})"
    key, value = told.get("key"), told.get("value")
    inside = isinstance(key, torch.Tensor) and isinstance(value, torch.Tensor) and _shares_memory(key, value)
    return "its values lie inside its keys" if inside and "mla" in implementation.lower() else ""


def _shares_memory(key: torch.Tensor, value: torch.Tensor) -> bool:
    return key.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()


def build_call(
    module: nn.Module,
    implementation: str,
    told: Mapping[str, Any],
    stack: str,
    *,
    output: Tensor,
    written_out: dict[int, tuple[Any, Tensor]] | None = None,
) -> AttentionCall:
    """What the wrapped function reads of its arguments, and nothing that it ignores (NUMERICS, finding 7)."""
    query, key, value = (ordinary(told[part]) for part in ("query", "key", "value"))
    mask, bias = told.get("attention_mask"), told.get("position_bias")
    bias = bias.detach() if isinstance(bias, torch.Tensor) else None
    queries, keys = query.shape[2], key.shape[2]
    scaling, dropout = told.get("scaling"), float(told.get("dropout") or 0.0)
    causal_by_kernel = False
    softcap = sinks = None
    dense: Tensor | None = mask.detach() if isinstance(mask, torch.Tensor) else None
    if implementation == "sdpa":
        causal = told.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        causal_by_kernel = bool(causal) and mask is None and queries > 1
        if causal_by_kernel and keys > queries:
            key, value = key[:, :, :queries], value[:, :, :queries]
    elif implementation == "flex_attention":
        softcap, sinks = told.get("softcap"), told.get("s_aux")
        if mask is not None and dense is None:
            dense = _materialised(mask, query, key, {} if written_out is None else written_out)
    elif "flash" in implementation:
        softcap, sinks = told.get("softcap"), told.get("s_aux")
        dense = _flash_mask(module, query, key, dense, told)
    else:
        if implementation != "eager" and mask is None and queries == keys > 1:
            # A function registered under a name of its own, given no mask: what it was told is the flag, as SDPA is.
            causal = told.get("is_causal")
            causal_by_kernel = bool(getattr(module, "is_causal", False) if causal is None else causal)
        softcap = told.get("softcap")
        sinks = next((s for s in (told.get("s_aux"), told.get("sinks"), getattr(module, "sinks", None)) if s is not None), None)
        dropout = dropout if module.training else 0.0
    keys = key.shape[2]
    dense, bias = (t[..., :keys] if t is not None and t.dim() == 4 and t.shape[-1] > keys else t for t in (dense, bias))
    if bias is not None and bool(hidden_in(bias).any()):
        # A bias that also hides keys is a mask: what is visible has to be known.
        seen = dense if dense is None or dense.dtype != torch.bool else torch.where(dense, 0.0, float("-inf"))
        dense, bias = (bias if seen is None else seen.to(bias.dtype) + bias), None
    slots = None if stack == "cross" else _slots(queries, keys, dense, told)
    return AttentionCall(
        layer=0,
        stack=stack,
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
        sinks=_sinks(sinks, query),
        bias=bias,
        window=told.get("sliding_window") if isinstance(told.get("sliding_window"), int) else None,
        query_positions=None if slots is None else slots[0],
        key_positions=None if slots is None else slots[1],
        dropout=dropout,
    )


def _sinks(sinks: Any, query: Tensor) -> Tensor | None:
    """[heads], or [batch, heads, N] where every query has its own."""
    if not isinstance(sinks, torch.Tensor):
        return None
    given: Tensor = sinks.detach()
    return given.reshape(-1) if given.numel() == query.shape[1] else given.reshape(query.shape[:3])


def _slots(queries: int, keys: int, mask: Tensor | None, told: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """(query, key) positions where they are not 0, 1, 2, ...: behind a cache. None where they are.

    The last query stands at the last key that it sees (a static cache has empty slots after it). Where the model says that it stands
    further on, the cache has dropped its oldest keys.
    """
    if queries == keys:
        return None
    last = keys - 1
    if mask is not None and mask.dim() == 4:
        seen = ~hidden_in(mask[..., -1, :]).reshape(-1, mask.shape[-1])
        columns = seen.any(0).nonzero()
        last = int(columns[-1]) if len(columns) else last
    if last < queries - 1:
        return None
    ids = told.get("position_ids")
    dropped = 0
    if isinstance(ids, torch.Tensor) and ids.dim() == 2 and ids.shape[-1] == queries:
        dropped = max(int(ids.max()) - last, 0)
    device = told["query"].device
    return torch.arange(last - queries + 1, last + 1, device=device) + dropped, torch.arange(keys, device=device) + dropped


def _materialised(block_mask: Any, query: Tensor, key: Tensor, written_out: dict[int, tuple[Any, Tensor]]) -> Tensor:
    """A flex BlockMask as a bool mask; the layers of a forward share theirs."""
    from torch.nn.attention.flex_attention import create_mask

    if id(block_mask) not in written_out:
        dense: Tensor = create_mask(block_mask.mask_mod, query.shape[0], None, query.shape[2], key.shape[2], device=str(query.device))
        written_out[id(block_mask)] = (block_mask, dense)
    return written_out[id(block_mask)][1]


def _flash_mask(module: nn.Module, query: Tensor, key: Tensor, padding: Tensor | None, told: Mapping[str, Any]) -> Tensor | None:
    """Flash kernels read a 2-D padding mask, a causal flag (bottom-right aligned) and a window."""
    causal = told.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    queries, keys = query.shape[2], key.shape[2]
    window = told.get("sliding_window")
    if not causal and padding is None and not window:
        return None
    rows = torch.arange(queries, device=query.device)[:, None] + keys - queries
    columns = torch.arange(keys, device=query.device)[None, :]
    seen: Tensor = columns <= rows if causal else torch.ones(queries, keys, dtype=torch.bool, device=query.device)
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
