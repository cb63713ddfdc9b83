"""A model in eval mode for a moment, and afterwards as if nothing had been: what is trained in the end is the same to the bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor, nn

_SHARDED = ("FullyShardedDataParallel", "DeepSpeedEngine")


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode, autocast without its cache of weights; put back at the end with random states and buffers.

    Raises MeasurementError where a forward changes the parameters themselves.

    Modes are set as flags: a `train()` of somebody's own may do more, such as merging adapters, which changes weights in their last bits.
    Autocast's cache stays the training's own: weights that were cast where no gradients are kept have no place in it.
    """
    import numpy as np
    import torch

    from attncheck.capture.state import Randomness

    modes = [(module, module.training) for module in model.modules()]
    kept: list[tuple[Any, str, Tensor, int, Tensor]] = [
        (tensors, name, tensor, _version(tensor), tensor.detach().clone())
        for module, _ in modes
        # An embedding with a largest norm scales the rows that it looks up, in every mode.
        for tensors in (module._buffers, module._parameters if getattr(module, "max_norm", None) is not None else {})
        for name, tensor in tensors.items()
        if tensor is not None
    ]
    ours = {id(tensor) for _, _, tensor, _, _ in kept}
    others = [(name, tensor, _version(tensor)) for name, tensor in model.named_parameters() if id(tensor) not in ours]
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
            for tensors, name, tensor, version, before in kept:
                tensors[name] = tensor
                if version < 0 or tensor._version != version:
                    tensor.copy_(before)
        drawn.put_back()
        random.setstate(drawn_python)
        np.random.set_state(drawn_numpy)
    changed = [name for name, tensor, version in others if _version(tensor) != version]
    if changed:
        raise MeasurementError(f"the forward changes {changed[0]} in place, in eval mode too: a measurement would change the training")


def _version(tensor: Tensor) -> int:
    """How often it was written to; -1 where nobody counts."""
    return -1 if tensor.is_inference() else tensor._version


def whole_model(model: nn.Module) -> nn.Module:
    """The model inside wrappers of compilation and of data parallelism, whose own forward waits for the other processes.

    Raises MeasurementError where each process has a part of the weights only.
    """
    import torch

    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while isinstance(model, parallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, parallel) else model._orig_mod  # type: ignore[assignment]
    sharded = any(type(module).__name__ in _SHARDED for module in model.modules())
    if sharded or any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise MeasurementError(
            "the model's weights are sharded over processes, and one process alone cannot run it; record checkpoints instead"
        )
    return model
