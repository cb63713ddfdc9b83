"""The claim in the spec's words: 'keys.frobenius_norm (head mean, step last) of lrkv / mha >= 1.15 for all layers in 2 of 3 seeds'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attncheck.core.bounds import Bound
from attncheck.core.definitions import Request
from attncheck.spec.model import Case, Property, Selector


def claim(case: Case, demand: str, *, counterpart: str = "") -> str:
    """The whole sentence. `demand` is the demand in words ('>= 1.15'), `counterpart` the other side of a relation ('mha')."""
    prop = case.property
    shaped = [f"{r.dim} {r.how.replace('_', ' ')}{f' {r.above:g}' if r.above is not None else ''}" for r in prop.reduce]
    subject = case.subject.definition.name
    sign = {"ratio": " / ", "difference": " - "}[prop.relation.kind] if prop.relation else ""
    words = [observable(prop.request, prop.text.get("observe"))]
    if prop.where:
        words.append("at " + " or ".join(_selection(mapping) for mapping in prop.where))
    if shaped:
        words.append(f"({', '.join(shaped)})")
    words += [f"of {subject}{sign}{counterpart}", demand]
    if prop.quantifier_text:
        words.append(f"for {prop.quantifier_text}")
    return " ".join(word for word in words if word)


def observable(request: Request, written: Any = None) -> str:
    """'attention.observed_scores (keys: 4..511)', with the arguments that the spec wrote; without `written`, all but those left at None."""
    arguments = request.arguments
    if written == request.name:
        arguments = {}
    elif isinstance(written, Mapping) and isinstance(written.get(request.name), Mapping):
        arguments = dict(written[request.name])
    shown = ", ".join(f"{name}: {_plain(value)}" for name, value in arguments.items() if value is not None)
    return f"{request.name} ({shown})" if shown else request.name


def written_under(prop: Property, key: str) -> Any:
    """The `observable` that the spec wrote under `ratio_to`, `tracks`, ...; None where it wrote none."""
    found = prop.text.get(key)
    return found.get("observable") if isinstance(found, Mapping) else None


def bound_words(bound: Bound) -> str:
    """'>= 1.15', '<= 5', 'in [0.6, 1.4]', '= 1/sqrt(N)'."""
    if bound.equals is not None:
        return f"= {bound.equals}"
    if bound.at_least is not None and bound.at_most is not None:
        return f"in [{bound.at_least}, {bound.at_most}]"
    return f">= {bound.at_least}" if bound.at_least is not None else f"<= {bound.at_most}"


TELLING = ("spread", "decades", "peak", "growth", "slope", "exponent", "largest_rise", "largest_fall", "first_above", "first_below")
"""Reductions after which a number is no longer one of the observable's own size."""


def quantity(prop: Property) -> str:
    """The quantity in headlines: 'entropy', 'weights.alpha spread', 'keys.frobenius_norm ratio'. Only attention's own goes without its
    namespace: pytest's summary has 80 columns, and the number has to be among them."""
    name = prop.request.name.removeprefix("attention.")
    telling = [r.how for r in prop.reduce if r.how in TELLING]
    words = [name, *(how.replace("_", " ") for how in telling)]
    if prop.relation is not None:
        words.append(prop.relation.kind)
    return " ".join(words)


def other_side(prop: Property) -> str:
    """The counterpart of a relation, as text: 'mha', 'weights.alpha (matrix: v)', 'eager'."""
    relation = prop.relation
    if relation is None:
        return ""
    parts = [relation.subject] if relation.subject else []
    parts += [observable(relation.request, written_under(prop, f"{relation.kind}_to"))] if relation.request else []
    parts += list(relation.axes.values())
    return " ".join(parts)


def _selection(mapping: Mapping[str, Selector]) -> str:
    return ", ".join(f"{dim} {_selector(selector)}" for dim, selector in mapping.items())


def _selector(selector: Selector) -> str:
    if selector.text:
        return selector.text
    if selector.part is not None:
        which, amount = selector.part
        return f"{which} {amount:g}" if amount > 1 else f"{which} {amount:.0%}"
    if selector.single:
        return str(selector.start)
    return f"{selector.start or 0}..{'' if selector.stop is None else selector.stop}"


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
