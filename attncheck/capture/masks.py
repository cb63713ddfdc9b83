"""What a mask hides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

HIDES = -9.9e3
"""Additive values from here down hide a key: -10000 is the smallest that is in use (-9984 in bfloat16), and exp(-9.9e3) is 0 everywhere."""


def hidden_in(mask: Tensor) -> Tensor:
    """bool, True where the mask hides the key: False of a bool mask; -9900 and below of an additive one."""
    return ~mask if mask.dtype == torch.bool else mask <= HIDES
