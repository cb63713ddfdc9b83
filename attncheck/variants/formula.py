"""What the operators share: grouped heads, scores, what a mask hides, a softmax whose empty rows give 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncheck.variants.registry import VariantError

if TYPE_CHECKING:
    from torch import Tensor

HIDES = -9.9e3
"""Where there is no softmax to make it 0, an additive mask hides from here down: -10000 is the smallest value in use."""


def folded(query: Tensor, kv_heads: int) -> Tensor:
    """[batch, heads, N, any] as [batch, kv_heads, group * N, any]: query head h reads key head h // group, and no key is repeated."""
    heads = query.shape[-3]
    if kv_heads == 0 or heads % kv_heads:
        raise VariantError(f"{heads} query heads do not divide into groups over {kv_heads} key-value heads")
    return query if heads == kv_heads else query.reshape(*query.shape[:-3], kv_heads, -1, query.shape[-1])


def repeated(query: Tensor, tensor: Tensor) -> Tensor:
    """Keys or values with a head for every query head."""
    heads, kv_heads = query.shape[-3], tensor.shape[-3]
    folded(query, kv_heads)
    return tensor if heads == kv_heads else tensor.repeat_interleave(heads // kv_heads, -3)


def products(query: Tensor, key: Tensor) -> Tensor:
    """[batch, heads, N, M]: every query times every key of its group."""
    return (folded(query, key.shape[-3]) @ key.mT).view(*query.shape[:-1], key.shape[-2])


def scaled_scores(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """[batch, heads, N, M]: q·k times scale, 1/√d where none is given."""
    return products(query, key) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)


def visible(
    queries: int,
    keys: int,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    window: int | None = None,
    like: Tensor,
) -> Tensor | None:
    """bool, broadcastable to [batch, heads, N, M]: what a query may see; None where it sees everything.

    Causal and windowed alike are anchored top-left, as torch's flag is. A window of w shows w keys, the query's own included, where
    causal, and |i − j| < w otherwise.
    """
    import torch

    seen: Tensor | None = None
    if attn_mask is not None:
        seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask > HIDES
    if is_causal or window is not None:
        apart = torch.arange(queries, device=like.device)[:, None] - torch.arange(keys, device=like.device)[None, :]
        near = apart >= 0 if is_causal else torch.ones_like(apart, dtype=torch.bool)
        if window is not None:
            near = near & (apart.abs() < window)
        seen = near if seen is None else seen & near
    return seen


def added(scores: Tensor, attn_mask: Tensor | None) -> Tensor:
    """Scores plus what an additive mask adds to the keys that it leaves visible."""
    import torch

    if attn_mask is None or attn_mask.dtype == torch.bool:
        return scores
    return scores + attn_mask.masked_fill(attn_mask <= HIDES, 0.0)


def masked(scores: Tensor, attn_mask: Tensor | None, is_causal: bool, window: int | None = None) -> Tensor:
    """Scores as a softmax takes them: an additive mask is added whatever its values, and only −inf hides, as in torch's own."""
    import torch

    hides = attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else None
    seen = visible(*scores.shape[-2:], attn_mask=hides, is_causal=is_causal, window=window, like=scores)
    if attn_mask is not None and hides is None:
        scores = scores + attn_mask
    return scores if seen is None else scores.masked_fill(~seen, -math.inf)


def softmax_weights(scores: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Softmax of scores of which −inf is hidden; a row that sees nothing is 0. `sinks` [heads] are logits without a value."""
    import torch

    largest = scores.amax(-1, keepdim=True)
    if sinks is not None:
        sink = sinks.to(scores.dtype).view(-1, 1, 1)
        largest = torch.maximum(largest, sink)
    largest = largest.detach().masked_fill(largest == -math.inf, 0.0)
    weights = (scores - largest).exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sink - largest).exp()
    return weights / total.masked_fill(total == 0, 1.0)


def applied(weights: Tensor, value: Tensor, dropout_p: float) -> Tensor:
    """Weights times values, the weights dropped and rescaled before."""
    from torch.nn import functional

    if dropout_p:
        weights = functional.dropout(weights, dropout_p)
    return (folded(weights, value.shape[-3]) @ value).view(*weights.shape[:-1], value.shape[-1])
