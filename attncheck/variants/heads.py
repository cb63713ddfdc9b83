"""Keys and values with a projection per head or per group of heads: MHA, GQA, MQA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attncheck.variants.registry import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.variants.layer import Attention


@dataclass(frozen=True)
class KeyValueHeads:
    """k_h = x W_K[g], v_h = x W_V[g], g = h // (heads / kv_heads). A cache keeps keys as the operator gets them, and values."""

    kv_heads: int | None = None
    """None: as many as query heads."""

    def count(self, shape: Shape) -> int:
        return self.kv_heads or shape.heads

    def query_dim(self, shape: Shape) -> int:
        return shape.head_dim

    def rotated_dim(self, shape: Shape) -> int:
        return shape.head_dim

    def problems(self, shape: Shape) -> list[str]:
        if shape.heads % self.count(shape):
            return [f"{shape.heads} query heads do not divide into groups over kv_heads: {self.kv_heads}"]
        return []

    def build(self, layer: Attention) -> None:
        from torch import nn

        width = self.count(layer.shape) * layer.head_dim
        layer.k_proj = nn.Linear(layer.shape.width, width, bias=False)
        layer.v_proj = nn.Linear(layer.shape.width, width, bias=False)

    def state(self, layer: Attention, hidden: Tensor, positions: Tensor) -> dict[str, Tensor]:
        heads = self.count(layer.shape)
        key = layer.finished(layer.split(layer.mapped("k_proj", hidden), heads), positions, layer.gain("k"))
        return {"key": key, "value": layer.split(layer.mapped("v_proj", hidden), heads)}

    def expand(self, layer: Attention, state: Mapping[str, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
        return state["key"], state["value"]

    def weights(self, layer: Attention) -> dict[str, Tensor]:
        heads = self.count(layer.shape)
        return {name: layer.matrix(map_).view(heads, layer.head_dim, -1) for name, map_ in (("key", "k_proj"), ("value", "v_proj"))}
