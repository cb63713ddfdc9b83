"""Measurements kept between runs, by the hash of everything that determines them: one file a quantity, bounded in size.

    <cache>/measurements/<2 digits>/<key>.safetensors

A file is written beside its place and moved there, so that no reader meets half of one and no lock is needed; one that cannot be read
counts as missing and is removed. Reading a file marks it as used; where all of them come to more than the limit, those unused for
longest go.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.definitions import PassKey, Request
from attncheck.engine.identity import Unknowable, identity, of_request

if TYPE_CHECKING:
    import xarray as xr

LIMIT = 2 << 30
"""Bytes; ATTNCHECK_CACHE_LIMIT sets another."""
ABANDONED = 3600.0
"""Seconds after which a half-written file belongs to nobody."""
_NOTES = "notes_of_the_pass"


def folder() -> Path | None:
    """Where measurements are kept; None where ATTNCHECK_CACHE switches the cache off."""
    setting = os.environ.get("ATTNCHECK_CACHE", "")
    if setting.lower() in ("off", "0", "false", "no"):
        return None
    if setting:
        return Path(setting) / "measurements"
    import platformdirs

    return Path(platformdirs.user_cache_dir("attncheck")) / "measurements"


@dataclass
class Cache:
    """The cache as one process uses it. Anything that goes wrong with it is a miss and never an error."""

    place: Path
    limit: int = LIMIT
    _wrote: bool = field(default=False, repr=False)

    @classmethod
    def opened(cls) -> Cache | None:
        """None where there is to be none."""
        place = folder()
        try:
            limit = int(os.environ.get("ATTNCHECK_CACHE_LIMIT", LIMIT))
        except ValueError:
            limit = LIMIT
        return None if place is None or limit <= 0 else cls(place, limit)

    def keys(self, pass_key: PassKey, requests: Sequence[Request], root: Path, options: Mapping[str, Any]) -> dict[str, str]:
        """Request key -> cache key; empty where what the pass depends on cannot be known."""
        try:
            whole = identity(pass_key, root, options)
            return {request.key: of_request(whole, request) for request in requests}
        except (Unknowable, OSError):
            return {}

    def get(self, key: str) -> tuple[xr.Dataset, list[str]] | None:
        """A measurement and the notes of its pass."""
        from attncheck.core.measurement import load

        path = self._path(key)
        try:
            if not path.is_file():
                return None
            (found,) = load(path).values()
            os.utime(path)
        except Exception:  # torn by a full disk, or written by something else: as good as not there
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        return found, list(found.attrs.pop(_NOTES, []))

    def put(self, key: str, data: xr.Dataset, notes: Sequence[str]) -> None:
        from attncheck.core.measurement import save

        if data.nbytes > self.limit // 4:
            return
        with contextlib.suppress(OSError):
            save(self._path(key), {key: data.assign_attrs({_NOTES: list(notes)})})
            self._wrote = True

    def close(self) -> None:
        """Keep to the limit, once for all that was written."""
        if self._wrote:
            self.shrink(self.limit)
            self._wrote = False

    def shrink(self, limit: int) -> int:
        """Remove what was unused for longest until the rest fits, and what was left half-written; how many files went."""
        files, removed = [], 0
        for path in self.place.glob("*/*"):
            with contextlib.suppress(OSError):
                told = path.stat()
                if path.suffix == ".safetensors" and not path.name.startswith("."):
                    files.append((told.st_mtime, told.st_size, path))
                elif time.time() - told.st_mtime > ABANDONED:
                    path.unlink()
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
            total -= size
        return removed

    def size(self) -> tuple[int, int]:
        """(files, bytes)."""
        sizes = []
        for path in self.place.glob("*/*.safetensors"):
            with contextlib.suppress(OSError):
                sizes.append(path.stat().st_size)
        return len(sizes), sum(sizes)

    def _path(self, key: str) -> Path:
        return self.place / key[:2] / f"{key}.safetensors"
