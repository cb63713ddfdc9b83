"""`inputs:` what the subjects are fed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attncheck.core.definitions import InputDefinition
from attncheck.spec.kinds import options_of, take_apart
from attncheck.spec.nodes import Node
from attncheck.spec.reader import Reader

KEYS = ("batch", "length", "padding")


def read_inputs(reader: Reader, section: Mapping[str, Node], keys: Mapping[str, Node]) -> dict[str, InputDefinition]:
    """The inputs that are right, by name in the file's order. `keys` are the places of the names."""
    made = {name: _input(reader, name, node, keys[name]) for name, node in section.items()}
    return {name: found for name, found in made.items() if found is not None}


def _input(reader: Reader, name: str, node: Node, key: Node) -> InputDefinition | None:
    what, kinds = f"input {name}", reader.vocabulary.input_kinds
    before = len(reader.problems)
    parts = take_apart(reader, node, key, what, kinds, KEYS)
    if parts is None or parts.kind is None:
        return None
    options = options_of(reader, parts, what, kinds)
    common = parts.common
    batch = reader.integer(common["batch"], f"{what}: batch", least=1) if "batch" in common else None
    length = reader.integer(common["length"], f"{what}: length", least=1) if "length" in common else None
    padding = _padding(reader, common["padding"], what, length) if "padding" in common else None
    if options is None or len(reader.problems) > before:
        return None
    return InputDefinition(name, parts.kind, options, batch, length, padding)


def _padding(reader: Reader, node: Node, what: str, length: int | None) -> dict[str, Any] | None:
    fields = reader.fields(node, f"{what}: padding", ("side", "amount"))
    if fields is None:
        return None
    for missing in {"side", "amount"} - fields.keys() - node.entries.keys():
        reader.report(node, f"{what}: padding: {missing} is missing", "side: left or right, and amount: tokens")
    side = reader.choice(fields["side"], f"{what}: padding: side", ("left", "right")) if "side" in fields else None
    amount = reader.integer(fields["amount"], f"{what}: padding: amount", least=1) if "amount" in fields else None
    if amount is not None and length is not None and amount >= length:
        reader.report(fields["amount"], f"{what}: padding: {amount} of {length} positions", f"an amount below the length, {length}")
    return {"side": side, "amount": amount}
