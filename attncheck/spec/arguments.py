"""Arguments of registered names: the shorthand is normalised first, then the entry's pydantic model checks, then its errors get lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError, WithJsonSchema

from attncheck.core.bounds import BoundError
from attncheck.core.definitions import Request
from attncheck.core.registry import Entry
from attncheck.spec.nodes import Node
from attncheck.spec.reader import Reader, shown


def first_argument(entry: Entry) -> str | None:
    """The argument that a shorthand value stands for: the first required one, else the first."""
    fields = entry.arguments.model_fields
    return next((name for name, info in fields.items() if info.is_required()), next(iter(fields), None))


def normalised(entry: Entry, node: Node) -> Node:
    """The node as a mapping of arguments.

    A scalar or list is the first argument's value. One name with its own arguments (`operator: {polynomial: {power: 3}}`) is the first
    argument's value where that may be a mapping; where it is a text and the entry takes `arguments`, the two are told apart. Null is no
    argument at all.
    """
    if node.value is None or (node.value is True and not entry.arguments.model_fields):
        return Node({}, node.line, node.column)
    first = first_argument(entry)
    if first is None:
        return node
    if node.is_mapping:
        return _of_one_name(entry, node, first) or node
    return Node({first: node}, node.line, node.column, keys={first: node})


def _of_one_name(entry: Entry, node: Node, first: str) -> Node | None:
    fields = entry.arguments.model_fields
    if len(node.entries) != 1 or entry.arguments.model_config.get("extra") == "allow":
        return None
    ((name, child),) = node.entries.items()
    if name in fields or not (child.is_mapping or child.value is None):
        return None
    key = node.keys[name]
    if fields[first].annotation not in (str, int, float, bool):
        return Node({first: node}, node.line, node.column, keys={first: key})
    if "arguments" not in fields:
        return None
    arguments = child if child.is_mapping else Node({}, key.line, key.column)
    return Node({first: key, "arguments": arguments}, node.line, node.column, keys={first: key, "arguments": key})


def check(
    reader: Reader, entry: Entry, node: Node, what: str, values: Mapping[str, Any] | None = None, context: dict[str, Any] | None = None
) -> BaseModel | None:
    """The entry's arguments out of a mapping node, or None with every mistake noted. `values` replace parts already read from the node."""
    if not node.is_mapping:
        reader.report(node, f"{what}: {shown(node)}", _argument_names(entry.arguments))
        return None
    raw = {**node.plain, **(values or {})}
    before = len(reader.problems)
    _refuse_booleans(reader, entry, node, what)
    try:
        made = entry.arguments.model_validate(raw, context=context)
    except ValidationError as error:
        _report(reader, entry.arguments, node, what, error)
        return None
    return made if len(reader.problems) == before else None


def request(reader: Reader, node: Node, what: str) -> Request | None:
    """An observable: a name, or one name with its arguments. Arguments are checked and defaults filled in."""
    name, arguments = _named(reader, node, what)
    if name is None:
        return None
    entry = reader.vocabulary.observables.get(name)
    if entry is None:
        where = node.keys.get(name, node)
        reader.unknown_observable(where, what, name)
        return None
    made = check(reader, entry, arguments, f"{what}: {name}")
    return Request.of(name, dumped(made)) if made is not None else None


def _named(reader: Reader, node: Node, what: str) -> tuple[str | None, Node]:
    nothing = Node({}, node.line, node.column)
    if isinstance(node.value, str) and node.value:
        return node.value, nothing
    if node.is_mapping and len(node.entries) == 1:
        ((name, arguments),) = node.entries.items()
        return name, nothing if arguments.value is None else arguments
    found = f"{len(node.entries)} names" if node.is_mapping else shown(node)
    reader.report(node, f"{what}: {found}", "one observable: a name, or one name with its arguments, as in {weights.alpha: {matrix: q}}")
    return None, nothing


def dumped(made: BaseModel) -> dict[str, Any]:
    """Arguments as JSON-like data, defaults filled in."""
    return made.model_dump(mode="json", warnings=False)


def _argument_names(model: type[BaseModel]) -> str:
    return f"a mapping of arguments ({', '.join(model.model_fields)})" if model.model_fields else "no arguments"


def _refuse_booleans(reader: Reader, entry: Entry, node: Node, what: str) -> None:
    """pydantic reads `true` as 1; a spec that says `layers: true` is wrong."""
    for name, info in entry.arguments.model_fields.items():
        child = node.entries.get(name)
        if child is None or not isinstance(child.value, bool) or info.annotation not in (int, float, int | None, float | None):
            continue
        reader.report(child, f"{what}: {name}: {shown(child)}", "a number")


def _report(reader: Reader, model: type[BaseModel], node: Node, what: str, error: ValidationError) -> None:
    """One problem per place: pydantic gives one error for each branch of a union, which a reader sees as one mistake."""
    grouped: dict[tuple[int, int, str], list[Any]] = {}
    for detail in error.errors(include_url=False):
        found, path, is_key = _descend(node, detail["loc"], detail["type"])
        place = found.keys[path[-1]] if is_key else found
        grouped.setdefault((place.line, place.column, ".".join(path)), []).append((place, found, path, detail))
    for group in grouped.values():
        place, found, path, detail = group[0]
        label = ": ".join([what, ".".join(path)] if path else [what])
        kind = detail["type"]
        if kind == "extra_forbidden":
            known = list(_model_at(model, path[:-1]).model_fields)
            reader.report(place, f"{': '.join([what, *path[:-1]])}: unknown argument {path[-1]!r}", known or "no arguments", like=path[-1])
            continue
        if kind == "missing":
            missing = str(detail["loc"][-1])
            if missing in reader.guessed(found, list(_model_at(model, path).model_fields)):
                continue
            reader.report(place, f"{label}: {missing} is missing", _parts(_model_at(model, path), missing) or f"a value for {missing}")
            continue
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, ValueError) and len(group) == 1:
            reader.problem_of(place, label, cause if isinstance(cause, BoundError) else ValueError(str(cause)))
            continue
        allowed = " or ".join(dict.fromkeys(_allowed(item[3]) for item in group))
        options = _options(detail) if len(group) == 1 else None
        like = str(found.value) if options and isinstance(found.value, str) else None
        reader.report(place, f"{label}: {shown(found)}", options or allowed, like=like)


def _parts(model: type[BaseModel], name: str) -> str:
    """What a mapping that an argument stands for may hold, or an empty text."""
    info = model.model_fields.get(name)
    schemas = [item.json_schema for item in (info.metadata if info else ()) if isinstance(item, WithJsonSchema)]
    parts = [part for schema in schemas if schema for part in schema.get("properties", ())]
    return f"any of {', '.join(parts)}" if parts else ""


def _allowed(detail: Any) -> str:
    text = str(detail["msg"])
    return text.removeprefix("Input should be ").removeprefix("Value error, ").partition(", unable to parse")[0]


def _options(detail: Any) -> list[str] | None:
    if detail["type"] != "literal_error":
        return None
    return [part.strip("'") for part in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(", ")]


def _descend(node: Node, location: tuple[int | str, ...], kind: str) -> tuple[Node, list[str], bool]:
    """Follow an error's location as far as the nodes go; union branches in it name no node and are passed over."""
    path: list[str] = []
    for number, part in enumerate(location):
        if part == "[key]":
            return node, path, bool(path and path[-1] in node.keys)
        if isinstance(part, str) and part in node.entries:
            if kind == "extra_forbidden" and number == len(location) - 1:
                return node, [*path, part], True
            node = node.entries[part]
            path.append(part)
        elif isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            path.append(str(part))
    return node, path, False


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """The nested model that a path of field names leads to, or the last one known."""
    for name in path:
        info = model.model_fields.get(name)
        candidates = [] if info is None else [info.annotation, *get_args(info.annotation)]
        nested = next((item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)), None)
        if nested is None:
            return model
        model = nested
    return model
