"""Every variant written out in float64, one number at a time: the weights that an operator must apply, and modules by their equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def pairs(
    query: Tensor,
    key: Tensor,
    weigh: Callable[[list[float], list[int], int, int], list[float]],
    seen: Callable[[int, int], bool],
    scale: Any,
) -> Tensor:
    """[B, H, N, M]: each row's visible scores through `weigh(scores, keys, head, row)`, zeros elsewhere."""
    batch, heads, rows, width = query.shape
    columns, group = key.shape[2], heads // key.shape[1]
    out = torch.zeros(batch, heads, rows, columns, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(rows):
                keys = [j for j in range(columns) if seen(i, j)]
                scores = [
                    sum(x * y for x, y in zip(query[b, h, i].tolist(), key[b, h // group, j].tolist(), strict=True))
                    * (width**-0.5 if scale is None else scale)
                    for j in keys
                ]
                for j, weight in zip(keys, weigh(scores, keys, h, i), strict=True):
                    out[b, h, i, j] = weight
    return out


def softmax(scores: list[float], keys: list[int], head: int, row: int) -> list[float]:
    total = sum(math.exp(s) for s in scores)
    return [math.exp(s) / total for s in scores]


def with_sinks(sinks: list[float]) -> Any:
    def weigh(scores: list[float], keys: list[int], head: int, row: int) -> list[float]:
        total = math.exp(sinks[head]) + sum(math.exp(s) for s in scores)
        return [math.exp(s) / total for s in scores]

    return weigh


def capped(cap: float) -> Any:
    return lambda scores, keys, head, row: softmax([cap * math.tanh(s / cap) for s in scores], keys, head, row)


def polynomial(power: int, factor: Any) -> Any:
    """`factor` a number, or one per head."""
    return lambda scores, keys, head, row: [s**power * (factor[head] if isinstance(factor, list) else factor) for s in scores]


def sigmoid(bias: float) -> Any:
    return lambda scores, keys, head, row: [1 / (1 + math.exp(-s - bias)) for s in scores]


def windowed(window: int, causal: bool) -> Any:
    """Weighs by softmax the keys of the window alone."""

    def weigh(scores: list[float], keys: list[int], head: int, row: int) -> list[float]:
        near = [row - window < j <= row if causal else abs(row - j) < window for j in keys]
        total = sum(math.exp(s) for s, inside in zip(scores, near, strict=True) if inside)
        return [math.exp(s) / total if inside else 0.0 for s, inside in zip(scores, near, strict=True)]

    return weigh


def normalised(vectors: Tensor) -> Tensor:
    """x / rms(x) by vector."""
    made = vectors.double().clone()
    for place in torch.cartesian_prod(*(torch.arange(n) for n in vectors.shape[:-1])).tolist():
        x = made[tuple(place)]
        made[tuple(place)] = x / math.sqrt(sum(v * v for v in x.tolist()) / len(x))
    return made


def feature_products(feature: str, is_normalised: bool) -> Callable[[Tensor, Tensor, Callable[[int, int], bool]], Tensor]:
    """Linear attention's weights from φ(q)·φ(k)."""
    phi = {
        "elu": lambda x: x + 1 if x > 0 else math.exp(x),
        "relu": lambda x: max(x, 0.0),
        "identity": lambda x: x,
    }[feature]

    def weights(query: Tensor, key: Tensor, seen: Callable[[int, int], bool]) -> Tensor:
        def weigh(products: list[float], keys: list[int], head: int, row: int) -> list[float]:
            total = sum(products)
            return [p / total if total else 0.0 for p in products] if is_normalised else products

        q, k = (part.detach().double().clone().apply_(phi) for part in (query, key))
        return pairs(q, k, weigh, seen, 1.0)

    return weights


def applied(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value.double().repeat_interleave(weights.shape[1] // value.shape[1], 1)


def rotated(vectors: Tensor, positions: list[int]) -> Tensor:
    """Pairs (i, i + w/2) of the last dim turned by position · 10000^(-2i/w)."""
    made, width = vectors.double().clone(), vectors.shape[-1]
    for at, position in enumerate(positions):
        for i in range(width // 2):
            angle = position * 10_000 ** (-2 * i / width)
            x, y = vectors[..., at, i].double(), vectors[..., at, i + width // 2].double()
            made[..., at, i] = x * math.cos(angle) - y * math.sin(angle)
            made[..., at, i + width // 2] = y * math.cos(angle) + x * math.sin(angle)
    return made
