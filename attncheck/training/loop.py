"""The training itself: from the folder's state, or from the beginning, to the last step. Imports torch."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attncheck.core.errors import MeasurementError
from attncheck.subjects.models import seeded
from attncheck.training.folder import Folder
from attncheck.training.optimisers import optimisers, restore, set_rate, share_of_rate, state_of
from attncheck.training.recipes import Recipe

CLIP = 1.0
"""Largest norm of the gradient of all parameters together."""
SAVED_EVERY = 30.0
"""Seconds of work that an interruption may cost, at most, besides one step."""
AT_ONCE = 50
"""Samples of the noted data in one forward."""


def recorded(steps: int, every: int | None) -> list[int]:
    """The recorded steps: 0, 1, 2, 4, 8, ... and the last; with `every` its multiples and the last."""
    if every is not None:
        return sorted({*range(0, steps + 1, every), steps})
    return sorted({0, *(2**n for n in range(steps.bit_length()) if 2**n <= steps), steps})


def fresh(recipe: Recipe, attention: Any, seed: int) -> nn.Module:
    """The model before its first step, drawn on the CPU: one seed is the same weights everywhere."""
    with seeded(seed):
        return recipe.build(attention)


def train(
    recipe: Recipe,
    attention: Any,
    *,
    seed: int,
    steps: int,
    record: Sequence[int],
    device: str,
    folder: Folder,
    name: str = "training",
    progress: Callable[[str], None] | None = None,
) -> None:
    """Train to the end and record. The caller holds the folder's lock.

    A step depends on the weights, the optimisers' state, the seed and its own number, and on nothing else: a training that goes on from its
    state takes the course that it would have taken. Raises MeasurementError where the loss is no longer a number.
    """
    with reproducible():
        model = fresh(recipe, attention, seed).to(device)
        made = optimisers(recipe, model)
        reached, begun = 0, time.monotonic()
        found = folder.state()
        if found is not None:
            reached, tensors = found
            model.load_state_dict({key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")})
            restore(made, {key: value for key, value in tensors.items() if not key.startswith("model.")})
        else:
            _record(recipe, model, 0, device, folder)
        started_at, saved = reached, begun
        for step in range(reached + 1, steps + 1):
            set_rate(made, share_of_rate(step, steps))
            loss = _step(recipe, model, made, seed, step, device)
            if not math.isfinite(loss):
                raise MeasurementError(f"{name}: the loss is {loss} at step {step} of {steps}: the training diverged; lower its `rate`")
            if step in record:
                _record(recipe, model, step, device, folder)
            if step in record or time.monotonic() - saved > SAVED_EVERY:
                folder.write_state(step, {**{f"model.{key}": value for key, value in model.state_dict().items()}, **state_of(made)})
                saved = time.monotonic()
                if progress is not None:
                    left = (saved - begun) / (step - started_at) * (steps - step)
                    progress(f"training {name}: {_bar(step / steps)} step {step} of {steps}, loss {loss:.3f}, {left:.0f} s left")
        folder.finish()


def _step(recipe: Recipe, model: nn.Module, made: Sequence[torch.optim.Optimizer], seed: int, step: int, device: str) -> float:
    inputs, targets = (tensor.to(device) for tensor in recipe.batch(seed, step))
    model.train()
    loss = loss_of(model(inputs), targets)
    for optimiser in made:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    for optimiser in made:
        optimiser.step()
    return float(loss.detach())


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits [..., classes] against class numbers [...]."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def _record(recipe: Recipe, model: nn.Module, step: int, device: str, folder: Folder) -> None:
    folder.write_weights(step, model.state_dict())
    found = {split: noted(recipe, model, split, device) for split in ("train", "test")}
    folder.note(step, {f"{split}.{key}": value for split, values in found.items() for key, value in values.items()})


@torch.no_grad()
def noted(recipe: Recipe, model: nn.Module, split: Any, device: str) -> dict[str, float]:
    """Mean cross-entropy and share of right predictions on the recipe's held data."""
    model.eval()
    inputs, targets = recipe.held(split)
    loss, right, count = 0.0, 0, 0
    for start in range(0, len(inputs), AT_ONCE):
        given, wanted = inputs[start : start + AT_ONCE].to(device), targets[start : start + AT_ONCE].to(device)
        logits = model(given)
        loss += float(functional.cross_entropy(logits.flatten(0, -2), wanted.flatten(), reduction="sum"))
        right += int((logits.argmax(-1) == wanted).sum())
        count += wanted.numel()
    return {"loss": loss / count, "accuracy": right / count}


@contextlib.contextmanager
def reproducible() -> Iterator[None]:
    """One thread on the CPU, whose number would change the order of sums; deterministic kernels where torch has them; gradients on."""
    threads, before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(before, warn_only=warn)


def _bar(share: float, width: int = 20) -> str:
    done = round(share * width)
    return f"[{'#' * done}{'.' * (width - done)}]"
