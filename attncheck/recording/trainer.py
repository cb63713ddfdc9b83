"""`AttentionCallback` for the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from attncheck.core.errors import MeasurementError
from attncheck.recording.callback import Watch


class AttentionCallback(TrainerCallback):
    """`attncheck.record` inside of transformers' Trainer, in its first process.

        watched = AttentionCallback(["logits.max"], path="run.jsonl", inputs=probe, bounds={"logits.max": "<= 1e3"}, on_break="stop")
        Trainer(model, args, train_dataset=..., callbacks=[watched]).train()

    Arguments are those of `attncheck.record`, without the model. Steps are the Trainer's global steps, 0 before the first. With
    `on_break="stop"` the Trainer is asked to stop after the step (it still saves and evaluates as it would), an AttentionWarning says why,
    and `.broken` is the BoundBroken. `resume=None` goes on with the file where the Trainer goes on from a checkpoint. Errors as those of
    `attncheck.record`, raised when the training begins.
    """

    def __init__(self, observables: Any, **options: Any) -> None:
        self.watch = Watch(observables, **options)

    @property
    def broken(self) -> Any:
        """The BoundBroken that stopped the run, or None."""
        return self.watch.broken

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        if model is None:
            raise MeasurementError("AttentionCallback: the Trainer gave no model")
        if state.is_world_process_zero:
            self.watch.begin(model, state.global_step, lambda: _stop(control))

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.watch.step(state.global_step, lambda: _stop(control))

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.watch.end()


def _stop(control: Any) -> None:
    control.should_training_stop = True
