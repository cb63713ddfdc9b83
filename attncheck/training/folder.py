"""Where a training is kept: a folder named by the hash of everything that determines it.

    <cache>/trained/<recipe>-<key>/
        run.json                what the key was made of
        step-000128.safetensors the weights at a recorded step
        log.json                step -> loss and accuracy
        state.safetensors       weights and optimisers, from which an interrupted training goes on
        complete                there when it is done
    <cache>/trained/<recipe>-<key>.lock    held by the process that trains

Every file is written beside its place and moved there, so that a kill at any moment leaves whole files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.definitions import canonical, digest
from attncheck.core.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor

LAYOUT = 1


def kept_in() -> Path | None:
    """The folder of all trainings in the user's cache; None where ATTNCHECK_CACHE switches the cache off."""
    from attncheck.subjects.converted import cache_folder

    converted = cache_folder()
    return None if converted is None else converted.parent / "trained"


@cache
def code() -> str:
    """Hash of the sources of trainings, variants and data: a change trains anew."""
    ours = Path(__file__).resolve().parent.parent
    sources = [*(ours / "training").glob("*.py"), *(ours / "variants").glob("*.py"), ours / "inputs" / "digits.py"]
    hashed = hashlib.sha256()
    for path in sorted(sources):
        hashed.update(path.name.encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()


def content_of(definition: Mapping[str, Any], *, function: str | None, libraries: tuple[str, ...], machine: str) -> dict[str, Any]:
    """All that determines a training, JSON-like. `function` is the file of a recipe of another package."""
    versions = {name: _version(name) for name in ("torch", "numpy", *libraries)}
    own = hashlib.sha256(Path(function).read_bytes()).hexdigest() if function else ""
    return {**definition, "layout": LAYOUT, "code": code(), "recipe_code": own, "versions": versions, "machine": machine}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Folder:
    """The files of one training."""

    place: Path

    @classmethod
    def of(cls, parent: Path, recipe: str, content: Mapping[str, Any]) -> Folder:
        made = cls(parent / f"{recipe}-{digest(content)}")
        made.place.mkdir(parents=True, exist_ok=True)
        if not (made.place / "run.json").exists():
            made._write("run.json", canonical(content).encode())
        return made

    @property
    def lock(self) -> Path:
        return self.place.with_name(f"{self.place.name}.lock")

    @property
    def complete(self) -> bool:
        return (self.place / "complete").exists()

    def finish(self) -> None:
        self._write("complete", b"")
        (self.place / "state.safetensors").unlink(missing_ok=True)

    def weights(self, step: int) -> Path:
        return self.place / f"step-{step:06d}.safetensors"

    def read_weights(self, step: int) -> dict[str, Tensor]:
        """Raises MeasurementError for a file that is missing or cut."""
        return self._read(self.weights(step))

    def write_weights(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        self._save(self.weights(step), tensors)

    def state(self) -> tuple[int, dict[str, Tensor]] | None:
        """The step that was reached and what to go on from; None at the beginning."""
        path = self.place / "state.safetensors"
        if not path.exists():
            return None
        tensors = self._read(path)
        return int(tensors.pop("step")), tensors

    def write_state(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        import torch

        self._save(self.place / "state.safetensors", {**tensors, "step": torch.tensor(step)})

    @property
    def log(self) -> dict[int, dict[str, float]]:
        path = self.place / "log.json"
        return {int(step): noted for step, noted in json.loads(path.read_text()).items()} if path.exists() else {}

    def note(self, step: int, noted: Mapping[str, float]) -> None:
        self._write("log.json", json.dumps({**{s: n for s, n in self.log.items() if s < step}, step: noted}).encode())

    def _read(self, path: Path) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise MeasurementError(f"{path} cannot be read ({error}); remove the folder {self.place}, and it is trained anew") from error

    def _save(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        from safetensors.torch import save

        # Through the CPU: what is read back must not depend on the device that wrote it.
        self._write(path.name, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))

    def _write(self, name: str, content: bytes) -> None:
        temporary = self.place / f".{name}.{os.getpid()}.tmp"
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.place / name)
