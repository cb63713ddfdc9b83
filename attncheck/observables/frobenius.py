"""Norms of the attention matrix and of the softmax's derivative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from attncheck.core.definitions import Request
from attncheck.core.observable import Value, observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.probes import Probe
    from attncheck.instruments.rows import Tile

Columns = Annotated[int, Field(ge=1, le=4096)]
Chance = Annotated[float, Field(gt=0, lt=1)]


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
    "attention.frobenius_estimate",
    reads="probe",
    dims=("sample", "layer", "head"),
    source="doi:10.1080/03610918908812806",
    packs=lambda columns, alpha: {"signs": columns},
    finer=lambda columns, alpha: Request("attention.frobenius_norm"),
)
def frobenius_estimate(probe: Probe, *, columns: Columns = 64, alpha: Chance = 1e-4) -> Value:
    """Frobenius norm of each head estimated through the model's own kernel, without its queries and keys, with an interval.

    Hutchinson's estimator on `columns` random signs z: |A|_F^2 = E |A z|^2, after the mass on the first key and the mean over the other
    visible keys are taken out, which leaves little to chance. The interval holds the norm of non-negative rows but for a probability of
    about `alpha` a head; with fewer than 60 columns, or with no spread among them, it is the bracket that holds without chance. For
    kernels whose rows cannot be trusted, and as a second opinion on `attention.frobenius_norm`, which is exact and decides where this
    one's interval does not.
    """
    import numpy as np

    from attncheck.instruments.hutchinson import frobenius_estimate as estimate

    found = estimate(probe, alpha, columns)
    norm = np.sqrt(found.square)
    with np.errstate(divide="ignore", invalid="ignore"):
        stderr = np.where(norm > 0, found.stderr / (2 * norm), 0.0)
    return Value(norm, ("sample", "head"), stderr=stderr, lower=np.sqrt(found.lower), upper=np.sqrt(found.upper))


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
