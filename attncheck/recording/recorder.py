"""`attncheck.record`: a training loop of one's own, watched at some of its steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from attncheck.core.definitions import Request, digest
from attncheck.core.errors import AttentionWarning, AttncheckError, BoundBroken, MeasurementError
from attncheck.recording.bounds import LiveBound, names_of, read_bounds
from attncheck.recording.lines import FORMAT, Appender
from attncheck.recording.read import over_steps
from attncheck.recording.schedule import Schedule, whole
from attncheck.recording.stored import from_json, plain, to_json
from attncheck.recording.untouched import untouched, whole_model
from attncheck.recording.watch import SETTLED, broken

if TYPE_CHECKING:
    import xarray as xr
    from torch import nn

OnBreak = Literal["warn", "stop"] | Callable[[BoundBroken], object]
SAME = ("observables", "model", "inputs")
"""What a resumed recording has in common with the one that it goes on with."""


def record(
    model: nn.Module,
    observables: Sequence[str | Mapping[str, Mapping[str, Any]]],
    *,
    path: str | Path,
    inputs: Any,
    every: int | Sequence[int] | None = None,
    bounds: Mapping[str, Any] | None = None,
    on_break: OnBreak = "warn",
    resume: bool = False,
    attention_layers: int | None = None,
) -> Recorder:
    """Measure a model while it is trained; a context manager around the training loop.

        with attncheck.record(model, ["logits.max"], path="run.jsonl", inputs=probe, bounds={"logits.max": "<= 1e3"}) as recorder:
            recorder.step(0)
            for n, batch in enumerate(batches, 1):
                ...  # forward, backward, optimiser.step()
                recorder.step(n)

    `observables` and `inputs`, the fixed batch of every measurement, are as `attncheck.observe` takes them; tensors are moved to the
    model's device. A step that is recorded costs one forward of `inputs` without gradients, in eval mode; the others cost nothing. The
    training stays what it was without the recorder, to the last bit of its weights.

    `every`: None records 0, 1, 2, 4, 8, ... and the last step, a number its multiples and the last step, a list its steps. `path` is a
    file that must not exist, in a folder that does; one line is appended for each step and is on the disk when `step` returns.
    `resume=True` goes on with a file that exists, after its last whole line. `attncheck.read_recording` reads it.

    `bounds`: recorded quantity -> '>= 0.1', '<= sqrt(N)', 'in [a, b]', '= 1', in the unit of the observable, or a mapping in the words of
    a spec: `{"at_least": 0.1, "reduce": {"head": "mean"}, "for": "80% of layers"}`. Each is judged at every recorded step and told once:
    the first time that it does not hold, or that its quantity is not a number. `on_break`: "warn" warns with an AttentionWarning, "stop"
    raises BoundBroken out of `step`, a function is called with the BoundBroken; the text names claim, value, limit, layer, head, and a
    picture that lies beside the recording.

    Raises AttncheckError where an argument is wrong, the file exists, or is of another model, other observables or inputs than what shall
    be resumed; MeasurementError where the file cannot be written, and out of the first recorded `step` where something cannot be measured.
    What cannot be measured later is missing at that step, and an AttentionWarning says so once.
    """
    return Recorder(
        model, observables, path, inputs, every=every, bounds=bounds, on_break=on_break, resume=resume, attention_layers=attention_layers
    )


class Recorder:
    """What `attncheck.record` gives: `step(n)` inside of `with`."""

    def __init__(
        self,
        model: nn.Module,
        observables: Sequence[str | Mapping[str, Mapping[str, Any]]],
        path: str | Path,
        inputs: Any,
        *,
        every: int | Sequence[int] | None,
        bounds: Mapping[str, Any] | None,
        on_break: OnBreak,
        resume: bool,
        attention_layers: int | None,
    ) -> None:
        import torch

        from attncheck.engine.observe import feed_of

        if not isinstance(model, torch.nn.Module):
            raise AttncheckError(f"model: {type(model).__name__}; allowed: an nn.Module")
        if on_break not in ("warn", "stop") and not callable(on_break):
            raise AttncheckError(f"on_break: {on_break!r}; allowed: 'warn', 'stop', or a function of one BoundBroken")
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise AttncheckError(f"path: there is no folder {self.path.parent}; make it first")
        self.seconds = 0.0
        """Spent on measuring, writing and judging so far."""
        self._model, self._layers, self._resume, self._on_break = whole_model(model), attention_layers, resume, on_break
        self._requests = _requests(observables)
        given = feed_of(self._model, inputs).arguments
        self._inputs = {name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
        self._schedule = Schedule.of(every)
        self._bounds = read_bounds(bounds or {}, self._requests, type(self._model).__name__, live=True)
        self._told: set[str] = set()
        self._file: Appender | None = None
        self._steps: list[int] = []
        self._first = True
        self._seen: int | None = None
        self._upgrades: list[str] = []
        """What resumed the recording in other versions than began it."""
        self._sizes: dict[str, dict[str, int]] = {}
        """Of each quantity: one recording has one shape."""
        self._kept: dict[str, list[xr.Dataset | None]] = {bound.request.key: [] for bound in self._bounds if bound.over_steps}
        """What bounds on the course need of all steps."""

    @property
    def steps(self) -> list[int]:
        """The recorded steps, those of a resumed recording among them."""
        return list(self._steps)

    def __enter__(self) -> Self:
        if self._file is not None:
            raise AttncheckError(f"{self.path} is being recorded already")
        header = self._header()
        self._file = Appender(self.path, resume=self._resume)
        try:
            if self._file.lines:
                self._go_on(header)
            else:
                self._file.append(header)
        except BaseException:
            self.close(whole=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close(whole=kind is None)

    def close(self, *, whole: bool = True) -> None:
        """What leaving `with` does: measure the last step, unless it is measured or the training failed (`whole=False`); close the file."""
        try:
            if (
                self._file is not None
                and whole
                and self._schedule.ends_with_the_last
                and self._seen is not None
                and self._seen > self._last
            ):
                self._tell(*self._record(self._seen), depth=4)
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None

    def step(self, n: int) -> None:
        """Tell the recorder that `n` steps of the optimiser are done; measured where that is due. Call it once a step, 0 before the first.

        Raises AttncheckError where steps do not increase or the recorder is not open, BoundBroken with `on_break="stop"`.
        """
        try:
            step = whole(n)
        except TypeError:
            raise AttncheckError(f"step: {n!r}; allowed: a whole number from 0") from None
        self._opened()
        if step < 0 or (self._seen is not None and step <= self._seen):
            raise AttncheckError(f"step {step} after step {self._seen}: steps are whole numbers from 0 that increase")
        before, self._seen = max(self._last, -1 if self._seen is None else self._seen), step
        # A training that went back to a checkpoint passes steps that are recorded already: those stay.
        if step > self._last and self._schedule.due(before, step):
            self._tell(*self._record(step))

    def _opened(self) -> Appender:
        """The file. Raises AttncheckError outside of `with`."""
        if self._file is None:
            raise AttncheckError("the recorder is not open; call step() inside of `with attncheck.record(...) as recorder:`")
        return self._file

    @property
    def _last(self) -> int:
        return self._steps[-1] if self._steps else -1

    def _record(self, step: int) -> tuple[list[BoundBroken], list[str]]:
        """Measure, write, judge, in this order: what was measured is on the disk before anybody is told.

        Returns the bounds that broke, and what else there is to warn of.
        """
        begun = time.perf_counter()
        values, missing, notes = self._measure()
        stored = {key: to_json(data) for key, data in values.items()}
        seconds = round(time.perf_counter() - begun, 6)
        self._opened().append({"step": step, "values": stored, "missing": missing, "notes": notes + self._upgrades, "seconds": seconds})
        self._steps.append(step)
        for key, several in self._kept.items():
            several.append(values.get(key))
        found = self._judge(step, values, missing)
        lost = self._lost(step, missing)
        self._first = False
        self.seconds += time.perf_counter() - begun
        return found, lost

    def _measure(self) -> tuple[dict[str, xr.Dataset], dict[str, str], list[str]]:
        """Values, why others are missing, notes. Raises MeasurementError where it is the first measurement and something is missing."""
        import torch

        from attncheck.engine.measure import Measured, measure_fed
        from attncheck.engine.observe import feed_of, subject_of

        device = next((parameter.device for parameter in self._model.parameters()), torch.device("cpu"))
        moved = {name: value.to(device, copy=True) if isinstance(value, torch.Tensor) else value for name, value in self._inputs.items()}
        feed = feed_of(self._model, moved)
        try:
            with untouched(self._model):
                measured = measure_fed(subject_of(self._model, feed), feed, self._requests, self._layers)
        except AttncheckError as error:
            measured = Measured(faults={request.key: error for request in self._requests})
        for key in [key for key, data in measured.values.items() if _sizes(data) != self._sizes.setdefault(key, _sizes(data))]:
            now = measured.values.pop(key)
            measured.faults[key] = MeasurementError(
                f"{self.path}: its earlier steps have {_counted(self._sizes[key])}, and this model has {_counted(_sizes(now))}"
            )
        if measured.faults and self._first:
            raise next(iter(measured.faults.values()))
        return measured.values, {key: str(fault) for key, fault in measured.faults.items()}, measured.notes

    def _judge(self, step: int, values: Mapping[str, xr.Dataset], missing: Mapping[str, str]) -> list[BoundBroken]:
        found = []
        for bound in self._bounds:
            key = bound.request.key
            if bound.name in self._told or (bound.over_steps and len(self._steps) < SETTLED):
                continue
            now: xr.Dataset | MeasurementError
            if key in missing:
                now = MeasurementError(missing[key])
            elif bound.over_steps:
                now = over_steps(self.path.name, self._steps, self._kept[key])
            else:
                now = over_steps(self.path.name, [step], [values[key]])
            told = broken(bound, step, now, lambda bound=bound: self._course(bound), self.path, first=self._first)  # type: ignore[misc]
            if told is not None:
                self._told.add(bound.name)
                found.append(told)
        return found

    def _lost(self, step: int, missing: Mapping[str, str]) -> list[str]:
        """What can no longer be measured, told once, unless its bound said so."""
        names = dict(zip((request.key for request in self._requests), names_of(self._requests), strict=True))
        lost = [key for key in missing if names[key] not in self._told]
        self._told.update(names[key] for key in lost)
        return [f"step {step}: {names[key]} could not be measured and is missing: {missing[key]}" for key in lost]

    def _course(self, bound: LiveBound) -> xr.Dataset:
        from attncheck.recording.read import Recording

        return Recording.read(self.path).measured(bound.request)

    def _tell(self, found: Sequence[BoundBroken], lost: Sequence[str], *, depth: int = 3) -> None:
        """Warn, stop or call. Of several bounds that break at one step all but the one that stops are warned of."""
        told = [] if callable(self._on_break) else found[1:] if self._on_break == "stop" else found
        for text in (*lost, *map(str, told)):
            warnings.warn(AttentionWarning(text), stacklevel=depth)
        if callable(self._on_break):
            for one in found:
                self._on_break(one)
        elif found and self._on_break == "stop":
            raise found[0]

    def _header(self) -> dict[str, Any]:
        from attncheck.engine.results import versions

        parameters = [(name, list(value.shape), str(value.dtype)) for name, value in self._model.named_parameters()]
        count = sum(value.numel() for value in self._model.parameters())
        return {
            "attncheck_recording": FORMAT,
            "observables": [{"name": request.name, "arguments": request.arguments} for request in self._requests],
            "model": {"class": type(self._model).__name__, "parameters": count, "shapes": digest(parameters)},
            "inputs": _hash(self._inputs),
            "every": plain(self._schedule.every),
            "versions": versions(),
        }

    def _go_on(self, header: Mapping[str, Any]) -> None:
        """Take over what is recorded. Raises AttncheckError where it is of something else."""
        theirs, *records = self._opened().lines
        different = [name for name in SAME if theirs[name] != header[name]]
        if different:
            name = different[0]
            raise AttncheckError(
                f"{self.path} cannot be resumed: its {name} {'is' if name == 'model' else 'are'} {_shown(theirs[name])}, and here "
                f"{_shown(header[name])}; allowed: the same {', '.join(SAME)}, or another path"
            )
        self._steps = [int(line["step"]) for line in records]
        changed = [f"{name} {version}" for name, version in header["versions"].items() if version != theirs["versions"].get(name)]
        self._upgrades = [f"resumed after step {self._last} with {', '.join(changed)}"] if changed else []
        for line in records:
            self._sizes.update({key: _sizes(from_json(data)) for key, data in line["values"].items() if key not in self._sizes})
        for key, several in self._kept.items():
            several += [from_json(line["values"][key]) if key in line["values"] else None for line in records]
        self._opened().lines = []


def _requests(observables: Any) -> list[Request]:
    """Each once. Raises AttncheckError on what is unknown, twice, or noted by trainings of attncheck alone."""
    from attncheck.engine.observe import listed, request_of
    from attncheck.engine.vocabulary import vocabulary

    known = vocabulary()
    found = [request_of(item, known.observables) for item in listed(observables)]
    for request in found:
        if found.count(request) > 1:
            raise AttncheckError(f"observables: {request} twice; allowed: each once")
        if known.reads(request.name) == "log":
            raise AttncheckError(f"observables: {request.name} is noted by a training, and nothing of a model says it; log it yourself")
    return found


def _sizes(data: xr.Dataset) -> dict[str, int]:
    return {str(dim): int(size) for dim, size in data["value"].sizes.items()}


def _counted(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{dim} {size}" for dim, size in sizes.items())


def _hash(inputs: Mapping[str, Any]) -> str:
    """Of the batch, wherever it lies."""
    import torch

    from attncheck.inputs.hashing import content_hash

    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    others = {name: str(value) for name, value in inputs.items() if name not in tensors}
    bare = {name: value.detach().cpu().contiguous().view(torch.uint8).numpy() for name, value in tensors.items() if value.dim()}
    about = {name: [list(value.shape), str(value.dtype)] for name, value in tensors.items()}
    return digest([content_hash(bare), about, others, {name: value.item() for name, value in tensors.items() if not value.dim()}])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(item["name"] for item in value)
    if isinstance(value, Mapping):
        return f"{value['class']} of {value['parameters']} parameters (shapes {value['shapes']})"
    return str(value)
