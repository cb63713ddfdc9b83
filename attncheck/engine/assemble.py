"""Layers of a pass put together: one Dataset for each request, ragged layers padded and marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attncheck.core.measurement import DIMS, measurement

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.core.observable import Value
    from attncheck.core.registry import Entry

RESOLUTION = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
"""Relative: what rounding may move a measured quantity by (NUMERICS, finding 15)."""


def stacked(values: Sequence[Value | None], attribute: str = "value") -> tuple[Any, tuple[str, ...], Any]:
    """(array, dims, present) over `layer` and the values' own dims; NaN and False where a layer or a head has nothing."""
    import numpy as np

    arrays = [None if v is None or getattr(v, attribute) is None else np.asarray(getattr(v, attribute), dtype=float) for v in values]
    own = next(tuple(v.dims) for v in values if v is not None)
    some = [array for array in arrays if array is not None]
    size = tuple(max(array.shape[axis] for array in some) for axis in range(len(own)))
    whole = np.full((len(arrays), *size), np.nan)
    present = np.zeros(whole.shape, dtype=bool)
    for layer, (one, array) in enumerate(zip(values, arrays, strict=True)):
        if one is not None and array is not None:
            region: Any = (layer, *(slice(0, extent) for extent in array.shape))
            whole[region] = array
            present[region] = True if one.present is None else one.present
    dims = ("layer", *own)
    order = sorted(range(len(dims)), key=lambda axis: DIMS.index(dims[axis]))
    return whole.transpose(order), tuple(dims[axis] for axis in order), present.transpose(order)


def assembled(
    entry: Entry,
    values: Sequence[Value | None],
    *,
    stacks: Sequence[str],
    paths: Sequence[str],
    symbols: Sequence[Mapping[str, Value]] = (),
    attrs: Mapping[str, Any],
) -> xr.Dataset:
    """The measurement of one request over all its layers."""
    import numpy as np

    whole, dims, present = stacked(values)
    extra = {}
    for name in ("stderr", "lower", "upper"):
        if any(v is not None and getattr(v, name) is not None for v in values):
            extra[name] = stacked(values, name)[0]
    coords: dict[str, tuple[Sequence[str], Any]] = {
        "layer": (("layer",), np.arange(len(values))),
        "stack": (("layer",), list(stacks)),
        "path": (("layer",), list(paths)),
    }
    for name in next(v for v in values if v is not None).coords:
        over, companion = companions(values, name)
        coords[name] = (over, companion)
    found_symbols: dict[str, tuple[Sequence[str], Any]] = {}
    found_symbols["L"] = squeezed(("layer",), np.array([list(stacks).count(stack) for stack in stacks]))
    for name in dict.fromkeys(name for layer in symbols for name in layer):
        array, over, _ = stacked([layer.get(name) for layer in symbols])
        over, array = squeezed(over, array)
        if set(over) <= set(dims):
            found_symbols[name] = (over, array)
    notes = list(dict.fromkeys([*attrs.get("notes", ()), *(note for v in values if v is not None for note in v.notes)]))
    return measurement(
        whole,
        dims,
        present=None if present.all() else present,
        coords=coords,
        symbols=found_symbols,
        attrs={
            "unit": entry.about["unit"],
            "decided": "estimated" if "stderr" in extra else "bracketed" if "upper" in extra else "exact",
            **attrs,
            "notes": notes,
        },
        **extra,
    )


def companions(values: Sequence[Value | None], name: str) -> tuple[tuple[str, ...], Any]:
    """An extra coordinate (R squared, the null, ...) over the layers and its own dims."""
    from attncheck.core.observable import Value

    each = [None if v is None or name not in v.coords else Value(v.coords[name][1], tuple(v.coords[name][0])) for v in values]
    array, dims, _ = stacked(each)
    return dims, array


def squeezed(dims: tuple[str, ...], array: Any) -> tuple[tuple[str, ...], Any]:
    """Without the dims along which nothing varies, so that a symbol is over the dims on which it does."""
    import numpy as np

    for axis in reversed(range(len(dims))):
        first = np.take(array, [0], axis=axis)
        if np.array_equal(np.broadcast_to(first, array.shape), array, equal_nan=True):
            array = np.take(array, 0, axis=axis)
            dims = dims[:axis] + dims[axis + 1 :]
    return dims, array
