"""Failure texts. The first line stands alone in pytest's summary; then claim, observation, picture, and what to do about it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.baseline import NotComparable
from attncheck.core.errors import AttncheckError, MeasurementError, NotObservable, SpecError, Unavailable, Undecided

if TYPE_CHECKING:
    from attncheck.core.verdict import Offender, Verdict
    from attncheck.spec.model import Case

WIDTH = 100
MOST_OFFENDERS = 5
_LABEL = 10
_INDENT = " " * (2 + _LABEL)


def failure_text(case: Case, verdict: Verdict, *, nodeid: str, options: str = "", picture_path: Path | str | None = None) -> str:
    """Why a property failed on a case, for `pytest.fail(text, pytrace=False)`."""
    lines = [verdict.headline, _title(case), ""]
    lines += _field("claim", _sourced(case, verdict.claim))
    lines += _field("why", case.property.why) if case.property.why else []
    lines += _observed(verdict)
    lines += _field("note", verdict.resolution) if verdict.resolution else []
    for note in dict.fromkeys(verdict.notes):
        lines += _field("note", note)
    lines += _field("picture", str(picture_path), wrap=False) if picture_path is not None else []
    lines += _script(verdict)
    lines += _field("again", _again(nodeid, options), wrap=False)
    if case.property.demand.kind == "baseline":
        lines += _field("accept", f"{_again(nodeid, options)} --snapshot-update", wrap=False)
        lines += _field("", "and commit the baseline, or exempt with `unless:` and a reason")
    else:
        lines += _field("accept", _accept(case))
    return "\n".join(lines)


def must_fail_text(case: Case, verdict: Verdict, *, nodeid: str, options: str = "", picture_path: Path | str | None = None) -> str:
    """Why a negative control failed: the property holds where it must not, so it cannot tell the two apart."""
    name, subject = case.property.name, case.subject.definition.name
    # A verdict that was already turned round says so itself.
    headline = f"{name} holds on {subject}, where it must fail: {verdict.headline}" if verdict.passed else verdict.headline
    lines = [headline, _title(case), ""]
    lines += _field("claim", _sourced(case, verdict.claim))
    lines += _field("control", f"must_fail_on: {subject} says that this claim is false there, but it was measured to be true")
    lines += _observed(verdict)
    for note in dict.fromkeys(verdict.notes):
        lines += _field("note", note)
    lines += _field("picture", str(picture_path), wrap=False) if picture_path is not None else []
    lines += _field("again", _again(nodeid, options), wrap=False)
    place = _place(case, "must_fail_on")
    lines += _field("accept", f"tighten the property until {subject} fails it, or choose another control at {place}")
    return "\n".join(lines)


def broken_text(
    case: Case,
    claim: str,
    verdict: Verdict | None,
    why: str = "",
    *,
    step: int,
    recording: Path,
    steps: int,
    picture_path: Path | str | None = None,
) -> str:
    """How a live bound broke at a step of a training. Without a verdict it could not be judged, and `why` says so."""
    lines = [f"step {step}: {verdict.headline if verdict is not None else why.splitlines()[0]}", f"{recording}: {case.property.name}", ""]
    lines += _field("claim", claim)
    lines += _field("why", case.property.why) if case.property.why else []
    if verdict is not None:
        lines += _observed(verdict)
        for note in dict.fromkeys([*([verdict.resolution] if verdict.resolution else []), *verdict.notes]):
            lines += _field("note", note)
    else:
        lines += _field("observed", "it could not be judged, and what is not known to hold counts as broken")
        lines += [line for text in why.splitlines()[1:] for line in _field("", text, wrap=False)]
    lines += _field("steps", f"{steps} recorded, up to {step}") if steps else []
    lines += _field("picture", str(picture_path), wrap=False) if picture_path is not None else []
    return "\n".join(lines)


def error_text(case: Case, error: BaseException, *, nodeid: str, options: str = "") -> str:
    """What could not be measured, where in the spec, and what to do. An error is neither a pass nor a failure of the claim."""
    message, kind = str(error).strip(), type(error).__name__
    if not isinstance(error, AttncheckError):
        message = f"{kind}: {message}" if message else kind
    message = message or kind
    first, *rest = message.splitlines()
    lines = [first, _title(case), ""]
    lines += _field("error", "could not be judged: this is neither a pass nor a failure of the claim")
    for line in rest:
        lines += _field("", line, wrap=False)
    lines += _field("observe", str(case.property.request)) if case.property.request.name else []
    place, what = _blamed(case, first)
    lines += _field("at", place, wrap=False)
    lines += _field("do", f"correct {what} at that place" if what else _remedy(error))
    lines += _field("again", _again(nodeid, options), wrap=False)
    return "\n".join(lines)


def skip_text(case: Case, reason: Unavailable | str | None = None) -> str:
    """One line: why a test did not run. Without a reason, that of the property's `unless`."""
    if reason is not None:
        return str(reason)
    exemption = case.exemption
    return f"unless: {exemption.because}" if exemption is not None else "not run"


def warning_text(case: Case, verdict: Verdict) -> str:
    """One line for a property of level warn that does not hold."""
    return f"{case.property.name}[{case.id}]: {verdict.headline}"


def offender_lines(offenders: Iterable[Offender], count: int, most: int = MOST_OFFENDERS) -> list[str]:
    """'seed 2, layer 3     41.2 / 38.9 = 1.06', aligned, and how many more there are."""
    from attncheck.expectations.outcome import beside

    shown = list(offenders)[:most]
    places = [_where(o.where) or "the value" for o in shown]
    wide = max((len(place) for place in places), default=0)
    limits = {o.limit for o in shown}
    lines = []
    for place, offender in zip(places, shown, strict=True):
        value = beside(offender.observed, offender.limit)
        # A ratio's arithmetic ends in the value, a list of statistics holds it: neither needs it twice.
        told = offender.note.split(";")[0].endswith(f"= {value}") or bool(re.match(rf"[a-z_]+ {re.escape(value)}\b", offender.note))
        said = offender.note if told or f" {value} (not " in f" {offender.note}" else value
        limit = f"  (limit {offender.limit})" if len(limits) > 1 and " (not " not in said else ""
        note = f"  ({offender.note})" if said == value and offender.note else ""
        lines.append(f"{place:<{wide}}  {said}{limit}{note}")
    if count > len(shown):
        lines.append(f"and {count - len(shown)} more")
    return lines


def _observed(verdict: Verdict) -> list[str]:
    setting = ", ".join(part for part in (verdict.decided, verdict.setting) if part)
    several = len(verdict.offenders) > 1
    summary = (verdict.summary or verdict.headline) + ("; worst first" if several else "")
    gap = max(WIDTH - 2 - _LABEL - len(summary) - len(setting) - 2, 2)
    lines = (
        [f"  {'observed':<{_LABEL}}{summary}{' ' * gap}({setting})"]
        if len(summary) + len(setting) < WIDTH - 16
        else [
            f"  {'observed':<{_LABEL}}{summary}",
            f"{_INDENT}({setting})",
        ]
    )
    count = int(verdict.numbers.get("offenders", len(verdict.offenders)))
    for line in offender_lines(verdict.offenders, count):
        lines += _wrap(line, _INDENT + "  ", _INDENT + "    ", drop_whitespace=False)
    for line in verdict.observed:
        lines += _wrap(line, _INDENT, _INDENT + "  ")
    return [line.rstrip() for line in lines]


def _script(verdict: Verdict) -> list[str]:
    """Lines of Python as they are: a break would change what they do."""
    return [line for number, text in enumerate(verdict.script) for line in _field("" if number else "reproduce", text, wrap=False)]


def _field(label: str, text: str, *, wrap: bool = True) -> list[str]:
    head = f"  {label:<{_LABEL}}"
    if not wrap:
        return [f"{head}{text}".rstrip()]
    return _wrap(text, head, _INDENT) or [head]


def _wrap(text: str, first: str, rest: str, **options: bool) -> list[str]:
    kept: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, **options}
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, **kept)


def _title(case: Case) -> str:
    place = case.property.place
    return f"{place.path}:{place.line}: {case.property.name}[{case.id}]"


def _sourced(case: Case, claim: str) -> str:
    return f"{claim}  ({case.property.source})" if case.property.source else claim


def _again(nodeid: str, options: str) -> str:
    """The command, with the `options` of this run that what was measured hangs on."""
    return f'pytest "{nodeid}"{options}'


def _accept(case: Case) -> str:
    prop = case.property
    kind = prop.demand.kind
    if case.id == "selftest":
        return "tighten the property, name a control with `must_fail_on:`, or take it out: as it is, it can only pass"
    if kind == "bound":
        what = f"change the bound at {_place(case, 'at_least', 'at_most', 'between', 'equals')}"
    elif kind == "laws":
        return _accept_law(case)
    elif kind == "agrees_with":
        what = f"widen `tolerance:` at {_place(case, 'tolerance', 'agrees_with')}"
    else:
        what = f"change the bounds of `{kind}` at {_place(case, kind)}"
    return f"{what}, or exempt with `unless:` and a reason"


def _accept_law(case: Case) -> str:
    """A law follows from claims: what the subject does not promise is not to be claimed."""
    from attncheck.laws.demand import ENOUGH

    place = case.subject.place
    if case.part == ENOUGH:
        return f"claim more of the subject{f' at {place.path}:{place.line}' if place is not None else ''}, or name laws that apply"
    where = f" at {place.path}:{place.line}" if place is not None else ""
    reason = f"say why in `claims: {{exceptions: {{{case.part}: ...}}}}`" if case.part.startswith("model-") else "name the other laws"
    return f"withdraw the claim that brings the law{where}, or {reason}, or exempt with `unless:` and a reason"


def _place(case: Case, *keys: str) -> str:
    from attncheck.expectations.places import place_of

    place = place_of(case.property, *keys)
    return f"{place.path}:{place.line}"


def _blamed(case: Case, message: str) -> tuple[str, str]:
    """Where the spec asks for what could not be had, and what stands there if it is not the property: messages begin with its name."""
    if case.input is not None and case.input_place is not None and message.startswith(f"input {case.input.name}: "):
        return f"{case.input_place.path}:{case.input_place.line}", f"input {case.input.name}, or what it names,"
    for subject in (case.subject, *case.counterparts.values()):
        if subject.place is not None and message.startswith(f"{subject.definition.name}: "):
            return f"{subject.place.path}:{subject.place.line}", f"subject {subject.definition.name}, or what it names,"
    return _place(case, "observe"), ""


def _remedy(error: BaseException) -> str:
    if isinstance(error, Unavailable):
        return error.remedy or "bring what is missing, or mark the subject `optional: true`"
    if isinstance(error, Undecided):
        return "let the bound lie outside of the interval, or narrow the interval: more `steps` or `columns`, or an exact observable"
    if isinstance(error, NotObservable):
        return "name another observable, or make the attention an `operator:` subject; docs/how-it-measures.md says what each route sees"
    if isinstance(error, NotComparable):
        return "add --snapshot-update to record it anew, and commit the baseline; or give back what it was recorded on"
    if isinstance(error, SpecError):
        return "correct the spec at the places above"
    if "See `kernel.error`" in str(error):
        return "demand `kernel.error: {at_most: 1e-4}`: it names each layer and head where the kernel does something else, and by how much"
    if isinstance(error, MeasurementError):
        if re.match(r"\S+:\d+", str(error)):
            return "correct the spec at the place that the first line names, or the subject if it should have had what is asked for"
        return "look at the subject and its input: what the property asks for at that place could not be measured on them"
    return f"this is a fault of attncheck or of the model ({type(error).__name__}), not of the claim"


def _where(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{dim} {label}" for dim, label in where.items())
