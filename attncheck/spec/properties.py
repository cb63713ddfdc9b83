"""`expect:` the properties. Each is one pipeline: observe, where, reduce, ratio_to or difference_to, a demand, for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from attncheck.core.definitions import AXES, Request
from attncheck.core.fields import BOUND_WORDS
from attncheck.spec.arguments import request
from attncheck.spec.demands import read_demand, requests_of
from attncheck.spec.model import Demand, Exemption, Property, Quota, Relation, Subject, Tolerance
from attncheck.spec.nodes import Node
from attncheck.spec.pipeline import Dims, dims_of, read_reduce, read_relation, read_where
from attncheck.spec.quantifiers import UNITS, parse_quantifier
from attncheck.spec.reader import MARK, MARK_ALLOWED, Reader, flatten
from attncheck.spec.tolerances import read_tolerance

STEPS = ("observe", "where", "reduce", "ratio_to", "difference_to", "for")
ABOUT = ("must_fail_on", "subjects", "inputs", "why", "source", "level", "marks", "tolerance", "unless")
DEFAULTS = ("subjects", "inputs", "level", "marks", "tolerance", "source")
LEVELS = ("fail", "warn")
NOTHING = Request("")
"""The request of a demand that observes nothing itself, such as laws."""


@dataclass
class File:
    """What properties may refer to."""

    subjects: Mapping[str, Subject]
    """Those that are right."""
    subject_names: Collection[str]
    """All that are written, so that one mistake in a subject does not make its name unknown."""
    input_names: Collection[str]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def words(reader: Reader) -> tuple[str, ...]:
    """Every key of a property."""
    return (*STEPS[:-1], *BOUND_WORDS, *reader.vocabulary.expectations, "for", *ABOUT)


def read_property(reader: Reader, name: str, node: Node, key: Node, file: File) -> Property | None:
    """A property, or None with every mistake in it noted. `key` is the place of its name."""
    before = len(reader.problems)
    made = _read(reader, name, node, key, file)
    return made if len(reader.problems) == before else None


def _read(reader: Reader, name: str, node: Node, key: Node, file: File) -> Property | None:
    nullable = [word for word, entry in reader.vocabulary.expectations.items() if word in node.entries and not _required(entry)]
    fields = _fields(reader, name, node, nullable)
    if fields is None:
        return None
    named: dict[str, Any] = _named_subjects(reader, name, fields, file)
    meant = reader.guessed(node, words(reader)) | {word for word, child in node.entries.items() if child.value is None}
    demand = read_demand(reader, name, key, meant, fields, node.keys, file.subject_names)
    found = _observe(reader, name, key, meant, fields, demand)
    relation = _relation(reader, name, node, fields, file)
    repeated = _repeated(reader, named["subjects"], named["must_fail_on"], file)
    steps: dict[str, Any] = {}
    dims: Dims | None = None
    if found is not None and found != NOTHING:
        dims = dims_of(reader.vocabulary, found, repeated)
        if "where" in fields:
            steps["where"] = read_where(reader, fields["where"], name, dims)
        if "reduce" in fields:
            steps["reduce"] = read_reduce(reader, fields["reduce"], name, dims)
            dims = dims.without(fields["reduce"].entries)
    elif found is not None:
        for word in ("where", "reduce"):
            if word in fields:
                reader.report(node.keys[word], f"{name}: {word} without observe", "where and reduce after observe")
    if relation is not None and relation.request is not None and dims is not None:
        _check_counterpart(reader, name, fields, relation.request, dims, repeated)
    if relation is not None and relation.request == found and relation.subject is None and not relation.axes:
        word = f"{relation.kind}_to"
        reader.report(node.keys[word], f"{name}: {word}: {found} against itself, which says nothing", "another observable, subject or axis")
    quantifier, text = _quantifier(reader, name, fields, dims, demand, (*named["subjects"], *named["must_fail_on"]), file)
    rest = _about(reader, name, node, fields, file)
    if found is None or demand is None:
        return None
    return Property(
        name=name,
        place=reader.place(key),
        request=found,
        demand=demand,
        relation=relation,
        quantifier=quantifier,
        quantifier_text=text,
        places=flatten(node, reader.place),
        text=node.plain,
        **steps,
        **named,
        **rest,
    )


def _required(entry: Any) -> bool:
    return any(info.is_required() for info in entry.arguments.model_fields.values())


def _fields(reader: Reader, name: str, node: Node, nullable: Collection[str]) -> dict[str, Node] | None:
    """The entries; a demand whose arguments are all optional may be left empty."""
    if not nullable:
        return reader.fields(node, name, words(reader))
    full = {word: child for word, child in node.entries.items() if child.value is not None or word not in nullable}
    fields = reader.fields(Node(full, node.line, node.column, keys=node.keys), name, words(reader))
    return None if fields is None else {**fields, **{word: node.entries[word] for word in nullable}}


def _observe(
    reader: Reader, name: str, key: Node, meant: Collection[str], fields: Mapping[str, Node], demand: Demand | None
) -> Request | None:
    observes = demand is None or demand.kind == "bound" or reader.vocabulary.expectations[demand.kind].about.get("observes", True)
    if "observe" in fields:
        found = request(reader, fields["observe"], f"{name}: observe")
        if not observes and demand is not None:
            reader.report(fields["observe"], f"{name}: observe beside {demand.kind}", f"no observe: {demand.kind} measures for itself")
        return found
    if not observes:
        return NOTHING
    if "observe" not in meant:
        reader.report(key, f"{name}: no observe", "observe: NAME, or one name with its arguments")
    return None


def _named_subjects(reader: Reader, name: str, fields: Mapping[str, Node], file: File) -> dict[str, tuple[str, ...]]:
    """subjects, inputs and must_fail_on. Without `subjects`: all but the controls and the relation's other side."""
    found: dict[str, tuple[str, ...]] = {}
    for word, known in (("must_fail_on", file.subject_names), ("subjects", file.subject_names), ("inputs", file.input_names)):
        found[word] = (reader.names(fields[word], f"{name}: {word}", known) or ()) if word in fields else ()
    for twin in found["must_fail_on"]:
        if twin in found["subjects"]:
            reader.report(
                fields["must_fail_on"], f"{name}: {twin} must both satisfy the property and fail it", "another subject as the control"
            )
    if "subjects" not in fields:
        relation = fields.get("ratio_to") or fields.get("difference_to")
        other = relation.entries.get("subject") if relation is not None else None
        apart = {*found["must_fail_on"], *([str(other.value)] if other is not None else [])}
        chosen = file.defaults.get("subjects") or tuple(file.subject_names)
        found["subjects"] = tuple(subject for subject in chosen if subject not in apart)
    return found


def _repeated(reader: Reader, subjects: Collection[str], twins: Collection[str], file: File) -> set[str]:
    """The dims that subjects bring: seed where one has seeds, step where its kind is measured at several steps."""
    found = set()
    for name in (*subjects, *twins):
        subject = file.subjects.get(name)
        if subject is None:
            return {"seed", "step"}
        if subject.seeds:
            found.add("seed")
        if reader.vocabulary.subject_kinds[subject.definition.kind].about.get("steps", True):
            found.add("step")
    return found


def _relation(reader: Reader, name: str, node: Node, fields: Mapping[str, Node], file: File) -> Relation | None:
    both: tuple[Literal["ratio_to", "difference_to"], ...] = ("ratio_to", "difference_to")
    given = [word for word in both if word in fields]
    if len(given) > 1:
        reader.report(node.keys[given[1]], f"{name}: ratio_to and difference_to", "one of them")
    read = [read_relation(reader, word, fields[word], name, file.subject_names) for word in given]
    return read[0] if len(read) == 1 else None


def _check_counterpart(
    reader: Reader, name: str, fields: Mapping[str, Node], other: Request, left: Dims, repeated: Collection[str]
) -> None:
    """where and reduce act on both sides; the other may lack a dim that they name, but keeps none that this side has not."""
    word = "ratio_to" if "ratio_to" in fields else "difference_to"
    node = fields[word].entries["observable"]
    dims = dims_of(reader.vocabulary, other, repeated)
    reduce = fields.get("reduce")
    beyond = [dim for dim in dims.without(reduce.entries if reduce is not None else ()).names if dim not in left.names]
    if beyond:
        reader.report(
            node,
            f"{name}: {word}: {other.name} keeps {', '.join(beyond)}",
            f"the dims of the other side: {', '.join(left.names) or 'none'}",
        )


def _quantifier(
    reader: Reader,
    name: str,
    fields: Mapping[str, Node],
    dims: Dims | None,
    demand: Demand | None,
    subjects: Collection[str],
    file: File,
) -> tuple[tuple[Quota, ...], str]:
    node = fields.get("for")
    if node is None:
        return (Quota("all"),), "all"
    links = reader.parsed(node, f"{name}: for", parse_quantifier)
    if links is None:
        return (Quota("all"),), "all"
    if dims is not None and demand is not None:
        consumed = () if demand.kind == "bound" else reader.vocabulary.expectations[demand.kind].about.get("consumes", ())
        left = [unit for unit in dims.without(consumed).names if unit in UNITS]
        for link in links:
            if link.unit is not None and link.unit not in left:
                dim_list = ", ".join(left) if left else "all, any, no without a unit: no dim is left"
                reader.report(node, f"{name}: for: {link.unit!r} is no dim that {dims.of} has left here", dim_list)
    total = next((link.total for link in links if link.unit == "seed"), None)
    if any(link.unit == "seed" for link in links) and "seed" in (dims.names if dims is not None else ()):
        for subject in subjects:
            count = len(file.subjects[subject].seeds) if subject in file.subjects else None
            if count == 0:
                reader.report(node, f"{name}: for: {subject} has no seeds", "subjects with seeds, or `for` without seeds")
            elif count is not None and total not in (None, count):
                reader.report(node, f"{name}: for: {total} seeds, but {subject} has {count}", f"of {count} seeds")
    return links, " ".join(str(node.value).split())


def _about(reader: Reader, name: str, node: Node, fields: Mapping[str, Node], file: File) -> dict[str, Any]:
    defaults = file.defaults
    found: dict[str, Any] = {word: defaults[word] for word in ("level", "tolerance", "source", "marks") if word in defaults}
    found |= read_about(reader, name, fields)
    if "marks" in fields:
        found["marks"] = tuple(dict.fromkeys((*defaults.get("marks", ()), *(found["marks"] or ()))))
    if "unless" in fields:
        read = [_exemption(reader, name, item, file) for item in reader.listed(fields["unless"], f"{name}: unless")]
        found["unless"] = tuple(item for item in read if item is not None)
    return found


def read_about(reader: Reader, name: str, fields: Mapping[str, Node]) -> dict[str, Any]:
    """The keys that properties and defaults share: level, marks, tolerance, source, why."""
    found: dict[str, Any] = {}
    for word in ("why", "source"):
        if word in fields:
            found[word] = reader.text(fields[word], f"{name}: {word}") or ""
    if "level" in fields:
        found["level"] = cast(Literal["fail", "warn"], reader.choice(fields["level"], f"{name}: level", LEVELS))
    if "marks" in fields:
        found["marks"] = reader.texts(fields["marks"], f"{name}: marks", MARK, MARK_ALLOWED)
    if "tolerance" in fields:
        found["tolerance"] = read_tolerance(reader, fields["tolerance"]) or Tolerance()
    return found


def _exemption(reader: Reader, name: str, node: Node, file: File) -> Exemption | None:
    label = f"{name}: unless"
    fields = reader.fields(node, label, ("subject", "input", *AXES, "because"))
    if fields is None:
        return None
    before = len(reader.problems)
    because = reader.text(fields["because"], f"{label}: because") if "because" in fields else None
    if "because" not in node.entries:
        reader.report(node, f"{label}: because is missing", "because: the reason")
    if not node.entries.keys() - {"because"}:
        reader.report(node, f"{label}: nothing that it applies to", "any of subject, input, " + ", ".join(AXES))
    subject = reader.known(fields["subject"], f"{label}: subject", file.subject_names) if "subject" in fields else None
    chosen = reader.known(fields["input"], f"{label}: input", file.input_names) if "input" in fields else None
    axes = {axis: reader.axis(fields[axis], f"{label}: {axis}", axis) or "" for axis in AXES if axis in fields}
    if len(reader.problems) > before or because is None:
        return None
    return Exemption(subject, chosen, axes, because, reader.place(node))


def requests_in(found: Property) -> list[Request]:
    """Every observable that a property measures."""
    own = [] if found.request == NOTHING else [found.request]
    other = [found.relation.request] if found.relation is not None and found.relation.request is not None else []
    return [*own, *other, *requests_of(found.demand)]
