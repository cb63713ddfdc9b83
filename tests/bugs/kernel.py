"""A correct attention in small steps, so that a bug is one overridden step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class Kernel:
    """softmax(cap(q kᵀ · scale) + bias + mask, sink) v; causality is anchored in `corner`; empty rows are 0."""

    corner = "top_left"
    fixed_window: int | None = None
    alibi = False

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        position_bias: Tensor | None = None,
        return_lse: bool = False,
        return_weights: bool = False,
    ) -> Any:
        self.asked = {
            "attn_mask": attn_mask,
            "is_causal": is_causal,
            "dropout_p": dropout_p,
            "return_weights": return_weights,
        }
        self.dtype = query.dtype
        if query.dtype in (torch.float16, torch.bfloat16):
            query, key, value = query.float(), key.float(), value.float()
        key, value = self.repeated(key, query.shape[1]), self.repeated(value, query.shape[1])
        query, key, value = self.prepared(query, key, value)
        scores = self.scores(query, key, self.scale(scale, query.shape[-1]))
        seen = self.seen(scores, attn_mask, is_causal, window)
        scores = self.capped(scores, softcap)
        scores = self.biased(scores, attn_mask, position_bias)
        scores = self.masked(scores, seen)
        weights = self.softmax(scores, sinks)
        weights = self.weighted(weights, seen)
        output = self.summed(self.dropped(weights, dropout_p), value).to(self.dtype)
        if return_lse:
            return output, self.lse(scores, sinks)
        if return_weights:
            return output, self.told(weights)
        return output

    def repeated(self, tensor: Tensor, heads: int) -> Tensor:
        return tensor.repeat_interleave(heads // tensor.shape[1], 1)

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query, key, value

    def scale(self, scale: float | None, width: int) -> float:
        return 1 / math.sqrt(width) if scale is None else scale

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return query @ key.mT * scale

    def distance(self, scores: Tensor) -> Tensor:
        N, M = scores.shape[-2:]
        offset = M - N if self.corner == "bottom_right" else 0
        return torch.arange(N)[:, None] + offset - torch.arange(M)

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        return self.distance(scores) >= 0 if is_causal else None

    def windowed(self, scores: Tensor, window: int | None) -> Tensor | None:
        return None if window is None else self.distance(scores).abs() < window

    def kept(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        if attn_mask is None:
            return None
        return attn_mask if attn_mask.dtype == torch.bool else attn_mask > torch.finfo(attn_mask.dtype).min

    def seen(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool, window: int | None) -> Tensor:
        seen = torch.ones(scores.shape, dtype=torch.bool)
        parts = (
            self.causal(scores, is_causal, attn_mask),
            self.windowed(scores, window if window is not None else self.fixed_window),
            self.kept(scores, attn_mask),
        )
        for part in parts:
            if part is not None:
                seen = seen & part
        return seen

    def capped(self, scores: Tensor, softcap: float | None) -> Tensor:
        return scores if softcap is None else softcap * torch.tanh(scores / softcap)

    def slopes(self, heads: int) -> Tensor:
        whole = 2 ** math.floor(math.log2(heads))
        first = [2.0 ** (-8.0 * (i + 1) / whole) for i in range(whole)]
        return torch.tensor(first + [2.0 ** (-4.0 * (2 * i + 1) / whole) for i in range(heads - whole)])

    def biased(self, scores: Tensor, attn_mask: Tensor | None, position_bias: Tensor | None) -> Tensor:
        if position_bias is not None:
            scores = scores + position_bias
        if self.alibi:
            scores = scores - self.slopes(scores.shape[1])[:, None, None] * self.distance(scores).abs()
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            scores = scores + attn_mask
        return scores

    def masked(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores.masked_fill(~seen, -math.inf)

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        top = scores.detach().amax(-1, keepdim=True)
        if sinks is not None:
            top = torch.maximum(top, sinks.view(1, -1, 1, 1).to(top.dtype))
        top = top.masked_fill(top == -math.inf, 0.0)
        powers = (scores - top).exp()
        total = powers.sum(-1, keepdim=True)
        if sinks is not None:
            total = total + (sinks.view(1, -1, 1, 1) - top).exp()
        return powers / total.masked_fill(total == 0, 1.0)

    def weighted(self, weights: Tensor, seen: Tensor) -> Tensor:
        return weights

    def dropped(self, weights: Tensor, p: float) -> Tensor:
        return torch.nn.functional.dropout(weights, p) if p else weights

    def summed(self, weights: Tensor, value: Tensor) -> Tensor:
        return weights @ value

    def lse(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return scores.logsumexp(-1)

    def told(self, weights: Tensor) -> Tensor:
        return weights
