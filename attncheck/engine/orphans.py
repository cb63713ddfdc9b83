"""Baselines that no test has any more. Found from the specs, which name every legal baseline without running; nothing is deleted here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.baseline import files, parse
from attncheck.core.errors import AttncheckError

if TYPE_CHECKING:
    from attncheck.core.baseline import Baseline
    from attncheck.spec.model import Spec


@dataclass(frozen=True)
class Held:
    """A baseline file and what is known of it."""

    path: Path
    spec: str
    baseline: Baseline | None
    """None where the file is damaged."""
    why: str = ""
    """Why it belongs to no test, or why that cannot be told."""
    orphan: bool = False
    """Certain: only these may be pruned."""


def held(root: Path, load: Callable[[Path], Spec]) -> list[Held]:
    """Every baseline file of a project. A spec that cannot be read keeps its baselines, and so does a file that is damaged."""
    from attncheck.expectations.baseline import identity_of

    legal: dict[str, set[Path] | str] = {}
    found = []
    for path in files(root):
        try:
            baseline = parse((root / path).read_text(encoding="utf-8"), path.as_posix())
        except (AttncheckError, OSError) as error:
            found.append(Held(path, "", None, str(error)))
            continue
        spec = baseline.identity.spec
        if spec not in legal:
            try:
                cases = load(root / spec).cases if (root / spec).is_file() else None
                legal[spec] = (
                    f"{spec} does not exist"
                    if cases is None
                    else {identity_of(case).path for case in cases if case.property.demand.kind == "baseline" and not case.must_fail}
                )
            except AttncheckError as error:
                legal[spec] = error_line(error)
        known = legal[spec]
        if isinstance(known, str):
            found.append(Held(path, spec, baseline, known, orphan=known.endswith("does not exist")))
        elif path != baseline.identity.path or path not in known:
            found.append(Held(path, spec, baseline, f"{spec} has no such test", orphan=True))
        else:
            found.append(Held(path, spec, baseline))
    return found


def orphans(root: Path, load: Callable[[Path], Spec]) -> list[Held]:
    """Those that belong to no test for certain."""
    return [one for one in held(root, load) if one.orphan]


def error_line(error: AttncheckError) -> str:
    return f"the spec cannot be read: {(str(error).splitlines() or [''])[-1]}"
