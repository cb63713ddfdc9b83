"""Everything that determines a measurement, as one hash, found without importing torch: the key of the cache.

Hashed by content: the model's and the input's files, the code of attncheck, torch and transformers, of the project and of every editable
install, the place of every installed distribution, the machine, and the environment variables that libraries of numerics read. What
cannot be known this way (a factory, an operator, a kernel that was registered, a checkpoint's own code, and all that is measured once a
module of the project is loaded, such as a conftest) is not cached at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from attncheck.core.definitions import PassKey, Request, digest
from attncheck.core.registry import Entry

LAYOUT = 1
"""Of the cached files; another one misses."""
IMPLEMENTATIONS = (None, "eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
CODE = (".py", ".pyi", ".so", ".pyd", ".dylib", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".ptx", ".metal")
MOST_FILES = 20_000
"""Of one source tree: where a project has more, nothing is cached."""
_ENVIRONMENT = re.compile(
    "(OMP|GOMP|KMP|MKL|OPENBLAS|DNNL|ONEDNN|ATEN|TORCH|TORCHINDUCTOR|PYTORCH|CUDA|CUBLAS|CUDNN|NVIDIA|HIP|TRITON|FLASH|TRANSFORMERS)_"
)
"""What begins the names of variables that change what libraries compute."""


class Unknowable(Exception):
    """Why a pass is measured anew each time."""


def identity(pass_key: PassKey, root: Path, options: Mapping[str, Any]) -> str:
    """The hash of all that determines what a pass gives. `options` is what the command line adds. Raises Unknowable."""
    subject, feed = pass_key.subject, pass_key.input
    own = loaded_code()
    if own:
        raise Unknowable(f"{own} is loaded: what code of the project reads, its own variables or files, cannot be known")
    if subject.attn_implementation not in IMPLEMENTATIONS:
        raise Unknowable(f"attn_implementation {subject.attn_implementation} is code that was registered")
    series = _kind("subject", subject.kind).about.get("steps", True)
    files = [*_files(_kind("subject", subject.kind), subject.content, root)]
    if feed is not None:
        files += _files(_kind("input", feed.kind), feed.content, root)
    return digest(
        {
            "layout": LAYOUT,
            "pass": pass_key.key,
            "options": dict(options),
            # Of a series the folders' names count: they hold the steps.
            "files": [(str(path) if series else path.name, content(path)) for path in files],
            "code": surroundings(str(root.resolve())),
            "device": _device(subject.device),
        }
    )


def loaded_code() -> str:
    """The first loaded module that is neither installed, nor Python's, nor ours: a conftest may change any library, by any condition."""
    ours, library = Path(__file__).resolve().parent.parent, Path(os.__file__).absolute().parent
    libraries = {library, library.resolve()}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.partition(".")[0] in ("torch", "transformers"):
            continue
        place = Path(file).resolve()
        # multiprocessing, which torch imports, puts the main module there under a second name.
        if name in ("__main__", "__mp_main__") and Path(file).absolute().parent == Path(sys.executable).absolute().parent:
            continue  # the console script of an installed package
        # A distribution may keep its sitecustomize elsewhere and link to it from the library.
        if Path(file).absolute().parent in libraries:
            continue
        if not ({"site-packages", "dist-packages"} & set(place.parts) or {ours, *libraries} & set(place.parents)):
            return name
    return ""


def of_request(whole: str, request: Request) -> str:
    """The key of one quantity of a pass: the code of its observable counts too, wherever it is installed."""
    from attncheck.core.observable import OBSERVABLES

    source = getattr(sys.modules.get(OBSERVABLES[request.name].function.__module__), "__file__", None)
    return digest([whole, request.key, content(Path(source)) if source else ""])


def _kind(what: str, name: str) -> Entry:
    from attncheck.inputs.kinds import INPUT_KINDS
    from attncheck.subjects.kinds import SUBJECT_KINDS

    return SUBJECT_KINDS[name] if what == "subject" else INPUT_KINDS[name]


def _files(entry: Entry, definition: Mapping[str, Any], root: Path) -> list[Path]:
    told = entry.about.get("files")
    found = None if told is None else told(definition["options"], root)
    if found is None:
        raise Unknowable(f"what a {entry.name} reads cannot be known")
    return sorted(found)


@cache
def content(path: Path) -> str:
    """SHA-256 of a file, once a process."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unknowable(f"{path.name} cannot be read: {error.strerror}") from error


@cache
def surroundings(root: str) -> str:
    """Code, distributions, machine and environment: what every pass of a process shares."""
    code = hashlib.sha256()
    for place in _trees(root):
        for path in _sources(place):
            code.update(f"{path.relative_to(place)}\0{content(path)}\n".encode())
    return digest(
        {
            "code": code.hexdigest(),
            "distributions": sorted(_distributions()),
            "python": sys.version,
            "machine": [platform.system(), platform.machine(), _processor(), _processors()],
            "environment": sorted((name, value) for name, value in os.environ.items() if _ENVIRONMENT.match(name)),
        }
    )


def _trees(root: str) -> list[Path]:
    """Folders whose code counts by its content: the project, attncheck, torch's and transformers' Python, and whatever else lies on the
    path outside of the installed packages (editable installs)."""
    installed = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    found = {Path(root), Path(__file__).resolve().parent.parent}
    found |= {place for place in _editable() if place.is_dir()}
    for folder in installed:
        found |= {folder / name for name in ("torch", "transformers") if (folder / name).is_dir()}
    library = Path(os.__file__).resolve().parent
    for entry in sys.path:
        place = Path(entry or os.curdir).resolve()
        if place.is_dir() and place not in installed and place != library and library not in place.parents:
            found.add(place)
    return sorted(found)


def _sources(place: Path) -> Iterator[Path]:
    """The source files of a tree, sorted; of an installed torch the Python alone, since its libraries belong to its distribution."""
    installed = place.parent.name in ("site-packages", "dist-packages")
    count = 0
    for folder, names, files in os.walk(place):
        here = Path(folder)
        names[:] = sorted(
            name
            for name in names
            if not name.startswith(".") and name not in ("__pycache__", "node_modules") and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if name.endswith(".py" if installed else CODE):
                count += 1
                if count > MOST_FILES:
                    raise Unknowable(f"{place} holds more than {MOST_FILES} source files")
                yield here / name


def _distributions() -> Iterator[tuple[str, str, str]]:
    """Name, version and the record of files with their hashes: a rebuilt package of the same version has another."""
    for found in metadata.distributions():
        record = found.read_text("RECORD") or found.read_text("direct_url.json") or ""
        yield found.metadata["Name"] or "", found.version, hashlib.sha256(record.encode()).hexdigest()


def _editable() -> Iterator[Path]:
    """Source trees of editable installs, which may be found by an import hook and not by sys.path."""
    for found in metadata.distributions():
        told = json.loads(found.read_text("direct_url.json") or "{}")
        if told.get("dir_info", {}).get("editable") and str(told.get("url", "")).startswith("file://"):
            yield Path(url2pathname(urlsplit(told["url"]).path))


def _processor() -> str:
    """The processor's model and instruction sets, by which kernels are chosen."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return platform.processor()
    kept = ("model name", "flags", "features", "cpu implementer", "cpu part")
    return digest([line for line in told.splitlines() if line.lower().startswith(kept)])


def _processors() -> int:
    """How many this process may use: that many threads sum in another order."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _device(asked: str | None) -> list[str]:
    """The device that will be used, with what decides its kernels. torch is asked only where there may be another than the CPU."""
    accelerators = sys.platform == "darwin" or any(Path(place).exists() for place in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))
    if asked == "cpu" or not accelerators:
        return [asked or "cpu"]
    import torch

    if not torch.cuda.is_available():
        return [asked or "auto", "mps" if torch.backends.mps.is_available() else "cpu"]
    cards = [f"{torch.cuda.get_device_name(i)} {torch.cuda.get_device_capability(i)}" for i in range(torch.cuda.device_count())]
    return [asked or "auto", *cards, str(torch.version.cuda), str(torch.backends.cudnn.version())]  # type: ignore[no-untyped-call]
