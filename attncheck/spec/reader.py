"""Taking values out of nodes. A wrong value is noted with its place and becomes None, so that reading goes on to the next mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from attncheck.core.bounds import BoundError
from attncheck.core.definitions import allowed_on_axis
from attncheck.core.errors import Place, Problem, nearest
from attncheck.core.vocabulary import Vocabulary
from attncheck.spec.nodes import Node

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
MARK = re.compile(r"(?!(parametrize|usefixtures|skipif|filterwarnings)$)[A-Za-z_][A-Za-z0-9_]*")
"""A mark to select by. Those that pytest itself calls with arguments would break the tests."""
MARK_ALLOWED = "a pytest mark: letters, digits and '_', none that takes arguments (parametrize, usefixtures, skipif, filterwarnings)"
_HINTS = 200
"""After so many problems, names are no longer compared with all known ones."""

T = TypeVar("T")


def shown(node: Node) -> str:
    """What stands at a node, short enough for a message."""
    if node.is_mapping:
        return "a mapping"
    if node.is_list:
        return "a list"
    if node.value is None:
        return "nothing"
    text = node.value if isinstance(node.value, str) else str(node.value).lower() if isinstance(node.value, bool) else repr(node.value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


@dataclass
class Reader:
    """The state of reading one file."""

    vocabulary: Vocabulary
    name: str
    """The file as messages show it."""
    folder: Path
    problems: list[Problem] = field(default_factory=list)

    def place(self, node: Node) -> Place:
        return Place(self.name, node.line, node.column)

    def report(self, node: Node, found: str, allowed: str | Iterable[str] = "", like: str | None = None) -> None:
        """Note a mistake. `allowed` is a text or names; `like` is the name found, for the nearest of those."""
        hint = ""
        if not isinstance(allowed, str):
            names = list(allowed)
            if like is not None and len(self.problems) < _HINTS:
                hint = nearest(like, names)
            allowed = ", ".join(names) if names else "none, since the file has none"
        self.problems.append(Problem(self.place(node), found, allowed, hint))

    def guessed(self, node: Node, known: Collection[str]) -> set[str]:
        """The names that a mapping's unknown keys probably mean: they are not missing as well, only misspelt."""
        unknown = [name for name in node.entries if name not in known]
        return {nearest(name, known) for name in unknown[:_HINTS]} - {""}

    def fields(self, node: Node, what: str, known: Collection[str]) -> dict[str, Node] | None:
        """A mapping's entries without the unknown ones, which are noted; empty values too. None where it is no mapping."""
        if not node.is_mapping:
            self.report(node, f"{what}: {shown(node)}", f"a mapping with {', '.join(known)}")
            return None
        kept = {}
        for name, child in node.entries.items():
            if name not in known:
                self.report(node.keys[name], f"{what}: unknown key {name!r}", known, like=name)
            elif child.value is None:
                self.report(node.keys[name], f"{what}: {name} is empty", "a value, or no such key")
            else:
                kept[name] = child
        return kept

    def section(self, node: Node | None, what: str) -> dict[str, Node]:
        """A mapping of names to definitions. Bad names are noted and left out."""
        if node is None:
            return {}
        if not node.is_mapping or not node.entries:
            self.report(
                node, f"{what}: {shown(node) if node.entries or not node.is_mapping else 'an empty mapping'}", "at least one `name: {...}`"
            )
            return {}
        kept = {}
        for name, child in node.entries.items():
            if NAME.fullmatch(name) and name != "must-fail":
                kept[name] = child
            else:
                self.report(node.keys[name], f"{what}: the name {name!r}", "lower-case letters, digits and '-' (must-fail is taken)")
        return kept

    def text(self, node: Node, what: str) -> str | None:
        if node.is_mapping or node.is_list or node.value is None or (isinstance(node.value, str) and not node.value.strip()):
            self.report(node, f"{what}: {shown(node)}", "a text")
            return None
        return str(node.value).strip()

    def choice(self, node: Node, what: str, options: Sequence[str]) -> str | None:
        if isinstance(node.value, str) and node.value in options:
            return node.value
        self.report(node, f"{what}: {shown(node)}", options, like=str(node.value) if not (node.is_list or node.is_mapping) else None)
        return None

    def integer(self, node: Node, what: str, least: int = 0) -> int | None:
        if isinstance(node.value, int) and not isinstance(node.value, bool) and least <= node.value < 1 << 63:
            return node.value
        self.report(node, f"{what}: {shown(node)}", f"a whole number from {least}")
        return None

    def boolean(self, node: Node, what: str) -> bool | None:
        if isinstance(node.value, bool):
            return node.value
        self.report(node, f"{what}: {shown(node)}", "true, false")
        return None

    def listed(self, node: Node, what: str) -> list[Node]:
        """One value, or a list of them that is not empty."""
        if node.is_list:
            if not node.items:
                self.report(node, f"{what}: an empty list", "one value or more")
            return node.items
        return [node]

    def texts(self, node: Node, what: str, pattern: re.Pattern[str] | None = None, allowed: str = "") -> tuple[str, ...] | None:
        """One text or a list of texts, each once."""
        return self._each(node, what, lambda item: self._matching(item, what, pattern, allowed))

    def axis(self, node: Node, what: str, axis: str) -> str | None:
        """One value of an axis."""
        text = self.text(node, what)
        allowed = allowed_on_axis(axis, text or "") if text is not None else ()
        if allowed:
            self.report(node, f"{what}: {shown(node)}", allowed, like=text)
            return None
        return text

    def axis_values(self, node: Node, what: str, axis: str) -> tuple[str, ...] | None:
        """One value of an axis or a list of them, each once."""
        return self._each(node, what, lambda item: self.axis(item, what, axis))

    def names(self, node: Node, what: str, known: Collection[str]) -> tuple[str, ...] | None:
        """One name or a list of names out of `known`, each once."""
        return self._each(node, what, lambda item: self.known(item, what, known))

    def known(self, node: Node, what: str, known: Collection[str]) -> str | None:
        if isinstance(node.value, str | int) and not isinstance(node.value, bool) and str(node.value) in known:
            return str(node.value)
        named = None if node.is_list or node.is_mapping else str(node.value)
        self.report(node, f"{what}: {shown(node)} is not defined" if named else f"{what}: {shown(node)}", known, like=named)
        return None

    def unknown_observable(self, node: Node, what: str, name: str) -> None:
        """Note an unknown observable; the nearest is found among all of them, and those of its namespace are listed."""
        names = sorted(self.vocabulary.observables)
        hint = nearest(name, names) if len(self.problems) < _HINTS else ""
        near = [other for other in names if other.partition(".")[0] == (hint or name).partition(".")[0]]
        listed = (
            ", ".join(near) if near else "a name that begins with " + ", ".join(sorted({other.partition(".")[0] + "." for other in names}))
        )
        allowed = listed + (" (all: attncheck list observables)" if len(near) < len(names) else "")
        self.problems.append(Problem(self.place(node), f"{what}: unknown observable {name!r}", allowed, hint))

    def integers(self, node: Node, what: str) -> tuple[int, ...] | None:
        return self._each(node, what, lambda item: self.integer(item, what))

    def parsed(self, node: Node, what: str, parse: Callable[[object], T]) -> T | None:
        """A scalar through a parser that raises ValueError."""
        if node.is_list or node.is_mapping or node.value is None:
            self.report(node, f"{what}: {shown(node)}", "one value")
            return None
        try:
            return parse(node.value)
        except ValueError as error:
            self.problem_of(node, what, error)
            return None

    def problem_of(self, node: Node, what: str, error: ValueError) -> None:
        """Note a parser's ValueError: the allowed part of its text apart, its column added to the node's."""
        found, _, allowed = str(error).partition("; allowed: ")
        allowed, _, hint = allowed.partition("; did you mean ")
        column = error.column - 1 if isinstance(error, BoundError) else 0
        place = Place(self.name, node.line, node.column + column + (1 if node.quoted and column else 0))
        self.problems.append(Problem(place, f"{what}: {found}" if what else found, allowed, hint.rstrip("?").strip("'")))

    def _matching(self, node: Node, what: str, pattern: re.Pattern[str] | None, allowed: str) -> str | None:
        text = self.text(node, what)
        if text is not None and pattern is not None and not pattern.fullmatch(text):
            self.report(node, f"{what}: {text!r}", allowed)
            return None
        return text

    def _each(self, node: Node, what: str, take: Callable[[Node], T | None]) -> tuple[T, ...] | None:
        found: list[T] = []
        good = True
        items = self.listed(node, what)
        for item in items:
            value = take(item)
            if value is None:
                good = False
            elif value in found:
                self.report(item, f"{what}: {value!r} twice", "each once")
                good = False
            else:
                found.append(value)
        return tuple(found) if good and items else None


def flatten(node: Node, place: Callable[[Node], Place]) -> Mapping[str, Place]:
    """The place of every key and list item below a node, by dotted path."""
    return {path: place(found) for path, found in node.walk()}
