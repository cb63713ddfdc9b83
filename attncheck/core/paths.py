"""Paths that a spec names. What is read may lie anywhere and is relative to the spec's folder; what we write stays inside the project."""

from __future__ import annotations

from pathlib import Path

from attncheck.core.errors import AttncheckError


def inside(root: Path, text: str | Path) -> Path:
    """`text` below `root`, resolved. Raises AttncheckError where it would escape, through `..`, an absolute path or a symbolic link."""
    base = root.resolve()
    if "\0" in str(text):
        raise AttncheckError("a path with a NUL byte; allowed: a path below the project")
    found = (base / text).resolve()
    if not found.is_relative_to(base):
        raise AttncheckError(f"{str(text)!r} lies outside {base}; attncheck writes below the project only")
    return found


def beside(folder: Path, text: str) -> str:
    """A path to read, relative to the spec's `folder`, as absolute text."""
    return str((folder / Path(text).expanduser()).resolve())


def is_explicit(text: str) -> bool:
    """Whether a text that may be a name or a path is certainly a path: it begins with `./`, `../`, `~/` or `/`."""
    return text.startswith(("./", "../", "~/", "/"))
