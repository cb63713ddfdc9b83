"""Softmax attention, one key and value per head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.variants.formula import applied, masked, scaled_scores, softmax_weights
from attncheck.variants.registry import Variant, variant

if TYPE_CHECKING:
    from torch import Tensor


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale + mask) v, row by row as the formula has it; scale 1/√d, rows that see nothing give 0.

    query [batch, heads, N, d], key [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v]; a causal mask is aligned top-left. Key
    heads are shared by groups of query heads wherever there are fewer of them, with `enable_gqa` or without.
    """
    scores = masked(scaled_scores(query, key, scale), attn_mask, is_causal)
    return applied(softmax_weights(scores), value, dropout_p)


@variant("softmax", source="arXiv:1706.03762", aliases=("mha",))
def softmax() -> Variant:
    """Softmax attention with a key and a value per head (MHA): o_h = softmax(q_h k_hᵀ / √d + mask) v_h.

    As an operator: query [batch, heads, N, d], key [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v]. As a module: q, k, v =
    x W_Q, x W_K, x W_V with heads of width / heads; a cache keeps 2 · heads · d numbers a token. Rows sum to 1, so that
    1 <= |A|_F <= sqrt(N) without a mask.
    """
    return Variant(softmax_attention, fused=True)
