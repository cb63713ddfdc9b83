"""Reading a recording: as the Dataset that `attncheck.observe` gives of a training, or judged over its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.definitions import Request, SubjectDefinition
from attncheck.core.errors import AttncheckError, MeasurementError
from attncheck.core.evidence import LoadedSubject, SubjectSeries
from attncheck.recording.bounds import names_of, read_bounds
from attncheck.recording.lines import whole_lines

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.core.verdict import Verdict


def read_recording(path: str | Path) -> xr.Dataset:
    """What `attncheck.record` wrote, up to its last whole step; a training that still runs may be read too.

    Returns a Dataset as `attncheck.observe` does of the checkpoints of a training: a variable for each observable over
    (step, sample, layer, head, ...), in the observable's unit (`attrs["unit"]`), NaN where a step has no such value. `attrs` has the
    `notes` of the measurements, the `model` and the `versions` that recorded.

    Raises MeasurementError where the file is no recording, holds no step yet, or is damaged before its end.
    """
    from attncheck.engine.measure import Measured
    from attncheck.engine.observe import together

    found = Recording.read(Path(path))
    values = {request.key: found.measured(request) for request in found.requests}
    whole = together(found.requests, Measured(values, {}, found.notes))
    return whole.assign_attrs(model=found.header["model"]["class"], versions=found.header["versions"])


def check_recording(path: str | Path, bounds: Mapping[str, Any]) -> list[Verdict]:
    """Judge a recording over its steps: one verdict for each bound, in their order.

    `bounds` are those of `attncheck.record`: recorded quantity -> '>= 0.1', or a mapping in the words of a spec, here with steps too
    (`{"at_most": 2, "where": {"step": "100.."}, "reduce": {"head": "mean", "step": "growth"}, "for": "all layers"}`). A bound that cannot
    be judged has a verdict that did not pass, with `decided` "not measured".

    Raises AttncheckError where a bound is malformed or its quantity is not recorded, MeasurementError where the file cannot be read.
    """
    from attncheck.core.verdict import Verdict
    from attncheck.recording.watch import judged, without_place

    found = Recording.read(Path(path))
    verdicts = []
    for bound in read_bounds(bounds, found.requests, found.header["model"]["class"], live=False):
        case = f"{path}::{bound.name}"
        try:
            verdict = judged(bound, found.measured(bound.request))
        except AttncheckError as error:
            said = without_place(error)
            verdict = Verdict(False, said.splitlines()[0], bound.claim, observed=said.splitlines(), decided="not measured")
        verdict.case = case
        verdicts.append(verdict)
    return verdicts


@dataclass(frozen=True)
class Recording:
    """The whole lines of a file, taken apart."""

    path: Path
    header: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Raises MeasurementError where there is no header or no step."""
        lines, _ = whole_lines(path)
        if len(lines) < 2:
            raise MeasurementError(f"{path}: no step was recorded yet")
        return cls(path, lines[0], lines[1:])

    @property
    def requests(self) -> list[Request]:
        return [Request.of(item["name"], item["arguments"]) for item in self.header["observables"]]

    @property
    def steps(self) -> list[int]:
        return [int(record["step"]) for record in self.records]

    @property
    def notes(self) -> list[str]:
        names = dict(zip((request.key for request in self.requests), names_of(self.requests), strict=True))
        first = {key: (record["step"], why) for record in reversed(self.records) for key, why in record["missing"].items()}
        said = [f"{names[key]} could not be measured at every step, first at step {step}: {why}" for key, (step, why) in first.items()]
        return list(dict.fromkeys([*(note for record in self.records for note in record["notes"]), *said]))

    def measured(self, request: Request) -> xr.Dataset:
        """The measurement of one quantity over the steps. Raises MeasurementError where no step has it."""
        from attncheck.recording.stored import from_json

        found = [from_json(record["values"][request.key]) if request.key in record["values"] else None for record in self.records]
        return over_steps(self.path.name, self.steps, found)


def over_steps(name: str, steps: Sequence[int], several: Sequence[xr.Dataset | None]) -> xr.Dataset:
    """The measurements of several steps along `step`, NaN at those without. Raises MeasurementError where none has one."""
    from attncheck.engine.series import joined

    some = next((data for data in several if data is not None), None)
    if some is None:
        raise MeasurementError(f"{name}: it could not be measured at any step")
    series = SubjectSeries(SubjectDefinition(name, "recording", {}), steps, _not_kept)
    return joined(series, [_nothing_like(some) if data is None else data for data in several])


def _nothing_like(data: xr.Dataset) -> xr.Dataset:
    import numpy as np

    return data.assign({name: data[name] * np.nan for name in data.data_vars if name != "present"})


def _not_kept(step: int) -> LoadedSubject:
    raise MeasurementError(f"a recording has what was measured at step {step}, not the model")
