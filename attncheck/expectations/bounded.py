"""The verdict of an ordinary bound: observe, where, reduce, relate, compare, quantify."""

from __future__ import annotations

from attncheck.core.errors import MeasurementError
from attncheck.core.verdict import Verdict
from attncheck.expectations.bound import compare
from attncheck.expectations.claim import bound_words, claim, other_side, quantity
from attncheck.expectations.outcome import conclude, decide
from attncheck.expectations.picture import picture_of
from attncheck.expectations.places import place_of
from attncheck.expectations.quantify import inverted
from attncheck.expectations.relate import relate
from attncheck.expectations.sides import Context


def judge_bound(context: Context) -> Verdict:
    """Hold the property's bound against what was measured. Raises MeasurementError where it cannot be decided."""
    case, prop = context.case, context.case.property
    bound, relation = prop.demand.bound, prop.relation
    if bound is None:
        raise MeasurementError(f"{prop.place}: the demand {prop.demand.kind!r} holds no bound")
    raw, other_raw = context.measured(), None
    found = context.reduced(raw)
    if relation is not None:
        other_raw = context.measured(relation.request, subject=relation.subject, axes=relation.axes)
        names = (context.name(), context.name(relation.subject, relation.axes))
        if relation.request is not None:
            names = (f"{prop.request.name} of {names[0]}", f"{relation.request.name} of {names[1]}")
        place = place_of(prop, f"{relation.kind}_to")
        found = relate(found, context.reduced(other_raw, own=False), relation.kind, names, place)
    place = place_of(prop, *(name for name in ("at_least", "at_most", "between", "equals")))
    comparison = compare(found, bound, prop.tolerance, place, inverted=inverted(prop.quantifier))
    quantified = decide(found, comparison, case)
    return conclude(
        found,
        comparison,
        quantified,
        case,
        claim=claim(case, bound_words(bound), counterpart=other_side(prop)),
        quantity=quantity(prop),
        picture=picture_of(context, raw, other_raw, found, comparison, quantified),
    )
