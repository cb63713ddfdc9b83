"""An observable: what a kernel that keeps only the largest weights of each row would throw away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError
from attncheck.core.observable import observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.rows import Tile


@observable("attention.tail_mass", reads="rows", dims=("sample", "layer", "head"), over_queries="mean")
def tail_mass(tile: Tile, *, keep: int = 8) -> Tensor:
    """Mass outside of the `keep` largest weights of each row, mean over queries.

    r_i minus the sum of the largest a_ij, in [0, 1]. Raises MeasurementError where `keep` is below 1.
    """
    if keep < 1:
        raise MeasurementError(f"keep {keep}; allowed: a whole number from 1 on")
    weights = tile.weights
    return tile.row_sum - weights.topk(min(keep, weights.shape[1])).values.sum(-1)
