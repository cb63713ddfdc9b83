"""Rotary positions as the formula has them: channels in pairs, each turned by position · 10000^(-2i/d), in float64.

Source: Su et al., RoFormer, 2021, equation 15; several axes as in video and image models, each with channels of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BASE = 10000.0


def parts(width: int, axes: int) -> list[int]:
    """Channels of each axis; the first has what the others leave."""
    each = 2 * (width // (2 * axes))
    return [width - (axes - 1) * each, *[each] * (axes - 1)]


def pairs(width: int, axes: int, pairing: str) -> list[tuple[int, int]]:
    """Channels that turn together, those of the first axis first."""
    found, start = [], 0
    for size in parts(width, axes):
        half = size // 2
        for i in range(half):
            found.append((start + i, start + i + half) if pairing == "half" else (start + 2 * i, start + 2 * i + 1))
        start += size
    return found


def rotated(tensor: Tensor, places: Tensor, pairing: str, axes: int) -> Tensor:
    """tensor [batch, heads, N, d] at places [batch, N] or [batch, N, axes]."""
    import torch

    width = tensor.shape[-1]
    places = places[..., None] if places.ndim == 2 else places
    angles = []
    for axis, size in enumerate(parts(width, axes)):
        rates = BASE ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles.append(places[..., axis, None].double() * rates)
    angle = torch.cat(angles, -1)[:, None]
    first, second = (list(channels) for channels in zip(*pairs(width, axes, pairing), strict=True))
    a, b = tensor[..., first], tensor[..., second]
    turned = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    return turned[..., torch.tensor(first + second).argsort()]
