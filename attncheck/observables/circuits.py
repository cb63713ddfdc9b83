"""Heads with a known job: attending to the previous token, and induction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError
from attncheck.core.observable import observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.rows import Tile

PLACE = ("sample", "layer", "head")


@observable("attention.previous_token", reads="rows", dims=PLACE, over_queries="mean_where_known")
def previous_token(tile: Tile) -> Tensor:
    """Weight on the previous token, a_i,i-1, mean over the queries that have one."""
    import torch

    weight = tile.at(tile.query_positions - 1)
    return torch.where(tile.query_positions >= 1, weight, torch.nan)


@observable("attention.induction", reads="rows", dims=PLACE, source="arXiv:2209.11895", over_queries="mean_where_known")
def induction(tile: Tile) -> Tensor:
    """Weight on the token after the last earlier occurrence of the query's own token, mean over the queries that have one.

    On repeated random tokens an induction head puts most of its mass there. Raises MeasurementError where no token occurs twice.
    """
    import torch

    targets = tile.context.after_last_occurrence
    if targets is None:
        raise MeasurementError("needs token ids; the input has none")
    here = targets[tile.batch, tile.rows]
    if not bool((targets >= 0).any()):
        raise MeasurementError("no token occurs twice in this input, so nothing can be copied; use `tokens: repeated-random`")
    return torch.where(here >= 0, tile.at(here), torch.nan)
