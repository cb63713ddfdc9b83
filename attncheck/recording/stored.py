"""Measurements as JSON and back, to the last bit: NaN and the infinities, which JSON lacks, are the texts 'nan', 'inf', '-inf'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

_ENDLESS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_KINDS = {"f": "float64", "i": "int64", "u": "int64", "b": "bool"}


def to_json(data: xr.Dataset) -> dict[str, Any]:
    """A measurement as builtins. The fingerprint of the model's output is left out: it belongs to baselines."""
    return {
        "variables": {str(name): _array(data[name]) for name in data.data_vars},
        "coords": {str(name): _array(data.coords[name]) for name in data.coords},
        "attrs": {str(name): plain(value) for name, value in data.attrs.items() if name != "output"},
    }


def from_json(stored: Mapping[str, Any]) -> xr.Dataset:
    """The measurement that `to_json` was given."""
    import xarray as xr

    attrs = {name: _ENDLESS.get(value, value) if isinstance(value, str) else value for name, value in stored["attrs"].items()}
    made = xr.Dataset({name: _values(slot) for name, slot in stored["variables"].items()}, attrs=attrs)
    return made.assign_coords({name: _values(slot) for name, slot in stored["coords"].items()})


def plain(value: Any) -> Any:
    """Numbers, texts, lists and mappings as builtins that JSON has."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, float):
        return _number(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, Sequence) else str(value)


def _array(found: xr.DataArray) -> dict[str, Any]:
    import numpy as np

    values = np.asarray(found.values)
    kind = _KINDS.get(values.dtype.kind, "str")
    listed = values.astype(kind).tolist()
    if kind == "float64" and not np.isfinite(values).all():
        listed = plain(listed)
    return {"dims": [str(dim) for dim in found.dims], "kind": kind, "values": listed}


def _values(slot: Mapping[str, Any]) -> tuple[tuple[str, ...], np.ndarray]:
    import numpy as np

    return tuple(slot["dims"]), np.array(slot["values"], dtype=slot["kind"])


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
