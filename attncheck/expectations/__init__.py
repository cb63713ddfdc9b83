"""What may be demanded of a measurement: a bound, `tracks`, `agrees_with`, `baseline`; and the judging of one property on one case.

Torch-free, and numpy-free until something is judged. A new demand is one file with one function under `core.expectation.expectation`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.definitions import PassKey, Request
from attncheck.core.expectation import EXPECTATIONS
from attncheck.core.verdict import Verdict
from attncheck.expectations import agrees_with, baseline, tracks
from attncheck.expectations.sides import Context, Fetch, Load, passes

if TYPE_CHECKING:
    from attncheck.spec.model import Case

__all__ = ["Context", "Fetch", "agrees_with", "baseline", "judge", "requirements", "tracks"]


def requirements(case: Case) -> list[tuple[PassKey, Request]]:
    """What must be measured to judge a case: its own quantity and its counterpart's, a pass for each seed, in order, each once.

    Raises MeasurementError where a counterpart cannot be resolved, AttncheckError on an unknown demand.
    """
    prop = case.property
    observes = prop.demand.kind == "bound" or EXPECTATIONS[prop.demand.kind].about.get("observes", True)
    wanted = [(key, prop.request) for key in passes(case).values()] if observes else []
    relation = prop.relation
    if relation is not None:
        asked = relation.request or prop.request
        wanted += [(key, asked) for key in passes(case, relation.subject, relation.axes).values()]
    if prop.demand.kind != "bound":
        requires = EXPECTATIONS[prop.demand.kind].about.get("requires")
        if requires is not None:
            wanted += requires(case, prop.demand.arguments)
    return list(dict.fromkeys(wanted))


def judge(case: Case, fetch: Fetch, root: Path | None = None, *, load: Load | None = None, thorough: bool = False) -> Verdict:
    """Judge one case. `fetch(pass_key, request)` gives a measurement as an xarray Dataset; baselines are read below `root`; `load` gives
    the subject to a demand that measures for itself, `thorough` lets it take its time.

    Raises Undecided where an estimate is too wide (its `places` would have to be measured exactly) and MeasurementError where the claim
    cannot be checked at all: nothing selected, not a number, sides that do not match. Never a pass on zero places.
    """
    context = Context(case, fetch, root, load, thorough)
    demand = case.property.demand
    if demand.kind == "bound":
        from attncheck.expectations.bounded import judge_bound

        return judge_bound(context)
    verdict = EXPECTATIONS[demand.kind].function(context, **demand.arguments)
    if not isinstance(verdict, Verdict):
        raise TypeError(f"the demand {demand.kind!r} returned {type(verdict).__name__}, not a Verdict")
    return verdict
