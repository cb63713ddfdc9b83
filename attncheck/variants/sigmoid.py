"""Sigmoid attention: every weight by itself."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from attncheck.variants.fields import ScaleExpression, at_width, value_of
from attncheck.variants.formula import added, applied, scaled_scores, visible
from attncheck.variants.registry import Variant, variant

if TYPE_CHECKING:
    from torch import Tensor


def sigmoid_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    bias: str | float = "-log(N)",
    tokens: int | None = None,
) -> Tensor:
    """sigmoid(q kᵀ · scale + mask + bias) v; hidden keys weigh 0."""
    scores = added(scaled_scores(query, key, scale), attn_mask)
    seen = visible(*scores.shape[-2:], attn_mask=attn_mask, is_causal=is_causal, like=scores)
    if isinstance(bias, str):
        bias = value_of(bias, tokens=tokens or key.shape[-2], width=query.shape[-1])
    weights = (scores + bias).sigmoid()
    if seen is not None:
        weights = weights.masked_fill(~seen, 0.0)
    return applied(weights, value, dropout_p)


@variant("sigmoid", source="arXiv:2409.04431")
def sigmoid(*, bias: ScaleExpression = "-log(N)") -> Variant:
    """Sigmoid attention: a_ij = sigmoid(q_i · k_j / √d + b), each weight by itself; rows sum to anything between 0 and the visible keys.

    `bias` is b, a number or an expression of N (tokens of the sequence: those that a module was told, else the keys of the call) and d;
    -log(N) makes rows sum to about 1 where scores are small. As an operator: query [batch, heads, N, d], key [batch, kv_heads, M, d],
    value [batch, kv_heads, M, d_v]. As a module: the projections of softmax attention.
    """
    return Variant(
        functools.partial(sigmoid_attention, bias=bias), extras={"bias": lambda shape: at_width(bias, shape.tokens, shape.head_dim)}
    )
