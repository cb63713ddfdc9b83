"""What the callbacks of training frameworks share: a recorder that is opened, stepped and closed by hooks, and how a run is stopped."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import AttentionWarning, BoundBroken
from attncheck.recording.recorder import OnBreak, Recorder, record

if TYPE_CHECKING:
    from torch import nn


class Watch:
    """Arguments of `attncheck.record`, kept until there is a model. `resume=None` goes on with a file where the training goes on."""

    def __init__(
        self,
        observables: Sequence[str | Mapping[str, Mapping[str, Any]]],
        *,
        path: str | Path,
        inputs: Any,
        every: int | Sequence[int] | None = None,
        bounds: Mapping[str, Any] | None = None,
        on_break: OnBreak = "warn",
        resume: bool | None = None,
        attention_layers: int | None = None,
    ) -> None:
        self.broken: BoundBroken | None = None
        """The bound that stopped the run."""
        self.recorder: Recorder | None = None
        self._resume, self._observables = resume, observables
        self._options: dict[str, Any] = {
            "path": path,
            "inputs": inputs,
            "every": every,
            "bounds": bounds,
            "on_break": on_break,
            "attention_layers": attention_layers,
        }

    def begin(self, model: nn.Module, step: int, stop: Callable[[], None]) -> None:
        """Open the recorder and tell it the step that the training begins at."""
        self.broken, self._seen = None, -1
        resume = step > 0 if self._resume is None else self._resume
        self.recorder = record(model, self._observables, resume=resume, **self._options).__enter__()
        self.step(step, stop)

    def step(self, step: int, stop: Callable[[], None]) -> None:
        """Tell the recorder a step; again the same one, as in the middle of accumulated gradients, is none. `stop` asks the loop to end."""
        if self.recorder is None or step == self._seen:
            return
        self._seen = step
        self._stopping(lambda recorder: recorder.step(step), stop)

    def end(self, *, whole: bool = True) -> None:
        """Close the recorder, after the last step was measured where the training was not cut short."""
        if self.recorder is None:
            return
        self._stopping(lambda recorder: recorder.close(whole=whole and self.broken is None), lambda: None)
        self.recorder = None

    def _stopping(self, act: Callable[[Recorder], object], stop: Callable[[], None]) -> None:
        """A loop of a framework is asked to end, and not thrown out of: it still saves and reports."""
        if self.recorder is None:
            return
        try:
            act(self.recorder)
        except BoundBroken as error:
            self.broken = error
            stop()
            warnings.warn(AttentionWarning(f"the training is stopped: {error}"), stacklevel=4)
