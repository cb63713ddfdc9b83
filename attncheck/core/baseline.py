"""Baselines: recorded numbers that later runs are held against. The file format, the nearest environment, the tolerance of a pair.

    baselines/<spec stem>/<property>-<subject>[-<input>].json

One file belongs to one property on one subject and input and holds a recording for each environment in which it was recorded: values
rounded to what they resolve, a line for each layer. A writer takes the project's lock, reads what is there, replaces the recording of its
own environment or adds one, and renames a whole file into place: nothing else is deleted, and no reader sees half a file.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from attncheck.core.errors import AttncheckError, MeasurementError
from attncheck.core.paths import inside

FORMAT = 1
FOLDER = "baselines"
MOST_VALUES = 20_000
"""A baseline is read by people: what is larger is to be reduced first."""
PROJECTIONS = 16
OUTPUT_DIGITS = 9
PACKAGES = ("torch", "transformers")
HALF = ("bfloat16", "float16")
FINEST_FIRST = ("float64", "float32", "bfloat16", "float16")

State = Literal["missing", "incomparable", "moved", "unchanged"]
Done = Literal["recorded", "updated", "unchanged"]


@dataclass(frozen=True)
class Environment:
    """What besides the model decides the numbers."""

    device: str
    """Type: cpu, cuda, mps."""
    capability: str
    """Of the device: 9.0, AVX512."""
    dtype: str
    attn_implementation: str
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Recordings of one file differ in it. Versions do not count: a recording is replaced, not kept for every release."""
        return self.device, self.capability, self.dtype, self.attn_implementation

    def __str__(self) -> str:
        parts = [self.dtype, self.attn_implementation, " ".join(part for part in (self.device, self.capability) if part)]
        return ", ".join([*(part for part in parts if part), *(f"{name} {version}" for name, version in self.versions.items())])


@dataclass(frozen=True)
class Output:
    """What stands for a model's whole output (`capture/output.py`)."""

    norm: float
    projections: tuple[float, ...]

    def change(self, other: Output) -> float:
        """About |other - this| / |this|, from the projections: within a factor of two, nearly always."""
        squares = [(b - a) ** 2 for a, b in zip(self.projections, other.projections, strict=True)]
        gap = math.sqrt(sum(squares) / len(squares))
        return gap / self.norm if self.norm else (math.inf if gap else 0.0)

    def stored(self) -> dict[str, Any]:
        """JSON-like, to the digits that float32 resolves."""
        return {"norm": rounded(self.norm, OUTPUT_DIGITS), "projections": [rounded(one, OUTPUT_DIGITS) for one in self.projections]}

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> Output | None:
        """Raises KeyError, TypeError or ValueError on what is none."""
        if stored is None:
            return None
        found = cls(float(stored["norm"]), tuple(map(float, stored["projections"])))
        if len(found.projections) != PROJECTIONS:
            raise ValueError(f"{len(found.projections)} projections of an output, not {PROJECTIONS}")
        return found


@dataclass(frozen=True)
class Recording:
    """The values of one environment, in C order over `dims`; None where there is no such place."""

    environment: Environment
    quantity: str
    """What was measured: observable, selection, reduction, relation."""
    input_hash: str
    dims: tuple[str, ...]
    labels: Mapping[str, Sequence[Any]]
    values: Sequence[float | None]
    output: Output | None = None
    """Of the model, where the quantity was measured in a forward pass."""

    def places(self) -> Iterator[dict[str, Any]]:
        """The coordinates of each value, in the values' order."""
        for labels in product(*(self.labels[dim] for dim in self.dims)):
            yield dict(zip(self.dims, labels, strict=True))


@dataclass(frozen=True)
class Identity:
    """Whose baseline it is. Axis values belong to the environment."""

    spec: str
    """Relative to the project, with forward slashes."""
    property_name: str
    subject: str
    input: str | None = None

    @property
    def path(self) -> Path:
        """Relative to the project."""
        stem = Path(self.spec).name.removesuffix(".yaml").removesuffix(".yml").removesuffix(".attn")
        name = "-".join(part for part in (self.property_name, self.subject, self.input) if part)
        return Path(FOLDER, _safe(stem), f"{_safe(name)}.json")


@dataclass(frozen=True)
class Baseline:
    """A baseline file."""

    identity: Identity
    recordings: tuple[Recording, ...] = ()

    def nearest(self, environment: Environment) -> Recording | None:
        """The recording to hold an environment against: the same dtype counts most, then device, capability, implementation, versions.

        Among other dtypes the finest comes first, since its rounding is the smallest.
        """
        found = sorted(self.recordings, key=lambda recording: _distance(recording.environment, environment))
        return found[0] if found else None

    def with_(self, recording: Recording) -> Baseline:
        """With the recording in place of that of its own environment, or added."""
        kept = list(self.recordings)
        for number, other in enumerate(kept):
            if other.environment.key == recording.environment.key:
                kept[number] = recording
                break
        else:
            kept.append(recording)
        return replace(self, recordings=tuple(kept))


@dataclass(frozen=True)
class Proposal:
    """What an update would write, and why."""

    identity: Identity
    recording: Recording
    state: State


class NotComparable(MeasurementError):
    """A baseline of something else: another input, selection or shape. Neither moved nor unchanged; an update records it anew."""

    def __init__(self, message: str, proposal: Proposal) -> None:
        self.proposal = proposal
        super().__init__(message)


@dataclass(frozen=True)
class Change:
    """One place in two recordings."""

    where: Mapping[str, Any]
    old: float
    new: float
    units: float
    """|new - old| in units of the tolerance; above 1 it moved."""


def versions() -> dict[str, str]:
    """Of the libraries that decide the numbers, from the installed metadata."""
    from importlib import metadata

    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return found


def pair_tolerance(recorded: Environment, now: Environment) -> tuple[float, float]:
    """(rtol, atol) of a pair of environments (NUMERICS, finding 16): |new - old| <= atol + rtol |old|.

    1e-9 between float64, 1e-5 between float32; 3e-2 where one is a half precision, save where all but the versions is the same. atol equals
    rtol, but is a tenth of it in half precision.
    """
    pair = {recorded.dtype, now.dtype}
    if pair & set(HALF) and recorded.key != now.key:
        return 3e-2, 3e-3
    rtol = 1e-9 if pair == {"float64"} else 1e-5
    return rtol, rtol


def changes(old: Recording, new: Recording, rtol: float, atol: float) -> list[Change]:
    """Every place of two recordings, the most changed first. Raises MeasurementError where their places differ."""
    if (old.dims, _plain(old.labels)) != (new.dims, _plain(new.labels)):
        raise MeasurementError(f"places differ: {_sizes(old)} then, {_sizes(new)} now")
    found = []
    for where, a, b in zip(old.places(), old.values, new.values, strict=True):
        if a is None and b is None:
            continue
        a, b = (math.nan if value is None else value for value in (a, b))
        gap, allowed = (0.0, 1.0) if a == b else (abs(b - a), atol + rtol * abs(a))
        units = gap / allowed if allowed and math.isfinite(allowed) and not math.isnan(gap) else math.inf
        found.append(Change(where, a, b, units))
    return sorted(found, key=lambda change: -change.units)


def output_told(old: Recording, new: Recording) -> str:
    """Whether the model's output moved as well, in words; empty where one of the two did not keep it."""
    if old.output is None or new.output is None:
        return ""
    change = old.output.change(new.output)
    if change == 0:
        return "the model's output is as recorded, to the last digit kept"
    size = f"by about {change:.1g} of its norm"
    # Of the pair: what another dtype or kernel does to an output by rounding alone.
    within = change <= pair_tolerance(old.environment, new.environment)[0]
    return f"the model's output moved {size}, no more than rounding" if within else f"the model's output moved as well, {size}"


def rounded(value: float, digits: int) -> float:
    """To significant digits."""
    return float(f"{value:.{digits - 1}e}") if math.isfinite(value) else value


def digits_of(resolution: float) -> int:
    """Significant digits that keep rounding a tenth of the resolution or less."""
    return min(17, max(3, math.ceil(-math.log10(resolution)) + 2)) if resolution > 0 else 17


def read(root: Path, identity: Identity) -> Baseline | None:
    """The baseline, or None where there is none. Raises AttncheckError on a file that is damaged or another's."""
    path = inside(root, identity.path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = parse(text, str(identity.path))
    if found.identity != identity:
        other = found.identity
        whose = f"{other.property_name} of {other.subject}" + (f" on {other.input}" if other.input else "")
        raise AttncheckError(
            f"{identity.path} is the baseline of {whose} in {other.spec}: rename the spec, property or subject of one of them, "
            "or, if the spec was renamed, see `attncheck baselines`"
        )
    return found


def parse(text: str, name: str) -> Baseline:
    """A baseline from its text. Raises AttncheckError, which calls it `name`."""
    try:
        stored = json.loads(text)
        if stored["attncheck_baseline"] != FORMAT:
            raise AttncheckError(f"{name}: baseline format {stored['attncheck_baseline']!r}; this version reads {FORMAT}")
        identity = Identity(stored["spec"], stored["property"], stored["subject"], stored["input"])
        return Baseline(identity, tuple(_recording(one) for one in stored["recordings"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AttncheckError(
            f"{name} is no baseline ({type(error).__name__}: {error}); a merge conflict? "
            "Restore it from git, or remove it and record it anew"
        ) from None


def text_of(baseline: Baseline) -> str:
    """The file: small JSON in which a line of a diff names its place."""
    identity = baseline.identity
    head = {
        "attncheck_baseline": FORMAT,
        "spec": identity.spec,
        "property": identity.property_name,
        "subject": identity.subject,
        "input": identity.input,
    }
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    blocks = ",\n".join(_block(recording) for recording in baseline.recordings)
    return "{\n" + "\n".join(lines) + '\n "recordings": [\n' + blocks + "\n ]\n}\n"


def write(root: Path, proposal: Proposal) -> Done:
    """Record or update under the project's lock. Only the recording of the proposal's own environment is touched."""
    from filelock import FileLock

    path = inside(root, proposal.identity.path)
    lock = inside(root, Path(".attncheck", "baselines.lock"))
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(lock)):
        held = read(root, proposal.identity) or Baseline(proposal.identity)
        made = held.with_(proposal.recording)
        if made == held:
            return "unchanged"
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{path.name}.*.tmp"):  # of a writer that was killed: the lock is ours
            left.unlink(missing_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(text_of(made), encoding="utf-8")
        os.replace(temporary, path)
    known = {recording.environment.key for recording in held.recordings}
    return "updated" if proposal.recording.environment.key in known or proposal.state != "missing" else "recorded"


def files(root: Path) -> list[Path]:
    """All baseline files of a project, relative to it."""
    folder = root / FOLDER
    return sorted(path.relative_to(root) for path in folder.glob("*/*.json")) if folder.is_dir() else []


def _distance(recorded: Environment, now: Environment) -> tuple[Any, ...]:
    fineness = FINEST_FIRST.index(recorded.dtype) if recorded.dtype in FINEST_FIRST else len(FINEST_FIRST)
    names = {*recorded.versions, *now.versions}
    return (
        recorded.dtype != now.dtype,
        fineness,
        recorded.device != now.device,
        recorded.capability != now.capability,
        recorded.attn_implementation != now.attn_implementation,
        sum(recorded.versions.get(name) != now.versions.get(name) for name in names),
    )


def _block(recording: Recording) -> str:
    environment = recording.environment
    about: dict[str, Any] = {
        "environment": {**environment.__dict__, "versions": dict(environment.versions)},
        "quantity": recording.quantity,
        "input_hash": recording.input_hash,
        "dims": list(recording.dims),
        "labels": _plain(recording.labels),
    }
    if recording.output is not None:
        about["output"] = recording.output.stored()
    lines = [f"   {json.dumps(name)}: {json.dumps(value)}," for name, value in about.items()]
    rows = [f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in _rows(recording).items()]
    return "  {\n" + "\n".join(lines) + '\n   "values": {\n' + ",\n".join(rows) + "\n   }\n  }"


def _rows(recording: Recording) -> dict[str, Any]:
    """'sample 0, layer 3' -> its values, nested over the dims that are finer than a layer."""
    dims = recording.dims
    split = dims.index("layer") + 1 if "layer" in dims else max(len(dims) - 1, 0)
    outer, inner = dims[:split], dims[split:]
    size = math.prod(len(recording.labels[dim]) for dim in inner)
    rows = {}
    for number, labels in enumerate(product(*(recording.labels[dim] for dim in outer))):
        name = ", ".join(f"{dim} {label}" for dim, label in zip(outer, labels, strict=True)) or "value"
        flat = [_stored(value) for value in recording.values[number * size : (number + 1) * size]]
        rows[name] = _nested(flat, [len(recording.labels[dim]) for dim in inner])
    return rows


def _nested(flat: list[Any], sizes: Sequence[int]) -> Any:
    if not sizes:
        return flat[0]
    step = math.prod(sizes[1:])
    return [_nested(flat[i * step : (i + 1) * step], sizes[1:]) for i in range(sizes[0])]


def _recording(stored: Mapping[str, Any]) -> Recording:
    dims, labels = tuple(stored["dims"]), stored["labels"]
    values = [float(value) if value is not None else None for value in _flat(list(stored["values"].values()))]
    output = Output.read(stored.get("output"))
    recording = Recording(Environment(**stored["environment"]), stored["quantity"], stored["input_hash"], dims, labels, values, output)
    if len(values) != math.prod(len(labels[dim]) for dim in dims):
        raise ValueError(f"{len(values)} values for {_sizes(recording)}")
    if list(_rows(recording)) != list(stored["values"]):
        raise ValueError("the rows of values are not those that dims and labels name")
    return recording


def _flat(nested: Any) -> Iterator[Any]:
    for item in nested:
        if isinstance(item, list):
            yield from _flat(item)
        else:
            yield item


def _stored(value: float | None) -> Any:
    """JSON has no infinity: it is written as text, which float() reads."""
    return value if value is None or math.isfinite(value) else str(value)


def _plain(labels: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {dim: list(values) for dim, values in labels.items()}


def _sizes(recording: Recording) -> str:
    return ", ".join(f"{len(recording.labels[dim])} {dim}" for dim in recording.dims) or "one number"


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"
