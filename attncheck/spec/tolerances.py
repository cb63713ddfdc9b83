"""`tolerance:` how near is equal: exact, {rtol, atol}, {rms_ratio: 2}, {vs_reference: 2}."""

from __future__ import annotations

from typing import Any, Literal, cast

from attncheck.spec.model import Tolerance
from attncheck.spec.nodes import Node
from attncheck.spec.reader import Reader, shown

KINDS: dict[str, tuple[str, ...]] = {"exact": (), "allclose": ("rtol", "atol"), "rms_ratio": ("ratio",), "vs_reference": ("factor",)}
ALLOWED = "exact, {rtol: 1e-5, atol: 1e-8}, {rms_ratio: 2}, {vs_reference: 2}"


def read_tolerance(reader: Reader, node: Node) -> Tolerance | None:
    """A kind's name, a kind with its number or numbers, or rtol and atol alone."""
    if isinstance(node.value, str):
        kind = reader.choice(node, "tolerance", tuple(KINDS))
        return Tolerance(_kind(kind)) if kind is not None else None
    if not node.is_mapping or not node.entries:
        reader.report(node, f"tolerance: {shown(node) if not node.is_mapping else 'an empty mapping'}", ALLOWED)
        return None
    if node.entries.keys() <= {"rtol", "atol"}:
        return _numbers(reader, node, "allclose")
    fields = reader.fields(node, "tolerance", ("rtol", "atol", *KINDS))
    if not fields or len(fields) != len(node.entries):
        return None
    if len(fields) > 1:
        reader.report(node, f"tolerance: {' and '.join(fields)} together", ALLOWED)
        return None
    ((kind, value),) = fields.items()
    if value.is_mapping:
        return _numbers(reader, value, kind)
    if not KINDS[kind]:
        reader.report(value, f"tolerance: exact: {shown(value)}", "tolerance: exact")
        return None
    first = KINDS[kind][0]
    return _numbers(reader, Node({first: value}, value.line, value.column, keys={first: value}), kind)


def _numbers(reader: Reader, node: Node, kind: str) -> Tolerance | None:
    fields = reader.fields(node, f"tolerance: {kind}", KINDS[kind])
    numbers: dict[str, Any] = {}
    for name, child in (fields or {}).items():
        value = child.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            reader.report(child, f"tolerance: {name}: {shown(child)}", "a number from 0")
            return None
        numbers[name] = float(value)
    return Tolerance(_kind(kind), **numbers) if fields is not None and len(fields) == len(node.entries) else None


def _kind(name: str) -> Literal["exact", "allclose", "rms_ratio", "vs_reference"]:
    return cast(Literal["exact", "allclose", "rms_ratio", "vs_reference"], name)
