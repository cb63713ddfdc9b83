"""Multi-head latent attention: keys and values are read from one narrow vector per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attncheck.variants.fields import Count
from attncheck.variants.registry import Shape, Variant, variant
from attncheck.variants.softmax import softmax_attention

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.variants.layer import Attention


@dataclass(frozen=True)
class Latent:
    """c = x W_D [rank]; k_h = (c U_K,h, R(x W_R)), v_h = c U_V,h. A cache keeps c and the unrotated x W_R: rank + rope_dim a token."""

    rank: int
    rope_dim: int | None = None

    def rope(self, shape: Shape) -> int:
        """Width of the rotated part: as asked for, else half a head; none without rotary embeddings."""
        return (self.rope_dim or max(2, shape.head_dim // 4 * 2)) if shape.rotary else 0

    def query_dim(self, shape: Shape) -> int:
        return shape.head_dim + self.rope(shape)

    def rotated_dim(self, shape: Shape) -> int:
        return self.rope(shape)

    def problems(self, shape: Shape) -> list[str]:
        problems = []
        if self.rank > shape.heads * shape.head_dim:
            problems.append(f"mla: rank: {self.rank} is larger than all heads together, {shape.heads} x {shape.head_dim}")
        if self.rope_dim is not None and not shape.rotary:
            problems.append(f"mla: rope_dim: {self.rope_dim} without rotary embeddings")
        if self.rope(shape) % 2:
            problems.append(f"mla: rope_dim: {self.rope_dim}; allowed: an even number")
        return problems

    def build(self, layer: Attention) -> None:
        from torch import nn

        shape, rope = layer.shape, self.rope(layer.shape)
        layer.kv_down = nn.Linear(shape.width, self.rank, bias=False)
        layer.k_up = nn.Linear(self.rank, shape.heads * shape.head_dim, bias=False)
        layer.v_up = nn.Linear(self.rank, shape.heads * shape.head_dim, bias=False)
        if rope:
            layer.k_rope = nn.Linear(shape.width, rope, bias=False)

    def state(self, layer: Attention, hidden: Tensor, positions: Tensor) -> dict[str, Tensor]:
        found = {"latent": layer.mapped("kv_down", hidden)[:, None]}
        if self.rope(layer.shape):
            found["rope"] = layer.mapped("k_rope", hidden)[:, None]
        return found

    def expand(self, layer: Attention, state: Mapping[str, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        latent, heads = state["latent"][:, 0], layer.num_heads
        key, value = (layer.split(layer.mapped(name, latent), heads) for name in ("k_up", "v_up"))
        if "rope" in state:
            key = torch.cat([key, state["rope"].expand(-1, heads, -1, -1)], -1)
        return layer.finished(key, positions), value

    def weights(self, layer: Attention) -> dict[str, Tensor]:
        import torch

        down, shape = layer.matrix("kv_down"), (layer.num_heads, layer.head_dim, -1)
        key, value = ((layer.matrix(name) @ down).view(shape) for name in ("k_up", "v_up"))
        if self.rope(layer.shape):
            key = torch.cat([key, layer.matrix("k_rope")[None].expand(layer.num_heads, -1, -1)], 1)
        return {"key": key, "value": value}


@variant("mla", source="arXiv:2405.04434")
def mla(*, rank: Count, rope_dim: Count | None = None) -> Variant:
    """Multi-head latent attention: k_h = c U_K,h and v_h = c U_V,h from one latent c = x W_D of `rank` numbers per token.

    As a module: `rank` up to the width of all heads. With rotary embeddings a head's queries and keys get a tail of `rope_dim` (half a
    head where left out) that is rotated, its key part shared by the heads; the rest is not rotated. Scale 1/sqrt(d + rope_dim). A cache
    keeps rank + rope_dim numbers a token. There is no norm on the latent, as in the paper's equations and unlike its released models,
    so that key and value maps are single matrices.

    As an operator, in the absorbed form: query [batch, heads, N, rank + rope_dim] (q_h U_K,hᵀ, tail), key [batch, 1, M,
    rank + rope_dim] (c, tail), value [batch, 1, M, rank] (c), and `scale`, which the widths no longer tell.
    """
    return Variant(softmax_attention, Latent(rank, rope_dim), fused=True)
