"""Linear attention: a product of features where softmax stands, so that keys and values can be summed before a query comes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

from attncheck.variants.formula import HIDES, applied, repeated, visible
from attncheck.variants.registry import Variant, variant

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 64
"""Queries of a causal call that are taken together: within a chunk by their weights, before it by the sums kept."""


def features(vectors: Tensor, feature: str) -> Tensor:
    """elu(x) + 1, relu(x), or x itself."""
    from torch.nn import functional

    if feature == "elu":
        return functional.elu(vectors) + 1
    return vectors.relu() if feature == "relu" else vectors


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    feature: str = "elu",
    normalised: bool = True,
) -> Tensor:
    """φ(q) Σ_j φ(k_j)ᵀ v_j, over φ(q)·Σ_j φ(k_j) where normalised; scale (default 1) multiplies the products of features.

    Without mask or dropout in time linear in N and M, causal or not; otherwise by the weights. A mask must be bool, or hide and add
    nothing: there is no score to add to. A row whose products sum to 0 is 0.
    """
    import torch

    query, key, value = features(query, feature), repeated(query, features(key, feature)), repeated(query, value)
    if scale is not None:
        query = query * scale
    # The last column carries the row's sum.
    carried = torch.cat([value, value.new_ones(*value.shape[:-1], 1)], -1)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask > HIDES
    if attn_mask is not None or dropout_p:
        seen = visible(query.shape[-2], key.shape[-2], attn_mask=attn_mask, is_causal=is_causal, like=query)
        weights = query @ key.mT
        weights = weights if seen is None else weights.masked_fill(~seen, 0.0)
        if normalised:
            total = weights.sum(-1, keepdim=True)
            weights = weights / total.masked_fill(total == 0, 1.0)
        return applied(weights, value, dropout_p)
    summed = _causal(query, key, carried) if is_causal else query @ (key.mT @ carried)
    output, total = summed[..., :-1], summed[..., -1:]
    return output / total.masked_fill(total == 0, 1.0) if normalised else output


def _causal(query: Tensor, key: Tensor, carried: Tensor) -> Tensor:
    """Σ_{j <= i} (q_i · k_j) v_j, chunk by chunk."""
    import torch

    state = query.new_zeros(*query.shape[:-2], query.shape[-1], carried.shape[-1])
    made = []
    for start in range(0, query.shape[-2], CHUNK):
        rows, keys, values = (part[..., start : start + CHUNK, :] for part in (query, key, carried))
        made.append(rows @ state + (rows @ keys.mT).tril() @ values)
        state = state + keys.mT @ values
    return torch.cat(made, -2)


@variant("linear", source="arXiv:2006.16236")
def linear(*, feature: Literal["elu", "relu", "identity"] = "elu", normalised: bool = True) -> Variant:
    """Linear attention: a_ij = φ(q_i) · φ(k_j), over its sum in the row where `normalised`.

    `feature` is φ: elu(x) + 1, relu(x), or x itself (identity). Keys and values are summed before a query comes: time and memory are
    linear in N, causal too (by chunks).

    As an operator: query [batch, heads, N, d], key [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v]; a mask may hide but not
    add, and makes the call quadratic. As a module: the projections of softmax attention; its cache keeps keys and values and not
    their sum.
    """
    return Variant(functools.partial(linear_attention, feature=feature, normalised=normalised))
