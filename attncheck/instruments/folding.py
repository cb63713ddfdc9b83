"""Numbers per query row folded to one number a head, over the rows that count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attncheck.core.observable import Value

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.session import Wanted


def fold(per_row: Tensor, counts: Tensor, want: Wanted, row_sum: Tensor | None = None) -> Value:
    """[B, H, N] to one number a head over the queries that count, or kept per query with no place where none counts.

    NaN in a row that counts stays NaN. Only `mean_where_known` takes it for a row that has nothing to say, and then asks `row_sum`.
    """
    counted = counts[:, None, :].expand_as(per_row)
    how = want.entry.about["over_queries"]
    number = per_row.double()
    broken = counted & row_sum.isnan() if row_sum is not None else torch.zeros_like(counted)
    if want.per_query:
        kept = torch.where(counted, number.sqrt() if how == "root_sum" else number, torch.nan)
        present = counted & ~(kept.isnan() & ~broken) if how == "mean_where_known" else counted
        return Value(kept.cpu().numpy(), ("sample", "head", "query"), present=present.cpu().numpy())
    total = counted.sum(-1)
    if how in ("max", "min"):
        sign = 1.0 if how == "max" else -1.0
        folded = torch.where(counted, number * sign, -torch.inf).amax(-1) * sign
    elif how == "mean_where_known":
        known = counted & ~number.isnan()
        folded = torch.where(known, number, 0.0).sum(-1) / known.sum(-1)
        folded = torch.where(broken.any(-1), torch.nan, folded)
    else:
        summed = torch.where(counted, number, 0.0).sum(-1)
        folded = summed / total if how == "mean" else summed.sqrt() if how == "root_sum" else summed
    folded = torch.where(total > 0, folded, torch.nan)
    return Value(folded.cpu().numpy(), ("sample", "head"), present=None if bool((total > 0).all()) else (total > 0).cpu().numpy())
