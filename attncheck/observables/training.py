"""What a training noted of itself at each of its checkpoints: loss and accuracy."""

from __future__ import annotations

from typing import Literal

from attncheck.core.observable import observable

Split = Literal["test", "train"]


@observable("training.loss", reads="log", dims=(), unit="nats")
def loss(*, split: Split = "test") -> str:
    """The loss that the training noted at each checkpoint, over (step).

    Of a `train` subject: the mean cross-entropy of its recipe, on held-out data (`split: test`) or on a fixed part of the training data
    (`train`). Of `checkpoints` that transformers' Trainer wrote: eval_loss or loss, the last note up to the checkpoint's step.
    """
    return f"{split}.loss"


@observable("training.accuracy", reads="log", dims=(), unit="")
def accuracy(*, split: Split = "test") -> str:
    """The share of right predictions that the training noted at each checkpoint, over (step); of `checkpoints` the eval_accuracy."""
    return f"{split}.accuracy"
