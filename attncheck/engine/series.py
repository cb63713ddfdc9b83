"""A series of checkpoints: the ordinary pass at each step, one model in memory at a time, put together along the dim `step`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import AttncheckError, MeasurementError, Unavailable
from attncheck.core.measurement import measurement

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.core.evidence import LoadedSubject, SubjectSeries
    from attncheck.engine.measure import Measured
    from attncheck.instruments.session import Wanted

_LARGEST = ("resolution", "kernel_error", "empty_rows")
"""Attributes of which a series has the largest of its steps."""


def measure_series(
    series: SubjectSeries,
    wanted: Sequence[Wanted],
    measure_one: Callable[[LoadedSubject, Sequence[Wanted]], Measured],
    progress: Callable[[str], None] | None = None,
    *,
    log_factor: float = 1.0,
) -> Measured:
    """All requests at every step. A request that fails at one step fails, and the message says at which. Numbers of the log are
    multiplied by `log_factor`.

    Raises Unavailable or MeasurementError where a checkpoint cannot be loaded.
    """
    from attncheck.engine.measure import Measured

    whole = Measured(notes=list(series.notes))
    found: dict[str, list[xr.Dataset]] = {}
    running = [want for want in wanted if want.reads != "log"]
    for number, step in enumerate(series.steps if running else ()):
        if progress is not None:
            progress(f"{series.definition.name}: step {step} ({number + 1} of {len(series.steps)})")
        measured = _at(series, step, [want for want in running if want.request.key not in whole.faults], measure_one)
        whole.faults.update({key: located(fault, series, step) for key, fault in measured.faults.items()})
        whole.notes += [note for note in measured.notes if note not in whole.notes]
        for key, data in measured.values.items():
            found.setdefault(key, []).append(data)
    for key, several in found.items():
        if key not in whole.faults:
            try:
                whole.values[key] = joined(series, several)
            except MeasurementError as error:
                whole.faults[key] = error
    for want in wanted:
        if want.reads == "log":
            try:
                whole.values[want.request.key] = from_log(series, want, log_factor)
            except MeasurementError as error:
                whole.faults[want.request.key] = error
    return whole


def _at(
    series: SubjectSeries, step: int, wanted: Sequence[Wanted], measure_one: Callable[[LoadedSubject, Sequence[Wanted]], Measured]
) -> Measured:
    try:
        subject = series.open(step)
    except AttncheckError as error:
        raise located(error, series, step) from error.__cause__
    measured = measure_one(subject, wanted)
    del subject
    gc.collect()  # modules and their hooks are circular: without this two checkpoints would be alive at once
    return measured


def located(error: AttncheckError, series: SubjectSeries, step: int) -> AttncheckError:
    """The same error with its step in front, after the subject's name."""
    name = f"{series.definition.name}: "
    at = f"{name}step {step} ({series.name_of(step)}): "
    if isinstance(error, Unavailable):
        return Unavailable(at + error.reason.removeprefix(name), error.remedy)
    made = type(error).__new__(type(error))
    made.__dict__.update(error.__dict__)
    made.args = (at + str(error).removeprefix(name),)
    return made


def joined(series: SubjectSeries, several: Sequence[xr.Dataset]) -> xr.Dataset:
    """The datasets of all steps over (step, ...). Raises MeasurementError where two checkpoints measured other shapes."""
    import numpy as np

    from attncheck.engine.assemble import squeezed

    first = several[0]
    dims, shape = tuple(map(str, first["value"].dims)), first["value"].shape
    for step, other in zip(series.steps, several, strict=True):
        if tuple(map(str, other["value"].dims)) != dims or other["value"].shape != shape:
            raise MeasurementError(
                f"{series.definition.name}: step {step} ({series.name_of(step)}) has {_sizes(other)}, step {series.steps[0]} "
                f"({series.name_of(series.steps[0])}) {_sizes(first)}: checkpoints of one series have one architecture and one input"
            )
    parts: dict[str, Any] = {}
    for name in ("stderr", "lower", "upper"):
        if any(name in data for data in several):
            parts[name] = np.stack([(data[name] if name in data else data["value"]).values for data in several])
    if any("present" in data for data in several):
        whole = np.ones(shape, dtype=bool)
        parts["present"] = np.stack([data["present"].values if "present" in data else whole for data in several])
    coords: dict[str, tuple[Sequence[str], Any]] = {"step": (("step",), np.array(series.steps))}
    for name in map(str, first.coords):
        each = [data.coords[name] for data in several if name in data.coords]
        over = tuple(map(str, first.coords[name].dims))
        if all(np.array_equal(one.values, each[0].values, equal_nan=one.dtype.kind == "f") for one in each):
            coords[name] = (over, each[0].values)
        elif len(each) == len(several) and set(over) <= set(dims):
            # A symbol that varies over a dim at some steps alone is over that dim at all.
            wide = [one.broadcast_like(first["value"]).transpose(*dims).values for one in each]
            coords[name] = squeezed(("step", *dims), np.stack(wide))
    return measurement(np.stack([data["value"].values for data in several]), ("step", *dims), coords=coords, attrs=_attrs(several), **parts)


def _attrs(several: Sequence[xr.Dataset]) -> dict[str, Any]:
    attrs = {name: value for name, value in several[0].attrs.items() if name != "output"}
    for name in _LARGEST:
        values = [data.attrs[name] for data in several if name in data.attrs]
        if values:
            attrs[name] = max(values)
    if {data.attrs.get("decided") for data in several} != {attrs.get("decided")}:
        order = ("exact", "bracketed", "estimated")
        attrs["decided"] = max((str(data.attrs.get("decided", "exact")) for data in several), key=order.index)
    attrs["notes"] = list(dict.fromkeys(note for data in several for note in data.attrs.get("notes", ())))
    return attrs


def from_log(series: SubjectSeries, want: Wanted, factor: float = 1.0) -> xr.Dataset:
    """A quantity of the training's own log over the steps. Raises MeasurementError where the log lacks it at a step."""
    import numpy as np

    name = str(want.entry.function(**want.arguments))
    values: Mapping[int, float] = series.log.get(name, {})
    missing = [step for step in series.steps if step not in values]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        where = "" if len(missing) == len(series.steps) else f" at step {missing[0]}{more}"
        raise MeasurementError(f"{want.request}: {series.definition.name} has no {name}{where}: {series.log_missing}")
    return measurement(
        np.array([factor * values[step] for step in series.steps]),
        ("step",),
        coords={"step": (("step",), np.array(series.steps))},
        attrs={"unit": want.entry.about["unit"], "decided": "exact", "notes": [], "resolution": 1e-6},
    )


def _sizes(data: xr.Dataset) -> str:
    several = {"query": "queries"}
    named = [f"{size} {dim if size == 1 else several.get(str(dim), f'{dim}s')}" for dim, size in data["value"].sizes.items()]
    return ", ".join(named) or "one number"
