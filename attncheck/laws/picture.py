"""A counterexample as a picture: the operator's weights, or how far each token is off, with what is wrong outlined."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import AttncheckError
from attncheck.core.verdict import Picture

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.laws.trial import Trial

LARGEST = 128
"""Queries or keys beyond which a cell is no longer seen."""


def of_weights(trial: Trial, batch: int, head: int, *, rows: Sequence[int] = (), cells: Sequence[tuple[int, int]] = ()) -> Picture | None:
    """The weights that the operator applies in one head [N, M], the cells or whole rows that are wrong outlined. None where they cannot
    be read off: an operator that raises, or more queries or keys than can be seen."""
    N, M = trial.query.shape[-2], trial.key.shape[-2]
    if max(N, M) > LARGEST:
        return None
    try:
        weights = trial.weights()[batch, head]
    except AttncheckError:
        return None
    grid = [[float(number) for number in row] for row in weights]
    return Picture(
        "matrix",
        f"Weights of {_name(trial)}, head {head}, batch {batch}, on {trial.example}",
        "key",
        "query",
        grid=grid,
        marked=[*cells, *((row, column) for row in rows for column in range(M))],
        marked_are="of a row whose output is wrong" if rows else "wrong",
        notes=["weight, read off by values that are 1 at one key"],
    )


def of_tokens(excess: Tensor, what: str) -> Picture | None:
    """How many times rounding explains the difference at each row and token [batch, length, ...]: above 1 is wrong."""
    if excess.ndim < 2 or excess.shape[1] > LARGEST or excess.shape[0] > LARGEST:
        return None
    worst = excess.flatten(2).amax(-1) if excess.ndim > 2 else excess
    grid = [[float(number) for number in row] for row in worst.clamp(min=1e-3, max=1e12)]
    return Picture(
        "matrix",
        what,
        "token",
        "row of the batch",
        grid=grid,
        marked=[(i, j) for i, row in enumerate(grid) for j, number in enumerate(row) if number > 1],
        marked_are="tokens that are off",
        notes=["difference, as a multiple of what rounding explains"],
    )


def drawn(make: Any) -> Picture | None:
    """What a violation offers, or None: a picture explains a violation, and lacking one must not cost it."""
    with contextlib.suppress(Exception):
        found: Picture | None = make()
        return found
    return None


def _name(trial: Trial) -> str:
    return getattr(trial.operator, "__qualname__", None) or type(trial.operator).__name__
