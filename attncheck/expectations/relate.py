"""`ratio_to` and `difference_to`: two fields joined place by place. What differs is said by the spec, all else must be equal."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attncheck.core.errors import MeasurementError, Place
from attncheck.expectations.field import Array, Field, Floats, Over, spell, weakest
from attncheck.expectations.reduce import quotient


def join(left: Field, right: Field, names: tuple[str, str], place: Place | str) -> tuple[Field, Field]:
    """Both sides over the union of their dims, in one order. A dim that one side lacks is the same for all of the other's places.

    Raises MeasurementError where a shared dim has other labels on each side; the message says both.
    """
    for dim in left.dims:
        if dim in right.dims and not np.array_equal(left.labels[dim], right.labels[dim]):
            raise MeasurementError(
                f"{place}: {names[0]} has {_count(left, dim)} and {names[1]} has {_count(right, dim)}: there is no place by place "
                f"comparison; reduce {dim}, or select the same ones with `where`"
            )
    dims = tuple(sorted({*left.dims, *right.dims}, key=lambda d: _order(d, left, right)))
    labels = {dim: left.labels[dim] if dim in left.dims else right.labels[dim] for dim in dims}
    return _expand(left, dims, labels), _expand(right, dims, labels)


def relate(
    left: Field, right: Field, kind: Literal["ratio", "difference"], names: tuple[str, str], place: Place | str = "relation"
) -> Field:
    """left / right or left - right. Raises MeasurementError on mismatched places and on a division by zero."""
    left, right = join(left, right, names, place)
    there = left.there() & right.there()
    a, b = left.value, right.value
    if kind == "ratio":
        zero = (b == 0) & there
        if zero.any():
            first = spell(left.where([int(i) for i in np.argwhere(zero)[0]]))
            raise MeasurementError(
                f"{place}: {names[1]} is 0 at {int(zero.sum())} of {int(there.sum())} places, first at {first or 'its only place'}: "
                "a ratio to it means nothing; use difference_to"
            )
        value = np.divide(a, b, out=np.zeros_like(a), where=there)
    else:
        value = np.where(there, a - b, 0.0)
    lower, upper = _interval(left, right, kind)
    symbols, lost = _symbols(left, right, names)
    made = left.with_(
        value=value,
        lower=lower,
        upper=upper,
        present=None if there.all() else there,
        coords={**right.coords, **left.coords},
        symbols=symbols,
        lost={**right.lost, **left.lost, **lost},
        sides=(a, b),
        sign="/" if kind == "ratio" else "-",
        magnitude=np.maximum(np.abs(a), np.abs(b)) if kind == "difference" else None,
        resolution=max(left.resolution, right.resolution),
        unit="" if kind == "ratio" else left.unit,
        decided=weakest([left.decided, right.decided]),
        notes=tuple(dict.fromkeys((*left.notes, *right.notes))),
        endless=False,
    )
    made.refuse_nan(f"the {kind}", place)
    return made


def _interval(left: Field, right: Field, kind: str) -> tuple[Floats | None, Floats | None]:
    if left.lower is None and left.upper is None and right.lower is None and right.upper is None:
        return None, None
    (low, high), (below, above) = left.interval(), right.interval()
    if kind == "ratio":
        return quotient(low, high, below, above)
    return low - above, high - below


def _expand(found: Field, dims: tuple[str, ...], labels: dict[str, Array]) -> Field:
    """The field over more dims: constant along those that it lacks."""
    if found.dims == dims:
        return found
    shape = tuple(labels[dim].size for dim in dims)

    def wide(values: Array | None) -> Array | None:
        if values is None:
            return None
        kept = [dim for dim in dims if dim in found.dims]
        ordered = np.transpose(values, [found.dims.index(dim) for dim in kept])
        return np.broadcast_to(ordered.reshape([labels[dim].size if dim in kept else 1 for dim in dims]), shape)

    return found.with_(
        dims=dims,
        value=wide(found.value),
        lower=wide(found.lower),
        upper=wide(found.upper),
        present=wide(found.present),
        labels=labels,
        magnitude=wide(found.magnitude),
    )


def _symbols(left: Field, right: Field, names: tuple[str, str]) -> tuple[dict[str, Over], dict[str, str]]:
    """The symbols of both sides; one that differs between them is ambiguous and can no longer be used."""
    kept, lost = {**right.symbols, **left.symbols}, {}
    for name in left.symbols.keys() & right.symbols.keys():
        (dims, values), (other_dims, others) = left.symbols[name], right.symbols[name]
        if dims != other_dims or not np.array_equal(values, others):
            del kept[name]
            lost[name] = f"the sides, {names[0]} and {names[1]}"
    return kept, lost


def _count(found: Field, dim: str) -> str:
    labels = found.labels[dim]
    several = {"query": "queries"}.get(dim, f"{dim}s")
    first, last = labels[0].item() if labels.size else "-", labels[-1].item() if labels.size else "-"
    return f"{labels.size} {dim if labels.size == 1 else several} ({first} to {last})"


def _order(dim: str, left: Field, right: Field) -> tuple[int, int]:
    from attncheck.core.measurement import DIMS

    if dim in DIMS:
        return DIMS.index(dim), 0
    return -1, (left.dims + right.dims).index(dim)
