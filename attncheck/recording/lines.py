"""The file of a recording: JSON lines, appended one at a time, each with a checksum. No torch, no numpy.

    {"attncheck_recording":1,"observables":[...],"model":{...},"inputs":"...","versions":{...},"checksum":"5d1f08a2"}
    {"step":1,"values":{"attention.entropy":{...}},"missing":{},"notes":[],"seconds":0.021,"checksum":"91e3c7d4"}

The checksum is the CRC-32 of the line up to `,"checksum"`, its brace closed. A line is one write and one fsync: whatever ends the process,
the lines before the last one are whole, and a last line that is not is no line.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attncheck.core.errors import AttncheckError, MeasurementError

if sys.platform != "win32":
    import fcntl

FORMAT = 1
_MARK = b',"checksum":"'
_END = b'"}\n'


def line_of(content: Mapping[str, Any]) -> bytes:
    """One line, ASCII. Raises ValueError on a number that JSON lacks."""
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
    return body[:-1] + _MARK + _checksum(body) + _END


def content_of(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None where it is torn or damaged."""
    head, mark, tail = line.rpartition(_MARK)
    body = head + b"}"
    if not mark or tail != _checksum(body) + _END:
        return None
    found = json.loads(body)
    return found if isinstance(found, dict) else None


def _checksum(body: bytes) -> bytes:
    return f"{zlib.crc32(body):08x}".encode("ascii")


def whole_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines that are whole, and how many bytes they are.

    What follows the last whole line is left out: a process was killed while it wrote there. Raises MeasurementError where the file cannot
    be read, is no recording, or is damaged before a line that is whole.
    """
    found: list[dict[str, Any]] = []
    size, torn = 0, 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                content = content_of(line)
                if content is None:
                    torn = torn or number
                elif torn:
                    raise MeasurementError(f"{path}: line {torn} is damaged, and there are whole lines after it: it was changed since")
                else:
                    found.append(content)
                    size += len(line)
    except OSError as error:
        raise MeasurementError(f"{path}: the recording cannot be read: {error.strerror or error}") from error
    version = found[0].get("attncheck_recording") if found else FORMAT
    if version != FORMAT or (not found and _is_something_else(path)):
        said = "no recording" if version is None or not found else f"a recording of format {version}"
        raise MeasurementError(f"{path} is {said}; allowed: a file that attncheck.record wrote, of format {FORMAT}")
    return found, size


def _is_something_else(path: Path) -> bool:
    """Whether a file without one whole line is not even the beginning of a header, so that it is not ours to cut."""
    with open(path, "rb") as file:
        begun = file.read(64)
    ours = b'{"attncheck_recording":'
    return begun.strip(b"\0") != b"" and not (begun.startswith(ours) or ours.startswith(begun))


class Appender:
    """A recording open for writing, by one process at a time."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Make the file, or with `resume` go on with one that is there: what was torn is cut off, and `lines` are those that are whole.

        Raises AttncheckError where it exists and is not resumed, or another process writes it; MeasurementError where it cannot be written.
        """
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | (0 if resume else os.O_EXCL)
        try:
            self._file = os.open(path, flags, 0o666)
        except FileExistsError:
            raise AttncheckError(f"{path} exists; resume=True goes on after its last step, or name another path") from None
        except OSError as error:
            raise MeasurementError(f"{path} cannot be written: {error.strerror or error}") from error
        try:
            self._lock()
            self.lines, self._size = whole_lines(path)
            if os.fstat(self._file).st_size != self._size:
                os.ftruncate(self._file, self._size)
            self._sync_folder()
        except BaseException:
            self.close()
            raise

    def append(self, content: Mapping[str, Any]) -> None:
        """Write a line and wait until it is on the disk. Raises MeasurementError where the disk is full; the file stays whole."""
        line = line_of(content)
        try:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written; is the disk full?")
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise MeasurementError(f"{self.path} cannot be written: {error.strerror or error}") from error
        self._size += len(line)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lock(self) -> None:
        if sys.platform != "win32":
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise AttncheckError(f"another process records to {self.path}; allowed: one process, such as that of rank 0") from None

    def _sync_folder(self) -> None:
        """A new file is in its folder for certain only once the folder is on the disk."""
        with contextlib.suppress(OSError):  # not every system can open a folder
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
