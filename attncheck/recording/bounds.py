"""Bounds on recorded quantities, in the words of specs: each becomes the property that a spec would hold, and is judged as one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.definitions import Request, SubjectDefinition
from attncheck.core.errors import AttncheckError, SpecError, nearest
from attncheck.core.fields import BOUND_WORDS
from attncheck.recording.stored import plain

if TYPE_CHECKING:
    from attncheck.core.vocabulary import Vocabulary
    from attncheck.spec.model import Case

KEYS = (*BOUND_WORDS, "where", "reduce", "for", "tolerance", "why")
"""What a bound may say of a property's keys."""
FORMS = "'>= 0.1', '<= sqrt(N)', 'in [0.5, 2]', '= 1', or a mapping with " + ", ".join(KEYS)
_SIGNS = {">=": "at_least", "<=": "at_most", "=": "equals"}
_SIDE = re.compile(r"(>=|<=|=)\s*(.+)")
_BETWEEN = re.compile(r"in\s*\[\s*(.+?)\s*,\s*(.+?)\s*\]")


@dataclass(frozen=True)
class LiveBound:
    """One bound: the name of its quantity in the recording, and the case that judges it."""

    name: str
    case: Case

    @property
    def request(self) -> Request:
        return self.case.property.request

    @property
    def claim(self) -> str:
        """'attention.entropy of GPT2LMHeadModel >= 0.1 for all'."""
        from attncheck.expectations.claim import bound_words, claim

        bound = self.case.property.demand.bound
        return claim(self.case, bound_words(bound) if bound is not None else "")

    @property
    def over_steps(self) -> bool:
        """Whether it speaks of the course, so that all recorded steps are needed to judge it."""
        return any(reduction.dim == "step" for reduction in self.case.property.reduce)


def names_of(requests: Sequence[Request]) -> list[str]:
    """What quantities are called in a recording: the observable, with its arguments where it comes twice; as `attncheck.observe` does."""
    names = [request.name for request in requests]
    return [name if names.count(name) == 1 else request.key for name, request in zip(names, requests, strict=True)]


def read_bounds(bounds: Any, requests: Sequence[Request], subject: str, *, live: bool) -> list[LiveBound]:
    """The bounds, checked. `subject` is what claims call the model; `live` refuses what speaks of single steps.

    Raises AttncheckError on a quantity that is not recorded and on whatever a spec would refuse.
    """
    if not isinstance(bounds, Mapping):
        raise AttncheckError(
            f"bounds: {bounds!r}; allowed: a mapping of recorded quantities to bounds, such as {{'attention.entropy': '>= 0.1'}}"
        )
    recorded = dict(zip(names_of(requests), requests, strict=True))
    made: list[LiveBound] = []
    for given, bound in bounds.items():
        name = _recorded(given, recorded)
        if any(other.name == name for other in made):
            raise AttncheckError(f"bounds: two bounds on {name}; allowed: one, such as 'in [0.1, 5]'")
        found = LiveBound(name, _case(name, _mapping(name, bound), recorded[name], subject))
        if live:
            _refuse_steps(found)
        made.append(found)
    return made


def _recorded(given: Any, recorded: Mapping[str, Request]) -> str:
    """The recorded quantity that is meant: by its name, or by that without the namespace where only one ends so."""
    if given in recorded:
        return str(given)
    ending = [name for name in recorded if name.partition(".")[2] == given]
    if len(ending) == 1:
        return ending[0]
    hint = nearest(str(given), recorded)
    also = f"; did you mean {hint!r}?" if hint else ""
    said = f"{given!r} is more than one of what is recorded" if ending else f"{given!r} is not recorded"
    raise AttncheckError(f"bounds: {said}; recorded: {', '.join(recorded)}{also}")


def _mapping(name: str, bound: Any) -> dict[str, Any]:
    """A bound as a property's keys."""
    if isinstance(bound, Mapping):
        unknown = [key for key in bound if key not in KEYS]
        if unknown:
            hint = nearest(str(unknown[0]), KEYS)
            also = f"; did you mean {hint!r}?" if hint else ""
            raise AttncheckError(f"bounds: {name}: unknown key {unknown[0]!r}; allowed: {', '.join(KEYS)}{also}")
        return dict(bound)
    text = bound.strip() if isinstance(bound, str) else ""
    if side := _SIDE.fullmatch(text):
        return {_SIGNS[side[1]]: side[2]}
    if between := _BETWEEN.fullmatch(text):
        return {"between": [between[1], between[2]]}
    raise AttncheckError(f"bounds: {name}: {bound!r} is no bound; allowed: {FORMS}")


def _case(name: str, asked: Mapping[str, Any], request: Request, subject: str) -> Case:
    """The case of a spec with this one property, so that its own reader checks it."""
    from attncheck.engine.vocabulary import vocabulary
    from attncheck.spec.loader import load_bytes

    known = vocabulary()
    arguments = {key: value for key, value in request.arguments.items() if value is not None}
    spec = {
        "attncheck": 1,
        "subjects": {"model": {"checkpoints": "./recorded"}},
        "inputs": {"probe": {"tokens": [0]}},
        "expect": {"it": {"observe": {request.name: arguments} if arguments else request.name, **plain(asked)}},
    }
    try:  # JSON is YAML, and its quotes keep '1e4' the text that claims show
        (case,) = load_bytes(json.dumps(spec).encode(), Path("bounds"), known, name="bounds").cases
    except SpecError as error:
        told = (_told(name, problem.found, problem.allowed, problem.nearest) for problem in error.problems)
        raise AttncheckError("\n".join(told)) from None
    definition = SubjectDefinition(subject, "recording", {})
    prop = replace(case.property, name=name, request=request, text={**case.property.text, "observe": _written(request, known)})
    return replace(case, property=prop, variant=definition, subject=replace(case.subject, definition=definition), id=subject)


def _written(request: Request, known: Vocabulary) -> Any:
    """The observable as one would write it: without the arguments that are at their defaults."""
    entry = known.observables[request.name]
    defaults = entry.arguments.model_fields
    given = {key: value for key, value in request.arguments.items() if key not in defaults or defaults[key].default != value}
    return {request.name: given} if given else request.name


def _told(name: str, found: str, allowed: str, hint: str) -> str:
    text = f"bounds: {name}: {found.removeprefix('it: ')}"
    return text + (f"; allowed: {allowed}" if allowed else "") + (f"; did you mean {hint!r}?" if hint else "")


def _refuse_steps(bound: LiveBound) -> None:
    """Live, a bound holds at every recorded step, and it is known at the step that breaks it."""
    prop = bound.case.property
    said = "where: step" if any("step" in choice for choice in prop.where) else ""
    said = said or ("for: steps" if any(quota.unit == "step" for quota in prop.quantifier) else "")
    if said:
        raise AttncheckError(
            f"bounds: {bound.name}: {said}: a live bound holds at every recorded step; allowed: `reduce: {{step: ...}}` of the steps "
            "so far, or check_recording when the training is over"
        )
