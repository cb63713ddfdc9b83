"""Weights that take long to convert are converted once and kept in the user's cache folder.

The folder is named by what its content depends on: the source file's hash, the versions of the libraries that read it, and this
layout's version. It is written beside its place and moved there whole, so that a reader never meets half of it; a lock keeps two
processes from converting the same file. ATTNCHECK_CACHE=off converts into a temporary folder each time; any other value of it is
the folder to use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

LAYOUT = 1
_COMPLETE = "complete"


def cache_folder() -> Path | None:
    """Where converted weights are kept; None where the environment switches the cache off."""
    setting = os.environ.get("ATTNCHECK_CACHE", "")
    if setting.lower() in ("off", "0", "false", "no"):
        return None
    if setting:
        return Path(setting) / "converted"
    import platformdirs

    return Path(platformdirs.user_cache_dir("attncheck")) / "converted"


def key_of(source: Path, libraries: tuple[str, ...]) -> str:
    """The source's name and a hash of its content, the libraries' versions and the layout."""
    with source.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    versions = [f"{library}=={metadata.version(library)}" for library in libraries]
    text = "|".join([content, *versions, str(LAYOUT)])
    return f"{source.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@contextmanager
def converted(source: Path, convert: Callable[[Path, Path], None], *, libraries: tuple[str, ...]) -> Iterator[tuple[Path, list[str]]]:
    """The folder that `convert(source, folder)` fills, and notes for the report. Falls back to a temporary one where none can be kept."""
    import filelock

    folder = cache_folder()
    if folder is not None:
        place = folder / key_of(source, libraries)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(str(place) + ".lock"):
                if not (place / _COMPLETE).exists():
                    _write(source, convert, place)
        except OSError as error:
            folder, reason = None, f"the converted weights were not kept: {error}"
        else:
            yield place, []
            return
    else:
        reason = "ATTNCHECK_CACHE=off: the weights were converted anew"
    with tempfile.TemporaryDirectory(prefix="attncheck-") as temporary:
        convert(source, Path(temporary))
        yield Path(temporary), [reason]


def _write(source: Path, convert: Callable[[Path, Path], None], place: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        convert(source, temporary)
        (temporary / _COMPLETE).touch()
        shutil.rmtree(place, ignore_errors=True)
        temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
