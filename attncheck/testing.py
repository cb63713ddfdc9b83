"""Property tests of an attention operator, or of a model, in a test module of your own: one pytest test per law.

from attncheck.testing import contract

@contract(my_attention, claims=dict(causal="flag", gqa=True)).parametrize()
def test_my_attention(law):
    law.check()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.claims import OperatorClaims
from attncheck.core.model_claims import ModelClaims
from attncheck.core.session import SESSION

if TYPE_CHECKING:
    from attncheck.laws.battery import Battery
    from attncheck.laws.engine import LawReport, Outcome


@dataclass
class Contract:
    """An operator or a model, and what is claimed of it."""

    battery: Battery

    def parametrize(self, name: str = "law") -> Any:
        """A pytest mark that gives a test function each law in turn as its argument `name`, and `enough-laws-applied` at the end."""
        import pytest

        cases = [ContractLaw(self, law) for law in self.battery.laws]
        every: list[ContractLaw | EnoughLawsApplied] = [*cases, EnoughLawsApplied(self)]
        return pytest.mark.parametrize(name, every, ids=[case.id for case in every])

    def outcome(self, law: str) -> Outcome:
        """What the law said, tried once."""
        self.battery.thorough = self.battery.thorough or SESSION.thorough
        return self.battery.outcome(law)


@dataclass(frozen=True)
class ContractLaw:
    """One law of a contract."""

    contract: Contract
    id: str

    def check(self) -> None:
        """Pass, fail with the law, the numbers, a script and a picture, or skip with the reason why it does not apply."""
        import pytest

        outcome = self.contract.outcome(self.id)
        if outcome.violation is not None:
            battery = self.contract.battery
            picture = _drawn(outcome, SESSION.root or Path.cwd(), battery.name) if SESSION.pictures else None
            shown = f"\n  picture: {picture}" if picture is not None else ""
            pytest.fail(f"{outcome.violation}\n  seed: {battery.seed}{shown}", pytrace=False)
        if outcome.skipped is not None:
            pytest.skip(outcome.skipped)


@dataclass(frozen=True)
class EnoughLawsApplied:
    """The last test of a contract: fails where so few laws applied that passing means nothing."""

    contract: Contract
    id: str = "enough-laws-applied"

    def check(self) -> None:
        import pytest

        from attncheck.laws.engine import hardly

        for law in self.contract.battery.laws:
            self.contract.outcome(law)
        report = self.contract.battery.report()
        if not report.enough:
            pytest.fail(hardly(report), pytrace=False)


def contract(
    operator: Callable[..., Any],
    claims: OperatorClaims | ModelClaims | Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    budget: float | None = None,
    examples: int = 20,
    thorough: bool = False,
) -> Contract:
    """What an operator or a PreTrainedModel promises: `contract(...).parametrize()` makes a test of each law.

    Of a model, claims are laid over what its configuration declares. budget: seconds for all laws together, 60 for an operator and 120
    for a model where left out. thorough: ten times as long, as with pytest's `--attn-thorough`. Raises ClaimError for wrong claims."""
    from attncheck.laws.battery import battery

    return Contract(battery(operator, claims, seed=seed, budget=budget, examples=examples, thorough=thorough))


def draw(report: LawReport, folder: str | Path) -> list[Path]:
    """The pictures of a report's counterexamples, `<law>.png` and `.svg` in the folder, which is made; the paths of the PNGs."""
    made = []
    for outcome in report.outcomes:
        if outcome.found is not None and outcome.found.picture is not None:
            from attncheck.report.pictures import draw as draw_picture

            made.append(draw_picture(outcome.found.picture, Path(folder) / f"{outcome.law.id}.png"))
    return made


def _drawn(outcome: Outcome, root: Path, name: str) -> Path | None:
    """The counterexample's picture below `.attncheck/`, its path from the root, or None where there is none or drawing fails."""
    from attncheck.report.paths import law_picture_path
    from attncheck.report.pictures import draw as draw_picture

    if outcome.found is None or outcome.found.picture is None:
        return None
    try:
        root = root.resolve()
        return draw_picture(outcome.found.picture, law_picture_path(root, name, outcome.law.id)).relative_to(root)
    except Exception:  # a picture explains a failure; lacking one must not change it
        return None
