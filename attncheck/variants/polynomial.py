"""Polynomial attention: a power of the scores, entry by entry, where softmax stands."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from attncheck.variants.fields import Count, Factor, at_width, value_of
from attncheck.variants.formula import added, applied, scaled_scores, visible
from attncheck.variants.registry import Shape, Variant, VariantError, variant

if TYPE_CHECKING:
    from torch import Tensor


def polynomial_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    power: int = 3,
    factor: str | float | Tensor = 1,
    tokens: int | None = None,
) -> Tensor:
    """(q kᵀ · scale + mask)^power · factor, times v; hidden keys weigh 0. factor: a number, an expression of N and d, or [heads]."""
    scores = added(scaled_scores(query, key, scale), attn_mask)
    seen = visible(*scores.shape[-2:], attn_mask=attn_mask, is_causal=is_causal, like=scores)
    if isinstance(factor, str) and factor == "learned":
        raise VariantError("factor: learned belongs to a module, which learns it; an operator is given `factor` [heads]")
    if isinstance(factor, str):
        factor = value_of(factor, tokens=tokens or key.shape[-2], width=query.shape[-1])
    weights = scores**power * (factor if isinstance(factor, int | float) else factor.to(scores.dtype).view(-1, 1, 1))
    if seen is not None:
        weights = weights.masked_fill(~seen, 0.0)
    return applied(weights, value, dropout_p)


@variant("polynomial", source="arXiv:2410.18613")
def polynomial(*, power: Count = 3, factor: Factor = "1/sqrt(N)") -> Variant:
    """Polynomial attention: o_h = φ(q_h k_hᵀ / √d) v_h with φ(s) = k · s^p, entry by entry.

    `power` is p. `factor` is k: a number, an expression of N (tokens of the sequence: those that a module was told, else the keys of
    the call) and d (width of a head) such as '1/sqrt(N)', or 'learned', one number per head that starts at 1/sqrt(tokens), at 1 where
    the module was not told how many. Weights are of either sign and sum to anything; hidden keys weigh 0. For Gaussian inputs |A|_F
    grows like N with k = 1 and like sqrt(N) with k = 1/sqrt(N); training is bound by neither.

    As an operator: query [batch, heads, N, d], key [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v]. As a module: the
    projections of softmax attention.
    """
    operator = functools.partial(polynomial_attention, power=power, factor=factor)
    if factor == "learned":
        return Variant(operator, learned={"factor": _initial})
    return Variant(operator, extras={"factor": lambda shape: at_width(factor, shape.tokens, shape.head_dim)})


def _initial(shape: Shape) -> list[float]:
    return [(shape.tokens or 1) ** -0.5] * shape.heads
