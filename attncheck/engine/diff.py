"""What moved between two runs, or between the baselines of two git revisions: each place in units of the tolerance of its pair."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attncheck.core.baseline import FOLDER, Change, Environment, Output, Recording, changes, output_told, pair_tolerance, parse
from attncheck.core.definitions import AXES, Request
from attncheck.core.errors import AttncheckError, MeasurementError

Quantities = dict[str, Recording]
"""'attention.entropy of smollm2 (sdpa, float32) on manual' -> its values."""


@dataclass(frozen=True)
class Moved:
    """One quantity in which some place is beyond the tolerance."""

    quantity: str
    changes: list[Change]
    """Those beyond it, the most changed first."""
    places: int
    tolerance: tuple[float, float]
    """(rtol, atol)."""
    note: str = ""
    """What else differs: the environment, the model's output."""


@dataclass
class Difference:
    """Two runs, or two states of the baselines."""

    compared: int = 0
    moved: list[Moved] = field(default_factory=list)
    """The most changed first."""
    not_comparable: list[tuple[str, str]] = field(default_factory=list)
    only: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    outcomes: list[tuple[str, str, str]] = field(default_factory=list)
    """(test, outcome then, outcome now), of runs."""

    @property
    def same(self) -> bool:
        return not (self.moved or self.not_comparable or self.outcomes or any(self.only))


def diff(old: str, new: str, root: Path, *, rtol: float | None = None, atol: float | None = None) -> Difference:
    """Compare two files of --attn-json, or the baselines of two git revisions of the project ('' is the working tree).

    A tolerance that is not given is that of the pair of environments. Raises AttncheckError for what is neither, and for one of each.
    """
    sides = [_side(one, root) for one in (old, new)]
    if sides[0].kind != sides[1].kind:
        raise AttncheckError(f"{old} is {sides[0].kind} and {new} is {sides[1].kind}; compare two of one kind")
    before, after = sides
    found = Difference()
    pairs = {name: name for name in before.quantities.keys() & after.quantities.keys()}
    pairs |= _pairs_of_other_settings(before, after, pairs)
    for name, other in pairs.items():
        _compare(found, name, before.quantities[name], after.quantities[other], rtol, atol)
    found.only = (sorted(before.quantities.keys() - pairs.keys()), sorted(after.quantities.keys() - set(pairs.values())))
    found.moved.sort(key=lambda one: -one.changes[0].units)
    found.not_comparable.sort()
    for test in sorted(before.outcomes.keys() & after.outcomes.keys()):
        if before.outcomes[test] != after.outcomes[test]:
            found.outcomes.append((test, before.outcomes[test], after.outcomes[test]))
    return found


@dataclass(frozen=True)
class _Side:
    kind: str
    quantities: Quantities
    loosely: Mapping[str, str] = field(default_factory=dict)
    """Of a run: the names without dtype and device."""
    outcomes: Mapping[str, str] = field(default_factory=dict)


def _pairs_of_other_settings(before: _Side, after: _Side, paired: Mapping[str, str]) -> dict[str, str]:
    """What one run measured in another dtype or on another device than the other, where that leaves no doubt which is which."""

    def loose(side: _Side) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in side.quantities:
            if name not in paired.values() and name not in paired:
                found.setdefault(side.loosely.get(name, name), []).append(name)
        return found

    ours, theirs = loose(before), loose(after)
    return {ours[base][0]: theirs[base][0] for base in ours.keys() & theirs.keys() if len(ours[base]) == len(theirs[base]) == 1}


def _compare(found: Difference, name: str, old: Recording, new: Recording, rtol: float | None, atol: float | None) -> None:
    usual = pair_tolerance(old.environment, new.environment)
    tolerance = (usual[0] if rtol is None else rtol, usual[1] if atol is None else atol)
    if old.input_hash != new.input_hash:
        found.not_comparable.append((name, "the input is another"))
        return
    try:
        every = changes(old, new, *tolerance)
    except MeasurementError as error:
        found.not_comparable.append((name, str(error)))
        return
    found.compared += 1
    beyond = [change for change in every if change.units > 1]
    if beyond:
        notes = [] if old.environment == new.environment else [f"{old.environment} then, {new.environment} now"]
        notes += filter(None, [output_told(old, new)])
        found.moved.append(Moved(name, beyond, len(every), tolerance, "; ".join(notes)))


def _side(name: str, root: Path) -> _Side:
    path = Path(name) if Path(name).is_absolute() else root / name
    if name and path.is_file():
        return _run(path)
    if name and (path.suffix == ".json" or path.exists()):
        raise AttncheckError(f"there is no file {name}; allowed: a file that --attn-json wrote, or a git revision")
    return _Side("a state of the baselines", dict(_baselines(name, root)))


def _run(path: Path) -> _Side:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.get("format") != 2:
            raise AttncheckError(
                f"{path.name}: format {stored.get('format')!r}; allowed: 2, which --attn-json writes since it holds values"
            )
        whole = [one for one in stored["measurements"] if one.get("values") is not None]
        quantities = {_named(one): _recording(one, stored["environment"]) for one in whole}
        loosely = {_named(one): _named(one, ("attn_implementation",)) for one in whole}
        return _Side("a run", quantities, loosely, {case["test"]: str(case["outcome"]) for case in stored["cases"]})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AttncheckError(f"{path.name} is no file of --attn-json ({type(error).__name__}: {error})") from None


def _named(measured: Mapping[str, Any], axes: Sequence[str] = AXES) -> str:
    """With what tells subjects of one name apart; a device or dtype that the command line filled in is among it."""
    subject = measured["definition"]["subject"]
    told = ", ".join(str(subject[axis]) for axis in axes if subject.get(axis))
    name, on, feed = str(measured["name"]).partition(" on ")
    observable, _, arguments = str(measured["quantity"]).partition("{")
    quantity = Request(observable, "{" + arguments if arguments else "{}")
    return f"{quantity} of {name}{f' ({told})' if told else ''}{on}{feed}"


def _recording(measured: Mapping[str, Any], environment: Mapping[str, Any]) -> Recording:
    versions = {name: str(environment[name]).partition("+")[0] for name in ("torch", "transformers") if name in environment}
    device, _, _ = str(measured["device"]).partition(":")
    setting = Environment(device, str(measured.get("capability", "")), measured["dtype"], str(measured.get("implementation", "")), versions)
    return Recording(
        environment=setting,
        quantity=measured["quantity"],
        input_hash=str(measured.get("input_hash", "")),
        dims=tuple(measured["dims"]),
        labels=measured["labels"],
        values=measured["values"],
        output=Output.read(measured.get("output")),
    )


def _baselines(revision: str, root: Path) -> Iterator[tuple[str, Recording]]:
    """The recordings of a revision, or of the working tree for ''."""
    if revision:
        listed = _git(root, "ls-tree", "-r", "--name-only", "-z", "--end-of-options", revision, "--", FOLDER).split("\0")
        texts = {path: _git(root, "show", "--end-of-options", f"{revision}:./{path}") for path in listed if path.endswith(".json")}
    else:
        texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in sorted((root / FOLDER).glob("*/*.json"))}
    for path, text in texts.items():
        held = parse(text, f"{revision or 'the working tree'}:{path}")
        whose = f"{held.identity.property_name} of {held.identity.subject}" + (f" on {held.identity.input}" if held.identity.input else "")
        for one in held.recordings:
            setting = ", ".join(
                part for part in (one.environment.attn_implementation, one.environment.dtype, one.environment.device) if part
            )
            yield f"{one.quantity}: {whose} in {held.identity.spec} ({setting})", one


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, encoding="utf-8", check=False)
    except OSError as error:
        raise AttncheckError(f"git cannot be run: {error.strerror}") from error
    if done.returncode:
        told = done.stderr.strip().splitlines()
        raise AttncheckError(
            f"neither a file nor a revision of this project: {told[0] if told else arguments[-1]}; "
            "allowed: two files that --attn-json wrote, or two git revisions"
        )
    return done.stdout
