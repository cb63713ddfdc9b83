"""Attention calls made by hand: query and key drawn, and a kernel that applies what they define, or something a little else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import naive
import torch
from torch import Tensor

from attncheck.core.evidence import AttentionCall
from attncheck.instruments.session import Session

Change = Callable[[Tensor], Tensor]


def call(
    *,
    batch: int = 1,
    heads: int = 6,
    kv_heads: int = 2,
    queries: int = 50,
    keys: int | None = None,
    width: int = 8,
    value_width: int | None = None,
    causal: bool = True,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    change: Change | None = None,
    layer: int = 0,
    seed: int = 0,
    sharpness: float = 1.5,
) -> AttentionCall:
    """The kernel is torch's own, or `change` of the float64 weights where one is given."""
    generator = torch.Generator().manual_seed(seed)
    keys, value_width = keys or queries, value_width or width

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    query, key = draw(batch, heads, queries, width) * sharpness, draw(batch, kv_heads, keys, width)
    value = draw(batch, kv_heads, keys, value_width)
    group = heads // kv_heads
    if change is None and sinks is None:

        def replay(other: Tensor) -> Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                query, key.repeat_interleave(group, 1), other.repeat_interleave(group, 1), attn_mask=mask, is_causal=causal
            )
    else:
        twin = naive.attention(query, key, mask=mask, causal=causal, sinks=sinks)
        weights = twin.weights if change is None else change(twin.weights.clone())

        def replay(other: Tensor) -> Tensor:
            return (weights @ other.double().repeat_interleave(group, 1)).to(dtype)

    return AttentionCall(
        layer=layer, stack="self", path=f"layers.{layer}", implementation="test", query=query, key=key, value=value, output=replay(value),
        scale=width**-0.5, mask=mask, is_causal=causal, sinks=sinks, replay=replay,
    )  # fmt: skip


def measured(calls: list[AttentionCall] | AttentionCall, *requests: Any, **options: Any) -> Session:
    """A session that has seen the calls."""
    from observing import wanted

    session = Session(wanted(*requests), **options)
    for one in calls if isinstance(calls, list) else [calls]:
        session.on_call(one)
    return session


def values(session: Session, name: str, layer: int = 0) -> Tensor:
    """The values of the first request of that name; raises its fault."""
    for key, fault in session.faults.items():
        if key.partition("{")[0] == name:
            raise fault
    found = session.layers[layer].values
    return torch.from_numpy(next(value.value for key, value in found.items() if key.partition("{")[0] == name)).double()
