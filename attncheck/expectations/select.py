"""`where`: which places a property speaks of. Selectors become indices over a dim, checked against what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from attncheck.core.errors import MeasurementError
from attncheck.expectations.field import Array, Field, Mask, Over
from attncheck.expectations.places import place_of
from attncheck.spec.model import Property, Selector


def select(found: Field, prop: Property, *, lenient: bool = False) -> Field:
    """The places that `where` names: dims of one mapping combine (and), a list of mappings is a union (or).

    `stack` is a choice of layers; `layer` beside it counts from the end of that stack. A label is the measurement's own coordinate (a
    layer's number, a token's position), a negative index counts from the end. `lenient` skips dims that the field lacks: the other side
    of a relation may have fewer. Raises MeasurementError where a selector is out of range or selects nothing.
    """
    union = [chosen for mapping in prop.where if (chosen := _indices(found, prop, mapping, lenient))]
    if not union:
        return found
    dims = {dim for chosen in union for dim in chosen}
    kept = {dim: np.unique(np.concatenate([chosen.get(dim, np.arange(found.shape[found.axis(dim)])) for chosen in union])) for dim in dims}
    present = None
    if len(union) > 1:
        mask = np.zeros(found.shape, dtype=bool)
        for chosen in union:
            mask[np.ix_(*(chosen.get(dim, np.arange(size)) for dim, size in zip(found.dims, found.shape, strict=True)))] = True
        present = mask & found.there()
    made = take(found if present is None else found.with_(present=present), kept)
    if not made.there().any():
        raise MeasurementError(f"{place_of(prop, 'where')}: `where` selects nothing that was measured")
    return made


def take(found: Field, kept: Mapping[str, Array]) -> Field:
    """The given indices of the given dims, of everything that the field holds."""

    def cut(values: Array | None, dims: Sequence[str] = found.dims) -> Array | None:
        if values is None:
            return None
        for dim, indices in kept.items():
            if dim in dims:
                values = np.take(values, indices, axis=dims.index(dim))
        return values

    def over(coordinates: Mapping[str, Over]) -> dict[str, Over]:
        return {name: (dims, np.asarray(cut(values, dims))) for name, (dims, values) in coordinates.items()}

    present: Mask | None = cut(found.present)
    return found.with_(
        value=cut(found.value),
        lower=cut(found.lower),
        upper=cut(found.upper),
        present=None if present is None or present.all() else present,
        labels={dim: found.labels[dim][kept[dim]] if dim in kept else found.labels[dim] for dim in found.dims},
        coords=over(found.coords),
        symbols=over(found.symbols),
        magnitude=cut(found.magnitude),
        sides=None if found.sides is None else (cut(found.sides[0]), cut(found.sides[1])),
    )


def _indices(found: Field, prop: Property, mapping: Mapping[str, Selector], lenient: bool) -> dict[str, Array]:
    chosen: dict[str, Array] = {}
    number = prop.where.index(mapping)
    stack = mapping.get("stack")
    if stack is not None and "layer" in found.dims:
        chosen["layer"] = _of_stack(found, stack.text, place_of(prop, "where.stack", f"where.{number}.stack", "where"))
    for dim, selector in mapping.items():
        if dim == "stack":
            continue
        place = place_of(prop, f"where.{dim}", f"where.{number}.{dim}", "where")
        if dim not in found.dims:
            if lenient:
                continue
            raise MeasurementError(f"{place}: {prop.request.name} has no {dim}; it is measured over {', '.join(found.dims) or 'no dim'}")
        among = chosen.get(dim, np.arange(found.labels[dim].size))
        chosen[dim] = among[indices(selector, found.labels[dim][among], dim, place)]
    return chosen


def _of_stack(found: Field, stack: str, place: object) -> Array:
    """The positions of its layers. Raises MeasurementError where there are none."""
    over, stacks = found.coords.get("stack", ((), np.array([])))
    positions = np.flatnonzero(stacks == stack) if over == ("layer",) else np.array([], dtype=int)
    if positions.size == 0:
        there = ", ".join(dict.fromkeys(map(str, stacks.ravel().tolist()))) or "none is told apart"
        raise MeasurementError(f"{place}: no layer of the stack {stack!r}; measured: {there}")
    return positions


def indices(selector: Selector, labels: Array, dim: str, place: object) -> Array:
    """The positions of a selector among `labels`. Raises MeasurementError naming the place and what is allowed."""
    known = labels if labels.dtype.kind in "iuf" else np.arange(labels.size)
    distinct = np.unique(known)
    if selector.part is not None:
        picked = distinct[_part(selector.part, distinct.size, dim, place)]
        positions = np.flatnonzero(np.isin(known, picked))
    elif selector.single:
        positions = np.flatnonzero(known == _label(selector.start or 0, distinct, dim, place))
    else:
        low = _label(selector.start or 0, distinct, dim, place, exact=False)
        high = distinct[-1] if selector.stop is None else _label(selector.stop, distinct, dim, place, exact=False)
        positions = np.flatnonzero((known >= low) & (known <= high))
    if positions.size == 0:
        raise MeasurementError(f"{place}: {dim} {selector.text or _text(selector)} selects nothing; {_allowed(distinct, dim)}")
    return positions


def _label(asked: int, distinct: Array, dim: str, place: object, *, exact: bool = True) -> float:
    count = distinct.size
    if asked < 0:
        if -asked > count:
            raise MeasurementError(f"{place}: {dim} {asked} of {count}; {_allowed(distinct, dim)}")
        return float(distinct[asked])
    if (exact and asked not in distinct) or asked > distinct[-1]:
        raise MeasurementError(f"{place}: {dim} {asked} of {count}; {_allowed(distinct, dim)}")
    return float(asked)


def _part(part: tuple[str, float], count: int, dim: str, place: object) -> slice:
    which, amount = part
    wanted = int(amount) if amount > 1 else max(1, math.floor(amount * count + 0.5))
    if wanted > count:
        raise MeasurementError(f"{place}: {which} {wanted} of {count} {dim} places; allowed: up to {count}")
    start = {"first": 0, "last": count - wanted, "middle": (count - wanted) // 2}[which]
    return slice(start, start + wanted)


def _allowed(distinct: Array, dim: str) -> str:
    if distinct.size == 0:
        return f"no {dim} was measured"
    first, last = distinct[0].item(), distinct[-1].item()
    if last - first + 1 == distinct.size:
        return f"allowed: {first} to {last}, or -{distinct.size} to -1"
    shown = ", ".join(str(label) for label in distinct[:12].tolist())
    return f"measured: {shown}" + (f", ... up to {last}" if distinct.size > 12 else "")


def _text(selector: Selector) -> str:
    return f"{selector.start or 0}..{'' if selector.stop is None else selector.stop}"
