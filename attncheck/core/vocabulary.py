"""What a spec may say. Built by the engine from the registries and handed to the language, which imports none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attncheck.core.registry import Entry


@dataclass(frozen=True)
class Vocabulary:
    """Names -> entries. Each entry carries an argument model, docs, and what its decorator was told."""

    observables: Mapping[str, Entry]
    expectations: Mapping[str, Entry]
    subject_kinds: Mapping[str, Entry]
    input_kinds: Mapping[str, Entry]
    variants: Mapping[str, Entry] = field(default_factory=dict)
    """Attention variants, which arguments of other names may name."""
    recipes: Mapping[str, Entry] = field(default_factory=dict)
    """What `train` subjects train."""
    reductions: Sequence[str] = (
        "mean",
        "median",
        "max",
        "min",
        "sum",
        "spread",
        "decades",
        "peak",
        "growth",
        "slope",
        "exponent",
        "largest_rise",
        "largest_fall",
        "first",
        "last",
        "first_above",
        "first_below",
    )
    symbols: Mapping[str, str] = field(default_factory=dict)
    """Names that a bound may use -> what they mean."""

    def dims(self, name: str) -> tuple[str, ...]:
        """The dims of an observable's value, the outermost first, with its default arguments."""
        return tuple(self.observables[name].about["dims"])

    def reads(self, name: str) -> str:
        """The evidence that an observable reads: rows, columns, probe, call, weights, hidden or log."""
        return str(self.observables[name].about["reads"])

    def needs_input(self, name: str) -> bool:
        return self.reads(name) not in ("weights", "log")
