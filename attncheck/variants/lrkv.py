"""LRKV: keys and values from one shared projection and low-rank residuals per head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attncheck.variants.fields import Rank
from attncheck.variants.formula import applied, masked, products, softmax_weights
from attncheck.variants.registry import Shape, Variant, variant

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
        found = {"key": layer.mapped("k_shared", hidden)[:, None], "value": layer.mapped("v_shared", hidden)[:, None]}
        if self.rank:
            found["key_latent"] = layer.split(layer.mapped("k_down", hidden), layer.num_heads)
            found["value_latent"] = layer.split(layer.mapped("v_down", hidden), layer.num_heads)
        return found

    def expand(self, layer: Attention, state: Mapping[str, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
        key, value = state["key"], state["value"]
        if self.rank:
            key = key + state["key_latent"] @ basis(layer, "k").mT
            value = value + state["value_latent"] @ basis(layer, "v").mT
        return layer.finished(key, positions), value

    def weights(self, layer: Attention) -> dict[str, Tensor]:
        import torch

        found: dict[str, Tensor] = {}
        for name, letter in (("key", "k"), ("value", "v")):
            shared = layer.matrix(f"{letter}_shared")[None].expand(layer.num_heads, -1, -1)
            residual = torch.zeros_like(shared)
            if self.rank:
                down = layer.matrix(f"{letter}_down").view(layer.num_heads, self.rank, -1)
                residual = basis(layer, letter) @ down
            found |= {name: shared + residual, f"{name}.shared": shared, f"{name}.residual": residual}
        return found


def basis(layer: Attention, letter: str) -> Tensor:
    """B [heads, d, rank] of the keys (k) or values (v)."""
    return layer.get_parameter(f"{letter}_up").view(layer.num_heads, layer.head_dim, -1)


def lrkv_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    key_latent: Tensor | None = None,
    key_basis: Tensor | None = None,
    value_latent: Tensor | None = None,
    value_basis: Tensor | None = None,
    key_positions: Tensor | None = None,
    qk_norm: bool = False,
) -> Tensor:
    """Attention from what an LRKV cache keeps, exactly, without full keys or values: equal to softmax attention on the rebuilt ones.

    key, value: the shared parts [batch, 1, M, d], neither rotated nor normalised; key_latent, value_latent: R [batch, heads, M, rank];
    key_basis, value_basis: B [heads, d, rank]; query: finished. key_positions [M]: the keys stand for rotated ones, and since rotation
    R(n) does not commute with B, q·R(n)(k_s + B r) is taken as (R(-n) q)·k_s + ((R(-n) q) B)·r, a rotated query per key. qk_norm: the
    keys stand for normalised ones; |k|² = |k_s|² + 2 k_s·(B r) + rᵀ BᵀB r is a number per token and head. With value_latent the output
    is affine, not linear, in `value`. Without latents this is softmax attention.
    """
    import torch

    from attncheck.variants.layer import rotated_by

    if key_positions is None:
        scores = products(query, key)
        if key_latent is not None and key_basis is not None:
            scores = scores + (query @ key_basis) @ key_latent.mT
    else:
        turned = rotated_by(query[..., None, :], -key_positions)
        scores = (turned * key[:, :, None]).sum(-1)
        if key_latent is not None and key_basis is not None:
            scores = scores + ((turned @ key_basis[:, None]) * key_latent[:, :, None]).sum(-1)
    if qk_norm:
        squares = key.square().sum(-1)
        if key_latent is not None and key_basis is not None:
            cross = ((key @ key_basis) * key_latent).sum(-1)
            squares = squares + 2 * cross + ((key_latent @ (key_basis.mT @ key_basis)) * key_latent).sum(-1)
        scores = scores * (squares / key.shape[-1] + torch.finfo(key.dtype).eps).rsqrt()[..., None, :]
    scores = masked(scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale), attn_mask, is_causal)
    weights = softmax_weights(scores)
    output = applied(weights, value, dropout_p)
    if value_latent is not None and value_basis is not None:
        output = output + applied(weights, value_latent, dropout_p) @ value_basis.mT
    return output


@variant("lrkv", source="arXiv:2601.11471, equations 2 to 10; its cache identity under rotation is corrected here")
def lrkv(*, rank: Rank, residual: Literal["learned", "zero"] = "learned") -> Variant:
    """Low-rank key-value attention: W_h = W_shared + U_h B_hᵀ for keys and values, queries full per head; then softmax attention.

    W_shared [width, d] is one matrix for all heads, U_h [width, rank], B_h [d, rank]. `rank` is at most d; 0 is multi-query attention,
    d can equal MHA. `residual: zero` keeps U and holds B at 0. A residual starts at about a tenth of the shared norm. Observables of
    weights see the parts `shared` and `residual` of k and v.

    As a module: a cache keeps x W_shared and x U_h, neither rotated nor normalised, 2 (d + heads · rank) numbers a token as the paper
    counts, and keys are rebuilt, then normalised and rotated, at each step. The paper's RoPE(K_shared) + RoPE(R) Bᵀ is not RoPE(K): a
    rotation does not commute with B. The scalar 1 / rms(k) of QK-norm, one per token and head, is recomputed and takes no memory.

    As an operator: query [batch, heads, N, d], key and value the shared ones [batch, 1, M, d] and, as extras, what makes them those of a
    head: `key_latent`, `value_latent` [batch, heads, M, rank], `key_basis`, `value_basis` [heads, d, rank]; `key_positions` [M] where
    keys stand for rotated ones, `qk_norm` where they stand for normalised ones. Exact, and no key or value of a head is built; but under
    rotation each query is turned back for each key, N · M · d numbers and N · M · d · rank products a head, which is no less than
    building them.
    """
    return Variant(lrkv_attention, LowRank(rank, residual), fused=True)
