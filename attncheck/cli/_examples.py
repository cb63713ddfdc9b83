"""A property that uses a name, for `attncheck explain`. A test loads each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attncheck.core.registry import Entry

ARGUMENTS = {
    "queries": "[5]",
    "targets": "[3]",
    "among": "[1, 3]",
    "keys": "0..3",
    "window": "128",
    "matrix": "q",
}
"""Of required arguments, by name; OWN has those of one observable that mean something else."""
OWN = {
    "attention.expected_scores": {"statistics": "0..255", "future": "256..", "keys": "0..255"},
    "attention.observed_scores": {"queries": "256..", "keys": "0..255"},
}
DEMANDS = {
    "agrees_with": "observe: attention.entropy\nagrees_with: {attn_implementation: eager}",
    "baseline": "observe: attention.entropy\nreduce: {sample: mean}\nbaseline: {}",
    "tracks": (
        "observe: {attention.observed_scores: {queries: 256.., keys: 0..255}}\n"
        "tracks: {observable: {attention.expected_scores: {statistics: 0..255, future: 256.., keys: 0..255}}, pearson: {at_least: 0.8}}"
    ),
    "laws": "laws: [model-cache, model-causal-future]",
}


def of_observable(entry: Entry) -> str:
    """The observable with its required arguments, under a bound."""
    required = [name for name, info in entry.arguments.model_fields.items() if info.is_required()]
    values = {**ARGUMENTS, **OWN.get(entry.name, {})}
    known = all(name in values for name in required)
    arguments = ", ".join(f"{name}: {values.get(name, '...')}" for name in required)
    observed = f"{{{entry.name}: {{{arguments}}}}}" if required else entry.name
    return _property(f"observe: {observed}\nat_least: 0.1") if known or not required else ""


def of_demand(entry: Entry) -> str:
    """A property with this demand; nothing for one of a third party."""
    return _property(DEMANDS[entry.name]) if entry.name in DEMANDS else ""


def of_law(law: str) -> str:
    return _property(f"laws: [{law}]")


def _property(text: str) -> str:
    return "\n".join(["example:", "  my-property:", *(f"    {line}" for line in text.splitlines())])
