"""`reduce`: dims folded away, in the order written. Absent places never count; estimates carry their interval along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attncheck.core.errors import MeasurementError, Place
from attncheck.expectations.field import Field, Floats, Mask, Over, spell
from attncheck.expectations.places import place_of
from attncheck.spec.model import Property, Reduction

NEVER = ("first_above", "first_below")
"""Infinite where it never happens."""
PROFILES = ("peak", "spread", "growth", "slope", "exponent", "largest_rise", "largest_fall", *NEVER)
"""Reductions that speak of a course over layers or steps: their picture is the course itself."""
_AT_LEAST_TWO = ("peak", "spread", "growth", "slope", "exponent", "largest_rise", "largest_fall", "decades")


@dataclass(frozen=True)
class _Along:
    """One reduction's surroundings: x is [..., n] with NaN where absent."""

    there: Mask | None
    labels: Floats
    """[n], as numbers."""
    extent: tuple[float, float]
    """First and last label of the whole dim, before `where`."""
    above: float


Fold = Callable[[Floats, _Along], Floats]


def reduce(found: Field, prop: Property, *, lenient: bool = False) -> Field:
    """All reductions of a property. `lenient` skips dims that the field lacks (the other side of a relation).

    Raises MeasurementError where a dim is missing, too short, or the result is not a number.
    """
    for reduction in prop.reduce:
        place = place_of(prop, f"reduce.{reduction.dim}", "reduce")
        if reduction.dim not in found.dims:
            if lenient:
                continue
            over = ", ".join(found.dims) or "no dim"
            raise MeasurementError(f"{place}: {prop.request.name} has no {reduction.dim} to reduce; left are {over}")
        found = reduce_one(found, reduction, place)
    return found


def reduce_one(found: Field, reduction: Reduction, place: Place | str = "reduce") -> Field:
    """Fold one dim.

    mean, median, max, min, sum; spread: largest minus smallest; decades: log10 of the 95th over the 5th percentile; peak: where the
    maximum lies, 0 at the model's first layer (or step), 1 at its last; growth: last over first; slope: least squares, per unit of the
    dim's coordinate; exponent: the slope of log value on log coordinate, coordinates of 0 left out; largest_rise: by how much a value
    exceeds an earlier one at most, 0 where none does; largest_fall: below; first, last; first_above, first_below: the first coordinate
    whose value is beyond `above`, infinite where none is.
    """
    dim, how = reduction.dim, reduction.how
    axis = found.axis(dim)
    if how in _AT_LEAST_TWO and found.shape[axis] < 2:
        raise MeasurementError(f"{place}: {how} over {dim} needs at least 2 of them, measured is {found.shape[axis]}: it would say nothing")
    there = None if found.present is None else np.moveaxis(found.present, axis, -1)

    def last_axis(values: Floats) -> Floats:
        moved = np.moveaxis(values, axis, -1)
        return moved if there is None else np.where(there, moved, np.nan)

    labels = found.labels[dim]
    numbers = labels.astype(float) if labels.dtype.kind in "iuf" else np.arange(labels.size, dtype=float)
    along = _Along(there, numbers, _extent(found, dim), reduction.above if reduction.above is not None else 0.0)
    exists = None if there is None else np.asarray(there.any(axis=-1))
    value = _fold(how, last_axis(found.value), along)
    lower = upper = None
    if found.lower is not None or found.upper is not None:
        low, high = found.interval()
        lower, upper = _fold_interval(how, last_axis(low), last_axis(high), along)
    symbols, lost = _symbols(found, dim, how)
    made = found.with_(
        dims=tuple(d for d in found.dims if d != dim),
        value=_fill(value, exists),
        lower=None if lower is None else _fill(lower, exists),
        upper=None if upper is None else _fill(upper, exists),
        present=None if exists is None or exists.all() else exists,
        labels={d: values for d, values in found.labels.items() if d != dim},
        coords={name: over for name, over in found.coords.items() if dim not in over[0]},
        symbols=symbols,
        lost={**found.lost, **lost},
        magnitude=_magnitude(how, found, last_axis, along),
        resolution=0.0 if how in ("peak", *NEVER) else found.resolution,
        step=str(labels[-1 if how == "last" else 0]) if dim == "step" and how in ("first", "last") else found.step,
        endless=found.endless or how in NEVER,
    )
    if how == "exponent":
        _refuse_no_logarithm(made, found, dim, place)
    made.refuse_nan(f"{how} over {dim}", place)
    if how == "decades":
        _refuse_infinite(made, found, dim, place)
    return made


def _fold(how: str, x: Floats, along: _Along) -> Floats:
    with np.errstate(all="ignore"):
        return np.asarray(_FOLDS[how](x, along), dtype=float)


def _simple(plain: Callable[..., Floats], skipping: Callable[..., Floats]) -> Fold:
    def fold(x: Floats, along: _Along) -> Floats:
        if along.there is None:
            return plain(x, axis=-1)
        anywhere = np.asarray(along.there.any(axis=-1))
        return np.where(anywhere, skipping(np.where(anywhere[..., None], x, 0.0), axis=-1), np.nan)

    return fold


_mean = _simple(np.mean, np.nanmean)
_median = _simple(np.median, np.nanmedian)
_max = _simple(np.max, np.nanmax)
_min = _simple(np.min, np.nanmin)
_sum = _simple(np.sum, np.nansum)
_high = _simple(lambda x, axis: np.percentile(x, 95, axis=axis), lambda x, axis: np.nanpercentile(x, 95, axis=axis))
_low = _simple(lambda x, axis: np.percentile(x, 5, axis=axis), lambda x, axis: np.nanpercentile(x, 5, axis=axis))


def _first(x: Floats, along: _Along) -> Floats:
    if along.there is None:
        return x[..., 0]
    return np.take_along_axis(x, along.there.argmax(axis=-1)[..., None], axis=-1)[..., 0]


def _last(x: Floats, along: _Along) -> Floats:
    if along.there is None:
        return x[..., -1]
    index = np.asarray(x.shape[-1] - 1 - along.there[..., ::-1].argmax(axis=-1))
    return np.take_along_axis(x, index[..., None], axis=-1)[..., 0]


def _peak(x: Floats, along: _Along) -> Floats:
    first, last = along.extent
    index = np.where(np.isnan(x), -np.inf, x).argmax(axis=-1)
    return np.asarray((along.labels[index] - first) / (last - first))


def _slope_weights(x: Floats, along: _Along) -> Floats:
    """w with slope = sum(w * x): least squares of the values on the labels, per row where places are absent."""
    there = np.ones(x.shape, dtype=bool) if along.there is None else along.there
    t = np.where(there, along.labels, 0.0)
    centred = np.where(there, along.labels - t.sum(axis=-1, keepdims=True) / there.sum(axis=-1, keepdims=True), 0.0)
    return np.asarray(centred / (centred**2).sum(axis=-1, keepdims=True))


def _slope(x: Floats, along: _Along) -> Floats:
    return np.asarray((_slope_weights(x, along) * np.nan_to_num(x, posinf=np.inf, neginf=-np.inf)).sum(axis=-1))


def _logarithmic(x: Floats, along: _Along) -> tuple[Floats, _Along]:
    """Both axes as logarithms; the beginning, coordinate 0, has none and is left out."""
    kept = along.labels > 0
    there = None if along.there is None else along.there[..., kept]
    with np.errstate(all="ignore"):
        return np.log(x[..., kept]), _Along(there, np.log(along.labels[kept]), along.extent, along.above)


def _exponent(x: Floats, along: _Along) -> Floats:
    return _slope(*_logarithmic(x, along))


def _largest_rise(low: Floats, high: Floats | None = None) -> Floats:
    """max over i < j of high[j] - low[i], at least 0; absent places (NaN) are passed over."""
    earlier = np.fmin.accumulate(low, axis=-1)[..., :-1]
    gaps = (low if high is None else high)[..., 1:] - earlier
    return np.asarray(np.maximum(np.where(np.isnan(gaps), 0.0, gaps).max(axis=-1), 0.0))


def _first_where(beyond: Mask, along: _Along) -> Floats:
    return np.where(beyond.any(axis=-1), along.labels[beyond.argmax(axis=-1)], np.inf)


def _first_above(x: Floats, along: _Along) -> Floats:
    return _first_where(np.where(np.isnan(x), False, x > along.above), along)


def _first_below(x: Floats, along: _Along) -> Floats:
    return _first_where(np.where(np.isnan(x), False, x < along.above), along)


_FOLDS: dict[str, Fold] = {
    "mean": _mean,
    "median": _median,
    "max": _max,
    "min": _min,
    "sum": _sum,
    "first": _first,
    "last": _last,
    "spread": lambda x, along: _max(x, along) - _min(x, along),
    "decades": lambda x, along: np.log10(_high(x, along) / _low(x, along)),
    "growth": lambda x, along: _last(x, along) / _first(x, along),
    "peak": _peak,
    "slope": _slope,
    "exponent": _exponent,
    "largest_rise": lambda x, along: _largest_rise(x),
    "largest_fall": lambda x, along: _largest_rise(-x),
    "first_above": _first_above,
    "first_below": _first_below,
}


def _fold_interval(how: str, low: Floats, high: Floats, along: _Along) -> tuple[Floats, Floats]:
    """The interval that holds the fold of any values within [low, high]; never narrower than the truth."""
    with np.errstate(all="ignore"):
        match how:
            case "spread":
                return np.maximum(_max(low, along) - _min(high, along), 0.0), _max(high, along) - _min(low, along)
            case "decades":
                return np.log10(_high(low, along) / _low(high, along)), np.log10(_high(high, along) / _low(low, along))
            case "growth":
                return quotient(_last(low, along), _last(high, along), _first(low, along), _first(high, along))
            case "slope" | "exponent":
                if how == "exponent":
                    (low, _), (high, along) = _logarithmic(low, along), _logarithmic(high, along)
                weights = _slope_weights(low, along)
                down, up = np.nan_to_num(low) * weights, np.nan_to_num(high) * weights
                return np.minimum(down, up).sum(axis=-1), np.maximum(down, up).sum(axis=-1)
            case "largest_rise":
                return _largest_rise(high, low), _largest_rise(low, high)
            case "largest_fall":
                return _largest_rise(-low, -high), _largest_rise(-high, -low)
            case "peak":
                first, last = along.extent
                candidates = np.where(np.isnan(high), False, high >= _max(low, along)[..., None])
                depth = (along.labels - first) / (last - first)
                return np.where(candidates, depth, np.inf).min(axis=-1), np.where(candidates, depth, -np.inf).max(axis=-1)
            case "first_above":
                return _first_above(high, along), _first_above(low, along)
            case "first_below":
                return _first_below(low, along), _first_below(high, along)
    return _FOLDS[how](low, along), _FOLDS[how](high, along)


def quotient(low: Floats, high: Floats, below_low: Floats, below_high: Floats) -> tuple[Floats, Floats]:
    """[low, high] / [below_low, below_high], infinite on both sides where the divisor's interval holds 0."""
    with np.errstate(all="ignore"):
        corners = np.stack([low / below_low, low / below_high, high / below_low, high / below_high])
    zero = (below_low <= 0) & (below_high >= 0)
    return np.where(zero, -np.inf, corners.min(axis=0)), np.where(zero, np.inf, corners.max(axis=0))


def _extent(found: Field, dim: str) -> tuple[float, float]:
    """First and last label of the dim; for layers those of the model where it says how many it has."""
    first, last = found.extent[dim]
    if dim == "layer" and "L" in found.symbols:
        layers = float(np.max(found.symbols["L"][1]))
        if layers - 1 >= last:
            return 0.0, layers - 1
    return first, last


def _symbols(found: Field, dim: str, how: str) -> tuple[dict[str, Over], dict[str, str]]:
    """Symbols after a reduction: kept where they do not vary over the dim, or where one place was picked; else lost."""
    kept: dict[str, Over] = {}
    lost: dict[str, str] = {}
    for name, (dims, values) in found.symbols.items():
        if dim not in dims:
            kept[name] = (dims, values)
            continue
        axis = dims.index(dim)
        first = np.take(values, -1 if how == "last" else 0, axis=axis)
        if how not in ("first", "last"):
            # NaN where a layer has no such head: absent, not different.
            first = np.fmax.reduce(values, axis=axis)
            same = np.isnan(values) | (values == np.expand_dims(first, axis))
        if how in ("first", "last") or same.all():
            kept[name] = (tuple(d for d in dims if d != dim), first)
        else:
            lost[name] = dim
    return kept, lost


def _magnitude(how: str, found: Field, last_axis: Callable[[Floats], Floats], along: _Along) -> Floats | None:
    if how in ("spread", "slope", "largest_rise", "largest_fall"):
        largest = _fill(_max(np.abs(last_axis(found.value)), along), None)
        if how == "slope":
            return np.asarray(largest / max(float(np.ptp(along.labels)), 1.0))
        return largest
    if how in ("peak", "growth", "decades", "exponent", *NEVER) or found.magnitude is None:
        return None
    return _fill(_max(last_axis(found.magnitude), along), None)


def _fill(values: Floats, exists: Mask | None) -> Floats:
    """0 at places that do not exist, so that no NaN lingers."""
    return values if exists is None else np.where(exists, values, 0.0)


def _refuse_no_logarithm(made: Field, before: Field, dim: str, place: Place | str) -> None:
    """An exponent needs two coordinates above 0 and positive values at all of them."""
    labels = before.labels[dim]
    numbers = labels.astype(float) if labels.dtype.kind in "iuf" else np.arange(labels.size, dtype=float)
    if (numbers > 0).sum() < 2:
        raise MeasurementError(f"{place}: exponent over {dim} needs 2 {dim}s above 0, measured are {', '.join(map(str, labels[:5]))}")
    along = np.moveaxis(before.value, before.axis(dim), -1)[..., numbers > 0]
    there = np.moveaxis(before.there(), before.axis(dim), -1)[..., numbers > 0]
    if (there & ~(along > 0)).any():
        raise MeasurementError(f"{place}: exponent over {dim} needs positive values; the smallest is {float(along[there].min()):.3g}")


def _refuse_infinite(made: Field, before: Field, dim: str, place: Place | str) -> None:
    bad = ~np.isfinite(made.value) & made.there()
    if bad.any():
        first = spell(made.where([int(i) for i in np.argwhere(bad)[0]]))
        smallest = float(before.value[before.there()].min())
        raise MeasurementError(
            f"{place}: decades over {dim} needs positive values: the 5th percentile is 0 or less at {int(bad.sum())} places, "
            f"first at {first or 'its only place'} (smallest value {smallest:.3g}); select the {dim} places that are reached with `where`"
        )
