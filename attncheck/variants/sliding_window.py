"""Softmax attention over the nearest keys."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from attncheck.variants.fields import Count
from attncheck.variants.formula import applied, masked, scaled_scores, softmax_weights
from attncheck.variants.registry import Variant, variant

if TYPE_CHECKING:
    from torch import Tensor


def windowed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: int,
) -> Tensor:
    """softmax(q kᵀ · scale + mask) v over the keys of the window, anchored top-left as the causal flag is."""
    scores = masked(scaled_scores(query, key, scale), attn_mask, is_causal, window)
    return applied(softmax_weights(scores), value, dropout_p)


@variant("sliding_window", source="arXiv:2004.05150")
def sliding_window(*, window: Count) -> Variant:
    """Sliding-window attention: softmax over `window` keys, the query's own included, where causal; over |i - j| < window otherwise.

    As an operator: query [batch, heads, N, d], key [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v]; the window is anchored
    top-left where N and M differ. As a module: softmax attention whose mask holds the window, by positions; a cache keeps all tokens.
    """
    return Variant(functools.partial(windowed_attention, window=window), fused=True, window=window)
