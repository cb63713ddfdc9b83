"""The judging behind `agrees_with`: the tolerance union turned into one allowed difference for each place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attncheck.core.errors import MeasurementError, Place, Undecided
from attncheck.core.verdict import Verdict
from attncheck.expectations.agrees_with import reference_axes
from attncheck.expectations.bound import Comparison, number
from attncheck.expectations.claim import claim, quantity
from attncheck.expectations.field import Field, Floats
from attncheck.expectations.outcome import conclude, decide
from attncheck.expectations.picture import agreement_picture
from attncheck.expectations.places import place_of
from attncheck.expectations.quantify import inverted
from attncheck.expectations.relate import join
from attncheck.expectations.sides import Context
from attncheck.spec.model import Tolerance

_HALF = ("bfloat16", "float16", "half", "bf16", "fp16")


@dataclass(frozen=True)
class Difference:
    """What is compared with what is allowed, over the dims that the tolerance's kind leaves."""

    places: Field
    """Holds the difference itself: |a - b|, an RMS ratio, or the largest error of a layer."""
    allowed: Floats
    words: str
    ours: Floats | None = None
    theirs: Floats | None = None


def judge_agreement(context: Context, axes: Mapping[str, str]) -> Verdict:
    """See `agrees_with`. Raises MeasurementError where the two runs differ in shape, Undecided on estimates."""
    case, prop = context.case, context.case.property
    place = place_of(prop, "agrees_with")
    other_name = context.name(None, axes)
    raw = context.measured()
    theirs = context.measured(axes=axes)
    _refuse_itself(raw, theirs, axes, place)
    left = context.reduced(raw)
    right = context.reduced(theirs, own=False)
    if left.lower is not None or right.lower is not None:
        raise Undecided(f"{place}: agrees_with needs exact values, and these are estimates")
    names = (context.name(), other_name)
    left, right = join(left, right, names, place)
    if not np.array_equal(left.there(), right.there()):
        raise MeasurementError(
            f"{place}: {names[0]} and {names[1]} have values at different places, so there is nothing to compare one by one"
        )
    reference = None
    if prop.tolerance.kind == "vs_reference":
        reference = join(left, context.reduced(context.measured(axes=reference_axes(axes)), own=False), (names[0], "the reference"), place)[
            1
        ]
    found = difference(left, right, reference, prop.tolerance)
    places, turned = found.places, inverted(prop.quantifier)
    holds = places.value <= found.allowed
    excess = places.value - found.allowed
    comparison = Comparison(
        surely=holds,
        possibly=holds,
        excess=-excess if turned else excess,
        rounded=np.zeros(places.shape, dtype=bool),
        limit=lambda index: f"<= {number(float(found.allowed[index]))}",
        limits={"at_most": float(found.allowed.flat[0])} if np.ptp(found.allowed) == 0 else {"at_most": found.allowed},
    )
    quantified = decide(places, comparison, case)

    def note(index: tuple[int, ...]) -> str:
        if found.ours is None or found.theirs is None:
            return ""
        a, b = float(found.ours[index]), float(found.theirs[index])
        return f"{a:.7g} here, {b:.7g} with {', '.join(axes.values())}"

    return conclude(
        places,
        comparison,
        quantified,
        case,
        claim=claim(case, f"agrees with {', '.join(axes.values())} ({found.words})"),
        quantity=f"{quantity(prop)} difference",
        picture=agreement_picture(context, left, right, places, quantified, axes),
        note=note,
    )


def _refuse_itself(ours: Field, theirs: Field, axes: Mapping[str, str], place: Place | str) -> None:
    """A run agrees with itself: where nothing is different on the other side, the claim says nothing."""
    setting = (ours.implementation, ours.dtype, ours.device)
    if setting == (theirs.implementation, theirs.dtype, theirs.device):
        raise MeasurementError(
            f"{place}: both sides ran as {', '.join(word for word in setting if word)}, so the claim compares a run with itself: "
            f"{', '.join(axes.values())} is what the subject has already, or makes no difference to this quantity"
        )


def difference(left: Field, right: Field, reference: Field | None, tolerance: Tolerance) -> Difference:
    """The difference of every place and what the tolerance allows there."""
    a, b = left.value, right.value
    gap = left.with_(value=np.where(left.there(), np.abs(a - b), 0.0), sides=None, magnitude=None, endless=False)
    default = default_rtol(left.dtype, right.dtype)
    match tolerance.kind:
        case "exact":
            return Difference(gap, np.zeros(gap.shape), "exactly", a, b)
        case "rms_ratio":
            ratio = tolerance.ratio if tolerance.ratio is not None else default
            over = _of(left, "query", "key") or _of(left, "head")
            value = _fold(left, (a - b) ** 2, over, "sum") ** 0.5
            size = _fold(left, b**2, over, "sum") ** 0.5
            both_zero = (size == 0) & (value == 0)
            value = np.where(both_zero, 0.0, value / np.where(size > 0, size, 1e-300))
            return Difference(_places(gap, over, value), np.full(value.shape, ratio), f"RMS ratio <= {ratio:g}")
        case "vs_reference":
            if reference is None:
                raise MeasurementError("vs_reference without a reference")
            factor, atol = tolerance.factor if tolerance.factor is not None else 2.0, tolerance.atol or 0.0
            r = reference.value
            over = _of(left, "head", "query", "key")
            ours, theirs = _fold(left, np.abs(a - r), over, "max"), _fold(left, np.abs(b - r), over, "max")
            floor = default_rtol("float32", "float32") * _fold(left, np.abs(r), over, "max")
            allowed = factor * theirs + atol + floor
            words = f"error against float32 at most {factor:g} times the other's"
            return Difference(_places(gap, over, ours), allowed, words)
    rtol = tolerance.rtol if tolerance.rtol is not None else (0.0 if tolerance.atol is not None else default)
    atol = tolerance.atol if tolerance.atol is not None else (0.0 if tolerance.rtol is not None else default_atol(default))
    return Difference(gap, atol + rtol * np.abs(b), f"rtol {rtol:g}, atol {atol:g}", a, b)


def default_rtol(ours: str, theirs: str) -> float:
    """1e-9 between float64, 1e-5 where the coarser dtype is float32, 3e-2 where it is a half precision (NUMERICS 16)."""
    pair = {ours.removeprefix("torch."), theirs.removeprefix("torch.")}
    if pair & set(_HALF):
        return 3e-2
    return 1e-9 if pair == {"float64"} else 1e-5


def default_atol(rtol: float) -> float:
    """A tenth of rtol, for values around one: entropies, masses and norms near 0 carry an absolute rounding error."""
    return rtol / 10


def _of(found: Field, *dims: str) -> list[str]:
    return [dim for dim in dims if dim in found.dims]


def _fold(found: Field, values: Floats, over: list[str], how: str) -> Floats:
    axes = tuple(found.axis(dim) for dim in over)
    values = np.where(found.there(), values, 0.0)
    return np.asarray(values.sum(axis=axes) if how == "sum" else values.max(axis=axes) if axes else values)


def _places(gap: Field, over: list[str], value: Floats) -> Field:
    axes = tuple(gap.axis(dim) for dim in over)
    there = gap.there().any(axis=axes) if axes else gap.there()
    return gap.with_(
        dims=tuple(dim for dim in gap.dims if dim not in over),
        value=value,
        present=None if there.all() else there,
        labels={dim: found for dim, found in gap.labels.items() if dim not in over},
        coords={name: found for name, found in gap.coords.items() if not set(found[0]) & set(over)},
        symbols={},
    )
