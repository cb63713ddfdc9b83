"""Pictures of a course: the quantity over layers or steps, as lines or as a panel for each layer; and what all pictures share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attncheck.core.verdict import Picture, Series
from attncheck.expectations.bound import Comparison, number
from attncheck.expectations.claim import observable, other_side, quantity
from attncheck.expectations.field import Field, Floats, Mask, plain, spell
from attncheck.expectations.reduce import reduce

if TYPE_CHECKING:
    from attncheck.expectations.quantify import Quantified
    from attncheck.expectations.sides import Context

MOST_LINES = 6
Role = Literal["subject", "context", "offender", "null"]


def course(context: Context, raw: Field, other: Field | None, folded: int, found: Field, quantified: Quantified) -> Picture:
    """The profile over layers or steps as it was before the reduction that folded it."""
    prop = context.case.property
    dim = prop.reduce[folded].dim
    before = replace(prop, reduce=tuple(prop.reduce[:folded]))
    profile = reduce(raw, before)
    name = quantity(replace(prop, reduce=(), relation=None))
    if dim == "step" and "layer" in profile.dims:
        # The whole course is to blame; its last step shows by how much.
        marked = _spread_mask(quantified.blamed, found, profile) & _last_along(profile, "step")
        return panels(context, profile, None, marked, name)
    x_label, depth = ("depth (0 first layer, 1 last)", True) if dim == "layer" else (dim, False)
    ours = (
        observable(prop.request, prop.text.get("observe"))
        if prop.relation is not None and prop.relation.request is not None
        else context.name()
    )
    series = lines_over(profile, dim, ours, depth=depth)
    if other is not None:
        relation = prop.relation
        axes = relation.axes if relation else {}
        shown = other_side(prop) if relation and (relation.request or axes) else (relation.subject or "" if relation else "")
        series += lines_over(reduce(other, before, lenient=True), dim, shown, depth=depth, role="context")
    how = quantity(prop).removeprefix(name).strip()
    summary = f"{how} {number(float(found.value.flat[0]))}" if found.value.size == 1 else f"{how} {_range(found)}"
    return Picture(
        "lines", title(context), x_label, name, tuple(series), notes=(summary,), log_y=dim == "step" and _decades(profile.value) > 2
    )


def lines_over(found: Field, dim: str, label: str, *, depth: bool, role: Role = "subject") -> list[Series]:
    """A line along `dim` for each combination of the other dims; where these are many, their minimum, median and maximum."""
    first, last = found.extent[dim]
    labels = found.labels[dim].astype(float) if found.labels[dim].dtype.kind in "iuf" else np.arange(found.labels[dim].size, dtype=float)
    x = (labels - first) / (last - first) if depth and last > first else labels
    rows, places = _rows(found, dim)
    if len(rows) <= MOST_LINES:
        return [
            Series(", ".join(part for part in (label, spell(place) if len(rows) > 1 else "") if part), x.tolist(), row.tolist(), role)
            for row, place in zip(rows, places, strict=True)
        ]
    some = ~np.isnan(rows).all(axis=0)
    made = []
    for name, fold in (("median", np.nanmedian), ("smallest", np.nanmin), ("largest", np.nanmax)):
        values = np.full(x.size, np.nan)
        values[some] = fold(rows[:, some], axis=0)
        shown: Role = role if name == "median" else "context"
        made.append(Series(f"{label}, {name} of {len(rows)}", x.tolist(), values.tolist(), shown))
    return made


def _rows(found: Field, dim: str) -> tuple[Floats, list[dict[str, Any]]]:
    """[other places, dim] with NaN where absent, and what each row is."""
    values = np.moveaxis(np.where(found.there(), found.value, np.nan), found.axis(dim), -1)
    rest = [d for d in found.dims if d != dim]
    shape = values.shape[:-1]
    places = [
        {d: plain(found.labels[d][i]) for d, i in zip(rest, index, strict=True) if found.labels[d].size > 1} for index in np.ndindex(*shape)
    ]
    return values.reshape(-1, values.shape[-1]), places


def panels(context: Context, found: Field, comparison: Comparison | None, blamed: Mask, name: str) -> Picture:
    """A panel for each layer (one where there are no layers), the quantity over the steps."""
    layers = found.labels["layer"] if "layer" in found.dims else np.array([0])
    series: list[Series] = []
    marked: list[tuple[int, int]] = []
    bounds: dict[str, Any] = number_bounds(comparison)
    steps = found.labels["step"]
    for number_, layer in enumerate(layers):
        panel = f"layer {plain(layer)}" if "layer" in found.dims else context.name()
        part = at(found, "layer", number_)
        bad = at_mask(blamed, found, "layer", number_)
        rows, places = _rows(part, "step")
        bad_rows = np.moveaxis(bad, part.axis("step"), -1).reshape(len(rows), -1)
        keep = _worst_rows(rows, bad_rows)
        for row in keep:
            label = spell(places[row]) or context.name()
            series.append(Series(label, steps.tolist(), rows[row].tolist(), "subject", panel=panel))
            marked += [(len(series) - 1, int(i)) for i in np.flatnonzero(bad_rows[row])]
        if comparison is not None:
            for side, limit in comparison.limits.items():
                if np.ndim(limit):
                    wide = at(found.with_(value=np.broadcast_to(limit, found.shape)), "layer", number_)
                    bounds.setdefault(side, {})[panel] = _rows(wide, "step")[0][keep[0]].tolist()
    return Picture(
        "panels",
        title(context),
        "step",
        name,
        tuple(series),
        bounds,
        marked=tuple(marked),
        log_y=_decades(found.value[found.there()]) > 2,
    )


def _worst_rows(rows: Floats, bad: Mask) -> list[int]:
    """At most MOST_LINES rows: those that offend first, then the extremes and the middle."""
    if len(rows) <= MOST_LINES:
        return list(range(len(rows)))
    offending = [int(i) for i in np.argsort(-bad.sum(axis=1), kind="stable") if bad[i].any()][: MOST_LINES - 3]
    middle = np.argsort(np.nanmean(np.where(np.isnan(rows), 0.0, rows), axis=1), kind="stable")
    picked = [*offending, int(middle[0]), int(middle[len(middle) // 2]), int(middle[-1])]
    return list(dict.fromkeys(picked))


def _last_along(found: Field, dim: str) -> Mask:
    shape = [found.shape[i] if d == dim else 1 for i, d in enumerate(found.dims)]
    return np.asarray((np.arange(found.shape[found.axis(dim)]) == found.shape[found.axis(dim)] - 1).reshape(shape))


def _spread_mask(mask: Mask, found: Field, profile: Field) -> Mask:
    """A mask over the dims of `found` on the dims of `profile`, which has those that were reduced since."""
    shape = [found.shape[found.axis(d)] if d in found.dims else 1 for d in profile.dims]
    kept = [d for d in profile.dims if d in found.dims]
    gone = tuple(i for i, d in enumerate(found.dims) if d not in profile.dims)
    ordered = np.transpose(mask.any(axis=gone) if gone else mask, np.argsort(np.argsort([profile.axis(d) for d in kept])))
    return np.broadcast_to(ordered.reshape(shape), profile.shape)


def _decades(values: Floats) -> float:
    values = values[np.isfinite(values)]
    if not values.size or values.min() <= 0:
        return 0.0
    return float(np.log10(values.max() / values.min()))


def _range(found: Field) -> str:
    values = found.value[found.there()]
    return f"{number(float(values.min()))} to {number(float(values.max()))}"


def at(found: Field, dim: str, index: int) -> Field:
    if dim not in found.dims:
        return found
    axis = found.axis(dim)
    return found.with_(
        dims=tuple(d for d in found.dims if d != dim),
        value=np.take(found.value, index, axis=axis),
        present=None if found.present is None else np.take(found.present, index, axis=axis),
        labels={d: values for d, values in found.labels.items() if d != dim},
    )


def at_mask(mask: Mask, found: Field, dim: str, index: int) -> Mask:
    return np.take(mask, index, axis=found.axis(dim)) if dim in found.dims else mask


def number_bounds(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    return {side: float(limit) for side, limit in comparison.limits.items() if np.ndim(limit) == 0}


def title(context: Context, more: str = "") -> str:
    case = context.case
    return f"{case.property.name}: {case.id or case.subject.definition.name}" + (f", {more}" if more else "")
