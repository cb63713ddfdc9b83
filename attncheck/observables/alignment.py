"""Does a head point each of some queries at a known key? Word alignment, atom mapping, pointer heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError
from attncheck.core.observable import observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.rows import Tile


@observable(
    "attention.alignment",
    reads="rows",
    dims=("sample", "layer", "head"),
    source="doi:10.1126/sciadv.abe4166",
    over_queries="mean_where_known",
)
def alignment(tile: Tile, *, queries: list[int], targets: list[int], among: list[int]) -> Tensor:
    """Share of the given queries whose largest weight among the candidate keys is on their target.

    `queries` and `targets` are positions, one target for each query; `among` are the candidate keys. 1 is a perfect alignment, and
    1 / len(among) what chance gives. Raises MeasurementError where the lists do not fit each other or the input.
    """
    import torch

    if len(queries) != len(targets) or not queries:
        raise MeasurementError(f"one target for each query: {len(queries)} queries, {len(targets)} targets")
    missing = sorted(set(targets) - set(among))
    if missing:
        raise MeasurementError(f"targets {missing} are not among the candidates")
    last = tile.context.keys - 1 - int(tile.context.first_slot[tile.batch])
    outside = sorted(position for position in {*queries, *among} if position < 0 or position > last)
    if outside:
        raise MeasurementError(f"positions {outside} lie outside of the input, which ends at {last}")
    candidates = torch.tensor(sorted(set(among)), device=tile.exponentials.device)
    found = candidates[torch.stack([tile.at(c.expand(len(tile.counts))) for c in candidates], -1).argmax(-1)]
    hits = torch.full_like(tile.total, torch.nan)
    for query, target in zip(queries, targets, strict=True):
        row = tile.query_positions == query
        hits = torch.where(row, (found == target).to(hits.dtype), hits)
    return hits
