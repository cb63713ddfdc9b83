"""LRKV: keys and values from one shared projection and low-rank residuals per head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attncheck.variants.fields import Rank
from attncheck.variants.registry import Shape, Variant, variant
from attncheck.variants.softmax import softmax_attention

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.variants.layer import Attention

START = 0.1
"""|U_h B_hᵀ|_F over |W_shared|_F at initialisation."""


@dataclass(frozen=True)
class LowRank:
    """W_h = W_shared + U_h B_hᵀ for keys and values alike. A cache keeps x W_shared and x U_h, neither rotated nor normalised."""

    rank: int
    residual: str = "learned"

    def query_dim(self, shape: Shape) -> int:
        return shape.head_dim

    def rotated_dim(self, shape: Shape) -> int:
        return shape.head_dim

    def problems(self, shape: Shape) -> list[str]:
        if self.rank > shape.head_dim:
            return [f"lrkv: rank: {self.rank} is larger than the head dim {shape.head_dim}; allowed: 0 to {shape.head_dim}"]
        return []

    def build(self, layer: Attention) -> None:
        import torch
        from torch import nn

        width, heads, dim = layer.shape.width, layer.num_heads, layer.head_dim
        for name in ("k", "v"):
            layer.add_module(f"{name}_shared", nn.Linear(width, dim, bias=False))
            if self.rank:
                layer.add_module(f"{name}_down", nn.Linear(width, heads * self.rank, bias=False))
                learned = self.residual == "learned"
                # Drawn in either case: the same seed gives both the same shared projections.
                start = torch.randn(heads * dim, self.rank) * START / math.sqrt(self.rank)
                layer.register_parameter(f"{name}_up", nn.Parameter(start if learned else start * 0, requires_grad=learned))

    def state(self, layer: Attention, hidden: Tensor, positions: Tensor) -> dict[str, Tensor]:
        found = {"key": layer.k_shared(hidden)[:, None], "value": layer.v_shared(hidden)[:, None]}
        if self.rank:
            found["key_latent"] = layer.split(layer.k_down(hidden), layer.num_heads)
            found["value_latent"] = layer.split(layer.v_down(hidden), layer.num_heads)
        return found

    def expand(self, layer: Attention, state: Mapping[str, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
        key, value = state["key"], state["value"]
        if self.rank:
            key = key + state["key_latent"] @ basis(layer, "k").mT
            value = value + state["value_latent"] @ basis(layer, "v").mT
        return layer.finished(key, positions), value

    def weights(self, layer: Attention) -> dict[str, Tensor]:
        import torch

        found = {}
        for name, letter in (("key", "k"), ("value", "v")):
            shared = layer.get_submodule(f"{letter}_shared").weight[None].expand(layer.num_heads, -1, -1)
            residual = torch.zeros_like(shared)
            if self.rank:
                down = layer.get_submodule(f"{letter}_down").weight.view(layer.num_heads, self.rank, -1)
                residual = basis(layer, letter) @ down
            found |= {name: shared + residual, f"{name}.shared": shared, f"{name}.residual": residual}
        return found


def basis(layer: Attention, letter: str) -> Tensor:
    """B [heads, d, rank] of the keys (k) or values (v)."""
    return layer.get_parameter(f"{letter}_up").view(layer.num_heads, layer.head_dim, -1)


@variant("lrkv", source="arXiv:2601.11471")
def lrkv(*, rank: Rank, residual: Literal["learned", "zero"] = "learned") -> Variant:
    """Low-rank key-value attention: W_h = W_shared + U_h B_hᵀ for keys and values, queries full per head; then softmax attention.

    W_shared [width, d] is one matrix for all heads, U_h [width, rank], B_h [d, rank]. `rank` 0 is multi-query attention, rank d can
    equal MHA. `residual: zero` keeps U and holds B at 0. A residual starts at about a tenth of the shared norm.
    """
    return Variant(softmax_attention, LowRank(rank, residual), fused=True)
