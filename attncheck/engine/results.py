"""What a run found, as JSON: every case's verdict with its numbers, what was measured, and the environment."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck import __version__

if TYPE_CHECKING:
    from attncheck.core.verdict import Verdict
    from attncheck.spec.model import Case

FORMAT = 1
PACKAGES = ("torch", "transformers", "pytest")


def versions() -> dict[str, str]:
    """Versions of what decides the numbers, read from the installed metadata: nothing is imported."""
    found = {"attncheck": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def record(case: Case, verdict: Verdict | None, *, picture: Path | None = None, passes: Sequence[str] = ()) -> dict[str, Any]:
    """A case and its verdict as builtins only, so that it survives any transport. Numbers that JSON lacks are null."""
    made: dict[str, Any] = {
        "property": case.property.name,
        "place": str(case.property.place),
        "subject": case.variant.name,
        "attn_implementation": case.variant.attn_implementation,
        "dtype": case.variant.dtype,
        "device": case.variant.device,
        "input": case.input.name if case.input else None,
        "must_fail": case.must_fail,
        "level": case.property.level,
        "passes": passes,
        "headline": None,
        "numbers": {},
    }
    if verdict is not None:
        made |= {
            "holds": verdict.passed,
            "headline": verdict.headline,
            "claim": verdict.claim,
            "decided": verdict.decided,
            "checked": verdict.checked,
            "resolution": verdict.resolution,
            "numbers": verdict.numbers,
            "offenders": [
                {"where": offender.where, "observed": offender.observed, "limit": offender.limit, "note": offender.note}
                for offender in verdict.offenders
            ],
            "notes": verdict.notes,
            "picture": str(picture) if picture else None,
        }
    plain: dict[str, Any] = builtins_of(made)
    return plain


def builtins_of(value: Any) -> Any:
    """Mappings, sequences, numpy scalars -> dict, list, str, int, float, bool, None; a number that is not finite becomes None."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): builtins_of(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [builtins_of(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return str(value)


def write(
    path: Path,
    results: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    refused: Sequence[Mapping[str, Any]] = (),
    device: str | None = None,
) -> None:
    """Write the JSON file of a run.

    `folder` is its run folder, from which the measurements' summary is read; `refused` are the malformed specs and why.
    """
    content = {
        "format": FORMAT,
        "environment": {
            **versions(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            "device": device,
        },
        "cases": list(results),
        "refused": list(refused),
        "measurements": [
            {"pass": record.stem, **json.loads(record.read_text(encoding="utf-8"))} for record in sorted(folder.glob("*.json"))
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
