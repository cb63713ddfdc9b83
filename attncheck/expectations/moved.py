"""The judging behind `baseline`: what was measured against the nearest recording, in units of the tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncheck.core.baseline import (
    MOST_VALUES,
    Baseline,
    Environment,
    NotComparable,
    Output,
    Proposal,
    Recording,
    State,
    digits_of,
    output_told,
    pair_tolerance,
    rounded,
    versions,
)
from attncheck.core.baseline import read as read_baseline
from attncheck.core.errors import MeasurementError
from attncheck.core.verdict import Verdict
from attncheck.expectations.agreement import Difference, difference
from attncheck.expectations.baseline import AcrossDtypes, identity_of
from attncheck.expectations.bound import Comparison
from attncheck.expectations.claim import claim, other_side, quantity
from attncheck.expectations.field import Field, plain
from attncheck.expectations.outcome import conclude, decide
from attncheck.expectations.picture import change_picture
from attncheck.expectations.places import place_of
from attncheck.expectations.relate import relate
from attncheck.expectations.sides import Context, passes
from attncheck.spec.model import Tolerance

if TYPE_CHECKING:
    from attncheck.spec.model import Property


def judge_baseline(context: Context, rtol: float | None, atol: float | None, across: AcrossDtypes | None) -> Verdict:
    """See `baseline`. Raises NotComparable, MeasurementError where there is no project, AttncheckError on a damaged file."""
    case, prop = context.case, context.case.property
    place, identity = place_of(prop, "baseline"), identity_of(case)
    if context.root is None or Path(identity.spec).is_absolute():
        raise MeasurementError(f"{place}: a baseline belongs to a project, and {identity.spec} lies outside of it")
    found = _measured(context)
    if found.value.size > MOST_VALUES:
        raise MeasurementError(f"{place}: {found.value.size} values; a baseline holds at most {MOST_VALUES}: `reduce` or `where` first")
    now = _recording(context, found, _digits(found, prop.tolerance, rtol))
    held = read_baseline(context.root, identity)
    old = _nearest(held, now) if held is not None else None
    if old is None:
        return _missing(context, found, Proposal(identity, now, "missing"))
    _refuse_other(place, old, now, Proposal(identity, now, "incomparable"))
    tolerance = _tolerance(prop.tolerance, rtol, atol, across, old.environment, now.environment)
    if tolerance.kind == "vs_reference":
        raise MeasurementError(f"{place}: a baseline knows no float32 reference; allowed: exact, rtol and atol, rms_ratio")
    # For what is to be equal to the last bit, the numbers as they are written.
    recorded = found.with_(value=_array(old, found), dtype=old.environment.dtype)
    gap = difference(found, recorded, None, tolerance)
    units = np.divide(gap.places.value, gap.allowed, out=np.where(gap.places.value > 0, np.inf, 0.0), where=gap.allowed > 0)
    places = gap.places.with_(value=units, unit="", endless=False, notes=(*found.notes, *_notes(found, old, now)))
    holds = units <= 1
    comparison = Comparison(
        surely=holds,
        possibly=holds,
        excess=units - 1,
        rounded=np.zeros(places.shape, dtype=bool),
        limit=lambda index: "<= 1",
        limits={"at_most": 1.0},
    )
    quantified = decide(places, comparison, case)

    def note(index: tuple[int, ...]) -> str:
        if gap.ours is None or gap.theirs is None:
            return ""
        new, before = float(gap.ours[index]), float(gap.theirs[index])
        return f"{before:.6g} then, {new:.6g} now, {new - before:+.3g}"

    verdict = conclude(
        places,
        comparison,
        quantified,
        case,
        claim=claim(case, f"is as recorded ({gap.words}; recorded under {old.environment})", counterpart=other_side(prop)),
        quantity=f"{quantity(prop)} change in tolerances",
        picture=change_picture(context, found, recorded, places, quantified),
        note=note,
        numbers=_numbers(gap),
    )
    state: State = "unchanged" if verdict.passed else "moved"
    verdict.proposal = Proposal(identity, now, state)
    verdict.observed += [*filter(None, [output_told(old, now)]), f"baseline: {identity.path.as_posix()}"]
    return verdict


def _nearest(held: Baseline, now: Recording) -> Recording | None:
    """Of the recordings on the same input of the same quantity; where there is none, of all, to say what differs."""
    same = [one for one in held.recordings if (one.quantity, one.input_hash) == (now.quantity, now.input_hash)]
    return replace(held, recordings=tuple(same)).nearest(now.environment) or held.nearest(now.environment)


def _measured(context: Context) -> Field:
    prop = context.case.property
    found, relation = context.reduced(context.measured()), prop.relation
    if relation is None:
        return found
    other = context.reduced(context.measured(relation.request, subject=relation.subject, axes=relation.axes), own=False)
    names = (context.name(), context.name(relation.subject, relation.axes))
    return relate(found, other, relation.kind, names, place_of(prop, f"{relation.kind}_to"))


def _recording(context: Context, found: Field, digits: int) -> Recording:
    """What an update would write."""
    data = [context.fetch(key, context.case.property.request).attrs for key in passes(context.case).values()]
    device, _, _ = found.device.partition(":")
    environment = Environment(
        device=device,
        capability=str(data[0].get("capability", "")),
        dtype=found.dtype,
        attn_implementation=str(data[0].get("implementation", "")),
        versions=versions(),
    )
    there = found.there().ravel().tolist()
    values = [rounded(value, digits) if exists else None for value, exists in zip(found.value.ravel().tolist(), there, strict=True)]
    return Recording(
        environment=environment,
        quantity=_quantity(context.case.property),
        input_hash="+".join(dict.fromkeys(str(attrs.get("input_hash", "")) for attrs in data)),
        dims=found.dims,
        labels={dim: [plain(label) for label in found.labels[dim]] for dim in found.dims},
        values=values,
        output=_output(data),
    )


def _output(data: Sequence[Mapping[str, Any]]) -> Output | None:
    """Of the one forward that was run; several, as of several seeds, have no output in common."""
    return Output.read(data[0].get("output")) if len(data) == 1 else None


def _quantity(prop: Property) -> str:
    """The pipeline in words, without the subject: what must be equal for two recordings to speak of one thing."""
    words = [str(prop.request)]
    words += [f"where {', '.join(f'{dim} {selector.text or selector}' for dim, selector in chosen.items())}" for chosen in prop.where]
    words += [f"{r.dim} {r.how}{f' {r.above:g}' if r.above is not None else ''}" for r in prop.reduce]
    if prop.relation is not None:
        words.append(f"{prop.relation.kind} to {other_side(prop)}")
    return "; ".join(words)


def _refuse_other(place: object, old: Recording, now: Recording, proposal: Proposal) -> None:
    """Raises NotComparable, which names the first thing that differs."""
    path = proposal.identity.path.as_posix()
    if old.quantity != now.quantity:
        raise NotComparable(
            f"{place}: not comparable: {path} holds {old.quantity!r}, and the property measures {now.quantity!r}",
            proposal,
        )
    if old.input_hash != now.input_hash:
        raise NotComparable(
            f"{place}: not comparable: {path} was recorded on another input "
            f"(hash {old.input_hash or 'none'}, now {now.input_hash or 'none'})",
            proposal,
        )
    shapes = [{dim: list(one.labels[dim]) for dim in one.dims} for one in (old, now)]
    absent = [[value is None for value in one.values] for one in (old, now)]
    if shapes[0] != shapes[1] or absent[0] != absent[1]:
        then, here = (", ".join(f"{len(labels)} {dim}" for dim, labels in shape.items()) or "one number" for shape in shapes)
        raise NotComparable(f"{place}: not comparable: {path} has other places ({then}; now {here})", proposal)


def _missing(context: Context, found: Field, proposal: Proposal) -> Verdict:
    case = context.case
    there = found.there()
    command = f'pytest "{case.property.place.path}::{case.property.name}[{case.id}]" --snapshot-update'
    return Verdict(
        passed=False,
        headline=f"no baseline of {quantity(case.property)} yet; --snapshot-update records it",
        claim=claim(case, "is as recorded", counterpart=other_side(case.property)),
        observed=[f"there is no {proposal.identity.path.as_posix()}", f"record it: {command}"],
        decided=found.decided,
        checked=int(there.sum()),
        summary="nothing to compare with",
        setting=str(proposal.recording.environment),
        notes=list(found.notes),
        numbers={"min": float(found.value[there].min()), "max": float(found.value[there].max())},
        proposal=proposal,
    )


def _digits(found: Field, tolerance: Tolerance, rtol: float | None) -> int:
    """Of the written numbers: all where equality is asked for, and ten times finer than any tolerance that applies to them.

    In half precision too: the same model in the same environment gives the same numbers, and is held to 1e-5.
    """
    if tolerance.kind == "exact" or 0 in (rtol, tolerance.rtol):
        return 17
    return max(digits_of(value) for value in (1e-5, found.resolution, rtol, tolerance.rtol) if value is not None)


def _tolerance(
    given: Tolerance, rtol: float | None, atol: float | None, across: AcrossDtypes | None, old: Environment, now: Environment
) -> Tolerance:
    """The demand's own numbers for equal dtypes, `across_dtypes` for others, else the property's `tolerance`, else the pair's default."""
    if old.dtype != now.dtype and across is not None:
        return Tolerance(rtol=across.rtol, atol=across.atol)
    if old.dtype == now.dtype and (rtol is not None or atol is not None):
        return Tolerance(rtol=rtol or 0.0, atol=atol or 0.0)
    if given != Tolerance():
        return given
    pair = pair_tolerance(old, now)
    return Tolerance(rtol=pair[0], atol=pair[1])


def _array(old: Recording, found: Field) -> np.ndarray:
    return np.array([0.0 if value is None else value for value in old.values]).reshape(found.shape)


def _notes(found: Field, old: Recording, now: Recording) -> list[str]:
    said = []
    if old.environment.key != now.environment.key:
        said.append(f"the nearest recording is of another environment: {old.environment}; this is {now.environment}")
    elif old.environment.versions != now.environment.versions:
        said.append(f"recorded with other versions: {old.environment}; this is {now.environment}")
    if found.lower is not None:
        said.append("the values are estimates or lie in brackets; their middle is compared")
    return said


def _numbers(gap: Difference) -> dict[str, float]:
    if gap.ours is None or gap.theirs is None:
        return {}
    return {"largest_change": float(np.max(np.abs(gap.ours - gap.theirs), initial=0.0))}
