"""Property tests of an attention operator in a test module of your own: one pytest test per law.

from attncheck.testing import contract

@contract(my_attention, claims=dict(causal="flag", gqa=True)).parametrize()
def test_my_attention(law):
    law.check()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attncheck.core.claims import OperatorClaims


@dataclass
class Contract:
    """An operator and what is claimed of it."""

    operator: Callable[..., Any]
    claims: OperatorClaims
    seed: int = 0
    budget: float = 60.0
    examples: int = 20
    done: dict[str, Any] = field(default_factory=dict, repr=False)

    def parametrize(self, name: str = "law") -> Any:
        """A pytest mark that gives a test function each law in turn as its argument `name`, and `enough-laws-applied` at the end."""
        import pytest

        from attncheck.laws.registry import laws

        cases = [ContractLaw(self, law.id) for law in laws()]
        every: list[ContractLaw | EnoughLawsApplied] = [*cases, EnoughLawsApplied(self)]
        return pytest.mark.parametrize(name, every, ids=[case.id for case in every])

    def outcome(self, law: str) -> Any:
        """What the law said, computed once. Each law gets its share of the budget, at least two seconds."""
        from attncheck.laws.engine import verify
        from attncheck.laws.registry import laws

        if law not in self.done:
            share = max(2.0, self.budget / len(laws()))
            report = verify(self.operator, self.claims, seed=self.seed, budget=share, examples=self.examples, laws=[law])
            self.done[law] = report.outcomes[0]
        return self.done[law]


@dataclass(frozen=True)
class ContractLaw:
    """One law of a contract."""

    contract: Contract
    id: str

    def check(self) -> None:
        """Pass, fail with the law, the numbers and a script, or skip with the reason why it does not apply."""
        import pytest

        outcome = self.contract.outcome(self.id)
        if outcome.violation is not None:
            pytest.fail(f"{outcome.violation}\n  seed: {self.contract.seed}", pytrace=False)
        if outcome.skipped is not None:
            pytest.skip(outcome.skipped)


@dataclass(frozen=True)
class EnoughLawsApplied:
    """The last test of a contract: fails where so few laws applied that passing means nothing."""

    contract: Contract
    id: str = "enough-laws-applied"

    def check(self) -> None:
        import pytest

        from attncheck.laws.engine import LawReport, hardly
        from attncheck.laws.registry import laws

        outcomes = [self.contract.outcome(law.id) for law in laws()]
        operator = getattr(self.contract.operator, "__qualname__", type(self.contract.operator).__name__)
        report = LawReport(operator, self.contract.claims, self.contract.seed, outcomes)
        if not report.enough:
            pytest.fail(hardly(report), pytrace=False)


def contract(
    operator: Callable[..., Any],
    claims: OperatorClaims | Mapping[str, Any],
    *,
    seed: int = 0,
    budget: float = 60.0,
    examples: int = 20,
) -> Contract:
    """What an operator promises: `contract(...).parametrize()` makes a test of each law. Raises ClaimError for wrong claims."""
    return Contract(operator, OperatorClaims.of(claims), seed, budget, examples)
