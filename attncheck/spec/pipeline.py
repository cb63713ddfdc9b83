"""The steps of a property before its demand: where, reduce, ratio_to and difference_to; and the dims that each leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from attncheck.core.definitions import AXES, Request
from attncheck.core.measurement import DIMS, STACKS
from attncheck.core.vocabulary import Vocabulary
from attncheck.spec.arguments import request
from attncheck.spec.model import Reduction, Relation, Selector
from attncheck.spec.nodes import Node
from attncheck.spec.reader import Reader, shown
from attncheck.spec.selectors import parse_selector

WITH_A_NUMBER = ("first_above", "first_below")
OF_AN_ORDER = ("peak", "growth", "slope", "exponent", "largest_rise", "largest_fall", *WITH_A_NUMBER)
"""Reductions that follow a profile: over layer or step."""


@dataclass(frozen=True)
class Dims:
    """The dims that a property may name, after what was done so far."""

    names: tuple[str, ...]
    of: str
    """The observable, for messages."""

    def without(self, dropped: Collection[str]) -> Dims:
        return Dims(tuple(name for name in self.names if name not in dropped), self.of)

    def refuse(self, reader: Reader, node: Node, what: str, dim: str) -> None:
        allowed = ", ".join(self.names) if self.names else "none is left"
        reader.report(node, f"{what}: {dim!r} is no dim of {self.of}", self.names or allowed, like=dim)


def dims_of(vocabulary: Vocabulary, found: Request, repeated: Collection[str]) -> Dims:
    """An observable's dims with its arguments, and the `repeated` ones of its subjects: seed, step.

    The argument `per` says what the value is one number for: a query, a head, or a whole matrix, which leaves no head.
    """
    names = set(vocabulary.dims(found.name)) | set(repeated)
    per = found.arguments.get("per")
    if per in ("query", "head"):
        names.add(str(per))
    elif per == "matrix":
        names.discard("head")
    return Dims(tuple(dim for dim in DIMS if dim in names), found.name)


def read_where(reader: Reader, node: Node, what: str, dims: Dims) -> tuple[Mapping[str, Selector], ...]:
    """A mapping of dims to selectors, or a list of such mappings, whose union is meant. `stack` goes with layers: it says of which."""
    choices = []
    for item in reader.listed(node, f"{what}: where"):
        if not item.is_mapping or not item.entries:
            reader.report(item, f"{what}: where: {shown(item) if not item.is_mapping else 'an empty mapping'}", "{layer: 1.., head: 0}")
            continue
        chosen: dict[str, Selector] = {}
        for dim, child in item.entries.items():
            if dim == "stack" and "layer" in dims.names:
                if (name := reader.choice(child, f"{what}: where: stack", STACKS)) is not None:
                    chosen[dim] = Selector(single=True, text=name)
            elif dim not in dims.names:
                dims.refuse(reader, item.keys[dim], f"{what}: where", dim)
            elif child.is_list:
                reader.report(
                    child, f"{what}: where: {dim}: a list", "a range, or a list of mappings, which is a union: [{layer: 0}, {layer: 3}]"
                )
            elif (selector := reader.parsed(child, f"{what}: where: {dim}", parse_selector)) is not None:
                chosen[dim] = selector
        choices.append(chosen)
    return tuple(choices)


def read_reduce(reader: Reader, node: Node, what: str, dims: Dims) -> tuple[Reduction, ...]:
    """The reductions in the order written."""
    what = f"{what}: reduce"
    if not node.is_mapping or not node.entries:
        reader.report(node, f"{what}: {shown(node) if not node.is_mapping else 'an empty mapping'}", "{head: mean, step: last}")
        return ()
    made = []
    for dim, child in node.entries.items():
        if dim not in dims.names:
            dims.refuse(reader, node.keys[dim], what, dim)
            continue
        found = _reduction(reader, child, what, dim)
        if found is not None:
            made.append(found)
    return tuple(made)


def _reduction(reader: Reader, node: Node, what: str, dim: str) -> Reduction | None:
    known = reader.vocabulary.reductions
    above: float | None = None
    if node.is_mapping and len(node.entries) == 1:
        ((how, child),) = node.entries.items()
        if how in known and how not in WITH_A_NUMBER:
            reader.report(node, f"{what}: {dim}: {how} takes no argument", f"{dim}: {how}")
            return None
        if isinstance(child.value, bool) or not isinstance(child.value, int | float) or not abs(child.value) < float("inf"):
            reader.report(child, f"{what}: {dim}: {how}: {shown(child)}", " or ".join(f"{{{word}: NUMBER}}" for word in WITH_A_NUMBER))
            return None
        name, above = node.keys[how], float(child.value)
        name = Node(how, name.line, name.column)
    else:
        name = node
    chosen = reader.choice(name, f"{what}: {dim}", known)
    if chosen is None:
        return None
    if chosen in WITH_A_NUMBER and above is None:
        reader.report(node, f"{what}: {dim}: {chosen} of what?", f"{{{chosen}: NUMBER}}")
        return None
    if chosen in OF_AN_ORDER and dim not in ("layer", "step"):
        reader.report(node, f"{what}: {dim}: {chosen} follows an order", f"{chosen} over layer or step")
        return None
    return Reduction(dim, chosen, above)


def read_relation(
    reader: Reader, word: Literal["ratio_to", "difference_to"], node: Node, what: str, subjects: Collection[str]
) -> Relation | None:
    """What differs on the other side: a subject, an observable, values of axes, or several of these."""
    label = f"{what}: {word}"
    fields = reader.fields(node, label, ("subject", "observable", *AXES))
    if fields is None:
        return None
    if not node.entries:
        reader.report(node, f"{label}: an empty mapping", "what differs: subject, observable, " + ", ".join(AXES))
        return None
    before = len(reader.problems)
    subject = reader.known(fields["subject"], f"{label}: subject", subjects) if "subject" in fields else None
    observable = request(reader, fields["observable"], f"{label}: observable") if "observable" in fields else None
    axes = {axis: reader.text(fields[axis], f"{label}: {axis}") or "" for axis in AXES if axis in fields}
    if len(reader.problems) > before or len(fields) != len(node.entries):
        return None
    return Relation("ratio" if word == "ratio_to" else "difference", subject, observable, axes)
