"""A vision transformer that tells digits apart."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Literal

from attncheck.inputs.digits import Source
from attncheck.training.recipes import RATES, Optimiser, Recipe, recipe
from attncheck.variants.fields import Count, Positive

if TYPE_CHECKING:
    from torch import Tensor

PATCH = 2
"""Pixels a side."""
MEAN, DEVIATION = 0.08, 0.17
"""Of the pixels in [0, 1], about."""
NOTED_ON = 200
"""Images of each part on which loss and accuracy are noted."""
TRAINED_ON = {"drawn": 3000, "scikit-learn": 1400}


@recipe("vit-digits")
def vit_digits(
    *,
    layers: Count = 12,
    width: Count = 48,
    heads: Count = 3,
    tokens: Count = 196,
    batch: Count = 32,
    data: Source = "drawn",
    optimiser: Optimiser = "adamw",
    rate: Positive | None = None,
    weight_decay: float = 0.05,
    qk_norm: bool = False,
) -> Recipe:
    """A vision transformer that tells the digits 0 to 9 apart.

    `tokens` patches of 2 x 2 pixels, a square number: 196 are the 28 x 28 pixels of a drawn digit, fewer or more are the image at another
    size. Pre-norm, no class token: patches and learned positions, `layers` times attention and an MLP of 4 `width` with GELU, the mean
    over the tokens, a linear head. `data` is drawn (3000 images made with the fonts of matplotlib, 500 held out) or scikit-learn (its
    scans, 8 x 8 pixels made larger; 1400 and 397; pip install 'attncheck[training]'). Loss and accuracy are noted on 200 images held out
    (test) and 200 trained on (train). `rate` is 0.003 for adamw and 0.02 for muon.
    """
    across = math.isqrt(tokens)
    side = across * PATCH
    per_epoch = math.ceil(TRAINED_ON[data] / batch)

    def build(attention: object) -> object:
        from attncheck.training.network import Vision

        return Vision(attention, layers=layers, width=width, heads=heads, tokens=tokens, patch=PATCH, classes=10, qk_norm=qk_norm)

    def drawn(seed: int, step: int) -> tuple[Tensor, Tensor]:
        import numpy as np

        epoch, place = divmod(step - 1, per_epoch)
        order = np.random.RandomState(np.array([seed, epoch], dtype=np.uint32)).permutation(TRAINED_ON[data])
        pixels, labels = _tensors("train", data, side)
        chosen = order[place * batch : (place + 1) * batch]
        return pixels[chosen], labels[chosen]

    def held(split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        pixels, labels = _tensors(split, data, side)
        return pixels[:NOTED_ON], labels[:NOTED_ON]

    square = ("tokens", f"tokens: {tokens} is no square number, and the patches lie in a square; allowed: 16, 49, 64, 196, 256, ...")
    return Recipe(
        width=width, heads=heads, tokens=tokens, causal=False, rotary=False, qk_norm=qk_norm, optimiser=optimiser,
        rate=RATES[optimiser] if rate is None else rate, weight_decay=weight_decay,
        build=build, batch=drawn, held=held,  # type: ignore[arg-type]
        facts={
            "image_size": side, "patch_size": PATCH, "channels": 1, "image_mean": (MEAN,), "image_std": (DEVIATION,),
            "image_prefix": (), "vocabulary_size": None,
        },
        steps_per_epoch=per_epoch,
        problems=[] if across**2 == tokens else [square],
        libraries=("pillow", "matplotlib") if data == "drawn" else ("pillow", "scikit-learn"),
    )  # fmt: skip


@functools.cache
def _tensors(split: Literal["train", "test"], source: Source, side: int) -> tuple[Tensor, Tensor]:
    import numpy as np
    import torch

    from attncheck.inputs.digits import digits, resized

    images, labels = digits(split, source)
    pixels = np.stack([resized(image, side) for image in images]).astype(np.float32) / 255
    return torch.from_numpy((pixels - MEAN) / DEVIATION)[:, None], torch.from_numpy(labels)
