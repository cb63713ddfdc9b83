"""Property tests of an attention operator, or of a model, in a test module of your own: one pytest test per law.

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
from attncheck.core.model_claims import ModelClaims


@dataclass
class Contract:
    """An operator or a model, and what is claimed of it."""

    operator: Callable[..., Any]
    claims: OperatorClaims | ModelClaims
    seed: int = 0
    budget: float = 60.0
    examples: int = 20
    done: dict[str, Any] = field(default_factory=dict, repr=False)

    def parametrize(self, name: str = "law") -> Any:
        """A pytest mark that gives a test function each law in turn as its argument `name`, and `enough-laws-applied` at the end."""
        import pytest

        cases = [ContractLaw(self, name) for name in self.laws()]
        every: list[ContractLaw | EnoughLawsApplied] = [*cases, EnoughLawsApplied(self)]
        return pytest.mark.parametrize(name, every, ids=[case.id for case in every])

    def laws(self) -> list[str]:
        """Ids of the laws, of operators or of models."""
        from attncheck.laws.models.registry import model_laws
        from attncheck.laws.registry import laws

        known = model_laws() if isinstance(self.claims, ModelClaims) else laws()
        return [entry.id for entry in known]

    def outcome(self, law: str) -> Any:
        """What the law said, computed once. Each law gets its share of the budget, at least two seconds."""
        from attncheck.laws.engine import verify

        if law not in self.done:
            share = max(2.0, self.budget / len(self.laws()))
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

        from attncheck.laws.engine import ENOUGH, LawReport, hardly
        from attncheck.laws.models.engine import ENOUGH as ENOUGH_OF_MODELS

        claims, seed = self.contract.claims, self.contract.seed
        outcomes = [self.contract.outcome(law) for law in self.contract.laws()]
        name = getattr(self.contract.operator, "__qualname__", type(self.contract.operator).__name__)
        least = ENOUGH_OF_MODELS if isinstance(claims, ModelClaims) else ENOUGH
        report = LawReport(name, claims, seed, outcomes, least)
        if not report.enough:
            pytest.fail(hardly(report), pytrace=False)


def contract(
    operator: Callable[..., Any],
    claims: OperatorClaims | ModelClaims | Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    budget: float = 60.0,
    examples: int = 20,
) -> Contract:
    """What an operator or a PreTrainedModel promises: `contract(...).parametrize()` makes a test of each law.

    Of a model, claims are laid over what its configuration declares. Raises ClaimError for wrong claims."""
    from attncheck.laws.engine import is_model

    if is_model(operator, claims):
        from attncheck.laws.models.inferred import claimed
        from attncheck.laws.models.subject import Subject

        model: Any = operator
        settled: Any = claimed(Subject(model), claims)  # type: ignore[arg-type]
    else:
        settled = OperatorClaims.of(claims or {})  # type: ignore[arg-type]
    return Contract(operator, settled, seed, budget, examples)
