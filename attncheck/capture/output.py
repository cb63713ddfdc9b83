"""A few numbers that stand for a model's whole output: enough to tell later whether, and about how far, it moved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attncheck.core.baseline import PROJECTIONS, Output

SEED = 7


def fingerprint(output: Any, valid: Tensor | None) -> Output | None:
    """The norm of a model's first output and its projections on PROJECTIONS fixed patterns of +-1; None where it has no numbers.

    `output` is what the forward returned: a tensor [batch, ...], a ModelOutput or a tuple that begins with one (logits, hidden states).
    `valid` [batch, tokens]: padded tokens count as 0. A pattern is the product of a pattern over each dim, so that none is as large as the
    output; the mean square of the projections of a difference is the square of its norm in expectation.
    """
    found = _first(output)
    if found is None or not found.numel():
        return None
    made = found.detach()
    if valid is not None and made.dim() == 3 and tuple(valid.shape) == tuple(made.shape[:2]):
        made = made.masked_fill(~valid[..., None].to(made.device), 0)
    made = made.reshape(made.shape[0], -1, made.shape[-1]) if made.dim() > 1 else made.reshape(1, 1, -1)
    draws = torch.Generator().manual_seed(SEED)
    batch, rows, columns = (_signs(size, draws).to(made.device) for size in made.shape)
    squares, projected = 0.0, torch.zeros(PROJECTIONS, dtype=torch.float64)
    for sample, signs in zip(made, batch, strict=True):  # one at a time: half precision is copied to float32
        numbers = sample.float()
        squares += float(numbers.square().sum(dtype=torch.float64))
        projected += (((numbers @ columns) * rows).sum(0, dtype=torch.float64) * signs).cpu()
    # Infinities and NaN have no distance; the quantities themselves tell of them.
    return Output(squares**0.5, tuple(projected.tolist())) if math.isfinite(squares) else None


def _signs(size: int, draws: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (size, PROJECTIONS), generator=draws).float() * 2 - 1


def _first(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    for part in parts:
        if isinstance(part, Tensor) and part.is_floating_point() and part.dim():
            return part
    return None
