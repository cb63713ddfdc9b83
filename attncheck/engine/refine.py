"""Decide, then refine: what an interval leaves open is measured anew by something finer, and no failure rests on an estimate alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.core.errors import AttncheckError, Undecided
from attncheck.core.observable import OBSERVABLES

if TYPE_CHECKING:
    from attncheck.core.definitions import Request
    from attncheck.core.verdict import Verdict
    from attncheck.spec.model import Case


def decided(case: Case, judge: Callable[[Case], Verdict]) -> Verdict:
    """The verdict of a case from the cheapest measurement that decides it. Raises Undecided where the finest one does not."""
    tried, notes = case, list[str]()
    open_question: Undecided | None = None
    failed: Verdict | None = None
    while True:
        try:
            verdict = judge(tried)
        except Undecided as error:
            open_question, reason = error, "left places undecided"
        except AttncheckError as error:
            # what is finer may not be had where the estimate is: rows that cannot be trusted, an input that is too long
            if failed is not None:
                failed.notes.append(f"an estimate, not confirmed by exact rows: {str(error).splitlines()[0]}")
                return failed
            raise (open_question or error) from None
        else:
            if verdict.passed or not verdict.decided.startswith("estimated"):
                verdict.notes += notes
                return verdict
            failed, reason = verdict, "failed, which is confirmed exactly"
        finer = _finer(tried)
        if finer is None:
            if failed is not None:
                return failed
            assert open_question is not None
            raise open_question
        notes.append(f"{tried.property.request} {reason}; decided by {finer.property.request}")
        tried = finer


def _finer(case: Case) -> Case | None:
    """The case with each estimate replaced by what decides where it does not; None where there is nothing finer."""
    prop = case.property
    own, relation = _of(prop.request), prop.relation
    other = _of(relation.request) if relation is not None and relation.request is not None else None
    if own is None and other is None:
        return None
    if relation is not None and other is not None:
        relation = replace(relation, request=other)
    return replace(case, property=replace(prop, request=own or prop.request, relation=relation))


def _of(request: Request) -> Request | None:
    if request.name not in OBSERVABLES:
        return None
    entry = OBSERVABLES[request.name]
    finer = entry.about.get("finer")
    if finer is None:
        return None
    defaults = {name: default for name, (_, default) in entry.parameters.items()}
    found: Request | None = finer(**{**defaults, **request.arguments})
    return found
