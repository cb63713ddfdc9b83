"""Softmax attention with a learned sink per head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.variants.formula import applied, masked, scaled_scores, softmax_weights
from attncheck.variants.registry import Variant, variant

if TYPE_CHECKING:
    from torch import Tensor


def sink_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    sinks: Tensor | float | None = None,
) -> Tensor:
    """exp(s_j) / (exp(sink) + Σ_j exp(s_j)), times v; `sinks` [heads] or one number are logits that take mass and have no value."""
    scores = masked(scaled_scores(query, key, scale), attn_mask, is_causal)
    logits = query.new_full((query.shape[-3],), sinks) if isinstance(sinks, int | float) else sinks
    return applied(softmax_weights(scores, logits), value, dropout_p)


@variant("sinks", source="arXiv:2309.17453 (sinks), arXiv:2508.10925 (a learned logit per head)")
def sinks() -> Variant:
    """Softmax attention with a sink: a_ij = exp(s_ij) / (exp(b_h) + sum_j exp(s_ij)) with one learned logit b_h per head, from 0.

    Rows sum to less than 1: the sink takes mass and has no value. As an operator: query [batch, heads, N, d], key
    [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v], and `sinks`, [heads] or one number (0: softmax plus one); plain softmax
    without. As a module: the projections of softmax attention and the parameter `sinks`.
    """
    return Variant(sink_attention, learned={"sinks": lambda shape: [0.0] * shape.heads}, rows="formula")
