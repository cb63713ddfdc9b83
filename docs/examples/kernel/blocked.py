"""Softmax attention, 32 queries at a time. It has a mistake on purpose: the last query of a block also sees the next key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

BLOCK = 32


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, *, scaling: float, **unused: Any
) -> tuple[Tensor, None]:
    """transformers' signature: query [batch, heads, N, d], additive mask [batch, 1, N, M]; returns [batch, N, heads, d]."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    outputs = []
    for start in range(0, query.shape[2], BLOCK):
        stop = start + BLOCK
        mask = attention_mask[:, :, start:stop].clone()
        mask[:, :, -1, stop : stop + 1] = 0.0  # the mistake: one key too many
        scores = query[:, :, start:stop] @ key.mT * scaling + mask
        outputs.append(scores.softmax(-1) @ value)
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None
