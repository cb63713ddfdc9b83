"""The one demand of a property: a bound in words, or a registered expectation with its arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attncheck.core.bounds import Bound, parse_expression
from attncheck.core.definitions import AXES, Request
from attncheck.core.fields import BOUND_WORDS, AxesArgument, RequestArgument, SubjectArgument, check_order
from attncheck.core.registry import Entry
from attncheck.spec.arguments import check, normalised, request
from attncheck.spec.model import Demand
from attncheck.spec.nodes import Node
from attncheck.spec.reader import Reader, shown


def read_demand(
    reader: Reader,
    what: str,
    key: Node,
    meant: Collection[str],
    fields: Mapping[str, Node],
    keys: Mapping[str, Node],
    subjects: Collection[str],
) -> Demand | None:
    """`key` is the property's name, `fields` and `keys` its entries, `meant` what misspelt keys mean. There must be exactly one demand."""
    words = (*BOUND_WORDS, *reader.vocabulary.expectations)
    given = [word for word in fields if word in words]
    if not given and not set(meant) & set(words):
        reader.report(key, f"{what}: no demand", f"exactly one of {', '.join(words)}")
    if len(given) > 1:
        hint = "between: [a, b]" if set(given) == {"at_least", "at_most"} else f"exactly one of {', '.join(words)}"
        reader.report(keys[given[1]], f"{what}: {len(given)} demands: {', '.join(given)}", hint)
    read = [
        _bound(reader, f"{what}: {word}", word, fields[word])
        if word in BOUND_WORDS
        else _expectation(reader, what, reader.vocabulary.expectations[word], fields[word], subjects)
        for word in given
    ]
    return read[0] if len(read) == 1 else None


def _bound(reader: Reader, what: str, word: str, node: Node) -> Demand | None:
    symbols = tuple(reader.vocabulary.symbols)
    if word != "between":
        side = reader.parsed(node, what, lambda value: parse_expression(value, symbols))
        return Demand("bound", Bound(**{word: side})) if side is not None else None
    if not node.is_list or len(node.items) != 2:
        found = f"a list of {len(node.items)}" if node.is_list else shown(node)
        reader.report(node, f"{what}: {found}", "two sides: [a, b]")
        return None
    low, high = (reader.parsed(item, what, lambda value: parse_expression(value, symbols)) for item in node.items)
    if low is None or high is None:
        return None
    try:
        check_order(low, high)
    except ValueError as error:
        reader.problem_of(node, what.rpartition(": ")[0], error)
        return None
    return Demand("bound", Bound(low, high))


def _expectation(reader: Reader, what: str, entry: Entry, node: Node, subjects: Collection[str]) -> Demand | None:
    label = f"{what}: {entry.name}"
    arguments = _with_axes(entry, normalised_demand(entry, node))
    if not arguments.is_mapping:
        reader.report(node, f"{label}: {shown(node)}", "a mapping of arguments")
        return None
    values: dict[str, Any] = {}
    before = len(reader.problems)
    for name, (kind, _) in entry.parameters.items():
        child = arguments.entries.get(name)
        if child is not None and _is(kind, RequestArgument):
            values[name] = request(reader, child, f"{label}: {name}") or Request("")
        elif child is not None and _is(kind, SubjectArgument):
            reader.known(child, f"{label}: {name}", subjects)
    made = check(reader, entry, arguments, label, values, {"symbols": tuple(reader.vocabulary.symbols)})
    if made is None or len(reader.problems) > before:
        return None
    return Demand(entry.name, arguments={name: getattr(made, name) for name in type(made).model_fields})


def normalised_demand(entry: Entry, node: Node) -> Node:
    """The node as a mapping of the demand's arguments; axes written directly in it are arguments already."""
    if node.is_mapping and node.entries and all(name in AXES or name in entry.arguments.model_fields for name in node.entries):
        return node
    return normalised(entry, node)


def _with_axes(entry: Entry, node: Node) -> Node:
    """`agrees_with: {attn_implementation: eager}`: axes given directly go into the one argument that takes axes."""
    taker = next((name for name, (kind, _) in entry.parameters.items() if _is(kind, AxesArgument)), None)
    direct = [name for name in node.entries if name not in entry.arguments.model_fields]
    if taker is None or not direct or taker in node.entries:
        return node
    first = node.keys[direct[0]]
    axes = Node({name: node.entries[name] for name in direct}, first.line, first.column, keys={name: node.keys[name] for name in direct})
    entries = {name: child for name, child in node.entries.items() if name not in direct}
    keys = {name: child for name, child in node.keys.items() if name not in direct}
    return Node({**entries, taker: axes}, node.line, node.column, keys={**keys, taker: first})


def _is(kind: Any, argument: Any) -> bool:
    """Whether a parameter's type is one of the argument types of core.fields, or that or None."""
    return kind == argument or argument in getattr(kind, "__args__", ())


def subjects_of(demand: Demand, entry: Entry) -> list[str]:
    """Every other subject that a demand names."""
    named = (demand.arguments.get(name) for name, (kind, _) in entry.parameters.items() if _is(kind, SubjectArgument))
    return [name for name in named if name is not None]


def requests_of(demand: Demand) -> list[Request]:
    """Every observable that a demand names."""
    return [value for value in demand.arguments.values() if isinstance(value, Request)]
