"""A law at a time on one operator or model: what a test module and a spec make their tests of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attncheck.core.claims import OperatorClaims
from attncheck.core.model_claims import ModelClaims
from attncheck.laws.engine import ENOUGH, LawReport, Outcome, is_model, verify

LEAST = 2.0
"""Seconds that a law gets in any case."""
SHARE = 3.0
"""A law may take so many times its part of the time that is left, since most take far less."""
LONGER = 10
"""A thorough search has so many times the seconds and the examples."""


@dataclass
class Battery:
    """The laws of one subject, each tried when it is asked for and once. `subject` is an operator, or the laws' own copy of a model."""

    subject: Any
    claims: OperatorClaims | ModelClaims
    seed: int = 0
    budget: float = 60.0
    """Seconds for all laws together."""
    examples: int = 20
    thorough: bool = False
    named: Sequence[str] | None = None
    """Ids or families of laws; all where left out."""
    done: dict[str, Outcome] = field(default_factory=dict, repr=False)
    spent: float = 0.0

    @cached_property
    def laws(self) -> list[str]:
        """Ids of the laws, of operators or of models."""
        from attncheck.laws.models.registry import model_laws
        from attncheck.laws.registry import laws

        known = model_laws if isinstance(self.claims, ModelClaims) else laws
        return [entry.id for entry in known(None if self.named is None else list(self.named))]

    def outcome(self, law: str) -> Outcome:
        """What the law said."""
        if law not in self.done:
            longer = LONGER if self.thorough else 1
            left = self.budget * longer - self.spent
            share = max(LEAST, SHARE * left / max(1, len(self.laws) - len(self.done)))
            begun = time.monotonic()
            report = verify(
                self.subject,
                self.claims,
                seed=self.seed,
                budget=share,
                examples=self.examples * longer,
                laws=[law],
                thorough=self.thorough,
            )
            self.spent += time.monotonic() - begun
            (self.done[law],) = report.outcomes
        return self.done[law]

    @property
    def name(self) -> str:
        given = getattr(self.subject, "name", None) or getattr(self.subject, "__qualname__", None)
        return given if isinstance(given, str) else type(self.subject).__name__

    def report(self) -> LawReport:
        """All laws, those that were not asked for as well."""
        from attncheck.laws.models.engine import ENOUGH as ENOUGH_OF_MODELS

        least = ENOUGH_OF_MODELS if isinstance(self.claims, ModelClaims) else ENOUGH
        return LawReport(self.name, self.claims, self.seed, [self.outcome(law) for law in self.laws], least, self.named)


def battery(
    subject: Callable[..., Any],
    claims: OperatorClaims | ModelClaims | Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    budget: float | None = None,
    examples: int = 20,
    thorough: bool = False,
    named: Sequence[str] | None = None,
) -> Battery:
    """The laws of an operator or a model; claims of a model are laid over what its configuration declares, and its laws get 120 seconds
    where `budget` is left out, an operator's 60. Raises ClaimError for wrong claims."""
    settled: OperatorClaims | ModelClaims
    if is_model(subject, claims):
        from attncheck.laws.models.inferred import claimed
        from attncheck.laws.models.subject import Subject

        copied: Any = Subject(subject)  # type: ignore[arg-type]
        settled = claimed(copied, claims)  # type: ignore[arg-type]
        return Battery(copied, settled, seed, budget or 120.0, examples, thorough, named)
    settled = OperatorClaims.of(claims or {})  # type: ignore[arg-type]
    return Battery(subject, settled, seed, budget or 60.0, examples, thorough, named)
