"""Singular values of the attention matrix: the largest, and how many matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from attncheck.core.definitions import Request
from attncheck.core.observable import Value, observable

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from attncheck.instruments.context import CallContext

PLACE = ("sample", "layer", "head")
MOST_STEPS = 1000
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
LONGEST = 4096
"""Tokens up to which whole heads are written out, one at a time, where an estimate was asked to be exact."""
Columns = Annotated[int, Field(ge=2, le=4096)]


def _more_steps(name: str) -> Callable[..., Request | None]:
    """Four times the steps, up to the most that is allowed."""
    return lambda steps: Request.of(name, {"steps": min(4 * steps, MOST_STEPS)}) if steps < MOST_STEPS else None


@observable("attention.spectral_norm", reads="call", dims=PLACE, finer=_more_steps("attention.spectral_norm"))
def spectral_norm(context: CallContext, *, steps: Steps = 10) -> Value:
    """Largest singular value of the attention matrix, as an interval.

    Power iteration through the kernel's own derivative; both ends hold without chance for non-negative weights: |A x| / |x| from below,
    Collatz-Wielandt from above. A bound is judged on the side that decides, and where none does, on four times the steps, up to 1,000.
    Each step costs about 3.5 attention calls.
    """
    from attncheck.instruments.power import spectral_interval

    lower, upper = (side.cpu().numpy() for side in spectral_interval(context, steps))
    return Value((lower + upper) / 2, ("sample", "head"), lower=lower, upper=upper)


@observable("attention.stable_rank", reads="call", dims=PLACE, finer=_more_steps("attention.stable_rank"))
def stable_rank(context: CallContext, *, steps: Steps = 10) -> Value:
    """Stable rank of the attention matrix, |A|_F^2 / sigma_max^2, as an interval; from 1 to N."""
    from attncheck.instruments.power import spectral_interval

    squares = _squares(context)
    low, high = (side.cpu().numpy() for side in spectral_interval(context, steps))
    lower, upper = squares / high**2, squares / low**2
    return Value((lower + upper) / 2, ("sample", "head"), lower=lower, upper=upper)


@observable(
    "attention.participation_ratio",
    reads="call",
    dims=PLACE,
    finer=lambda columns, seed, exact: None if exact else Request.of("attention.participation_ratio", {"exact": True}),
)
def participation_ratio(context: CallContext, *, columns: Columns = 60, seed: int = 0, exact: bool = False) -> Value:
    """Participation ratio of the squared singular values, |A|_F^4 / |A^T A|_F^2; from 1 to N.

    Exact up to 512 tokens. Beyond, |A^T A|_F^2 = E |A^T A z|^2 is estimated with `columns` random signs z through the kernel's
    derivative; the standard error is given, and with 60 columns or more an interval that errs with a probability of about 1e-4 a head,
    by which a bound is judged. With `exact`, and where that interval does not decide, from whole heads, up to 4,096 tokens.
    """
    import numpy as np
    import torch

    from attncheck.instruments.context import DENSE_LIMIT
    from attncheck.instruments.hutchinson import COLUMNS_NEEDED, interval
    from attncheck.instruments.power import Products

    squares = _squares(context)
    if exact or max(context.queries, context.keys) <= DENSE_LIMIT:
        ratios = np.empty(squares.shape)
        for b in range(context.batch):
            for h in range(context.call.heads):
                weights = context.weights(b, h, torch.float64, longest=LONGEST)[context.counts[b]]
                ratios[b, h] = squares[b, h] ** 2 / float((weights.T @ weights).square().sum())
        return Value(ratios, ("sample", "head"))
    products = Products(context)
    generator = torch.Generator().manual_seed(seed)
    norms: list[Tensor] = []
    while len(norms) < columns:
        count = min(products.columns, columns - len(norms))
        shape = (context.batch, context.call.heads, context.keys, count)
        signs = (torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) * 2 - 1).float().to(context.call.query.device)
        _, pulled = products.gram(signs)
        norms.extend(pulled.double().square().sum(2).unbind(-1))
    drawn = torch.stack(norms, -1).cpu().numpy()
    mean, error = drawn.mean(-1), drawn.std(-1, ddof=1) / np.sqrt(drawn.shape[-1])
    ratio = squares**2 / mean
    if drawn.shape[-1] < COLUMNS_NEEDED:
        return Value(ratio, ("sample", "head"), stderr=ratio * error / mean)
    low, high = interval(mean, drawn.var(-1, ddof=1), drawn.shape[-1], alpha=1e-4)
    return Value(ratio, ("sample", "head"), stderr=ratio * error / mean, lower=squares**2 / high, upper=squares**2 / low)


@observable("attention.effective_rank", reads="call", dims=PLACE, whole_head=True)
def effective_rank(context: CallContext) -> Value:
    """Effective rank of the attention matrix: exp of the entropy of its normalised singular values; from 1 to N.

    A full SVD of every head, so up to 512 tokens only; `attention.stable_rank` and `attention.participation_ratio` have no such limit.
    """
    import numpy as np
    import torch

    ranks = np.empty((context.batch, context.call.heads))
    for b in range(context.batch):
        for h in range(context.call.heads):
            weights = context.weights(b, h, torch.float64)[context.counts[b]]
            if not bool(weights.isfinite().all()):
                ranks[b, h] = np.nan
                continue
            values = torch.linalg.svdvals(weights)
            share = values / values.sum()
            ranks[b, h] = float(torch.exp(-torch.special.xlogy(share, share).sum()))
    return Value(ranks, ("sample", "head"))


def _squares(context: CallContext) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """|A|_F^2 of every head, [B, H], from the exact rows."""
    import torch

    from attncheck.instruments.rows import tiles

    total: Tensor = torch.zeros(context.batch, context.call.heads, dtype=torch.float64)
    for tile in tiles(context):
        total[tile.batch, tile.head] += (tile.sum_of_squares * tile.counts).double().sum().cpu()
    return total.numpy()
