"""`laws`: an operator or a model obeys the laws that follow from its claims, each law a test of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from attncheck.core.claims import ClaimError, OperatorClaims
from attncheck.core.errors import DoesNotApply, MeasurementError
from attncheck.core.expectation import expectation
from attncheck.core.model_claims import ModelClaims
from attncheck.core.verdict import Verdict

if TYPE_CHECKING:
    from attncheck.core.evidence import LoadedSubject
    from attncheck.expectations.sides import Context
    from attncheck.laws.battery import Battery

ALL = "all"
ENOUGH = "enough-laws-applied"
Names = Annotated[
    list[str],
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
"""`all`, the id of a law or a family, or a list of these."""

_batteries: dict[Any, Battery] = {}
"""What was tried in this process, by what determines it: the last test of a property asks how many of its laws applied."""


def parts(kind: str, claims: Mapping[str, Any], arguments: Mapping[str, Any]) -> Sequence[str]:
    """The laws that these claims may bring, by id, and the test that enough of them applied. Free of torch.

    Of an operator all that is claimed stands in the spec, so that what is not claimed makes no test. A model's configuration claims as
    well, and is not read here: laws that then do not apply are skipped, with the reason.
    """
    wanted = _wanted(kind, arguments["of"])
    if kind != "operator":
        ModelClaims.of(claims)
        return [*wanted, ENOUGH]
    if not claims:
        raise ClaimError("none, and the laws of operators follow from them; allowed: claims: {causal: flag, gqa: true, ...}")
    from attncheck.laws.registry import laws as operator_laws

    known = OperatorClaims.of(claims)
    named = set(arguments["of"])
    found = [entry.id for entry in operator_laws(wanted) if entry.id in named or entry.needs(known) is None]
    return [*found, ENOUGH]


def _wanted(kind: str, names: Sequence[str]) -> list[str]:
    """Ids of laws. Raises AttncheckError for one that is unknown, or of operators where a model is meant."""
    asked = None if ALL in names else list(names)
    if kind == "operator":
        from attncheck.laws.registry import laws as operator_laws

        return [entry.id for entry in operator_laws(asked)]
    from attncheck.laws.models.registry import model_laws

    return [entry.id for entry in model_laws(asked)]


@expectation("laws", observes=False, parts=parts)
def laws(
    context: Context,
    *,
    of: Names = [ALL],  # noqa: B006
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0,
    budget: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None,
    examples: Annotated[int, Field(ge=0, le=10_000)] = 20,
) -> Verdict:
    """The subject obeys the laws that follow from its claims: `laws: all`, or the ids and families of some.

    Each law is a test. `claims:` of the subject say what is promised: all of it for an operator, and for a model what its class and
    configuration do not say. `seed` is that of every random number, `budget` seconds for all laws of a subject together (60, for a model
    120), `examples` how many are drawn after the adversarial ones (at most 4 of a model). A law that does not apply is skipped with the
    reason, and the last test fails where hardly any did, or none of those that were named. Of a training or a series of checkpoints it is
    the last step that is tried. With `--attn-thorough` the search takes ten times as long. `attncheck laws` lists the laws.

    Raises MeasurementError where the subject does not run on what the laws feed it.
    """
    battery = _battery(context, of, seed, budget, examples)
    if context.case.must_fail:
        return _any_broken(battery)
    if context.case.part == ENOUGH:
        return _enough(battery)
    outcome = battery.outcome(context.case.part)
    if outcome.skipped is not None:
        raise DoesNotApply(outcome.skipped)
    found, law = outcome.found, outcome.law
    tried = f"{outcome.examples} example{'s' if outcome.examples > 1 else ''}"
    numbers = {"examples": float(outcome.examples)}
    if found is None:
        return Verdict(True, f"{law.id} holds on {tried}", law.sentence, checked=outcome.examples, numbers=numbers)
    return Verdict(
        False,
        f"{law.id} is broken: {found.what}",
        law.sentence,
        observed=[found.what],
        decided=f"seed {seed}",
        checked=outcome.examples,
        summary=f"broken on example {outcome.examples}; the smallest: {found.example}",
        script=found.script,
        numbers=numbers,
        picture=found.picture,
    )


def _any_broken(battery: Battery) -> Verdict:
    """A control's verdict: whether all laws hold, from the first that does not on."""
    held = 0
    for law in battery.laws:
        outcome = battery.outcome(law)
        if outcome.found is not None:
            return Verdict(False, f"{law} is broken: {outcome.found.what}", outcome.law.sentence, checked=outcome.examples)
        held += outcome.skipped is None
    return Verdict(True, f"all {held} laws that applied hold", "the subject obeys its laws", checked=held)


def _enough(battery: Battery) -> Verdict:
    """Of all laws a fair number must have applied; where some are named, one of each name."""
    report = battery.report()
    told = f"{len(report.ran)} of {len(report.outcomes)} laws applied"
    numbers = {"applied": float(len(report.ran)), "laws": float(len(report.outcomes))}
    if battery.named is not None:
        claim, headline = "of each law and family that is named, a law applied", f"{told}, none of {', '.join(report.silent)}"
    else:
        claim, headline = f"at least {report.least} laws say something of the subject", f"hardly anything was tested: {told}"
    if report.enough:
        return Verdict(True, told, claim, checked=len(report.ran), numbers=numbers)
    return Verdict(
        False, headline, claim, report.reasons, decided=f"seed {battery.seed}", summary=told, checked=len(report.ran), numbers=numbers
    )


def _battery(context: Context, of: Sequence[str], seed: int, budget: float | None, examples: int) -> Battery:
    case = context.case
    key = (case.variant, repr(sorted(case.subject.claims.items(), key=str)), tuple(of), seed, budget, examples, context.thorough)
    if key not in _batteries:
        from attncheck.laws.battery import battery

        _batteries.clear()
        subject = _loaded(context)
        tried: Any = subject.operator or subject.model
        named = None if ALL in of else list(of)
        about: dict[str, Any] = {"seed": seed, "budget": budget, "examples": examples, "thorough": context.thorough}
        _batteries[key] = battery(tried, case.subject.claims or None, named=named, **about)
    return _batteries[key]


def _loaded(context: Context) -> LoadedSubject:
    from attncheck.core.evidence import SubjectSeries

    if context.load is None:
        raise MeasurementError("laws need the subject itself, which only a run of a spec has; allowed: attncheck.verify")
    found = context.load(context.case.variant)
    return found.open(found.steps[-1]) if isinstance(found, SubjectSeries) else found
