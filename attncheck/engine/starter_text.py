"""The text of a first spec, its claims checked before it is left behind, its baselines recorded, and the laws tried on an operator."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attncheck.core.baseline import NotComparable, Proposal, write
from attncheck.core.definitions import InputDefinition, SubjectDefinition
from attncheck.core.errors import AttncheckError, DoesNotApply, MeasurementError
from attncheck.core.paths import inside, is_explicit
from attncheck.engine.starter import Proposed, Starter, declined, measured, proposals

WIDTH = 116
PLACE = re.compile(r"^(?:\S*\.attn\.yaml:)?(?:\d+:)*\s*")
"""Where an error is, which a list of what was left out need not say: those lines are gone."""
CLAIMS: tuple[tuple[str, Any], ...] = (
    ("causal", "flag"),
    ("mask", ("bool", "additive")),
    ("gqa", True),
    ("normalised", True),
    ("nonnegative", True),
    ("linear_in_values", True),
    ("reference", "softmax"),
    ("differentiable", True),
)
"""Claims that are tried on an operator one after the other; each that no law of a short battery breaks is kept."""


@dataclass(frozen=True)
class Written:
    """What `attncheck init` left behind."""

    path: Path
    properties: tuple[str, ...]
    tests: int
    left_out: tuple[str, ...]
    """Properties that did not hold or could not be measured, each with the reason."""
    recorded: tuple[Path, ...]
    laws: str
    """What the laws say of an operator, or an empty text."""


def begin(
    name: str, target: Path, root: Path, *, operator: bool = False, force: bool = False, settings: Mapping[str, Any] | None = None
) -> Written:
    """Measure `name` (package:NAME, a directory, a hub name, module:function) and write a spec of it that passes now.

    `operator`: module:function, or a name, is an attention operator. `settings` are attn_implementation, dtype, device. Raises
    AttncheckError where the target exists, lies outside `root` or nothing can be measured; what was there before stays.
    """
    from attncheck.engine.measure import MeasureOptions

    path = inside(root, target)
    if path.exists() and not force:
        raise AttncheckError(f"{target} exists; name another file with --to, or overwrite it with --force")
    if not path.name.endswith(".attn.yaml"):
        raise AttncheckError(f"{target}: a spec's name ends in .attn.yaml")
    subject = _subject(name, operator, settings or {})
    found = measured(subject, MeasureOptions(root))
    claims, told = _laws(subject, root) if operator else ({}, "")
    offered, left_out = list(proposals(found)), [*declined(found), *(f"{observable}: {why}" for observable, why in found.refused.items())]
    if not offered:
        raise MeasurementError(f"nothing that a first spec claims holds of {name}: " + "; ".join(left_out))
    before = path.read_text(encoding="utf-8") if path.exists() else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            path.write_text(_text(name, found, offered, left_out, path.parent, claims, told), encoding="utf-8")
            recorded, tests, wrong = _judged(path, root)
            if not wrong:
                for proposal in recorded:
                    write(root, proposal)
                break
            # A claim that does not hold is no part of a spec that passes now.
            left_out += [f"{prop}: {why}" for prop, why in wrong.items()]
            offered = [proposed for proposed in offered if proposed.name not in wrong]
            if not offered:
                raise MeasurementError(f"nothing that a first spec claims holds of {name}: " + "; ".join(left_out))
    except BaseException:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(before, encoding="utf-8")
        raise
    return Written(path, tuple(one.name for one in offered), tests, tuple(left_out), tuple(one.identity.path for one in recorded), told)


def _subject(name: str, operator: bool, settings: Mapping[str, Any]) -> SubjectDefinition:
    given = {key: value for key, value in settings.items() if value is not None}
    label = label_of(name)
    if operator:
        return SubjectDefinition(label, "operator", {"name": name}, **given)
    factory = ":" in name and not name.startswith("package:")
    kind, options = ("python", {"factory": name}) if factory else ("pretrained", {"name": name})
    return SubjectDefinition(label, kind, options, **given)


def label_of(name: str) -> str:
    """What a subject is called: the last part of package:NAME, of a path or hub name, or of module:function."""
    last = name.removeprefix("package:").rpartition(":")[2].rstrip("/").rpartition("/")[2].lower()
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in last).strip("-") or "model"


def _judged(path: Path, root: Path) -> tuple[list[Proposal], int, dict[str, str]]:
    """Judge all: (the baselines to record, tests, property -> why it does not pass)."""
    from attncheck.engine.plan import plan
    from attncheck.engine.run import Run, RunOptions
    from attncheck.engine.store import new_run
    from attncheck.engine.vocabulary import vocabulary
    from attncheck.spec.loader import load

    cases = load(path, vocabulary(), root=root).cases
    run = Run(new_run(root), plan(cases), RunOptions(root, None, None, False))
    proposals: list[Proposal] = []
    wrong: dict[str, str] = {}
    try:
        for case in cases:
            try:
                verdict = run.judge(case)
            except NotComparable as error:
                proposals.append(error.proposal)
            except DoesNotApply:
                continue
            except AttncheckError as error:
                wrong.setdefault(case.property.name, PLACE.sub("", str(error).splitlines()[0]))
            else:
                if verdict.proposal is not None:
                    proposals.append(verdict.proposal)
                elif not verdict.passed:
                    wrong.setdefault(case.property.name, verdict.headline)
    finally:
        run.close()
    return proposals, len(cases), wrong


def _laws(subject: SubjectDefinition, root: Path) -> tuple[dict[str, Any], str]:
    """The claims that hold of an operator, and what the laws that follow from them said."""
    from attncheck.engine.measure import MeasureOptions, loaded_model
    from attncheck.laws.engine import verify

    operator = loaded_model(subject, MeasureOptions(root)).operator
    assert operator is not None
    claims: dict[str, Any] = {}
    for name, value in CLAIMS:
        tried = {**claims, name: value}
        if not verify(operator, tried, examples=2, budget=15, first=True).violations:
            claims = tried
    report = verify(operator, claims, examples=5, budget=30)
    told = f"{len(report.ran)} of {len(report.outcomes)} laws apply, {len(report.violations)} broken"
    broken = [f"{name}: {value}" for name, value in CLAIMS if name not in claims]
    return claims, told + (f"; not claimed, since a law breaks it: {', '.join(broken)}" if broken else "")


def _text(
    name: str, found: Starter, offered: list[Proposed], left_out: list[str], folder: Path, claims: Mapping[str, Any], told: str
) -> str:
    return "\n".join(_lines(name, found, offered, left_out, folder, claims, told)) + "\n"


def _lines(
    name: str, found: Starter, offered: list[Proposed], left_out: list[str], folder: Path, claims: Mapping[str, Any], told: str
) -> Iterator[str]:
    subject = found.subject
    yield "attncheck: 1"
    yield f"about: What is so of the attention in {name} now. Written by attncheck init from what it measured; edit it."
    yield ""
    yield "subjects:"
    options = dict(subject.options)
    source = options.get("name") or options.get("factory")
    if subject.kind == "pretrained" and is_explicit(str(source)):
        source = os.path.relpath(Path(str(source)).expanduser().resolve(), folder)
        source = source if is_explicit(source) else f"./{source}"
    settings = {"attn_implementation": subject.attn_implementation, "dtype": subject.dtype, "device": subject.device}
    more = "".join(f", {key}: {value}" for key, value in settings.items() if value and not (key == "dtype" and subject.kind == "operator"))
    if not claims:
        yield f"  {subject.name}: {{{subject.kind}: {quoted(str(source))}{more}}}"
    else:
        yield f"  {subject.name}:"
        yield from (f"    {line}" for line in f"{subject.kind}: {quoted(str(source))}{more}".split(", "))
        yield "    # What its author would say of it, as far as no law breaks it; laws follow from it."
        yield "    claims:"
        yield from (f"      {key}: {_claim(value)}" for key, value in claims.items())
    yield ""
    yield "inputs:"
    yield from (f"  {key}: {_input(definition)}" for key, definition in found.inputs.items())
    yield ""
    yield "expect:"
    for number, proposed in enumerate(offered):
        if number:
            yield ""
        yield f"  {proposed.name}:"
        yield from (f"    # {line}" for line in wrapped(proposed.said))
        yield from (f"    {line}" for line in proposed.lines)
        if proposed.inputs and set(proposed.inputs) != set(found.inputs):
            yield f"    inputs: [{', '.join(proposed.inputs)}]" if len(proposed.inputs) > 1 else f"    inputs: {proposed.inputs[0]}"
    if claims:
        yield ""
        yield "  obeys-its-laws:"
        yield from (f"    # {line}" for line in wrapped(f"With these claims {told}."))
        yield "    laws: all"
    if left_out:
        yield ""
        yield "# Left out, since it does not hold or cannot be measured:"
        yield from (f"#   {line}" for text in left_out for line in wrapped(text))


def _input(definition: InputDefinition) -> str:
    options = dict(definition.options)
    head = (
        next(iter(options.values()))
        if len(options) == 1
        else "{" + ", ".join(f"{key}: {_scalar(item)}" for key, item in options.items()) + "}"
    )
    parts = [f"{definition.kind}: {head}"]
    parts += [f"{key}: {getattr(definition, key)}" for key in ("length", "batch") if getattr(definition, key) is not None]
    if definition.padding:
        parts.append("padding: {" + ", ".join(f"{key}: {item}" for key, item in definition.padding.items()) + "}")
    return "{" + ", ".join(parts) + "}"


def _claim(value: Any) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list | tuple) else _scalar(value)


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def quoted(text: str) -> str:
    """A plain YAML scalar where it reads back as this text, else in single quotes."""
    import yaml

    try:
        plain = yaml.safe_load(f"[{text}]") == [text]
    except yaml.YAMLError:
        plain = False
    return text if plain and text.isprintable() else "'" + text.replace("'", "''") + "'"


def wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(" ".join(text.split()), WIDTH) or [""]
