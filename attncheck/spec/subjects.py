"""`subjects:` what is measured. `like` is followed first, so that everything after it sees complete definitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attncheck.core.definitions import SubjectDefinition
from attncheck.spec.kinds import Parts, options_of, take_apart
from attncheck.spec.model import AXES, Subject
from attncheck.spec.nodes import Node
from attncheck.spec.reader import MARK, MARK_ALLOWED, Reader

KEYS = ("like", *AXES, "weights", "seed", "seeds", "marks", "inputs", "optional", "attention_layers", "claims")
LONGEST_CHAIN = 30


def read_subjects(
    reader: Reader,
    section: Mapping[str, Node],
    keys: Mapping[str, Node],
    inputs: Collection[str],
    axes: Mapping[str, tuple[str, ...]],
) -> dict[str, Subject]:
    """The subjects that are right, by name in the file's order. `keys` are the places of the names, `axes` the file's defaults."""
    return _Subjects(reader, section, keys, inputs, axes).read()


class _Subjects:
    def __init__(
        self,
        reader: Reader,
        section: Mapping[str, Node],
        keys: Mapping[str, Node],
        inputs: Collection[str],
        axes: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.reader, self.section, self.keys, self.inputs, self.axes = reader, section, keys, inputs, axes
        self.parts: dict[str, Parts | None] = {}
        self.kinds = reader.vocabulary.subject_kinds

    def read(self) -> dict[str, Subject]:
        made = {name: self.subject(name) for name in self.section}
        return {name: subject for name, subject in made.items() if subject is not None}

    def resolved(self, name: str, heirs: tuple[str, ...] = ()) -> Parts | None:
        """A subject's parts with everything that `like` brings."""
        if name in self.parts:
            return self.parts[name]
        node, what = self.section[name], f"subject {name}"
        base: Parts | None = None
        broken = False
        like = node.entries.get("like")
        if like is not None and like.value is not None:
            parent = self.reader.known(like, f"{what}: like", self.section.keys())
            if parent is not None and parent in (*heirs, name):
                circle = " -> ".join([*heirs[heirs.index(parent) if parent in heirs else len(heirs) :], name, parent])
                self.reader.report(like, f"{what}: like goes in a circle: {circle}", "a chain that ends in a subject with a kind")
                parent = None
            elif len(heirs) >= LONGEST_CHAIN:
                self.reader.report(like, f"{what}: a chain of more than {LONGEST_CHAIN} likes", "a shorter chain")
                parent = None
            if parent is None:
                broken = True
            else:
                base = self.resolved(parent, (*heirs, name))
                broken = base is None
        if broken:
            self.parts[name] = None
            return None
        own = take_apart(self.reader, node, self.keys[name], what, self.kinds, KEYS, base.kind if base else None)
        if own is not None:
            own.common.pop("like", None)
        found = None if own is None else own.over(base) if base is not None else own
        self.parts[name] = found
        return found

    def subject(self, name: str) -> Subject | None:
        reader, what = self.reader, f"subject {name}"
        before = len(reader.problems)
        parts = self.resolved(name)
        if parts is None or parts.kind is None:
            return None
        options = options_of(reader, parts, what, self.kinds)
        axes = {axis: self.axes.get(axis, ()) for axis in AXES}
        values: dict[str, Any] = {"weights": "trained", "seed": 0}
        extra: dict[str, Any] = {}
        for key, child in parts.common.items():
            label = f"{what}: {key}"
            if key in AXES:
                axes[key] = reader.axis_values(child, label, key) or ()
            elif key == "weights":
                values[key] = reader.choice(child, label, ("trained", "random"))
            elif key == "seed":
                values[key] = reader.integer(child, label)
            elif key == "attention_layers":
                values[key] = reader.integer(child, label, least=1)
            elif key == "seeds":
                extra[key] = reader.integers(child, label)
            elif key == "marks":
                extra[key] = reader.texts(child, label, MARK, MARK_ALLOWED)
            elif key == "inputs":
                extra[key] = reader.names(child, label, self.inputs)
            elif key == "optional":
                extra[key] = reader.boolean(child, label)
            elif reader.fields(child, label, list(child.entries)) is not None:
                extra[key] = child.plain
        if "seed" in parts.common and "seeds" in parts.common:
            reader.report(parts.common["seeds"], f"{what}: seed and seeds", "one of them")
        if options is None or len(reader.problems) > before:
            return None
        definition = SubjectDefinition(name, parts.kind, options, **values)
        return Subject(definition, axes, place=reader.place(self.keys[name]), **extra)
