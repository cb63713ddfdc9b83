"""What a run found, as JSON: every case's verdict with its numbers, what was measured, and the environment."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck import __version__

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.core.verdict import Verdict
    from attncheck.spec.model import Case

FORMAT = 2
MOST_VALUES = 20_000
"""Numbers of one quantity that are written; scores of every query and key would be gigabytes."""
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
    }
    measured = [json.dumps(builtins_of(one), allow_nan=False) for record in sorted(folder.glob("*.json")) for one in _measurements(record)]
    head = json.dumps(content, indent=1, allow_nan=False).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A line a quantity: its numbers in a column would be a file of a million lines.
    path.write_text(head + ',\n "measurements": [\n' + ",\n".join(f"  {line}" for line in measured) + "\n ]\n}\n", encoding="utf-8")


def _measurements(record: Path) -> Iterator[dict[str, Any]]:
    """Each quantity of a pass with all its numbers, then what failed of it."""
    told = json.loads(record.read_text(encoding="utf-8"))
    known = {name: told[name] for name in ("name", "definition", "seconds", "cached", "notes")} | {"pass": record.stem}
    if told["answered"]:
        from attncheck.core.measurement import load

        for key, data in load(record.with_suffix(".safetensors")).items():
            yield {**known, "quantity": key, "summary": told["answered"].get(key), **numbers_of(data)}
    failures = {**told["faults"], **({"": told["failure"]} if told["failure"] else {})}
    for key, fault in failures.items():
        yield {**known, "quantity": key or None, "fault": fault}


def numbers_of(data: xr.Dataset) -> dict[str, Any]:
    """A measurement's values in C order over its dims, to the digits that they resolve; places that do not exist are null."""
    import numpy as np

    from attncheck.core.baseline import digits_of, rounded

    value = np.asarray(data["value"].values, dtype=float)
    attrs = data.attrs
    kept = ("unit", "decided", "resolution", "dtype", "device", "capability", "implementation", "input_hash", "output")
    about = {name: attrs[name] for name in kept if name in attrs}
    dims = [str(dim) for dim in data["value"].dims]
    labels = {dim: data[dim].values.tolist() if dim in data.coords else list(range(data.sizes[dim])) for dim in dims}
    if value.size > MOST_VALUES:
        return {**about, "dims": dims, "labels": {}, "values": None, "left_out": f"{value.size} values, more than {MOST_VALUES}"}
    digits = digits_of(float(attrs["resolution"]))
    numbers: dict[str, Any] = {"values": [rounded(float(number), digits) for number in value.ravel()]}
    for name in ("stderr", "lower", "upper"):
        if name in data:
            numbers[name] = [rounded(float(number), digits) for number in np.asarray(data[name].values, dtype=float).ravel()]
    return {**about, "dims": dims, "labels": labels, **numbers}
