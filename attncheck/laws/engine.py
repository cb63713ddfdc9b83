"""`verify`: every law that the claims bring with them, on the adversarial examples first and then on drawn ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attncheck.core.claims import ClaimError, OperatorClaims
from attncheck.core.model_claims import ModelClaims
from attncheck.laws.example import Example, adversarial
from attncheck.laws.picture import drawn as drawn_of
from attncheck.laws.registry import Law, LawViolation, NotApplicable
from attncheck.laws.registry import laws as all_laws
from attncheck.laws.search import drawn, shrunk
from attncheck.laws.tensors import lines
from attncheck.laws.trial import Trial

if TYPE_CHECKING:
    from attncheck.core.verdict import Picture
    from attncheck.laws.models.example import ModelExample
    from attncheck.laws.models.registry import ModelLaw

ENOUGH = 14
"""A battery in which fewer laws applied has hardly tested anything, and says so."""

FEW = 4
"""Drawn examples of a model, whose forward costs what many operators cost."""
SWEEPS = 4
"""A law that sweeps lengths or sizes by itself gets every fourth example."""


SLOW = "an example costs seconds: tried with thorough=True, or pytest --attn-thorough"


@dataclass(frozen=True)
class Found:
    """A counterexample: what is wrong, in numbers, the smallest example, a script with torch alone, a picture where one helps."""

    what: str
    example: Example | ModelExample
    script: Sequence[str]
    picture: Picture | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Outcome:
    """One law on one operator or model: how many examples it held on, what broke it, or why it did not apply."""

    law: Law | ModelLaw
    examples: int
    found: Found | None = None
    skipped: str | None = None

    @property
    def violation(self) -> str | None:
        """The law, the numbers, the smallest example, and lines of torch that reproduce it; None where it holds or does not apply."""
        if self.found is None:
            return None
        script = "\n".join(f"    {line}" for line in self.found.script)
        return (
            f"law {self.law.id}: {self.law.sentence}\n  found: {self.found.what}\n  smallest example: {self.found.example}\n"
            f"  reproduce:\n{script}"
        )


@dataclass(frozen=True)
class LawReport:
    """What `verify` or `verify_model` found. Truthy where no law was broken and enough of them applied."""

    operator: str
    """Name of the operator, or of the model's class."""
    claims: OperatorClaims | ModelClaims
    seed: int
    outcomes: list[Outcome] = field(repr=False)
    least: int = ENOUGH
    named: Sequence[str] | None = None
    """Laws and families that were asked for; None: all."""

    @property
    def violations(self) -> list[tuple[str, str, Example | ModelExample]]:
        """(law, message, smallest example)."""
        return [(o.law.id, o.violation, o.found.example) for o in self.outcomes if o.found is not None and o.violation is not None]

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(law, reason)."""
        return [(o.law.id, o.skipped) for o in self.outcomes if o.skipped is not None]

    @property
    def ran(self) -> list[str]:
        """Laws that said something about at least one example."""
        return [o.law.id for o in self.outcomes if o.skipped is None]

    @property
    def silent(self) -> list[str]:
        """Named laws and families of which none applied."""
        prefix = "model-" if isinstance(self.claims, ModelClaims) else ""
        ran = {name for o in self.outcomes if o.skipped is None for name in (o.law.id, f"{prefix}{o.law.family}")}
        return [name for name in self.named or () if name not in ran]

    @property
    def enough(self) -> bool:
        """Whether a fair number of all laws applied, or something of everything that was named."""
        return not self.silent if self.named is not None else len(self.ran) >= self.least

    @property
    def reasons(self) -> list[str]:
        """Why laws did not apply, the commonest first, with how many there are of each."""
        counts: dict[str, int] = {}
        for _, reason in self.skipped:
            counts[reason] = counts.get(reason, 0) + 1
        return [f"{reason} ({count})" for reason, count in sorted(counts.items(), key=lambda item: -item[1])[:6]]

    @property
    def passed(self) -> bool:
        """No law was broken, and enough of them applied for that to mean something."""
        return not self.violations and self.enough

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        head = f"{self.operator}: {len(self.ran)} of {len(self.outcomes)} laws applied, {len(self.violations)} broken (seed {self.seed})"
        parts = [head]
        if not self.enough:
            parts.append(hardly(self))
        parts += [message for _, message, _ in self.violations]
        if isinstance(self.claims, ModelClaims) and (left := self.claims.unclaimed()):
            parts.append(f"not claimed, so not tested: {', '.join(left)}")
        if self.skipped:
            parts.append("did not apply:\n" + "\n".join(f"  {name}: {reason}" for name, reason in self.skipped))
        return "\n\n".join(parts)


def hardly(report: LawReport) -> str:
    """What is said where hardly any law applied."""
    wanted = f"at least {report.least} are wanted" if report.named is None else f"none of {', '.join(report.silent)}"
    return (
        f"HARDLY ANYTHING WAS TESTED: {len(report.ran)} of {len(report.outcomes)} laws applied, {wanted}.\n"
        f"Claim more of the {'model' if isinstance(report.claims, ModelClaims) else 'operator'}; laws were left out because: "
        + "; ".join(report.reasons)
    )


def is_model(subject: Any, claims: Any) -> bool:
    """Whether the laws of models are meant: a PreTrainedModel, or claims of a model."""
    transformers = sys.modules.get("transformers")
    kind = getattr(transformers, "PreTrainedModel", None) if transformers is not None else None
    return isinstance(claims, ModelClaims) or (kind is not None and isinstance(subject, kind))


def verify(
    operator: Callable[..., Any],
    claims: OperatorClaims | ModelClaims | Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    budget: float = 60.0,
    examples: int = 20,
    laws: Sequence[str] | None = None,
    first: bool = False,
    thorough: bool = False,
) -> LawReport:
    """Hold an attention operator against the laws that follow from its claims; of a PreTrainedModel, what `verify_model` does.

    operator: any callable with the signature of scaled_dot_product_attention. seed: of every random number; the same seed repeats the
    run. budget: seconds, after which no new example begins; laws that saw none are reported as skipped. examples: how many are drawn
    by hypothesis after the adversarial ones, at most 4 of a model. laws: names of laws or families, all by default. first: stop at the
    first violation. thorough: laws that cost seconds an example are tried too. Raises ClaimError for claims that are unknown or
    contradictory, AttncheckError for an unknown law.
    """
    import torch

    if budget <= 0:
        raise ValueError(f"budget: {budget}; allowed: seconds above 0")
    if is_model(operator, claims):
        from attncheck.laws.models.engine import verify_model

        model: Any = operator
        few = min(examples, FEW)
        return verify_model(model, claims, seed=seed, budget=budget, examples=few, laws=laws, first=first)  # type: ignore[arg-type]
    if claims is None:
        raise ClaimError("an operator has no configuration to find its claims in; allowed: claims={'causal': 'flag', ...}")
    known = OperatorClaims.of(claims)  # type: ignore[arg-type]
    wanted = all_laws(list(laws) if laws is not None else None)
    name = getattr(operator, "__qualname__", None) or type(operator).__name__
    outcomes: dict[str, Outcome] = {}
    applying = []
    for law in wanted:
        reason = law.needs(known) or (None if thorough or not law.thorough else SLOW)
        outcomes[law.id] = Outcome(law, 0, skipped=reason)
        if reason is None:
            applying.append(law)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hard = list(adversarial(known, seed))
        # every law has a turn before any has its second, as an operator may be slow
        every = hard[:1], hard[1:], drawn(known, seed, examples)
        # from here on, so that a first call's imports cost no law its turn
        end = time.monotonic() + budget
        for tried in every:
            for law in applying:
                if outcomes[law.id].violation is None:
                    chosen = tried[::SWEEPS] if law.sweeps else tried
                    outcomes[law.id] = _held(law, operator, known, chosen, outcomes[law.id], end)
                if first and outcomes[law.id].violation is not None:
                    return LawReport(name, known, seed, list(outcomes.values()), named=laws)
    return LawReport(name, known, seed, list(outcomes.values()), named=laws)


def _held(law: Law, operator: Any, claims: OperatorClaims, examples: list[Example], before: Outcome, end: float) -> Outcome:
    """The law on these examples, added to what it did on others."""
    count, reason = before.examples, before.skipped
    for example in examples:
        if time.monotonic() > end:
            reason = reason or "the budget was spent before its turn"
            break
        trail: list[Example] = []
        try:
            law.check(Trial(operator, claims, example, trail))
        except NotApplicable as skipped:
            reason = reason or str(skipped)
            continue
        except LawViolation as violation:
            smallest, told = _smallest(law, operator, claims, example, (trail[-1], violation), end)
            script = reproducer(claims, smallest, operator, told.then)
            return Outcome(law, count + 1, Found(str(told), smallest, script, told.picture and drawn_of(told.picture)))
        count += 1
    return Outcome(law, count, skipped=None if count else reason or "no example")


def _smallest(
    law: Law, operator: Any, claims: OperatorClaims, example: Example, failed: tuple[Example, LawViolation], end: float
) -> tuple[Example, LawViolation]:
    """The example that the law made of the smallest one that fails, and what it said of it."""
    last = {example: failed}
    # shrinking is a courtesy: a few seconds of it, and not past the budget
    stop = min(end, time.monotonic() + 5.0)

    def fails(candidate: Example) -> bool:
        if time.monotonic() > stop:
            return False
        trail: list[Example] = []
        try:
            law.check(Trial(operator, claims, candidate, trail))
        except LawViolation as found:
            last[candidate] = (trail[-1], found)
            return True
        except NotApplicable:
            pass
        return False

    return last[shrunk(example, fails, claims)]


def reproducer(claims: OperatorClaims, example: Example, operator: Any, then: str | None = None) -> list[str]:
    """A script that builds the example's inputs and calls the operator, with torch alone."""
    module, name = getattr(operator, "__module__", None), getattr(operator, "__qualname__", None)
    importable = module and name and "<locals>" not in name and module != "__main__"
    if name == "scaled_dot_product_attention":
        bring = "from torch.nn.functional import scaled_dot_product_attention as operator"
    elif importable and "." not in str(name):
        bring = f"from {module} import {name} as operator"
    else:
        bring = f"operator = ...  # {name or type(operator).__name__}"
    call = ["import torch", bring, *lines(example, claims), "out = operator(q, k, v, **options)"]
    return [*call, then or "print(out)"]
