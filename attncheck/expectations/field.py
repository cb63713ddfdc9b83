"""A measurement on its way to a verdict: numpy arrays over named dims, with what a bound and a failure text need beside the value.

`Field.of` reads an xarray Dataset once; selecting, reducing, relating and bounding then cost microseconds, so that thousands of
properties can be judged on one captured pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncheck.core.errors import MeasurementError
from attncheck.core.measurement import DIMS

if TYPE_CHECKING:
    import xarray as xr

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Over = tuple[tuple[str, ...], Array]
"""Dims and values of a coordinate."""


@dataclass(frozen=True)
class Field:
    """One quantity over its dims, in the order of `core.measurement.DIMS`."""

    dims: tuple[str, ...]
    value: Floats
    lower: Floats | None = None
    upper: Floats | None = None
    """Interval that holds the true value; None where the value is exact."""
    present: Mask | None = None
    """False where there is no such place (ragged heads); None where every place exists."""
    labels: Mapping[str, Array] = field(default_factory=dict)
    """dim -> its coordinate, one label for each index."""
    coords: Mapping[str, Over] = field(default_factory=dict)
    """Further labels, such as `stack` or readable tokens."""
    symbols: Mapping[str, Over] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    """Symbols that varied over a dim since reduced -> that dim."""
    extent: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """dim -> its first and last label before anything was selected."""
    sides: tuple[Floats, Floats] | None = None
    """Both sides of a ratio or difference, for the arithmetic in the text."""
    sign: str = ""
    """'/' or '-' between the sides."""
    magnitude: Floats | None = None
    """Size of the operands where the value is a difference of larger numbers: what rounding is relative to."""
    resolution: float = 1e-5
    unit: str = ""
    decided: str = "exact"
    dtype: str = ""
    device: str = ""
    implementation: str = ""
    """The attention implementation that ran; empty where none did."""
    step: str = ""
    """The step that a reduction picked, for the text."""
    endless: bool = False
    """Infinity stands for 'never' (first_above) and is no fault."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: xr.Dataset, *, dtype: str | None = None, device: str | None = None) -> Field:
        """Read a measurement. `dtype` and `device` are the subject's, used where the measurement does not say."""
        found = data["value"]
        order = sorted(found.dims, key=lambda dim: DIMS.index(str(dim)) if dim in DIMS else -1)
        dims = tuple(map(str, order))

        def array(name: str, kind: type) -> Any:
            if name not in data.data_vars:
                return None
            return np.asarray(data[name].transpose(*order).values, dtype=kind)

        labels, coords, symbols = {}, {}, {}
        for name, coordinate in data.coords.items():
            values: Over = (tuple(map(str, coordinate.dims)), np.asarray(coordinate.values))
            if name in dims:
                labels[str(name)] = values[1]
            elif str(name).startswith("symbol_"):
                symbols[str(name).removeprefix("symbol_")] = values
            else:
                coords[str(name)] = values
        for dim, size in zip(dims, found.transpose(*order).shape, strict=True):
            labels.setdefault(dim, np.arange(size))
        attrs = data.attrs
        coords |= _token_labels(attrs.get("labels"), labels)
        dtype = str(attrs.get("dtype") or dtype or "float32").removeprefix("torch.")
        present, value = array("present", bool), array("value", float)
        lower, upper = array("lower", float), array("upper", float)
        if lower is not None and upper is not None and np.array_equal(lower, value) and np.array_equal(upper, value):
            lower = upper = None
        return cls(
            dims=dims,
            value=value,
            lower=lower,
            upper=upper,
            present=None if present is None or present.all() else present,
            labels=labels,
            coords=coords,
            symbols=symbols,
            extent={dim: _ends(found) for dim, found in labels.items()},
            resolution=float(attrs["resolution"]) if attrs.get("resolution") is not None else default_resolution(dtype),
            unit=str(attrs.get("unit", "")),
            decided=str(attrs.get("decided", "exact")),
            dtype=dtype,
            device=str(attrs.get("device") or device or "cpu"),
            implementation=str(attrs.get("implementation", "")),
            notes=_notes(attrs),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    def axis(self, dim: str) -> int:
        return self.dims.index(dim)

    def there(self) -> Mask:
        """Which places exist, as a full mask."""
        return np.ones(self.shape, dtype=bool) if self.present is None else self.present

    def interval(self) -> tuple[Floats, Floats]:
        """(lower, upper), both the value itself where it is exact."""
        return (self.value if self.lower is None else self.lower), (self.value if self.upper is None else self.upper)

    def with_(self, **changes: Any) -> Field:
        return replace(self, **changes)

    def where(self, index: Sequence[int]) -> dict[str, Any]:
        """The coordinates of one place. `stack` is added where it tells places apart; an only seed, step or sample is left out."""
        only = {dim for dim in ("seed", "step", "sample") if dim in self.dims and self.extent[dim][0] == self.extent[dim][1]}
        found = {dim: plain(self.labels[dim][i]) for dim, i in zip(self.dims, index, strict=True) if dim not in only}
        for name in ("stack",):
            over, values = self.coords.get(name, ((), np.empty(0)))
            if over and set(over) <= set(self.dims) and len(set(values.ravel().tolist())) > 1:
                found[name] = plain(values[tuple(index[self.axis(dim)] for dim in over)])
        return found

    def token(self, index: Sequence[int]) -> str:
        """Readable labels of a place's query and key, as 'query token ' the'', or an empty string."""
        said = []
        for name, (over, values) in self.coords.items():
            if values.dtype.kind in "OUS" and {"query", "key"} & set(over) and set(over) <= set(self.dims):
                text = str(values[tuple(index[self.axis(dim)] for dim in over)])
                if text:
                    said.append(f"{name.replace('_', ' ')} {text!r}")
        return ", ".join(said)

    def without(self, dim: str) -> Field:
        """The places that are left without a dim, with 0 for a value: what a statistic over that dim is put into."""
        axis = self.axis(dim)
        there = np.asarray(self.there().any(axis=axis))
        return replace(
            self,
            dims=tuple(d for d in self.dims if d != dim),
            value=np.zeros(there.shape),
            lower=None,
            upper=None,
            present=None if there.all() else there,
            labels={d: found for d, found in self.labels.items() if d != dim},
            coords={name: found for name, found in self.coords.items() if dim not in found[0]},
            symbols={name: found for name, found in self.symbols.items() if dim not in found[0]},
            magnitude=None,
            sides=None,
            unit="",
        )

    def broadcast(self, over: Over) -> Array:
        """Values over some of the dims, shaped so that they broadcast against `value`."""
        dims, values = over
        if not dims:
            return values
        ordered = np.transpose(values, [dims.index(dim) for dim in self.dims if dim in dims])
        return ordered.reshape([self.shape[self.axis(dim)] if dim in dims else 1 for dim in self.dims])

    def refuse_nan(self, what: str, place: object) -> None:
        """Raises MeasurementError where a place that exists holds NaN: what is not a number is never judged."""
        bad = np.isnan(self.value) if self.present is None else np.isnan(self.value) & self.present
        if bad.any():
            count, total = int(bad.sum()), int(self.there().sum())
            first = spell(self.where([int(i) for i in np.argwhere(bad)[0]]))
            raise MeasurementError(f"{place}: {what} is not a number at {count} of {total} places, first at {first or 'its only place'}")


def stack_seeds(fields: Mapping[int, Field]) -> Field:
    """One field from a pass for each seed, over the dim `seed`. Raises MeasurementError where the passes differ in shape."""
    seeds = list(fields)
    first = fields[seeds[0]]
    for seed in seeds[1:]:
        other = fields[seed]
        if other.dims != first.dims or other.shape != first.shape:
            raise MeasurementError(
                f"seed {seed} measured {_sizes(other)}, seed {seeds[0]} {_sizes(first)}: seeds of one subject must agree in shape"
            )
    if "seed" in first.dims:
        if len(seeds) > 1:
            raise MeasurementError("a measurement that already has the dim seed cannot be repeated over seeds")
        return first

    def joined(values: Sequence[Array | None]) -> Any:
        if all(v is None for v in values):
            return None
        return np.stack([fallback if v is None else v for v, fallback in zip(values, (fields[s].value for s in seeds), strict=True)])

    several = [fields[seed] for seed in seeds]
    present = None if all(f.present is None for f in several) else np.stack([f.there() for f in several])
    symbols: dict[str, Over] = {}
    for name, (dims, values) in first.symbols.items():
        others = [f.symbols[name][1] for f in several if name in f.symbols]
        same = len(others) == len(several) and all(np.array_equal(values, o) for o in others)
        symbols[name] = (dims, values) if same else (("seed", *dims), np.stack(others))
    return first.with_(
        dims=("seed", *first.dims),
        value=np.stack([f.value for f in several]),
        lower=joined([f.lower for f in several]),
        upper=joined([f.upper for f in several]),
        present=present,
        labels={"seed": np.array(seeds), **first.labels},
        symbols=symbols,
        extent={**first.extent, "seed": (float(seeds[0]), float(seeds[-1]))},
        resolution=max(f.resolution for f in several),
        decided=weakest([f.decided for f in several]),
        notes=tuple(dict.fromkeys(note for f in several for note in f.notes)),
    )


def default_resolution(dtype: str) -> float:
    """What rounding alone may move a statistic by, relative (NUMERICS: 1e-5 in float32, 1e-2 in half precision)."""
    if dtype in ("float64", "double"):
        return 1e-10
    return 1e-5 if dtype in ("float32", "float", "") else 1e-2


def weakest(decided: Sequence[str]) -> str:
    """The least certain of several ways in which numbers were decided: estimated, then bracketed, then exact."""
    return max(decided, key=lambda how: 2 if how.startswith("estimated") else 1 if how.startswith("bracketed") else 0)


def plain(label: Any) -> Any:
    """A numpy scalar as int, float or str."""
    return label.item() if hasattr(label, "item") else label


def spell(where: Mapping[str, Any]) -> str:
    """{layer: 3, head: 0} -> 'layer 3, head 0'."""
    return ", ".join(f"{dim} {label}" for dim, label in where.items())


def _ends(labels: Array) -> tuple[float, float]:
    if labels.dtype.kind in "iuf" and labels.size:
        return float(labels.min()), float(labels.max())
    return 0.0, float(max(labels.size - 1, 0))


def _sizes(found: Field) -> str:
    return ", ".join(f"{size} {dim}" for dim, size in zip(found.dims, found.shape, strict=True)) or "one number"


def _notes(attrs: Mapping[str, Any]) -> tuple[str, ...]:
    notes = attrs.get("notes", ())
    found = [notes] if isinstance(notes, str) else [str(note) for note in notes]
    empty = attrs.get("empty_rows")
    if isinstance(empty, int | float | np.integer) and empty:
        found.append(f"{int(empty)} query rows see no key and are left out")
    return tuple(note for note in found if note)


def _token_labels(tokens: Any, labels: Mapping[str, Array]) -> dict[str, Over]:
    """Readable tokens, [sample][position], as coordinates over the query or key positions that were measured."""
    if not tokens or not isinstance(tokens, Sequence) or not isinstance(tokens[0], Sequence) or isinstance(tokens[0], str):
        return {}
    found: dict[str, Over] = {}
    for dim in ("query", "key"):
        if dim not in labels or labels[dim].dtype.kind not in "iu":
            continue
        rows = [[row[i] if 0 <= i < len(row) else "" for i in labels[dim].tolist()] for row in tokens]
        if "sample" in labels and len(rows) == len(labels["sample"]):
            found[f"{dim}_token"] = (("sample", dim), np.array(rows, dtype=object))
        elif len(rows) == 1:
            found[f"{dim}_token"] = ((dim,), np.array(rows[0], dtype=object))
    return found
