"""Norms of the attention matrix and of the softmax's derivative."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.observable import observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.rows import Tile


@observable(
    "attention.frobenius_norm",
    reads="rows",
    dims=("sample", "layer", "head"),
    source="arXiv:2410.18613, Theorem 4.1",
    over_queries="root_sum",
)
def frobenius_norm(tile: Tile) -> Tensor:
    """Frobenius norm of the attention matrix of each head.

    sqrt(sum_ij a_ij^2) over the queries that count; dimensionless. With `per: query`, the Euclidean norm of each row. For rows
    that sum to r_i over n_i visible keys it lies between `uniform_norm` = sqrt(sum_i r_i^2 / n_i) and `ceiling_norm` = sqrt(rows).
    """
    return tile.sum_of_squares


@observable(
    "attention.jacobian_norm",
    reads="rows",
    dims=("sample", "layer", "head"),
    source="arXiv:2410.18613, Theorem 4.1; the sharp bound sqrt(N) / 2 is ours",
    over_queries="root_sum",
)
def jacobian_norm(tile: Tile) -> Tensor:
    """Frobenius norm of the softmax's Jacobian, all rows together.

    sqrt(sum_i (s2 - 2 s3 + s2^2)) with s_k = sum_j a_ij^k; at most sqrt(N) / 2 (1/4 a row, at two equal weights). Near 0 the
    softmax is saturated and passes no gradient. Worked out with the largest weight p set apart from the others q, as
    p^2 ((1 - p)^2 + q2) + sum q^2 ((1 - q)^2 + p^2 + q2 - q^2), where 1 - p is the sum of the q and of a sink's share, since the plain
    form cancels in sharp rows.
    """
    import torch

    weights = tile.weights
    top, place = weights.max(-1, keepdim=True)
    others = weights.scatter(1, place, 0.0)
    rest, squares = others.sum(-1) + tile.sink_share, others.square()
    second = squares.sum(-1, keepdim=True)
    mixed = (squares * ((1 - others).square() + top.square() + second - squares)).sum(-1)
    return torch.clamp(top[:, 0].square() * (rest.square() + second[:, 0]) + mixed, min=0.0)
