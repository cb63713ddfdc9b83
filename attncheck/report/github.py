"""What GitHub Actions shows of a run: an annotation at the spec's line for each failure, and a summary of the job in Markdown."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

MOST_ANNOTATIONS = 10
"""GitHub shows ten errors a step."""
MOST_TOLD = 50
"""Failures that the summary spells out."""
PLACES = 3
BAD = ("failed", "error", "warning")
_ORDER = ("failed", "error", "warning", "skipped", "passed")


def outcome(result: Mapping[str, Any]) -> str:
    """pytest's, and "warning" for what passed though it does not hold: a property of level warn."""
    told = str(result["outcome"])
    return "warning" if told == "passed" and result.get("holds") is False else told


def workflow_commands(results: Iterable[Mapping[str, Any]], refused: Iterable[Mapping[str, Any]] = ()) -> Iterator[str]:
    """Workflow commands, `::error file=...,line=...,col=...,title=...::text`: failures and errors, then what only warns."""
    told = sorted((one for one in results if outcome(one) in BAD), key=lambda one: _ORDER.index(outcome(one)))
    commands = [_refused(one) for one in refused] + [_annotation(one) for one in told]
    yield from commands[:MOST_ANNOTATIONS]
    if len(commands) > MOST_ANNOTATIONS:
        yield f"::notice title=attncheck::{len(commands) - MOST_ANNOTATIONS} more in the job's summary"


def _annotation(result: Mapping[str, Any]) -> str:
    path, line, column = (*str(result.get("place") or result["test"].partition("::")[0]).rsplit(":", 2), "1", "1")[:3]
    where = {"file": path, "line": line, "col": column, "title": result["test"].rpartition("::")[2]}
    level = "warning" if outcome(result) == "warning" else "error"
    return f"::{level} {','.join(f'{name}={_escaped(value, True)}' for name, value in where.items())}::{_escaped(_headline(result))}"


def _refused(one: Mapping[str, Any]) -> str:
    """A malformed spec; the first mistake's line is the annotation's."""
    lines = str(one["message"]).splitlines()
    first = next((line for line in lines if line.startswith(f"{one['file']}:")), "")
    line = first.removeprefix(f"{one['file']}:").partition(":")[0]
    place = f"line={line}," if line.isdigit() else ""
    return f"::error file={_escaped(str(one['file']), True)},{place}title=not a spec::{_escaped(chr(10).join(lines))}"


def _escaped(text: str, is_property: bool = False) -> str:
    for raw in "%\r\n" + (":," if is_property else ""):
        text = text.replace(raw, f"%{ord(raw):02X}")
    return text


def summary(results: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> str:
    """The run in Markdown: counts, each failure with its claim and worst places, then what passed, folded away."""
    counts = Counter(outcome(one) for one in results)
    counted = ", ".join(f"{counts[name]} {name}" for name in _ORDER if counts[name])
    bad = [one for one in results if outcome(one) in BAD]
    ran = ", ".join(f"{name} {version}" for name, version in environment.items() if version)
    lines = ["## Attention specs", "", f"{counted or 'nothing ran'}. {_text(ran)}", ""]
    for one in refused:
        lines += [f"**{_text(str(one['file']))}** is not a spec:", "", "```text", str(one["message"]).replace("```", "'''"), "```", ""]
    for one in sorted(bad, key=lambda one: _ORDER.index(outcome(one)))[:MOST_TOLD]:
        lines += [f"- **{outcome(one)}** `{_code(one['test'])}`  ", f"  {_text(_headline(one))}  "]
        if one.get("claim"):
            lines += [f"  claim: {_text(one['claim'])}  "]
        places = [_place(offender) for offender in one.get("offenders", ())[:PLACES]]
        lines += [f"  worst: {_text('; '.join(places))}  "] if places and any(places) else []
        lines += [f"  picture: `{_code(one['picture'])}`"] if one.get("picture") else []
    if len(bad) > MOST_TOLD:
        lines += [f"- and {len(bad) - MOST_TOLD} more"]
    fine = [one for one in results if outcome(one) not in BAD]
    if fine:
        lines += ["", f"<details><summary>{len(fine)} passed or skipped</summary>", "", "| test | outcome | |", "|---|---|---|"]
        lines += [f"| `{_code(one['test'])}` | {outcome(one)} | {_text(_headline(one))} |" for one in fine]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _headline(result: Mapping[str, Any]) -> str:
    return str(result.get("headline") or result["outcome"])


def _place(offender: Mapping[str, Any]) -> str:
    where = ", ".join(f"{dim} {label}" for dim, label in offender["where"].items())
    observed = offender["observed"]
    said = offender["note"] or ("" if observed is None else f"{observed:.6g}")
    return f"{where}: {said}" if where else said


def _text(text: str) -> str:
    """As text in a table's cell: no tags, no new column, no emphasis by accident."""
    plain = html.escape(" ".join(text.split()), quote=False)
    for mark in "\\|*_`[]":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def _code(text: str) -> str:
    return " ".join(str(text).split()).replace("`", "'").replace("|", "\\|")
