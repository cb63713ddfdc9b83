"""Multi-query attention: all heads read one key and one value."""

from __future__ import annotations

from attncheck.variants.heads import KeyValueHeads
from attncheck.variants.registry import Variant, variant
from attncheck.variants.softmax import softmax_attention


@variant("mqa", source="arXiv:1911.02150")
def mqa() -> Variant:
    """Multi-query attention: o_h = softmax(q_h kᵀ / √d + mask) v, one key and one value for all heads.

    As an operator: query [batch, heads, N, d], key [batch, 1, M, d], value [batch, 1, M, d_v]. As a module: W_K and W_V map to one head;
    a cache keeps 2 · d numbers a token.
    """
    return Variant(softmax_attention, KeyValueHeads(1), fused=True)
