"""The transformers that recipes train, with any attention variant in the middle. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attncheck import variants

START = 0.02
"""Deviation of embeddings at the start; linear maps start as torch has them."""


class Block(nn.Module):
    """hidden + attention(norm(hidden)), then hidden + mlp(norm(hidden)); hidden [batch, N, width]."""

    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm_attention(hidden))
        return hidden + self.mlp(self.norm_mlp(hidden))  # type: ignore[no-any-return]


class Language(nn.Module):
    """input_ids [batch, N] -> logits of the next byte [batch, N, 256]."""

    def __init__(self, attention: Any, *, layers: int, width: int, heads: int, tokens: int, qk_norm: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        nn.init.normal_(self.embedding.weight, std=START)
        self.layers = nn.ModuleList(
            Block(variants.module(attention, width=width, heads=heads, tokens=tokens, causal=True, rotary=True, qk_norm=qk_norm), width)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


class Vision(nn.Module):
    """pixel_values [batch, 1, side, side] -> logits of the classes [batch, classes]; no class token, the mean over the patches."""

    def __init__(
        self, attention: Any, *, layers: int, width: int, heads: int, tokens: int, patch: int, classes: int, qk_norm: bool
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=patch, stride=patch)
        self.position = nn.Parameter(torch.randn(1, tokens, width) * START)
        self.layers = nn.ModuleList(
            Block(variants.module(attention, width=width, heads=heads, tokens=tokens, causal=False, qk_norm=qk_norm), width)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        hidden = self.patches(pixel_values).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden).mean(1))  # type: ignore[no-any-return]
