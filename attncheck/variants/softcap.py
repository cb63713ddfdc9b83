"""Softmax attention over capped scores."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from attncheck.variants.fields import Positive
from attncheck.variants.formula import applied, masked, scaled_scores, softmax_weights
from attncheck.variants.registry import Variant, variant

if TYPE_CHECKING:
    from torch import Tensor


def capped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float,
) -> Tensor:
    """softmax(softcap · tanh(q kᵀ · scale / softcap) + mask) v."""
    scores = masked(softcap * (scaled_scores(query, key, scale) / softcap).tanh(), attn_mask, is_causal)
    return applied(softmax_weights(scores), value, dropout_p)


@variant("softcap", source="arXiv:2408.00118")
def softcap(*, cap: Positive = 50.0) -> Variant:
    """Softmax attention over capped scores: o_h = softmax(cap · tanh(q_h k_hᵀ / (√d cap)) + mask) v_h, so that no score leaves
    ±`cap`.

    As an operator: query [batch, heads, N, d], key [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v]; `softcap` at the call
    replaces the cap. As a module: the projections of softmax attention.
    """
    return Variant(functools.partial(capped_attention, softcap=cap), extras={"softcap": lambda shape: cap}, rows="formula")
