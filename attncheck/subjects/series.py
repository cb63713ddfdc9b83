"""`checkpoints: ./run`: the checkpoints of one training as one subject, each measured in turn along the dim `step`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from attncheck.core import paths
from attncheck.core.errors import MeasurementError, Unavailable
from attncheck.core.evidence import LoadedSubject, SubjectSeries
from attncheck.core.fields import NAME_OR_PATH
from attncheck.core.registry import Complaint
from attncheck.subjects.kinds import subject_kind
from attncheck.subjects.loading import Loading
from attncheck.subjects.pretrained import files_of as files_of_one
from attncheck.subjects.tasks import Task

_WORD = re.compile(r"(?:step|checkpoint|ckpt|iteration|iter|epoch)s?[-_.=]?0*(\d{1,15})(?![a-z0-9])", re.IGNORECASE)
_NUMBER = re.compile(r"(?:^|[-_.])0*(\d{1,15})$")
_WILD = re.compile(r"[*?\[]")
NUMBERED = "a name such as checkpoint-100, step1000 or 1000"


class Checkpoint(BaseModel):
    """One entry of a list: where a checkpoint lies and which step it is of."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: Annotated[int, Field(ge=0, strict=True)]
    source: str
    revision: str | None = None


@dataclass(frozen=True)
class Found:
    """A checkpoint of a series: its step, and what `pretrained` takes for it."""

    step: int
    source: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.revision or self.source


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name: the number after step, checkpoint, iter, ..., else the number at its end; None where none is."""
    found = _WORD.search(name) or _NUMBER.search(name)
    return int(found[1]) if found else None


def check(arguments: Mapping[str, Any]) -> Iterator[Complaint]:
    """What is wrong with a list as far as no folder tells."""
    source, revisions = arguments["source"], arguments.get("revisions")
    if isinstance(source, list):
        if not source:
            yield Complaint("source", "checkpoints: an empty list", "a folder, a glob, or a list of checkpoints")
        if revisions:
            yield Complaint(
                "revisions", "checkpoints: revisions beside a list", "revisions of one hub name, or a list of {step, source, revision}"
            )
    if revisions is not None and not revisions:
        yield Complaint("revisions", "checkpoints: revisions: an empty list", "branches or tags with a step in their names, as step1000")
    named = [(item if isinstance(item, str) else item["source"], item) for item in source] if isinstance(source, list) else []
    steps: dict[int, str] = {}
    for name, item in [*named, *((revision, revision) for revision in revisions or ())]:
        where = "revisions" if revisions else "source"
        step = step_of(Path(name).name) if isinstance(item, str) else int(item["step"])
        if step is None:
            yield Complaint(where, f"checkpoints: {name!r} says no step", f"{NUMBERED}, or {{step: 100, source: {name}}}")
        elif step in steps:
            yield Complaint(where, f"checkpoints: step {step} twice, {steps[step]!r} and {name!r}", "each step once")
        else:
            steps[step] = name


def found_in(subject: str, root: Path, arguments: Mapping[str, Any]) -> tuple[list[Found], list[str]]:
    """The checkpoints in the order of their steps, and notes. Needs no torch.

    Raises Unavailable where the folder is not there, MeasurementError where nothing is found, a name says no step, or two say the same.
    """
    complaints = [complaint.found for complaint in check(arguments)]
    if complaints:
        raise MeasurementError(f"{subject}: {'; '.join(complaints)}")
    source, revisions = arguments["source"], arguments.get("revisions")
    notes: list[str] = []
    if isinstance(source, list):
        listed = [item if isinstance(item, Mapping) else {"step": step_of(Path(item).name), "source": item} for item in source]
        found = [Found(int(item["step"]), item["source"], item.get("revision")) for item in listed]
    elif revisions:
        found = [Found(step_of(revision) or 0, source, revision) for revision in revisions]
    else:
        found, notes = _folders(subject, root, source)
    wanted = arguments.get("steps")
    if wanted is not None:
        missing = sorted(set(wanted) - {one.step for one in found})
        if missing:
            raise MeasurementError(f"{subject}: no checkpoint of step {_listed(missing)}; there are {_listed(one.step for one in found)}")
        found = [one for one in found if one.step in wanted]
    return sorted(found, key=lambda one: one.step), notes


def _folders(subject: str, root: Path, source: str) -> tuple[list[Found], list[str]]:
    place = root / Path(source).expanduser()
    if _WILD.search(source):
        anchor = Path(place.anchor)
        folders = [path for path in anchor.glob(str(place.relative_to(anchor))) if path.is_dir()]
        if not folders:
            raise MeasurementError(f"{subject}: no folder matches {source}")
        unnumbered = [path for path in folders if step_of(path.name) is None]
        if unnumbered:
            raise MeasurementError(f"{subject}: {_names(unnumbered)} of {source} says no step; allowed: {NUMBERED}")
    elif not place.is_dir():
        if not paths.is_explicit(source) and source.count("/") <= 1:
            raise Unavailable(
                f"{subject}: there is no folder {place}",
                f"put the checkpoints there, or name revisions of the hub's {source}: revisions: [step1000]",
            )
        raise Unavailable(f"{subject}: there is no folder {place}", "put the checkpoints there, or correct the path")
    else:
        inside = sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
        folders = [path for path in inside if step_of(path.name) is not None]
        unnumbered = [path for path in inside if path not in folders and (path / "config.json").is_file()]
        if not folders:
            also = f"; {_names(unnumbered)} has no step in its name" if unnumbered else ""
            raise MeasurementError(f"{subject}: no checkpoint in {place}{also}; allowed: folders with {NUMBERED}")
        if unnumbered:
            note = [f"{_names(unnumbered)} has no step in its name and is left out"]
            return _distinct(subject, folders), note
    return _distinct(subject, folders), []


def _distinct(subject: str, folders: Sequence[Path]) -> list[Found]:
    steps: dict[int, Path] = {}
    for folder in sorted(folders):
        step = step_of(folder.name)
        if step is None:
            continue
        if step in steps:
            raise MeasurementError(f"{subject}: {steps[step]} and {folder} are both of step {step}")
        if not (folder / "config.json").is_file():
            raise MeasurementError(f"{subject}: {folder} has no config.json: no checkpoint in transformers' format, or not yet complete")
        steps[step] = folder
    return [Found(step, str(folder)) for step, folder in steps.items()]


def files_of(arguments: Mapping[str, Any], root: Path) -> list[Path] | None:
    """All files of all checkpoints; None where one of them cannot be told."""
    try:
        found, _ = found_in("", root, arguments)
    except (MeasurementError, Unavailable):
        return None
    together: list[Path] = []
    for one in found:
        options = {"name": one.source, "revision": one.revision, "trust_remote_code": arguments.get("trust_remote_code")}
        files = files_of_one(options, root)
        if files is None:
            return None
        together += files
    return together


@subject_kind("checkpoints", check=check, files=files_of)
def checkpoints(
    loading: Loading,
    *,
    source: Annotated[str | list[str | Checkpoint], NAME_OR_PATH],
    revisions: list[str] | None = None,
    steps: list[int] | None = None,
    task: Task | None = None,
    trust_remote_code: bool = False,
) -> SubjectSeries:
    """The checkpoints of one training, measured one at a time along the dim `step`.

    `source` is a folder whose subfolders are checkpoints in transformers' format with the step in their names (checkpoint-100, step1000),
    a glob of such folders, a list of folders or of {step, source, revision}, or a hub name whose `revisions` are the checkpoints. `steps`
    chooses some of them. `task` and `trust_remote_code` are those of `pretrained`. One checkpoint is in memory at a time. Losses that
    transformers' Trainer noted (trainer_state.json) are the observables training.loss and training.accuracy. With `weights: random` each
    checkpoint's architecture is initialised from the seed and no trained weight is read.
    """
    from attncheck.subjects.checkpoints import load_checkpoint

    name = loading.definition.name
    if loading.definition.seed and not loading.random:
        raise MeasurementError(
            f"{name}: seed {loading.definition.seed} changes nothing about checkpoints that exist; make each run a subject of its own"
        )
    if trust_remote_code and not loading.trust_remote_code:
        raise MeasurementError(
            f"{name}: the spec asks to run code from its checkpoints; the command line must allow it too (--attn-trust-remote-code)"
        )
    plain = [item if isinstance(item, str) else item.model_dump() for item in source] if isinstance(source, list) else source
    found, notes = found_in(name, loading.root, {"source": plain, "revisions": revisions, "steps": steps})
    by_step = {one.step: one for one in found}

    def opened(step: int) -> LoadedSubject:
        one = by_step[step]
        return load_checkpoint(loading, one.source, revision=one.revision, task=task, trust_remote_code=trust_remote_code)

    return SubjectSeries(
        loading.definition,
        steps=list(by_step),
        open=opened,
        name_of=lambda step: str(by_step[step]),
        log={} if loading.random else trainer_log(loading.root, found),
        log_missing="its last checkpoint has no trainer_state.json with it",
        notes=notes,
    )


def trainer_log(root: Path, found: Sequence[Found]) -> dict[str, dict[int, float]]:
    """'train.loss', 'test.loss', 'test.accuracy' at each step, the last note up to it, as transformers' Trainer keeps them."""
    place = root / Path(found[-1].source).expanduser() / "trainer_state.json"
    try:
        history = json.loads(place.read_text(encoding="utf-8"))["log_history"]
        noted = [(int(entry["step"]), entry) for entry in history]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    log: dict[str, dict[int, float]] = {}
    for name, theirs in (("train.loss", "loss"), ("test.loss", "eval_loss"), ("test.accuracy", "eval_accuracy")):
        values = sorted((step, float(entry[theirs])) for step, entry in noted if isinstance(entry.get(theirs), int | float))
        for one in found:
            until = [value for step, value in values if step <= one.step]
            if until and math.isfinite(until[-1]):
                log.setdefault(name, {})[one.step] = until[-1]
    return log


def _names(folders: Sequence[Path]) -> str:
    more = f" (and {len(folders) - 3} more)" if len(folders) > 3 else ""
    return ", ".join(repr(path.name) for path in folders[:3]) + more


def _listed(steps: Any) -> str:
    numbers = sorted(steps)
    return ", ".join(map(str, numbers[:20])) + (f" and {len(numbers) - 20} more" if len(numbers) > 20 else "") or "none"
