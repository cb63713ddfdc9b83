"""One entry for every kind of subject: settle the device and the dtype, check the arguments, call the kind's loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.arguments import checked_arguments
from attncheck.core.definitions import DTYPES, SubjectDefinition
from attncheck.core.errors import AttncheckError, MeasurementError, Unavailable, nearest
from attncheck.core.evidence import LoadedSubject, SubjectSeries
from attncheck.subjects.kinds import SUBJECT_KINDS

if TYPE_CHECKING:
    import torch

WEIGHTS = ("trained", "random")


@dataclass(frozen=True)
class Loading:
    """What a loader is told besides its arguments."""

    definition: SubjectDefinition
    device: str
    """Settled: cpu, cuda:N or mps."""
    dtype: str
    root: Path
    """Where relative paths and the project's own modules are looked up."""
    trust_remote_code: bool = False
    """The command line's word; a subject needs its own as well."""
    progress: Callable[[str], None] | None = None
    """Tells somebody who waits; None where nobody watches."""

    @property
    def attn_implementation(self) -> str | None:
        return self.definition.attn_implementation

    @property
    def random(self) -> bool:
        """Whether fresh weights are asked for instead of trained ones."""
        return self.definition.weights == "random"

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        found: torch.dtype = getattr(torch, self.dtype)
        return found


def load(definition: SubjectDefinition, *, root: Path | None = None, trust_remote_code: bool = False) -> LoadedSubject:
    """The subject of a definition, as `load_any` gives it. Raises MeasurementError for a series, which is many subjects."""
    found = load_any(definition, root=root, trust_remote_code=trust_remote_code)
    if isinstance(found, SubjectSeries):
        raise MeasurementError(
            f"{definition.name}: {definition.kind} is a series of {len(found.steps)} checkpoints, and one model is needed"
        )
    return found


def load_any(
    definition: SubjectDefinition,
    *,
    root: Path | None = None,
    trust_remote_code: bool = False,
    progress: Callable[[str], None] | None = None,
) -> LoadedSubject | SubjectSeries:
    """The subject of a definition, in eval mode, without gradients, on its device; or the series of its checkpoints, none loaded yet.

    `device` None or auto takes cuda, then mps, then cpu; `dtype` None is float32 whatever the checkpoint is stored in, so that the
    same spec reads the same numbers everywhere. `root` (default: the working directory) is where relative paths start.

    Raises Unavailable for a model, package or device that is not here, with the command that brings it, and MeasurementError for a
    subject that is here but cannot be measured as asked: unknown arguments, an attention implementation that the model does not
    have, weights that are missing or not finite.
    """
    entry = SUBJECT_KINDS[definition.kind]
    options = checked_arguments(definition.name, entry, definition.options)
    if definition.weights not in WEIGHTS:
        raise MeasurementError(f"{definition.name}: weights {definition.weights!r}; allowed: {', '.join(WEIGHTS)}")
    try:
        loading = Loading(
            definition=definition,
            device=settle_device(definition.device),
            dtype=settle_dtype(definition.dtype),
            root=Path(root) if root is not None else Path.cwd(),
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
        loaded = entry.function(loading, **options)
    except MeasurementError as error:
        if str(error).startswith(f"{definition.name}:"):
            raise
        raise MeasurementError(f"{definition.name}: {error}") from error.__cause__
    if not isinstance(loaded, LoadedSubject | SubjectSeries):
        raise AttncheckError(f"the loader of subject kind {definition.kind!r} returned {type(loaded).__name__}, not a LoadedSubject")
    return loaded


def settle_dtype(dtype: str | None) -> str:
    """A dtype's name; float32 where none was asked for. Raises MeasurementError for others."""
    name = "float32" if dtype is None else str(dtype)
    if name not in DTYPES:
        hint = nearest(name, DTYPES)
        raise MeasurementError(f"dtype {name!r}" + (f", did you mean {hint!r}?" if hint else "") + f"; allowed: {', '.join(DTYPES)}")
    return name


def settle_device(device: str | None) -> str:
    """cpu, cuda:N or mps. Raises Unavailable for one that is not here and MeasurementError for one that does not exist anywhere."""
    import torch

    name = "auto" if device is None else str(device)
    cuda = torch.cuda.is_available()
    mps = torch.backends.mps.is_available()
    if name == "auto":
        return "cuda:0" if cuda else "mps" if mps else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (number and (kind != "cuda" or not number.isdecimal())):
        raise MeasurementError(f"device {name!r}; allowed: auto, cpu, cuda, cuda:N, mps")
    if kind == "cpu":
        return "cpu"
    if kind == "mps":
        if not mps:
            raise Unavailable("device mps is not here", "run on a Mac with Apple silicon, or with --attn-device cpu")
        return "mps"
    if not cuda:
        built = "this torch is built without CUDA" if torch.version.cuda is None else "no CUDA device is visible"
        raise Unavailable(f"device {name} is not here: {built}", "run on a machine with a GPU, or with --attn-device cpu")
    index = int(number or 0)
    if index >= torch.cuda.device_count():
        raise Unavailable(
            f"device {name} is not here: {torch.cuda.device_count()} CUDA device(s) are visible, numbered from 0",
            "choose one of them, or set CUDA_VISIBLE_DEVICES",
        )
    return f"cuda:{index}"
