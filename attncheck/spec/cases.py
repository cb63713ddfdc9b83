"""Properties times subjects times axes times inputs: the tests of a file, in the file's order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from attncheck.core.claims import ClaimError
from attncheck.core.definitions import InputDefinition, SubjectDefinition
from attncheck.core.errors import AttncheckError
from attncheck.spec.demands import subjects_of
from attncheck.spec.model import AXES, Case, Exemption, Property, Subject
from attncheck.spec.nodes import Node
from attncheck.spec.properties import NOTHING, File, requests_in
from attncheck.spec.reader import Reader

MOST_CASES = 20_000


def expand(
    reader: Reader, found: Property, key: Node, file: File, inputs: Mapping[str, InputDefinition], room: int = MOST_CASES
) -> list[Case]:
    """A property's cases, its must-fail twins last. Notes what makes it vacuous or impossible; inputs that are wrong are absent."""
    if any(name not in file.subjects for name in (*found.subjects, *found.must_fail_on)):
        return []
    before = len(reader.problems)
    needs_input = any(reader.vocabulary.needs_input(request.name) for request in requests_in(found))
    has_axes = needs_input or found.request == NOTHING
    others = _counterparts(reader, found, file, has_axes)
    if others is None:
        return []
    _check_relation(reader, found, key, others, file, has_axes)
    cases: list[Case] = []
    for name, must_fail in ((name, twin) for names, twin in ((found.subjects, False), (found.must_fail_on, True)) for name in names):
        subject = file.subjects[name]
        fed = _inputs(found, subject, file) if needs_input else (None,)
        if not fed:
            reader.report(
                key, f"{found.name}: its observable needs an input and {name} has none", "inputs: of the property, the subject or defaults"
            )
            continue
        if any(one is not None and inputs.get(one) is None for one in fed):
            return []
        axes = {axis: subject.axes[axis] if has_axes else () for axis in AXES}
        count = prod(max(1, len(values)) for values in axes.values()) * len(fed)
        if len(cases) + count > room:
            reader.report(key, f"{found.name}: more than {MOST_CASES} tests in the file", "fewer axis values or inputs")
            return []
        parts = [""] if must_fail else _parts(reader, found, subject)
        made = _of_subject(found, subject, axes, [inputs[one] if one is not None else None for one in fed], others, must_fail)
        cases.extend(replace(case, part=part, id=f"{case.id}/{part}" if part else case.id) for case in made for part in parts)
    if len(reader.problems) > before:
        return []
    _check_found(reader, found, key, cases)
    return cases


def _inputs(found: Property, subject: Subject, file: File) -> Sequence[str | None]:
    """The property's word wins over the subject's, that over the defaults'; without any, every input of the file."""
    return found.inputs or subject.inputs or file.defaults.get("inputs") or tuple(file.input_names)


def _of_subject(
    found: Property,
    subject: Subject,
    axes: Mapping[str, Sequence[str]],
    inputs: Sequence[InputDefinition | None],
    others: Mapping[str, Subject],
    must_fail: bool,
) -> Iterator[Case]:
    marks = tuple(dict.fromkeys((*subject.marks, *found.marks)))
    other = _other_axes(found)
    for values in product(*(axes[axis] or (None,) for axis in AXES)):
        chosen = dict(zip(AXES, values, strict=True))
        if other and all(chosen[axis] == value for axis, value in other.items()):
            continue
        variant = subject.definition.changed(**chosen)
        varying = [_in_id(chosen[axis]) for axis in AXES if len(axes[axis]) > 1]
        for fed in inputs:
            parts = [subject.definition.name, *varying, *([fed.name] if fed is not None else []), *(["must-fail"] if must_fail else [])]
            exemption = next((item for item in found.unless if _matches(item, variant, fed)), None)
            yield Case(found, subject, variant, fed, must_fail, exemption, "/".join(parts), marks, others)


def _parts(reader: Reader, found: Property, subject: Subject) -> Sequence[str]:
    """What the tests of the demand are called, of which most demands have one, without a name. A control has one in any case."""
    parts = None if found.demand.kind == "bound" else reader.vocabulary.expectations[found.demand.kind].about.get("parts")
    if parts is None:
        return [""]
    try:
        made: Sequence[str] = parts(subject.definition.kind, subject.claims, found.demand.arguments)
        return made
    except AttncheckError as error:
        of_claims = isinstance(error, ClaimError) and subject.place is not None
        place = subject.place if of_claims and subject.place is not None else found.places.get(found.demand.kind, found.place)
        said, _, allowed = str(error).partition("; allowed: ")
        what = f"subject {subject.definition.name}: claims" if of_claims else f"{found.name}: {found.demand.kind}"
        reader.report(Node(None, place.line, place.column), f"{what}: {said}", allowed)
        return []


def _in_id(value: str | None) -> str:
    """An axis value within an id, where '/' joins the parts and brackets close them."""
    return "".join(c if c.isalnum() or c in "._:-" else "-" for c in str(value))


def _other_axes(found: Property) -> dict[str, str]:
    """Axis values of the other side of a comparison that differs in nothing else: a variant that has them would be compared with itself."""
    relation = found.relation
    if relation is not None:
        return dict(relation.axes) if relation.subject is None and relation.request is None else {}
    arguments: Any = [value for value in found.demand.arguments.values() if isinstance(value, dict) and value and value.keys() <= set(AXES)]
    return dict(arguments[0]) if arguments else {}


def _matches(item: Exemption, variant: SubjectDefinition, fed: InputDefinition | None) -> bool:
    if item.subject not in (None, variant.name) or (item.input is not None and (fed is None or fed.name != item.input)):
        return False
    return all(getattr(variant, axis) == value for axis, value in item.axes.items())


def _counterparts(reader: Reader, found: Property, file: File, has_axes: bool) -> dict[str, Subject] | None:
    """The subjects on the other side, without axes where no forward pass is read; None where one of them is wrong."""
    relation = found.relation
    names = [relation.subject] if relation is not None and relation.subject is not None else []
    if found.demand.kind != "bound":
        names += subjects_of(found.demand, reader.vocabulary.expectations[found.demand.kind])
    if any(name not in file.subjects for name in names):
        return None
    return {name: file.subjects[name] if has_axes else replace(file.subjects[name], axes={}) for name in names}


def _check_relation(reader: Reader, found: Property, key: Node, others: Mapping[str, Subject], file: File, has_axes: bool) -> None:
    """Both sides must exist: the same seeds, and on each axis the test's own value or a single one."""
    if _other_axes(found) and not has_axes:
        reader.report(
            key, f"{found.name}: {found.request.name} reads no forward pass, so nothing differs between {', '.join(AXES)}", "a subject"
        )
    stated = found.relation.axes if found.relation is not None else {}
    for name, (other_name, other) in product((*found.subjects, *found.must_fail_on), others.items()):
        subject = file.subjects[name]
        if subject.seeds and other.seeds and tuple(subject.seeds) != tuple(other.seeds):
            mine, theirs = list(subject.seeds), list(other.seeds)
            reader.report(key, f"{found.name}: {name} has seeds {mine} and {other_name} has {theirs}", "the same seeds on both sides")
        for axis in AXES:
            listed = other.axes.get(axis, ())
            missing = [value for value in subject.axes[axis] or (None,) if value not in listed]
            if len(listed) > 1 and missing and axis not in stated:
                shown = "leaves it open" if missing[0] is None else f"has {missing[0]}"
                reader.report(
                    key,
                    f"{found.name}: {other_name} has {axis} {', '.join(listed)} and {name} {shown}",
                    f"one value of {axis} in the relation, or the same ones in both subjects",
                )


def _check_found(reader: Reader, found: Property, key: Node, cases: Sequence[Case]) -> None:
    if not any(not case.must_fail for case in cases):
        reader.report(key, f"{found.name}: no test comes of it", "a subject that is not compared with itself and is no control")
    for item in found.unless:
        if not any(_matches(item, case.variant, case.input) for case in cases) and item.place is not None:
            reader.report(
                Node(None, item.place.line, item.place.column), f"{found.name}: unless matches no test", "what one of its tests has"
            )
    ids = [case.id for case in cases]
    for twice in sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else ():
        reader.report(key, f"{found.name}: two tests are called {twice!r}", "axis values that differ in letters and digits")
