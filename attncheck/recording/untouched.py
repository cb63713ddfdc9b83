"""A model in eval mode for a moment, and afterwards as if nothing had been: what is trained in the end is the same to the bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError

if TYPE_CHECKING:
    from torch import nn

_SHARDED = ("FullyShardedDataParallel", "DeepSpeedEngine")


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode, autocast without its cache of weights; put back at the end with random states and buffers.

    Modes are set as flags: a `train()` of somebody's own may do more, such as merging adapters, which changes weights in their last bits.
    Autocast's cache stays the training's own: weights that were cast where no gradients are kept have no place in it.
    """
    import numpy as np
    import torch

    from attncheck.capture.state import Randomness

    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, -1 if buffer.is_inference() else buffer._version, buffer.clone())
        for module, _ in modes
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    drawn, drawn_python, drawn_numpy = Randomness.now(), random.getstate(), np.random.get_state()
    cached = torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(False)
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        torch.set_autocast_cache_enabled(cached)
        with torch.no_grad():
            for module, name, buffer, version, kept in buffers:
                module._buffers[name] = buffer
                if version == -1 or buffer._version != version:
                    buffer.copy_(kept)
        drawn.put_back()
        random.setstate(drawn_python)
        np.random.set_state(drawn_numpy)


def whole_model(model: nn.Module) -> nn.Module:
    """The model inside wrappers of data parallelism, whose own forward waits for the other processes.

    Raises MeasurementError where each process has a part of the weights only.
    """
    import torch

    while isinstance(model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
        model = model.module
    sharded = any(type(module).__name__ in _SHARDED for module in model.modules())
    if sharded or any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise MeasurementError(
            "the model's weights are sharded over processes, and one process alone cannot run it; record checkpoints instead"
        )
    return model
