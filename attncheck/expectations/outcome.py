"""From compared places to a verdict: three-valued quantification, offenders worst first, numbers, words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attncheck.core.errors import Undecided
from attncheck.core.verdict import Offender, Picture, Verdict
from attncheck.expectations.bound import Comparison, against, number
from attncheck.expectations.field import Field, Floats, Mask, spell
from attncheck.expectations.places import place_of
from attncheck.expectations.quantify import Quantified, inverted, plural, quantify

if TYPE_CHECKING:
    from attncheck.spec.model import Case

MOST_OFFENDERS = 100
"""Kept in a verdict; `numbers['offenders']` counts all."""

Note = Callable[[tuple[int, ...]], str]


def decide(found: Field, comparison: Comparison, case: Case) -> Quantified:
    """Quantify twice, with every undecided place holding and with none: where both agree, the decided places settle it.

    Raises Undecided, with the places to measure exactly, where they do not.
    """
    prop = case.property
    place = place_of(prop, "for")
    worst = quantify(comparison.surely, found, prop.quantifier, prop.quantifier_text, place)
    if np.array_equal(comparison.surely, comparison.possibly):
        return worst
    best = quantify(comparison.possibly, found, prop.quantifier, prop.quantifier_text, place)
    if worst.passed == best.passed:
        # A failure that is certain is blamed on the places that fail for certain.
        return worst if worst.passed or inverted(prop.quantifier) else best
    open_places = np.argwhere((comparison.surely != comparison.possibly) & found.there())
    places = [found.where([int(i) for i in index]) for index in open_places]
    first = tuple(int(i) for i in open_places[0])
    low, high = found.interval()
    raise Undecided(
        f"{place}: {len(places)} of {worst.checked} places are undecided: at {spell(places[0]) or 'the only place'} the value lies between "
        f"{number(float(low[first]))} and {number(float(high[first]))}, and the bound {comparison.limit(first)} in between; "
        "exact rows of these layers would decide",
        places,
    )


def conclude(
    found: Field,
    comparison: Comparison,
    quantified: Quantified,
    case: Case,
    *,
    claim: str,
    quantity: str | Note,
    picture: Picture | None,
    note: Note | None = None,
    order: Floats | None = None,
    others: list[str] | None = None,
    numbers: dict[str, float] | None = None,
) -> Verdict:
    """The verdict with everything that a report says of it.

    `quantity` names the value, of each place where they differ; `order` ranks offenders where excesses are not in one unit; `others`
    replaces the line on the places that hold; `numbers` are added to the verdict's.
    """
    order = comparison.excess if order is None else order
    offenders = _offenders(found, comparison, quantified.blamed, note, order)
    name = quantity if isinstance(quantity, str) else quantity(_worst(quantified, order, found))
    count = int(quantified.blamed.sum())
    there = found.there()
    values = found.value[there]
    holding = there & ~quantified.blamed
    rounded = int((comparison.rounded & there).sum())
    summary = {
        "checked": float(quantified.checked),
        "offenders": float(count),
        "holding_share": float((comparison.surely & there).sum() / quantified.checked),
        **_summary_numbers(values),
        **{name: float(limit) for name, limit in comparison.limits.items() if np.ndim(limit) == 0},
        **(numbers or {}),
    }
    if offenders:
        summary["worst"] = offenders[0].observed
    return Verdict(
        passed=quantified.passed,
        headline=_headline(found, quantified, offenders, name, case, values),
        claim=claim,
        observed=[*(_others(found, holding, count) if others is None else others), *_earliest(found, quantified.blamed, offenders)],
        offenders=offenders,
        decided=found.decided,
        checked=quantified.checked,
        summary=quantified.summary,
        setting=", ".join(word for word in (found.dtype, found.device, f"step {found.step}" if found.step else "") if word),
        resolution=_resolution(found, rounded, quantified.checked, case),
        notes=list(found.notes),
        picture=picture,
        numbers=summary,
    )


def _offenders(found: Field, comparison: Comparison, blamed: Mask, note: Note | None, order: Floats) -> list[Offender]:
    places = np.argwhere(blamed)
    if not len(places):
        return []
    beyond = order[blamed]
    worst = np.argsort(-beyond, kind="stable")[:MOST_OFFENDERS]
    made = []
    for row in worst:
        index = tuple(int(i) for i in places[row])
        limit = comparison.limit(index)
        never = "never" if found.endless and np.isinf(found.value[index]) else ""
        said = [text for text in (never, _arithmetic(found, index, limit), found.token(index), note(index) if note else "") if text]
        made.append(
            Offender(
                where=found.where(index),
                observed=float(found.value[index]),
                limit=limit,
                excess=float(comparison.excess[index]),
                note="; ".join(said),
            )
        )
    return made


def _worst(quantified: Quantified, order: Floats, found: Field) -> tuple[int, ...]:
    """The worst place: of those to blame, or where none is, of all."""
    among = quantified.blamed if quantified.blamed.any() else found.there()
    return tuple(int(i) for i in np.unravel_index(int(np.where(among, order, -np.inf).argmax()), found.shape)) if found.shape else ()


def _arithmetic(found: Field, index: tuple[int, ...], limit: str) -> str:
    if found.sides is None:
        return ""
    left, right = (float(side[index]) for side in found.sides)
    return f"{number(left)} {found.sign} {number(right)} = {beside(float(found.value[index]), limit)}"


def _others(found: Field, holding: Mask, count: int) -> list[str]:
    """'the others: 1.24 to 1.39, median 1.31', over the places that are not to blame."""
    values = found.value[holding]
    if not values.size or not count:
        return []
    if values.size == 1:
        return [f"the other: {number(float(values[0]))}"]
    if values.min() == values.max():
        return [f"the other {values.size}: all {number(float(values[0]))}"]
    low, middle, high = (number(float(value)) for value in (values.min(), np.median(values), values.max()))
    return [f"the other {values.size}: {low} to {high}, median {middle}"]


def _earliest(found: Field, blamed: Mask, offenders: list[Offender]) -> list[str]:
    """'the first layer to blame is 3, of 9', where it is not the worst: later layers see what an earlier one did to their input."""
    if not offenders or "layer" not in found.dims:
        return []
    places = np.argwhere(blamed)
    layers = np.unique(places[:, found.dims.index("layer")])
    first = found.where([int(i) for i in places[places[:, found.dims.index("layer")].argmin()]])
    earliest: dict[str, Any] = {dim: first[dim] for dim in ("layer", "stack") if dim in first}
    if len(layers) < 2 or earliest.items() <= offenders[0].where.items():
        return []
    return [f"{len(layers)} layers are to blame, the first is {spell(earliest)}"]


def _headline(found: Field, quantified: Quantified, offenders: list[Offender], quantity: str, case: Case, values: Floats) -> str:
    if quantified.passed:
        low, high = float(values.min()), float(values.max())
        ends = ["never" if found.endless and np.isinf(end) else number(end) for end in (low, high)]
        # "1 to 1.00" are two spellings of what is one number to so many digits.
        same = "never" not in ends and float(ends[0]) == float(ends[1])
        spoken = max(ends, key=len) if same or ends[0] == ends[1] else " to ".join(ends)
        return f"{quantity} {spoken}: {quantified.summary}"
    if not offenders:
        return f"{quantity}: {quantified.summary}"
    worst = offenders[0]
    where = spell(worst.where)
    observed = "never" if found.endless and np.isinf(worst.observed) else beside(worst.observed, worst.limit)
    broken = _broken(worst, inverted(case.property.quantifier))
    at = f" at {where}" if where else ""
    return f"{quantity} {observed} {broken}{at}" + (f" ({quantified.summary})" if quantified.checked > 1 else "")


def beside(observed: float, limit: str) -> str:
    """The observed number with the digits that tell it from its limit, '>= 1.15'."""
    try:
        return against(observed, float(limit.rsplit(" ", 1)[-1]))
    except ValueError:
        return number(observed)


def _broken(offender: Offender, inverted_: bool) -> str:
    """The limit turned round, as it is broken: '>= 1.15' -> '< 1.15'."""
    sign, _, rest = offender.limit.partition(" ")
    if inverted_:
        return f"{offender.limit}, which must not hold"
    turned = {">=": "<", "<=": ">", "=": "!="}.get(sign)
    return f"{turned} {rest}" if turned else offender.limit


def _summary_numbers(values: Floats) -> dict[str, float]:
    return {"min": float(values.min()), "median": float(np.median(values)), "max": float(values.max())}


def _resolution(found: Field, rounded: int, checked: int, case: Case) -> str:
    if not rounded:
        return ""
    tolerance = case.property.tolerance
    verb = "lies" if rounded == 1 else "lie"
    if tolerance.rtol is not None or tolerance.atol is not None:
        said = " + ".join(f"{name} {value:g}" for name, value in (("atol", tolerance.atol), ("rtol", tolerance.rtol)) if value is not None)
        return f"{rounded} of {checked} {plural(None, checked)} {verb} on the bound to within the property's tolerance ({said})"
    dtype = f" ({found.dtype})" if found.dtype else ""
    return f"{rounded} of {checked} {plural(None, checked)} {verb} on the bound to within rounding, {found.resolution:g} relative{dtype}"
