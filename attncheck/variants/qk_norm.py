"""Softmax attention over normalised queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncheck.variants.registry import Variant, variant
from attncheck.variants.softmax import softmax_attention

if TYPE_CHECKING:
    from torch import Tensor


def normalised_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    q_gain: Tensor | None = None,
    k_gain: Tensor | None = None,
) -> Tensor:
    """softmax attention on x / rms(x), over the width of a head, times a gain [d] where one is given."""
    from torch.nn import functional

    def normed(vectors: Tensor, gain: Tensor | None) -> Tensor:
        vectors = functional.rms_norm(vectors, (vectors.shape[-1],))
        return vectors if gain is None else vectors * gain

    return softmax_attention(normed(query, q_gain), normed(key, k_gain), value, attn_mask, dropout_p, is_causal, scale)


@variant("qk_norm", source="arXiv:2010.04245 (by the l2 norm), arXiv:2302.05442 (by LayerNorm)")
def qk_norm(*, gain: Literal["none", "learned"] = "none") -> Variant:
    """Softmax attention on normalised queries and keys: o_h = softmax(g(q_h) g(k_h)ᵀ / √d + mask) v_h with g(x) = x / rms(x).

    No score leaves ±sqrt(d). `gain`: learned multiplies by one number per channel, from 1, after the norm and before the rotation; it
    does not commute with rotary embeddings, the norm alone does. As an operator: query [batch, heads, N, d], key
    [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v], and `q_gain`, `k_gain` [d]. As a module: the projections of softmax
    attention; a cache keeps normalised keys.
    """
    return Variant(normalised_attention, fused=True, qk_norm=True, gain=gain == "learned")
