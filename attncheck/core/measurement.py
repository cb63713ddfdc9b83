"""A Measurement is an xarray.Dataset; this file makes, stores and reads them (safetensors and JSON, no pickle)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

DIMS = ("seed", "step", "sample", "layer", "head", "query", "key")
STACKS = ("self", "encoder", "decoder", "cross", "vision")
"""Values of the coordinate `stack` over `layer`."""
"""Order of dims in every measurement."""


def measurement(
    value: np.ndarray,
    dims: Sequence[str],
    *,
    stderr: np.ndarray | None = None,
    lower: np.ndarray | None = None,
    upper: np.ndarray | None = None,
    present: np.ndarray | None = None,
    coords: Mapping[str, tuple[Sequence[str], Any]] | None = None,
    symbols: Mapping[str, tuple[Sequence[str], Any]] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """A Dataset with `value` and, where given, `stderr`, `lower`, `upper` and `present` over the same dims.

    `coords` label dims (layer numbers, stack names, token labels). `symbols` are what bounds may name, as coordinates called
    `symbol_<name>` over the dims on which they vary. `attrs` is JSON-like: units, decided ("exact", "bracketed" or "estimated"),
    resolution (relative, of the compute dtype), notes.
    """
    import xarray as xr

    data = {"value": (tuple(dims), value)}
    for name, extra in (("stderr", stderr), ("lower", lower), ("upper", upper), ("present", present)):
        if extra is not None:
            data[name] = (tuple(dims), extra)
    made = xr.Dataset(data, attrs=dict(attrs or {}))
    for name, (over, values) in {**(coords or {}), **{f"symbol_{k}": v for k, v in (symbols or {}).items()}}.items():
        made = made.assign_coords({name: (tuple(over), values)})
    return made


def symbols_of(data: Any) -> dict[str, Any]:
    """The symbols of a measurement (Dataset or DataArray) by their bare names."""
    return {str(name).removeprefix("symbol_"): data.coords[name] for name in data.coords if str(name).startswith("symbol_")}


def save(path: Path, measurements: Mapping[str, xr.Dataset]) -> None:
    """Write measurements by request key into one file: to a temporary name first, so that a reader never sees half of it."""
    import numpy as np
    from safetensors.numpy import save_file

    arrays: dict[str, np.ndarray] = {}
    index: dict[str, Any] = {}
    for number, (key, data) in enumerate(measurements.items()):
        entry: dict[str, Any] = {"attrs": dict(data.attrs), "variables": {}, "coords": {}}
        for group, names in (("variables", data.data_vars), ("coords", data.coords)):
            for name in names:
                values = np.asarray(data[name].values)
                slot: dict[str, Any] = {"dims": list(data[name].dims)}
                if values.dtype.kind in "OUS":
                    slot["list"] = values.tolist()
                else:
                    slot["array"] = f"{number}/{name}"
                    arrays[slot["array"]] = np.ascontiguousarray(values).reshape(values.shape)
                entry[group][str(name)] = slot
        index[key] = entry
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    save_file(arrays or {"empty": np.zeros(1)}, str(temporary), metadata={"attncheck": json.dumps(index)})
    os.replace(temporary, path)


def load(path: Path) -> dict[str, xr.Dataset]:
    """Read what `save` wrote."""
    import numpy as np
    import xarray as xr
    from safetensors import safe_open

    found: dict[str, xr.Dataset] = {}
    with safe_open(str(path), framework="numpy") as stored:
        index = json.loads(stored.metadata()["attncheck"])
        for key, entry in index.items():

            def values(slot: dict[str, Any]) -> tuple[tuple[str, ...], np.ndarray]:
                array = np.array(slot["list"]) if "list" in slot else stored.get_tensor(slot["array"])
                return tuple(slot["dims"]), array

            data = xr.Dataset({name: values(slot) for name, slot in entry["variables"].items()}, attrs=entry["attrs"])
            found[key] = data.assign_coords({name: values(slot) for name, slot in entry["coords"].items()})
    return found
