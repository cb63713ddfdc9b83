"""softmax(cap(q kᵀ · scale) + bias + mask, sink) v as the formula has it, in float64 and in full: what fast kernels are held against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attncheck.core.claims import OperatorClaims
from attncheck.laws.rotation import rotated

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Dense:
    """weights [batch, heads, N, M] and what follows; `sharpness` [batch, heads, N, 1] bounds the terms that scores are sums of."""

    output: Tensor
    weights: Tensor
    scores: Tensor
    lse: Tensor
    visible: Tensor
    sharpness: Tensor


def visible(claims: OperatorClaims, query: Tensor, key: Tensor, options: dict[str, Any]) -> Tensor:
    """Which query may read which key, [batch, heads, N, M], by causality, window and mask."""
    import torch

    batch, heads, N, M = query.shape[0], query.shape[1], query.shape[-2], key.shape[-2]
    distance = positions(claims, N, M)
    seen = torch.ones(N, M, dtype=torch.bool)
    causal = claims.causal is True or (claims.causal == "flag" and bool(options.get("is_causal")))
    if causal:
        seen &= distance >= 0
    window = claims.window if isinstance(claims.window, int) else options.get("window")
    if window is not None:
        seen &= (distance < window) & (distance > -window)
    full = seen.expand(batch, heads, N, M)
    for name in ("block_ids", "segment_ids"):
        ids = options.get(name)
        if ids is not None:
            same = (ids[:, None, :, None] == ids[:, None, None, :]) & ((ids != 0)[:, None, :, None] | (name == "segment_ids"))
            full = full | same if name == "block_ids" else full & same
    mask = options.get("attn_mask")
    if mask is not None:
        if mask.dtype == torch.bool:
            full = full & (mask if claims.mask_polarity == "keep" else ~mask)
        else:
            full = full & (mask > torch.finfo(mask.dtype).min)
    return full


def positions(claims: OperatorClaims, N: int, M: int) -> Tensor:
    """Query position minus key position, [N, M]."""
    import torch

    offset = M - N if claims.alignment == "bottom_right" else 0
    return torch.arange(N)[:, None] + offset - torch.arange(M)


def places(query: Tensor, options: dict[str, Any]) -> Tensor:
    """Rotary positions, [batch, N] or [batch, N, axes]; they count from 0 where none are given."""
    import torch

    given: Tensor | None = options.get("position_ids")
    return torch.arange(query.shape[-2]).expand(query.shape[0], -1) if given is None else given


def prepared(claims: OperatorClaims, query: Tensor, key: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Query and key in float64 as they enter the scores: normalised, then rotated, where that is claimed."""
    import torch

    q, k = query.double(), key.double()
    if claims.qk_norm:
        axes = -1 if claims.qk_norm == "head" else (1, -1)
        # torch's own epsilon, that of the dtype which was given
        epsilon = torch.finfo(query.dtype).eps
        q, k = (t / (t.square().mean(axes, keepdim=True) + epsilon).sqrt() for t in (q, k))
    if claims.rotary:
        at = places(query, options)
        count = claims.rotary_axes or 1
        at = at[..., None].expand(*at.shape, count) if at.ndim == 2 else at
        q, k = (rotated(t, at, claims.rotary, count) for t in (q, k))
    return q, k


def decayed(claims: OperatorClaims, query: Tensor, key: Tensor, options: dict[str, Any]) -> Tensor:
    """What decay adds to the scores: Σ of what lies behind the key up to the query, without the steps that a mask of padding hides."""
    import torch

    decay: Tensor = options["decay"].double()
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool and mask.ndim == 4 and mask.shape[-2] == 1:
        hidden = ~mask if claims.mask_polarity == "keep" else mask
        decay = decay.masked_fill(hidden[:, :, 0], 0.0)
    total = decay.cumsum(-1)
    return total[..., :, None] - total[..., None, :]


def slopes(heads: int) -> list[float]:
    """ALiBi's slope per head. For counts that are no power of two: those of the power below, then every other one of the power above.

    Source: Press, Smith and Lewis, Train Short, Test Long, 2022.
    """
    whole = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8.0 * (i + 1) / whole) for i in range(whole)]
    return first + [2.0 ** (-8.0 * (i + 1) / (2 * whole)) for i in range(0, 2 * (heads - whole), 2)]


def attention(claims: OperatorClaims, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Dense:
    """The definition. Rows that see nothing are 0 here; what the operator gives there is `empty_rows`."""
    import torch

    (q, k), v = prepared(claims, query, key, options), value.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = options.get("scale")
    scale = claims.scale_for(q.shape[-1]) if scale is None else scale
    scores = q @ k.mT * scale
    sharpness = (q.detach().abs() @ k.detach().abs().mT * abs(scale)).amax(-1, keepdim=True)
    if claims.rotary:
        # angles of float32 are off by units of the largest position
        sharpness = sharpness * (1 + float(places(query, options).max()))
    cap = options.get("softcap") if claims.softcap == "argument" else claims.softcap
    if cap is not None:
        scores = float(cap) * torch.tanh(scores / float(cap))
    bias = options.get("position_bias")
    if bias is not None:
        scores = scores + bias.double()
    if claims.position_bias == "alibi":
        distance = positions(claims, q.shape[-2], k.shape[-2]).abs().double()
        scores = scores - torch.tensor(slopes(q.shape[1]), dtype=torch.float64)[:, None, None] * distance
    if options.get("decay") is not None:
        scores = scores + decayed(claims, query, key, options)
        sharpness = sharpness + options["decay"].detach().abs().sum(-1).amax()
    seen = visible(claims, query, key, options)
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        finite = mask.double().masked_fill(~(mask.detach() > torch.finfo(mask.dtype).min), 0.0)
        scores = scores + finite
        sharpness = sharpness + finite.detach().abs().amax()
    scores = scores.masked_fill(~seen, -math.inf)
    sinks = options.get("sinks")
    logits = scores if sinks is None else torch.cat([scores, sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], -1)
    top = logits.detach().amax(-1, keepdim=True)
    top = top.masked_fill(top == -math.inf, 0.0)
    powers = (logits - top).exp()
    total = powers.sum(-1, keepdim=True)
    lse = (total.log() + top).squeeze(-1)
    weights = (powers / total.masked_fill(total == 0, 1.0))[..., : k.shape[-2]]
    return Dense(weights @ v, weights, scores, lse, seen, sharpness)
