"""How concentrated each row of attention is, and how large its scores are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.observable import observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.rows import Tile


@observable(
    "attention.entropy", reads="rows", dims=("sample", "layer", "head"), unit="nats", source="arXiv:2303.06296", over_queries="mean"
)
def entropy(tile: Tile) -> Tensor:
    """Shannon entropy of the attention rows, mean over queries.

    -sum_j a_ij log a_ij in nats, from 0 (one key) to log of the visible keys (uniform). Near 0 in every row is entropy collapse.
    """
    return tile.entropy


@observable("attention.largest_weight", reads="rows", dims=("sample", "layer", "head"), over_queries="mean")
def largest_weight(tile: Tile) -> Tensor:
    """Largest attention weight of each row, mean over queries: max_j a_ij, in (0, 1]."""
    return tile.largest_weight


@observable("logits.max", reads="rows", dims=("sample", "layer", "head"), source="arXiv:2309.14322", over_queries="max")
def largest_logit(tile: Tile) -> Tensor:
    """Largest attention logit over all queries and visible keys.

    max_ij of the score that enters the softmax: scaled, capped, biased, masked. Growth with training or learning rate announces
    divergence. All rows are read: a sample of queries misses the largest by logits (the maximum sits in one row).
    """
    return tile.largest_score
