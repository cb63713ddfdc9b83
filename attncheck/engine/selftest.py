"""Whether a property can fail: its subject is perturbed, one way after another, until the property notices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attncheck.core.errors import AttncheckError, DoesNotApply, MeasurementError, Unavailable
from attncheck.core.verdict import Verdict

if TYPE_CHECKING:
    from attncheck.engine.run import Run
    from attncheck.spec.model import Case

CASES = 3
"""Of one property, the first of each subject, that are perturbed; what none of these notices is called unable to fail."""
SELFTEST = "selftest"


@dataclass(frozen=True)
class Tried:
    """One perturbation of one case, and what came of it: 'fails', 'holds', 'error' or 'no such thing here'."""

    case: Case
    name: str
    outcome: str
    said: str


def chosen(cases: Sequence[Case]) -> list[Case]:
    """The cases of a property that are perturbed: those with the fewest things to load first, one for each subject."""
    first: dict[str, Case] = {}
    for case in cases:
        if not case.must_fail and case.exemption is None:
            first.setdefault(case.variant.name, case)
    return list(first.values())[:CASES]


def perturbed_cases(cases: Sequence[Case]) -> Iterator[tuple[str, Case]]:
    """(perturbation, case) in the order in which they are tried: all of one case before the next."""
    from attncheck.instruments.perturbations import PERTURBATIONS

    for case in chosen(cases):
        reads = _reads(case)
        for name, one in PERTURBATIONS.items():
            # what is done to calls changes no projection, and the other way round
            touches = {"weights": one.weights is not None, "log": one.log != 1}
            if not reads or any(touches.get(kind, one.call is not None) for kind in reads):
                yield name, replace(case, variant=case.variant.changed(perturbed=name))


def _reads(case: Case) -> set[str]:
    """The evidence that the property's quantities read; empty where it measures for itself."""
    from attncheck.core.observable import OBSERVABLES
    from attncheck.expectations import requirements

    try:
        return {str(OBSERVABLES[request.name].about["reads"]) for _, request in requirements(case)}
    except AttncheckError:
        return set()


def needed(cases: Sequence[Case]) -> list[Case]:
    """Every case that the self-test of a property may judge, for the plan."""
    return [case for _, case in (*_controls(cases), *perturbed_cases(cases))]


def selftest(run: Run, cases: Sequence[Case]) -> Verdict:
    """Passes where some perturbation, or a control of the property's own, makes the property false. `cases` are all of one property.

    Raises Unavailable where no subject of it is here, DoesNotApply where all its cases are exempt, MeasurementError where it cannot be
    judged on its subject as it is, perturbed or not.
    """
    tried: list[Tried] = []
    for name, case in _controls(cases):
        tried.append(_try(run, case, name))
        if tried[-1].outcome == "fails":
            return _noticed(tried)
    missing: Unavailable | None = None
    for name, case in perturbed_cases(cases):
        if any(one.case.variant.name == case.variant.name and one.outcome == "not here" for one in tried):
            continue
        try:
            tried.append(_try(run, case, name))
        except Unavailable as error:
            missing = error
            tried.append(Tried(case, name, "not here", str(error)))
            continue
        if tried[-1].outcome == "fails":
            return _noticed(tried)
    counted = [one for one in tried if one.outcome != "not here"]
    if not counted and missing is not None:
        raise missing
    if not counted:
        raise DoesNotApply("every case of it is exempt")
    return _blind(counted)


def _controls(cases: Sequence[Case]) -> Iterator[tuple[str, Case]]:
    for case in [case for case in cases if case.must_fail and case.exemption is None][:1]:
        several = any(other.part for other in cases)
        yield f"control {case.variant.name}", replace(case, must_fail=False, part="all" if several else "")


def _try(run: Run, case: Case, name: str) -> Tried:
    # a demand that is several tests is broken where one of them is
    whole = replace(case, part="", must_fail=True) if case.part else case
    try:
        verdict = run.judge(whole)
    except (Unavailable, DoesNotApply):
        raise
    except AttncheckError as error:
        return Tried(case, name, "error", str(error).splitlines()[0])
    return Tried(case, name, "holds" if verdict.passed != whole.must_fail else "fails", verdict.headline)


def _noticed(tried: Sequence[Tried]) -> Verdict:
    last = tried[-1]
    headline = f"fails under {last.name}, as a property must: {last.said}"
    return Verdict(True, headline, _claim(last.case), checked=len(tried), numbers={"perturbations": float(len(tried))})


def _blind(tried: Sequence[Tried]) -> Verdict:
    errors = [one for one in tried if one.outcome == "error"]
    if len(errors) == len(tried):
        raise MeasurementError(f"it could be judged under no perturbation: {errors[0].said}")
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in tried:
        groups.setdefault((one.case.variant.name, one.outcome, one.said), []).append(one.name)
    lines = [f"{', '.join(names)} on {subject}: {outcome}: {said}" for (subject, outcome, said), names in groups.items()]
    return Verdict(
        False,
        f"nothing that was done to {', '.join(dict.fromkeys(one.case.variant.name for one in tried))} makes this property false",
        _claim(tried[0].case),
        observed=lines,
        summary=f"{len(tried)} perturbations, none noticed",
        checked=len(tried),
        numbers={"perturbations": float(len(tried))},
    )


def _claim(case: Case) -> str:
    return f"{case.property.name} is false of a subject whose attention goes wrong"
