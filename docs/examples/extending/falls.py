"""A demand: a profile that does not rise, over layers or over training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncheck.core.errors import MeasurementError
from attncheck.core.expectation import expectation
from attncheck.core.verdict import Verdict

if TYPE_CHECKING:
    from attncheck.expectations.sides import Context


@expectation("falls", consumes=("layer", "step"))
def falls(context: Context, *, over: Literal["layer", "step"] = "layer", by: float = 0.0) -> Verdict:
    """The quantity falls by at least `by` from each layer (or step) to the next.

    Raises MeasurementError where fewer than two are left.
    """
    import numpy as np

    from attncheck.core.bounds import Bound, parse_expression
    from attncheck.expectations.bound import compare
    from attncheck.expectations.claim import claim, quantity
    from attncheck.expectations.outcome import conclude, decide
    from attncheck.expectations.picture import picture_of
    from attncheck.expectations.places import place_of
    from attncheck.expectations.select import take

    prop = context.case.property
    place = place_of(prop, "falls")
    found = context.reduced(context.measured())
    if over not in found.dims or found.shape[found.axis(over)] < 2:
        raise MeasurementError(f"{place}: falls needs two {over}s or more; left are {', '.join(found.dims) or 'no dims'}")
    last = found.shape[found.axis(over)] - 1
    before, after = take(found, {over: np.arange(last)}), take(found, {over: np.arange(1, last + 1)})
    drop = after.with_(value=after.value - before.value, lower=None, upper=None, magnitude=np.abs(before.value), symbols={})
    bound = Bound(at_most=parse_expression(0.0 - by))
    comparison = compare(drop, bound, prop.tolerance, place)
    quantified = decide(drop, comparison, context.case)
    return conclude(
        drop,
        comparison,
        quantified,
        context.case,
        claim=claim(context.case, f"falls from each {over} to the next by {by:g} or more"),
        quantity=f"{quantity(prop)} change",
        picture=picture_of(context, found, None, drop, comparison, quantified),
    )
