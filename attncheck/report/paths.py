"""Where pictures go: `.attncheck/plots/<spec>/<property>-<id>.png` under the project root, and never outside it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from attncheck.core.errors import AttncheckError
from attncheck.spec.model import Case

_LONGEST = 120


def picture_path(root: Path, case: Case, *, namesakes: bool = False) -> Path:
    """The PNG of a case. `namesakes`: specs of this name lie in several folders, and each gets a folder of pictures of its own.

    Raises AttncheckError where a link in the way leads out of the project.
    """
    name = Path(case.property.place.path).name.removesuffix(".yaml").removesuffix(".yml").removesuffix(".attn")
    spec = _safe(name)
    if namesakes or spec != name:  # what was made safe may be another spec's name
        spec = f"{spec}-{hashlib.sha256(case.property.place.path.encode()).hexdigest()[:6]}"
    return within(root, ".attncheck", "plots", spec, f"{picture_name(case)}.png")


def law_picture_path(root: Path, name: str, law: str) -> Path:
    """The PNG of a law's counterexample outside of specs. Raises AttncheckError where a link in the way leads out of the project."""
    safe = _safe(name)
    mark = f"-{hashlib.sha256(name.encode()).hexdigest()[:6]}" if safe != name else ""
    return within(root, ".attncheck", "plots", "laws", f"{safe[:_LONGEST]}{mark}-{_safe(law)}.png")


def picture_name(case: Case) -> str:
    """`keys-are-larger-lrkv-manual`. Where a part of the id has a '-' itself, a short hash keeps `a-b/c` and `a/b-c` apart."""
    name = _safe(f"{case.property.name}-{case.id}" if case.id else case.property.name)
    ambiguous = any("-" in part for part in case.id.split("/") if part != "must-fail")
    if ambiguous or len(name) > _LONGEST or name != f"{case.property.name}-{case.id}".replace("/", "-").rstrip("-"):
        mark = hashlib.sha256(f"{case.property.name}[{case.id}]".encode()).hexdigest()[:6]
        return f"{name[:_LONGEST]}-{mark}"
    return name


def within(root: Path, *parts: str) -> Path:
    """`root/parts...`, checked after links are followed. Raises AttncheckError where it leaves `root`."""
    base = root.resolve()
    target = base.joinpath(*parts)
    if not target.resolve().is_relative_to(base):
        raise AttncheckError(f"{Path(*parts)} leads out of {root}: a link is in the way; remove it")
    return target


def _safe(text: str) -> str:
    """Letters, digits, '.', '_', '-'; everything else becomes '-', and nothing starts with a dot."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"
