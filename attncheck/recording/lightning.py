"""`AttentionCallback` for the Trainer of Lightning (extra `lightning`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import Unavailable
from attncheck.recording.callback import Watch

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:
        Callback = object

if TYPE_CHECKING:
    from torch import nn


class AttentionCallback(Callback):  # type: ignore[misc]
    """`attncheck.record` inside of Lightning's Trainer, in its first process.

        Trainer(callbacks=[AttentionCallback(["attention.entropy"], path="run.jsonl", inputs=probe, model=lambda module: module.network)])

    Arguments are those of `attncheck.record`; `model` picks the part of the LightningModule whose forward takes `inputs` (default: the
    module itself). Steps are Lightning's global steps, 0 before the first. With `on_break="stop"` the Trainer is asked to stop after the
    step, an AttentionWarning says why, and `.broken` is the BoundBroken. `resume=None` goes on with the file where the Trainer goes on from
    a checkpoint. Errors as those of `attncheck.record`, raised when the training begins; Unavailable where Lightning is not installed.
    """

    def __init__(self, observables: Any, *, model: Callable[[Any], nn.Module] | None = None, **options: Any) -> None:
        if Callback is object:
            raise Unavailable("Lightning is not installed", "pip install 'attncheck[lightning]'")
        super().__init__()
        self.watch, self._model = Watch(observables, **options), model

    @property
    def broken(self) -> Any:
        """The BoundBroken that stopped the run, or None."""
        return self.watch.broken

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.watch.begin(self._model(pl_module) if self._model else pl_module, trainer.global_step, lambda: _stop(trainer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.watch.step(trainer.global_step, lambda: _stop(trainer))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.watch.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.watch.end(whole=False)


def _stop(trainer: Any) -> None:
    trainer.should_stop = True
