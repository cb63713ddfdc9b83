"""A spec file -> Spec, or a SpecError that lists every mistake in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.core.errors import Place, Problem, SpecError
from attncheck.core.vocabulary import Vocabulary
from attncheck.spec.cases import MOST_CASES, expand
from attncheck.spec.inputs import read_inputs
from attncheck.spec.model import AXES, Case, Property, Spec
from attncheck.spec.nodes import LARGEST_FILE, Node, read
from attncheck.spec.properties import DEFAULTS, File, read_about, read_property
from attncheck.spec.reader import Reader
from attncheck.spec.subjects import read_subjects

VERSION = 1
SECTIONS = ("attncheck", "about", "source", "subjects", "inputs", "defaults", "expect")


def load(path: Path, vocabulary: Vocabulary, *, root: Path | None = None) -> Spec:
    """Read, check and expand a spec. Places show the path relative to `root` where it lies below it.

    Paths in the file (of a kind's options) are relative to the file's folder and absolute in the result. Raises SpecError.
    """
    name = _shown(path, root)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise SpecError([Problem(Place(name, 1), f"cannot be read: {error.strerror or error}")]) from None
    return load_bytes(data, path, vocabulary, name=name)


def load_bytes(data: bytes, path: Path, vocabulary: Vocabulary, *, name: str | None = None) -> Spec:
    """As `load`, from content that was read already; `name` is how messages call the file."""
    reader = Reader(vocabulary, name or str(path), path.resolve().parent)
    root, problems = read(data, reader.name)
    reader.problems.extend(problems)
    spec = _Loading(reader, path).spec(root) if root is not None else None
    if spec is None or reader.problems:
        raise SpecError(_distinct(reader.problems))
    return spec


def _shown(path: Path, root: Path | None) -> str:
    absolute = path.resolve()
    base = root.resolve() if root is not None else None
    return absolute.relative_to(base).as_posix() if base is not None and absolute.is_relative_to(base) else str(path)


def _distinct(problems: list[Problem]) -> list[Problem]:
    """Without what a subject merely inherits: the same mistake at the same place is told once, of the subject that has it."""
    kept: dict[tuple[Place, str], Problem] = {}
    for problem in problems:
        owner, _, mistake = problem.found.partition(": ")
        kept.setdefault((problem.place, mistake if owner.startswith("subject ") else problem.found), problem)
    return list(kept.values())


class _Loading:
    def __init__(self, reader: Reader, path: Path) -> None:
        self.reader, self.path = reader, path

    def spec(self, root: Node) -> Spec | None:
        reader = self.reader
        if not root.is_mapping:
            reader.report(root, "no mapping", f"a spec with the keys {', '.join(SECTIONS)}")
            return None
        top = self.top(root)
        sections = {word: reader.section(top.get(word), word) for word in ("subjects", "inputs", "expect")}
        keys = {word: top[word].keys if word in top else {} for word in sections}
        inputs = read_inputs(reader, sections["inputs"], keys["inputs"])
        fed = {name: reader.place(node) for name, node in keys["inputs"].items()}
        defaults = self.defaults(top.get("defaults"), sections)
        axes = {axis: defaults[axis] for axis in AXES if axis in defaults}
        subjects = read_subjects(reader, sections["subjects"], keys["subjects"], sections["inputs"].keys(), axes)
        file = File(subjects, sections["subjects"].keys(), sections["inputs"].keys(), defaults)
        properties: dict[str, Property] = {}
        cases: list[Case] = []
        for name, node in sections["expect"].items():
            key = keys["expect"][name]
            found = read_property(reader, name, node, key, file)
            if found is not None:
                properties[name] = found
                made = expand(reader, found, key, file, inputs, MOST_CASES - len(cases))
                cases.extend(replace(case, input_place=fed.get(case.input.name)) if case.input else case for case in made)
        about, source = (self.text(top, word) for word in ("about", "source"))
        return Spec(self.path, about, source, subjects, inputs, properties, tuple(cases))

    def top(self, root: Node) -> dict[str, Node]:
        """The file's sections; the version is checked and those that must be there are missed."""
        reader = self.reader
        if "attncheck" not in root.entries:
            reader.report(root, "no version", f"attncheck: {VERSION} as the first key")
        elif (version := root.entries["attncheck"]).value != VERSION or isinstance(version.value, bool):
            reader.report(version, f"attncheck: version {version.plain!r}", f"attncheck: {VERSION}")
        meant = reader.guessed(root, SECTIONS)
        for word in ("subjects", "expect"):
            if word not in root.entries and word not in meant:
                reader.report(root, f"no {word}", f"{word}: with at least one `name: {{...}}`")
        return reader.fields(root, "file", SECTIONS) or {}

    def text(self, top: Mapping[str, Node], word: str) -> str:
        return (self.reader.text(top[word], word) or "") if word in top else ""

    def defaults(self, node: Node | None, sections: Mapping[str, Mapping[str, Node]]) -> dict[str, Any]:
        """What holds where a property, or for an axis a subject, says nothing."""
        if node is None:
            return {}
        reader = self.reader
        fields = reader.fields(node, "defaults", (*DEFAULTS, *AXES))
        if fields is None:
            return {}
        if not node.entries:
            reader.report(node, "defaults: an empty mapping", "at least one of " + ", ".join((*DEFAULTS, *AXES)))
        found = read_about(reader, "defaults", fields)
        for word in ("subjects", "inputs"):
            if word in fields:
                found[word] = reader.names(fields[word], f"defaults: {word}", sections[word].keys())
        for axis in AXES:
            if axis in fields:
                found[axis] = reader.axis_values(fields[axis], f"defaults: {axis}", axis)
        return {word: value for word, value in found.items() if value is not None}
