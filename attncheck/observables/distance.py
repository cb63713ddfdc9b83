"""How far back attention looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.observable import observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.rows import Tile


@observable("attention.mean_distance", reads="rows", dims=("sample", "layer", "head"), unit="tokens", over_queries="mean")
def mean_distance(tile: Tile) -> Tensor:
    """Mean attended distance sum_j a_ij |i - j| in tokens, mean over queries (arXiv:2010.11929, Appendix D.7)."""
    return tile.distance
