"""Grouped-query attention: groups of heads share a key and a value."""

from __future__ import annotations

from attncheck.variants.fields import Count
from attncheck.variants.heads import KeyValueHeads
from attncheck.variants.registry import Variant, variant
from attncheck.variants.softmax import softmax_attention


@variant("gqa", source="arXiv:2305.13245")
def gqa(*, kv_heads: Count) -> Variant:
    """Grouped-query attention: o_h = softmax(q_h k_gᵀ / √d + mask) v_g with g = h // (heads / kv_heads).

    As an operator: query [batch, heads, N, d], key [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v]; the groups follow from the
    key that it gets. As a module: W_K and W_V map to `kv_heads` heads, a divisor of the number of query heads; a cache keeps
    2 · kv_heads · d numbers a token.
    """
    return Variant(softmax_attention, KeyValueHeads(kv_heads), fused=True)
