"""The run folder: one record per pass, shared by every process of a run.

    .attncheck/runs/<run id>/
        <pass>.json           what was asked, what failed and why; written last, so that it vouches for the file beside it
        <pass>.safetensors    the measurements, by request key
        <pass>.lock           held while the pass is measured
        <pass>.started        there only while it is measured: left behind by a process that was killed
        *.alive               held by each process of the run, so that nobody prunes it

Locks are the operating system's: a killed process gives its own back. Whoever comes first measures what the plan has for that
pass; the others wait at the lock and read.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.definitions import PassKey, Request
from attncheck.core.errors import MeasurementError
from attncheck.core.paths import inside
from attncheck.engine.faults import Fault

if TYPE_CHECKING:
    import xarray as xr

ATTEMPTS = 2
"""How many processes may die while they measure one pass before its properties are told so: one killed for memory may fit alone."""
ABOUT = ("dtype", "device", "implementation", "input_hash")
"""Attributes of a measurement that belong to its whole pass."""
KEPT = 5
"""Run folders that pruning leaves."""
GRACE = 60.0
"""Seconds in which a new run folder may still be without its first *.alive file."""


@dataclass
class Record:
    """What is known of one pass: the values lie in the file beside it."""

    name: str = ""
    """'smollm2 on manual', for people."""
    definition: dict[str, Any] = field(default_factory=dict)
    """The content that the key was made of."""
    about: dict[str, Any] = field(default_factory=dict)
    """What ran in the end: dtype, device, implementation, hash of the input."""
    answered: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Request key -> a summary of its values: sizes of its dims, min, median, max."""
    faults: dict[str, Fault] = field(default_factory=dict)
    """Request key -> why this request alone failed."""
    failure: Fault | None = None
    """Why the whole pass failed."""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cached: int = 0
    """How many of the answers came from an earlier run."""

    def missing(self, requests: Iterable[Request]) -> list[Request]:
        """The requests that are neither answered nor known to fail."""
        if self.failure is not None:
            return []
        known = {*self.answered, *self.faults}
        return [request for request in requests if request.key not in known]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "definition": self.definition,
            "about": self.about,
            "answered": self.answered,
            "faults": {key: fault.to_json() for key, fault in self.faults.items()},
            "failure": self.failure.to_json() if self.failure else None,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
            "cached": self.cached,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Record:
        return cls(
            stored["name"],
            dict(stored["definition"]),
            dict(stored["about"]),
            dict(stored["answered"]),
            {key: Fault.from_json(fault) for key, fault in stored["faults"].items()},
            Fault.from_json(stored["failure"]) if stored["failure"] else None,
            list(stored["notes"]),
            float(stored["seconds"]),
            int(stored["cached"]),
        )


@dataclass
class Outcome:
    """What a measurement hands back to the store."""

    values: Mapping[str, xr.Dataset]
    faults: Mapping[str, Fault] = field(default_factory=dict)
    notes: Sequence[str] = ()
    cached: int = 0
    """How many of the values were kept from an earlier run."""


Measure = Callable[[PassKey, list[Request]], Outcome]


class Store:
    """A run folder. Cheap to make: nothing is written before the first measurement."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._alive: Any = None

    def record(self, pass_key: PassKey) -> Record | None:
        """The record of a pass, or None where nobody has finished it."""
        try:
            return Record.from_json(json.loads(self._path(pass_key, "json").read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def values(self, pass_key: PassKey) -> dict[str, xr.Dataset]:
        from attncheck.core.measurement import load

        return load(self._path(pass_key, "safetensors"))

    def ensure(self, pass_key: PassKey, requests: Sequence[Request], measure: Measure) -> Record:
        """The record of a pass with all requests answered or failed; measures what is missing, once among all processes."""
        record = self.record(pass_key)
        if record is not None and not record.missing(requests):
            return record
        from filelock import FileLock

        self.open()
        with FileLock(str(self._path(pass_key, "lock"))):
            record = self.record(pass_key) or Record(str(pass_key), _definition(pass_key))
            missing = record.missing(requests)
            if missing:
                self._measure(pass_key, missing, record, measure)
                self._write(pass_key, record)
            return record

    def _measure(self, pass_key: PassKey, missing: list[Request], record: Record, measure: Measure) -> None:
        started = self._path(pass_key, "started")
        died = started.read_text(encoding="utf-8").splitlines() if started.exists() else []
        if len(died) >= ATTEMPTS:
            record.failure = Fault.of(
                MeasurementError(
                    f"{len(died)} processes ended without a word while they measured {pass_key} (process {', '.join(died)}); "
                    "out of memory, killed, or a crash in native code"
                )
            )
            return
        started.write_text("\n".join([*died, str(os.getpid())]), encoding="utf-8")
        begun = time.monotonic()
        try:
            outcome = measure(pass_key, missing)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # anything else that ends the set-up of a test leaves pytest's fixtures broken for all that follow
            record.failure = Fault.of(error)
        else:
            self._add(pass_key, record, outcome, missing)
        finally:
            # Reached on an interrupt too; only a process that is killed leaves the mark behind.
            started.unlink(missing_ok=True)
        record.seconds += time.monotonic() - begun

    def _add(self, pass_key: PassKey, record: Record, outcome: Outcome, missing: list[Request]) -> None:
        from attncheck.core.measurement import save

        values = dict(outcome.values)
        if values:
            earlier = self.values(pass_key) if record.answered else {}
            save(self._path(pass_key, "safetensors"), {**earlier, **values})
        record.answered.update({key: _summary(data) for key, data in values.items()})
        for data in values.values():
            record.about.update({name: data.attrs[name] for name in ABOUT if name in data.attrs})
        record.faults.update(outcome.faults)
        record.cached += outcome.cached
        record.notes += [note for note in outcome.notes if note not in record.notes]
        for request in record.missing(missing):
            record.faults[request.key] = Fault.of(MeasurementError(f"measuring {pass_key} gave no value for {request}"))

    def _write(self, pass_key: PassKey, record: Record) -> None:
        path = self._path(pass_key, "json")
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(record.to_json(), indent=1, default=str), encoding="utf-8")
        os.replace(temporary, path)

    def _path(self, pass_key: PassKey, suffix: str) -> Path:
        return self.folder / f"{pass_key.key}.{suffix}"

    def open(self) -> None:
        """Make the folder, say that this process uses it, and remove old ones. Raises MeasurementError where it cannot be written."""
        if self._alive is not None:
            return
        from filelock import FileLock

        try:
            fresh = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._alive = FileLock(str(self.folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.alive"))
            self._alive.acquire()
            if fresh:
                with contextlib.suppress(FileExistsError), open(self.folder.parent.parent / ".gitignore", "x", encoding="utf-8") as ignore:
                    ignore.write("*\n")
                prune(self.folder.parent)
        except OSError as error:
            self._alive = None
            raise MeasurementError(
                f"{error.strerror or error}: .attncheck/runs/{self.folder.name} under the root directory, where a run keeps what it "
                "measures, cannot be written; make it so, or name another root directory with --rootdir"
            ) from error

    def close(self) -> None:
        if self._alive is not None:
            self._alive.release()
            with contextlib.suppress(OSError):
                Path(self._alive.lock_file).unlink(missing_ok=True)
            self._alive = None


def new_run(root: Path) -> Path:
    """A run folder that does not exist yet; names sort by time."""
    return run_folder(root, f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}")


def run_folder(root: Path, name: str) -> Path:
    """The folder of a run below the root directory. Raises AttncheckError where a link leads out of it."""
    return inside(root, Path(".attncheck", "runs", name))


def _definition(pass_key: PassKey) -> dict[str, Any]:
    return {"subject": pass_key.subject.content, "input": pass_key.input.content if pass_key.input else None}


def _summary(data: xr.Dataset) -> dict[str, Any]:
    import numpy as np

    value = np.asarray(data["value"].values, dtype=float)
    finite = value[np.isfinite(value)]
    numbers = {"min": finite.min(), "median": np.median(finite), "max": finite.max()} if finite.size else {}
    sizes = {str(dim): int(size) for dim, size in data["value"].sizes.items()}
    return {"sizes": sizes, "finite": int(finite.size), **{name: float(number) for name, number in numbers.items()}}


def prune(runs: Path, keep: int = KEPT) -> None:
    """Remove all but the last `keep` run folders; one that a living process uses is left alone."""
    import shutil

    folders = sorted((entry for entry in runs.iterdir() if entry.is_dir()), key=lambda entry: entry.name)
    for folder in folders[:-keep] if keep else folders:
        try:
            used = time.time() - folder.stat().st_mtime < GRACE or any(_held(lock) for lock in folder.glob("*.alive"))
        except OSError:  # another process is pruning the same folder
            continue
        if not used:
            shutil.rmtree(folder, ignore_errors=True)


def _held(lock: Path) -> bool:
    from filelock import FileLock, Timeout

    try:
        with FileLock(str(lock), timeout=0):
            return False
    except Timeout:
        return True
