"""YAML text -> a tree of nodes that know their line and column.

Only what a spec needs is accepted: one document, text keys given once, no tags, no merge keys, and aliases whose expansion is counted. The
events of the parser are read directly, since the composer resolves scalars by YAML 1.1, recurses, and keeps the last of duplicate keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from attncheck.core.errors import Place, Problem, SpecError
from attncheck.spec.scalars import Scalar, resolve

LARGEST_FILE = 1 << 20
MOST_NODES = 100_000
DEEPEST = 20

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True, eq=False)
class Node:
    """A scalar, a list or a mapping at its place. The keys of a mapping are text as written."""

    value: Scalar | list[Node] | dict[str, Node]
    line: int
    column: int
    quoted: bool = False
    size: int = 1
    """Nodes below and including this one, aliases counted in full."""
    keys: dict[str, Node] = field(default_factory=dict)
    """Of a mapping: where each key stands."""

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    @property
    def entries(self) -> dict[str, Node]:
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Node]:
        return self.value if isinstance(self.value, list) else []

    @property
    def plain(self) -> Any:
        """The value without places: JSON-like data."""
        if isinstance(self.value, dict):
            return {name: child.plain for name, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain for child in self.value]
        return self.value

    def walk(self, path: str = "") -> Iterator[tuple[str, Node]]:
        """Every node below by its dotted path; the place of a mapping's entry is its key."""
        for name, child in self.entries.items():
            below = f"{path}.{name}" if path else name
            yield below, self.keys[name]
            yield from child.walk(below)
        for index, child in enumerate(self.items):
            below = f"{path}.{index}" if path else str(index)
            yield below, child
            yield from child.walk(below)


class _StoppedError(Exception):
    """Reading cannot go on; the problem is already noted."""


def read(data: bytes, name: str) -> tuple[Node | None, list[Problem]]:
    """Parse a file's content. Returns the tree, or None where nothing can be made of it, and what is wrong so far. Never raises."""
    tree = _Tree(name)
    try:
        return tree.document(tree.decode(data)), tree.problems
    except _StoppedError:
        return None, tree.problems
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        tree.problem(line, column, f"not YAML: {error.problem or error.context}", _advice(tree.text, line))
    except (yaml.YAMLError, RecursionError) as error:
        tree.problem(1, 1, f"not YAML: {' '.join(str(error).split())}")
    return None, tree.problems


def read_or_raise(data: bytes, name: str) -> Node:
    """As `read`, for callers that want a tree or a SpecError."""
    node, problems = read(data, name)
    if node is None or problems:
        raise SpecError(problems)
    return node


def _advice(text: str, line: int) -> str:
    lines = text.splitlines()
    found = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\t" in found[: len(found) - len(found.lstrip())] or found.startswith("\t"):
        return "spaces: a tab cannot indent"
    if re.search(r":\s+[><=%@`]", found):
        return "a quoted text ('...'); a value cannot start with any of > < % @ `; comparisons are words: at_least, at_most"
    return ""


class _Tree:
    def __init__(self, name: str) -> None:
        self.name, self.text = name, ""
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node] = {}
        self.count = 0

    def problem(self, line: int, column: int, found: str, allowed: str = "", nearest: str = "") -> None:
        self.problems.append(Problem(Place(self.name, line, column), found, allowed, nearest))

    def stop(self, line: int, column: int, found: str, allowed: str = "") -> _StoppedError:
        self.problem(line, column, found, allowed)
        return _StoppedError()

    def decode(self, data: bytes) -> str:
        if len(data) > LARGEST_FILE:
            raise self.stop(1, 1, f"a file of {len(data)} bytes", f"{LARGEST_FILE} bytes")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = data[: error.start]
            column = error.start - before.rfind(b"\n")
            raise self.stop(before.count(b"\n") + 1, column, f"byte 0x{data[error.start]:02x} is not UTF-8", "UTF-8 text") from None
        strange = _CONTROL.search(text)
        if strange:
            start = strange.start()
            line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
            raise self.stop(line, column, f"the control character U+{ord(strange[0]):04X}", "printable text")
        self.text = text
        return text

    def document(self, text: str) -> Node:
        loader = _LOADER(text)
        try:
            loader.get_event()
            if loader.check_event(yaml.StreamEndEvent):
                raise self.stop(1, 1, "an empty file", "a spec, which begins with `attncheck: 1`")
            loader.get_event()
            root = self.node(loader, loader.get_event(), DEEPEST)
            loader.get_event()
            if not loader.check_event(yaml.StreamEndEvent):
                mark = loader.peek_event().start_mark
                self.problem(mark.line + 1, mark.column + 1, "a second document", "one document in a file")
            return root
        finally:
            loader.dispose()

    def node(self, loader: Any, event: Any, depth: int) -> Node:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event.anchor, line, column)
        self.spend(1, line, column)
        if event.tag is not None and event.tag != "!":
            shown = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.problem(line, column, f"the tag {shown}", "plain values; quote what must be text")
        if isinstance(event, yaml.ScalarEvent):
            quoted = bool(event.style) or event.tag == "!"
            made = Node(event.value if quoted else resolve(event.value), line, column, quoted=bool(event.style))
        elif depth == 0:
            raise self.stop(line, column, f"nested more than {DEEPEST} deep", "a flatter spec")
        elif isinstance(event, yaml.SequenceStartEvent):
            made = self.sequence(loader, line, column, depth)
        else:
            made = self.mapping(loader, line, column, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = made
        return made

    def spend(self, nodes: int, line: int, column: int) -> None:
        self.count += nodes
        if self.count > MOST_NODES:
            raise self.stop(line, column, f"more than {MOST_NODES} values, aliases counted in full", "a smaller spec")

    def alias(self, name: str | None, line: int, column: int) -> Node:
        found = self.anchors.get(name or "")
        if found is None:
            self.problem(line, column, f"the alias *{name}", "an anchor that was closed before it")
            return Node(None, line, column)
        self.spend(found.size, line, column)
        return found

    def sequence(self, loader: Any, line: int, column: int, depth: int) -> Node:
        children: list[Node] = []
        while not isinstance(event := loader.get_event(), yaml.SequenceEndEvent):
            children.append(self.node(loader, event, depth - 1))
        return Node(children, line, column, size=1 + sum(child.size for child in children))

    def mapping(self, loader: Any, line: int, column: int, depth: int) -> Node:
        entries: dict[str, Node] = {}
        keys: dict[str, Node] = {}
        size = 1
        while not isinstance(event := loader.get_event(), yaml.MappingEndEvent):
            plain = isinstance(event, yaml.ScalarEvent) and not event.style
            text = event.value if isinstance(event, yaml.ScalarEvent) else None
            key = self.node(loader, event, depth - 1)
            value = self.node(loader, loader.get_event(), depth - 1)
            size += 1 + value.size
            if text is None:
                if key.is_mapping or key.is_list:
                    self.problem(key.line, key.column, "a key that is no text", "a name")
                else:
                    self.problem(event.start_mark.line + 1, event.start_mark.column + 1, f"the alias *{event.anchor} as a key", "a name")
            elif text == "<<" and plain:
                self.problem(key.line, key.column, "a merge key (<<)", "`like: NAME`, by which one subject inherits another")
            elif text in entries:
                first = keys[text]
                self.problem(key.line, key.column, f"the key {text!r} again; it was given at line {first.line}", "each key once")
            else:
                entries[text], keys[text] = value, key
        return Node(entries, line, column, size=size, keys=keys)
