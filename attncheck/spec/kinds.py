"""What subjects and inputs have in common: one kind key, whose options stand in its mapping or beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from attncheck.core import paths
from attncheck.core.fields import NAME_OR_PATH, PATH
from attncheck.core.registry import Entry
from attncheck.spec.arguments import check, dumped, normalised
from attncheck.spec.nodes import Node
from attncheck.spec.reader import Reader, shown


@dataclass
class Parts:
    """A definition taken apart: its kind, the kind's options, and the keys that every kind has."""

    kind: str | None = None
    key: Node | None = None
    """Where the kind was named."""
    options: dict[str, Node] = field(default_factory=dict)
    places: dict[str, Node] = field(default_factory=dict)
    """Of the options: where each key stands."""
    common: dict[str, Node] = field(default_factory=dict)

    def over(self, base: Parts) -> Parts:
        """These parts laid over those of the definition that is inherited: the kind's options are merged, every other key is replaced."""
        common = {**base.common, **self.common}
        if self.kind not in (None, base.kind):
            return Parts(self.kind, self.key, self.options, self.places, common)
        return Parts(base.kind, base.key, {**base.options, **self.options}, {**base.places, **self.places}, common)


def take_apart(
    reader: Reader, node: Node, key: Node, what: str, kinds: Mapping[str, Entry], common: Collection[str], inherited: str | None = None
) -> Parts | None:
    """Sort the keys of a definition; None where nothing is left. `inherited` is the kind that `like` brings."""
    if not node.is_mapping:
        reader.report(node, f"{what}: {shown(node)}", f"a mapping with one of {', '.join(kinds)}")
        return None
    named = [name for name in node.entries if name in kinds]
    for extra in named[1:]:
        reader.report(node.keys[extra], f"{what}: a second kind {extra!r} beside {named[0]!r}", f"exactly one of {', '.join(kinds)}")
    kind = named[0] if named else inherited
    parts = Parts(named[0] if named else None, node.keys[named[0]] if named else node)
    if named:
        value = normalised(kinds[named[0]], node.entries[named[0]])
        if value.is_mapping:
            parts.options, parts.places = dict(value.entries), dict(value.keys)
        else:
            reader.report(value, f"{what}: {named[0]}: {shown(value)}", "a value or a mapping of options")
    known = list(kinds[kind].arguments.model_fields) if kind is not None else []
    for name, child in node.entries.items():
        if name in kinds:
            continue
        if child.value is None:
            reader.report(node.keys[name], f"{what}: {name} is empty", "a value, or no such key")
        elif name in common:
            parts.common[name] = child
        elif name in known:
            if name in parts.options:
                reader.report(node.keys[name], f"{what}: {name} is given twice, in {kind} and beside it", "each option once")
            parts.options[name], parts.places[name] = child, node.keys[name]
        else:
            reader.report(node.keys[name], f"{what}: unknown key {name!r}", (*(() if kind else kinds), *known, *common), like=name)
    if parts.kind is None and inherited is None:
        if reader.guessed(node, (*kinds, *common)) & kinds.keys():
            return None
        reader.report(key, f"{what}: no kind", f"exactly one of {', '.join(kinds)}" + (", or like" if "like" in common else ""))
        return None
    return parts


def options_of(reader: Reader, parts: Parts, what: str, kinds: Mapping[str, Entry]) -> dict[str, Any] | None:
    """The kind's options, checked, defaults filled in, paths made absolute; None where something is wrong."""
    if parts.kind is None or parts.key is None:
        return None
    entry = kinds[parts.kind]
    node = Node(parts.options, parts.key.line, parts.key.column, keys=parts.places)
    made = check(reader, entry, node, f"{what}: {parts.kind}")
    if made is None:
        return None
    arguments = dumped(made)
    complaints = entry.complaints(arguments)
    for complaint in complaints:
        place = parts.options.get(complaint.argument, parts.key)
        reader.report(place, f"{what}: {complaint.found}", complaint.allowed, complaint.like)
    return None if complaints else {name: _located(reader, entry, name, value) for name, value in arguments.items()}


def _located(reader: Reader, entry: Entry, name: str, value: Any) -> Any:
    """A path is relative to the spec's folder; a text that may be a name is a path where it begins with `./` or the like."""
    info = entry.arguments.model_fields.get(name)
    if info is None or not {PATH, NAME_OR_PATH} & {item for item in info.metadata if isinstance(item, str)}:
        return value
    if isinstance(value, list):
        return [_located(reader, entry, name, item) for item in value]
    if isinstance(value, dict):
        return {key: _located(reader, entry, name, item) for key, item in value.items()}
    if isinstance(value, str) and (PATH in info.metadata or paths.is_explicit(value)):
        return paths.beside(reader.folder, value)
    return value
