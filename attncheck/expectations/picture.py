"""Which picture explains a verdict: chosen from the dims that are left, as plain data; `report.pictures` draws it.

(layer, head): a heat map. A course over layers that was reduced (peak, spread, ...): the course itself. Over steps: a panel for each
layer. A ratio by layer: bars of both sides with the ratio written in. One number by layer, query or key: lines. Else: bars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncheck.core.definitions import Request
from attncheck.core.verdict import Picture, Series
from attncheck.expectations.bound import Comparison, number
from attncheck.expectations.claim import other_side, quantity
from attncheck.expectations.course import MOST_LINES, at, at_mask, course, lines_over, number_bounds, panels, title
from attncheck.expectations.field import Field, Floats, Mask, plain, spell
from attncheck.expectations.reduce import PROFILES

if TYPE_CHECKING:
    from attncheck.core.fields import BoundArgument
    from attncheck.expectations.quantify import Quantified
    from attncheck.expectations.sides import Context

MOST_POINTS = 4000


def picture_of(
    context: Context, raw: Field, other: Field | None, found: Field, comparison: Comparison, quantified: Quantified
) -> Picture | None:
    """The picture of a bound's verdict."""
    prop = context.case.property
    folded = next((i for i, r in enumerate(prop.reduce) if r.how in PROFILES and r.dim in ("layer", "step")), None)
    if folded is not None:
        return course(context, raw, other, folded, found, quantified)
    focus = _focus(found, comparison.excess, quantified)
    long = {dim for dim, size in zip(found.dims, found.shape, strict=True) if size > 1}
    if "step" in long:
        return panels(context, found, comparison, quantified.blamed, quantity(prop))
    if {"layer", "head"} <= long:
        return _heat_map(context, found, quantified.blamed, focus, comparison)
    if found.sides is not None:
        return _bars_of_sides(context, found, comparison, quantified.blamed, focus)
    for dim in ("query", "key", "layer"):
        if dim in long:
            return _lines(context, found, comparison, quantified.blamed, focus, dim)
    return _bars(context, found, comparison, quantified.blamed, focus)


def scatter_of(
    context: Context,
    expected: Field,
    observed: Field,
    over: str,
    values: Mapping[str, Floats],
    order: Floats,
    quantified: Quantified,
    other: Request,
    scale: str,
    asked: Mapping[str, BoundArgument],
) -> Picture:
    """Observed against expected, key by key, for the worst place (the worst offender, or the one nearest to its limit)."""
    among = quantified.blamed if quantified.blamed.any() else observed.there().any(axis=observed.axis(over))
    flat = int(np.where(among, order, -np.inf).argmax())
    index = tuple(int(i) for i in np.unravel_index(flat, order.shape)) if order.shape else ()
    axis = observed.axis(over)
    there = np.moveaxis(expected.there() & observed.there(), axis, -1)[index]
    x, y = (np.moveaxis(side.value, axis, -1)[index][there] for side in (expected, observed))
    rest = spell(observed.without(over).where(index))
    within = getattr(asked.get("share_within"), "decades", None)
    return Picture(
        kind="scatter",
        title=title(context, rest),
        x_label=f"expected: {other.name}",
        y_label=f"observed: {context.case.property.request.name}",
        series=(_thinned(rest or "observed", x, y),),
        log_x=scale == "log-log",
        log_y=scale == "log-log",
        band_decades=float(within) if within is not None else (0.5 if scale == "log-log" else None),
        notes=tuple(f"{name.replace('_', ' ')} {number(float(found[index]))}" for name, found in values.items()),
    )


def agreement_picture(
    context: Context, left: Field, right: Field, places: Field, quantified: Quantified, axes: Mapping[str, str]
) -> Picture:
    """Differences by layer and head where there are such dims, else one side against the other."""
    long = {dim for dim, size in zip(places.dims, places.shape, strict=True) if size > 1}
    if {"layer", "head"} <= long:
        focus = _focus(places, places.value, quantified)
        made = _heat_map(context, places, quantified.blamed, focus, None)
        shown = f"{quantity(context.case.property)}: difference to {', '.join(axes.values())}"
        return replace(made, y_label="layer", notes=(shown, *made.notes[1:]))
    there = left.there()
    name = context.case.property.request.name
    return Picture(
        kind="scatter",
        title=title(context),
        x_label=f"{name}, {', '.join(axes.values())}",
        y_label=f"{name}, {context.name()}",
        series=(_thinned(context.name(), right.value[there], left.value[there]),),
        notes=(f"largest difference {number(float(places.value.max()))}",),
    )


def change_picture(context: Context, new: Field, old: Field, places: Field, quantified: Quantified) -> Picture | None:
    """A baseline's: the change by layer and head in units of the tolerance, else both courses, else both numbers as bars."""
    long = {dim for dim, size in zip(places.dims, places.shape, strict=True) if size > 1}
    focus = _focus(places, places.value, quantified)
    if {"layer", "head"} <= long:
        made = _heat_map(context, places, quantified.blamed, focus, None)
        # Where nothing may change at all, a change is infinite in that unit: it is drawn at the end of the scale.
        largest = float(np.max(places.value[np.isfinite(places.value)], initial=1.0))
        grid = [[min(cell, 10 * largest) for cell in row] for row in made.grid]
        return replace(
            made, grid=grid, bounds={"at_most": 1.0}, notes=(f"{quantity(context.case.property)}: change in units of the tolerance",)
        )
    if new.dims != places.dims:
        return None
    dim = next((d for d in ("layer", "step", "head", "query", "key", "sample", "seed") if d in long), None)
    index = tuple(slice(None) if d == dim else focus[i] for i, d in enumerate(new.dims))
    both = [np.atleast_1d(np.where(side.there(), side.value, np.nan)[index]) for side in (new, old)]
    x = new.labels[dim].tolist() if dim is not None and new.labels[dim].dtype.kind in "iuf" else list(range(len(both[0])))
    shown = {d: plain(new.labels[d][focus[i]]) for i, d in enumerate(new.dims) if d != dim and new.labels[d].size > 1}
    return Picture(
        "lines" if len(x) > 1 else "bars",
        title(context, spell(shown)),
        dim or "",
        quantity(context.case.property),
        (Series("now", x, both[0].tolist(), "subject"), Series("baseline", x, both[1].tolist(), "context")),
        marked=tuple((0, int(i)) for i in np.flatnonzero(np.atleast_1d(quantified.blamed[index]))),
    )


def _heat_map(context: Context, found: Field, blamed: Mask, focus: tuple[int, ...], comparison: Comparison | None) -> Picture:
    """[layer][head] at the worst of whatever else varies; a cell is marked where it offends anywhere."""
    rest = [dim for dim in found.dims if dim not in ("layer", "head")]
    index = tuple(slice(None) if dim in ("layer", "head") else focus[found.axis(dim)] for dim in found.dims)
    grid = np.where(found.there(), found.value, np.nan)[index]
    bad = blamed.any(axis=tuple(found.axis(dim) for dim in rest)) if rest else blamed
    shown = {dim: plain(found.labels[dim][focus[found.axis(dim)]]) for dim in rest if found.labels[dim].size > 1}
    return Picture(
        "heat_map",
        title(context, spell(shown)),
        "head",
        "layer",
        grid=grid.tolist(),
        marked=tuple((int(r), int(c)) for r, c in np.argwhere(bad)),
        bounds=number_bounds(comparison),
        rows=tuple(str(plain(label)) for label in found.labels["layer"]),
        columns=tuple(str(plain(label)) for label in found.labels["head"]),
        notes=(quantity(context.case.property),),
    )


def _lines(context: Context, found: Field, comparison: Comparison, blamed: Mask, focus: tuple[int, ...], dim: str) -> Picture:
    """The quantity along one dim: a line for each seed or sample where they are few, else at the worst place."""
    whole = found
    index = tuple(slice(None) if d == dim else focus[i] for i, d in enumerate(found.dims))
    rest = [d for d in found.dims if d != dim and found.labels[d].size > 1]
    shown: dict[str, Any] = {}
    if int(np.prod([found.labels[d].size for d in rest])) > MOST_LINES:
        shown = {d: plain(found.labels[d][focus[found.axis(d)]]) for d in rest}
        for d in [d for d in found.dims if d != dim]:
            here = focus[whole.axis(d)]
            found, blamed = at(found, d, here), at_mask(blamed, found, d, here)
    series = lines_over(found, dim, context.name(), depth=False)
    bad = np.moveaxis(blamed, found.axis(dim), -1).reshape(len(series), -1)
    return Picture(
        "lines",
        title(context, spell(shown)),
        dim,
        quantity(context.case.property),
        tuple(series),
        {
            side: np.broadcast_to(limit, whole.shape)[index].tolist() if np.ndim(limit) else float(limit)
            for side, limit in comparison.limits.items()
        },
        marked=tuple((int(r), int(c)) for r, c in np.argwhere(bad)),
    )


def _bars_of_sides(context: Context, found: Field, comparison: Comparison, blamed: Mask, focus: tuple[int, ...]) -> Picture:
    """Both sides next to each other, what they come to written above; the bound drawn on the other side's scale."""
    dim = next((d for d in ("layer", "head", "seed", "sample", "query", "key") if d in found.dims and found.labels[d].size > 1), None)
    sides = found.sides or (found.value, found.value)
    index = tuple(slice(None) if d == dim else focus[i] for i, d in enumerate(found.dims))
    left, right = (np.atleast_1d(np.broadcast_to(side, found.shape)[index]) for side in sides)
    values, bad = np.atleast_1d(found.value[index]), np.atleast_1d(blamed[index])
    x = found.labels[dim].tolist() if dim is not None and found.labels[dim].dtype.kind in "iuf" else list(range(len(values)))
    shown = {d: plain(found.labels[d][focus[i]]) for i, d in enumerate(found.dims) if d != dim and found.labels[d].size > 1}
    bounds = {}
    for side, limit in comparison.limits.items():
        here = np.broadcast_to(np.broadcast_to(limit, found.shape)[index], values.shape)
        bounds[side] = (here * right if found.sign == "/" else right + here).tolist()
    prop = context.case.property
    return Picture(
        "bars",
        title(context, spell(shown)),
        dim or "",
        quantity(replace(prop, relation=None)),
        (
            Series(context.name(), x, left.tolist(), "subject", texts=[number(float(v)) for v in values]),
            Series(other_side(prop) or "other side", x, right.tolist(), "context"),
        ),
        bounds,
        marked=tuple((0, int(i)) for i in np.flatnonzero(bad)),
        notes=(f"above the bars: {prop.relation.kind if prop.relation else 'value'}",),
    )


def _bars(context: Context, found: Field, comparison: Comparison, blamed: Mask, focus: tuple[int, ...]) -> Picture:
    """One bar for each place along the longest dim."""
    dims = [d for d in found.dims if found.labels[d].size > 1]
    dim = max(dims, key=lambda d: found.labels[d].size) if dims else None
    index = tuple(slice(None) if d == dim else focus[i] for i, d in enumerate(found.dims))
    values, bad = np.atleast_1d(found.value[index]), np.atleast_1d(blamed[index])
    x = found.labels[dim].tolist() if dim is not None and found.labels[dim].dtype.kind in "iuf" else list(range(len(values)))
    shown = {d: plain(found.labels[d][focus[i]]) for i, d in enumerate(found.dims) if d != dim and found.labels[d].size > 1}
    return Picture(
        "bars",
        title(context, spell(shown)),
        dim or "",
        quantity(context.case.property),
        (Series(context.name(), x, values.tolist(), "subject", texts=[number(float(v)) for v in values]),),
        {
            side: np.broadcast_to(np.broadcast_to(limit, found.shape)[index], values.shape).tolist()
            for side, limit in comparison.limits.items()
        },
        marked=tuple((0, int(i)) for i in np.flatnonzero(bad)),
    )


def _focus(found: Field, order: Floats, quantified: Quantified) -> tuple[int, ...]:
    """The worst place: of those to blame, or of all where none is."""
    if not found.shape:
        return ()
    among = quantified.blamed if quantified.blamed.any() else found.there()
    return tuple(int(i) for i in np.unravel_index(int(np.where(among, order, -np.inf).argmax()), found.shape))


def _thinned(label: str, x: Floats, y: Floats) -> Series:
    """At most MOST_POINTS points, evenly picked."""
    every = max(1, -(-x.size // MOST_POINTS))
    return Series(label, x[::every].tolist(), y[::every].tolist())
