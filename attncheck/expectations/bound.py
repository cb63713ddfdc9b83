"""An ordinary bound: at_least, at_most, between, equals, place by place, with symbols, rounding slack and intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attncheck.core.bounds import Bound, Expression
from attncheck.core.errors import MeasurementError, Place
from attncheck.expectations.field import Field, Floats, Mask
from attncheck.spec.model import Tolerance


@dataclass(frozen=True)
class Comparison:
    """What became of each place of a field. All arrays have the field's shape."""

    surely: Mask
    """The demand holds whatever the true value within its interval."""
    possibly: Mask
    """The demand holds for some value of the interval; equal to `surely` where the value is exact."""
    excess: Floats
    """How far beyond the limit (or, where the demand should not hold, how far inside), in the unit of the value."""
    rounded: Mask
    """Places that only the rounding slack decided."""
    limit: Callable[[tuple[int, ...]], str]
    """The violated side at one place, with its number: '>= 1.15'."""
    limits: dict[str, Any]
    """Side -> number, or an array over the field."""


def compare(found: Field, bound: Bound, tolerance: Tolerance, place: Place | str, *, inverted: bool = False) -> Comparison:
    """Hold every place against the bound.

    A side is broken only by more than the slack: the measurement's resolution relative to the limit (to the operands, where the value is
    a difference), or the property's own tolerance. `inverted` is for a demand that must *not* hold (`for: no heads`): there the slack
    works the other way, so that rounding never decides against the claim. Raises MeasurementError on a symbol that is not there.
    """
    low, high = found.interval()
    sides = {name: side for name in ("at_least", "at_most", "equals") if (side := getattr(bound, name)) is not None}
    if not sides:
        raise MeasurementError(f"{place}: a bound without a side")
    limits = {name: evaluate(found, side, place) for name, side in sides.items()}
    sign = -1.0 if inverted else 1.0
    surely, possibly = np.ones(found.shape, dtype=bool), np.ones(found.shape, dtype=bool)
    strictly = surely.copy()
    excess = np.full(found.shape, -np.inf)
    for name, limit in limits.items():
        slack = _slack(found, np.asarray(limit), tolerance, equals=name == "equals")
        if name == "equals":
            # An interval that reaches past the tolerance on either side could be wrong; one that misses it is.
            surely &= (low >= limit - slack) & (high <= limit + slack)
            possibly &= (high >= limit - slack) & (low <= limit + slack)
            excess = np.maximum(excess, np.abs(found.value - limit) - slack)
            strictly &= found.value == limit
        elif name == "at_least":
            surely &= low >= limit - sign * slack
            possibly &= high >= limit - sign * slack
            strictly &= found.value >= limit
            excess = np.maximum(excess, limit - found.value)
        else:
            surely &= high <= limit + sign * slack
            possibly &= low <= limit + sign * slack
            strictly &= found.value <= limit
            excess = np.maximum(excess, found.value - limit)
    if not found.endless:
        # An infinite logit or loss is a fault on whichever side of the bound it lies.
        endless = ~np.isfinite(found.value)
        surely, possibly = np.where(endless, inverted, surely), np.where(endless, inverted, possibly)
        excess = np.where(endless, np.inf, excess)
    if inverted:
        excess = np.where(np.isfinite(excess), -excess, excess)
    rounded = (strictly != surely) & (surely == possibly)
    if "equals" in sides and (tolerance.rtol is not None or tolerance.atol is not None):
        rounded = np.zeros_like(rounded)
    return Comparison(surely, possibly, excess, rounded & found.there(), _limit_text(found, sides, limits), limits)


def evaluate(found: Field, side: Expression, place: Place | str) -> Any:
    """The number of one side, or an array that broadcasts over the field where a symbol varies."""
    symbols = {}
    for name in side.names:
        if name in found.symbols:
            over = found.symbols[name]
            symbols[name] = found.broadcast(over) if over[0] else float(np.asarray(over[1]).reshape(()))
        elif name in found.lost:
            why = found.lost[name]
            said = f"differs between {why}" if " " in why else f"varies over {why}, which `reduce` folded away"
            raise MeasurementError(f"{place}: {name} in {side.text!r} {said}; there is no one number to compare with")
        else:
            known = ", ".join(sorted(found.symbols)) or "none"
            raise MeasurementError(f"{place}: this measurement has no symbol {name!r}; it has {known}")
    value = side.evaluate(symbols)
    if np.ndim(value):
        # A head that a layer does not have has no bound either.
        value = np.where(found.there(), value, 0.0)
    bad = ~np.isfinite(np.ravel(value))
    if bad.any():
        raise MeasurementError(f"{place}: the bound {side.text!r} comes to {np.ravel(value)[bad][0]}")
    return value


def _slack(found: Field, limit: Floats, tolerance: Tolerance, *, equals: bool) -> Floats:
    if equals and tolerance.kind == "exact":
        return np.zeros_like(limit)
    if tolerance.rtol is not None or tolerance.atol is not None:
        return np.asarray((tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * np.abs(limit))
    size = np.abs(limit) if found.magnitude is None else np.maximum(np.abs(limit), found.magnitude)
    return np.asarray(found.resolution * size)


def _limit_text(found: Field, sides: dict[str, Expression], limits: dict[str, Any]) -> Callable[[tuple[int, ...]], str]:
    def text(index: tuple[int, ...]) -> str:
        value = float(found.value[index])
        chosen, number = "", 0.0
        for name, limit in limits.items():
            number_here = float(np.broadcast_to(limit, found.shape)[index])
            broken = {"at_least": value < number_here, "at_most": value > number_here, "equals": value != number_here}[name]
            if broken or not chosen:
                chosen, number = name, number_here
        expression = sides[chosen].text
        sign = {"at_least": ">=", "at_most": "<=", "equals": "="}[chosen]
        shown = against(number, value)
        return f"{sign} {expression}" if not sides[chosen].names else f"{sign} {expression} = {shown}"

    return text


def number(value: float, digits: int = 3) -> str:
    """A number for people: 3 significant digits, plain between 1e-4 and 1e6."""
    if value != value or value in (np.inf, -np.inf):
        return str(value)
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        before = max(int(np.floor(np.log10(abs(value)))) + 1, 0)
        if value == round(value) and before <= 6:
            return str(round(value))
        return f"{value:.{max(digits - before, 0)}f}" if before > 0 else f"{value:.{digits}g}"
    return f"{value:.{digits}g}"


def against(value: float, other: float) -> str:
    """`value` with as many digits as it takes to tell it from `other`, at least 3 and at most 9."""
    for digits in range(3, 10):
        said = number(value, digits)
        # Compared as numbers: "8.00" beside "8" tells nobody anything.
        if value == other or float(said) != float(number(other, digits)):
            return said
    return repr(value)
