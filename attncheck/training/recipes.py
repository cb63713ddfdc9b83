"""The registry of recipes: a model, its data and its optimiser; what a `train` subject leaves open is the attention.

    @recipe("bytes-lm")
    def bytes_lm(*, layers: Count = 3, ...) -> Recipe:
        '''A byte-level causal language model. ...'''

The keyword-only parameters are options of `train:`. The function only says what is to be trained and must not import torch; what the
Recipe holds is called when it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from attncheck.core.registry import Entry, Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

F = TypeVar("F", bound="Callable[..., Recipe]")
Optimiser = Literal["muon", "adamw"]
RATES = {"muon": 0.02, "adamw": 0.003}
"""Default learning rates. Under muon the matrices of the layers take it; all else is AdamW's at a rate of 0.003."""

RECIPES: Registry[Entry] = Registry("recipe")


@dataclass(frozen=True)
class Recipe:
    """What is trained, without its attention. Inputs and targets are tensors on the CPU; targets are class numbers, -100 not counted."""

    width: int
    heads: int
    tokens: int
    causal: bool
    rotary: bool
    qk_norm: bool
    optimiser: Optimiser
    rate: float
    weight_decay: float
    build: Callable[[Any], nn.Module]
    """Attention definition -> a model of fresh weights drawn from torch's generator; forward(inputs) -> logits [..., classes]."""
    batch: Callable[[int, int], tuple[Tensor, Tensor]]
    """(seed, step from 1 on) -> inputs and targets of that step, by these two numbers alone: a resumed training sees the same."""
    held: Callable[[Literal["train", "test"]], tuple[Tensor, Tensor]]
    """Inputs and targets on which loss and accuracy are noted."""
    facts: Mapping[str, Any]
    """What an input must know of the model: fields of subjects.encoders.SubjectEncoder."""
    steps_per_epoch: int | None = None
    """None: the data has no end, and only steps are counted."""
    problems: Sequence[tuple[str, str]] = ()
    """(option, what is wrong with it), beyond its type."""
    libraries: Sequence[str] = ()
    """Distributions besides torch and numpy that decide about the data."""


def recipe(name: str, *, source: str = "") -> Callable[[F], F]:
    """Register a recipe; its docstring's first sentence is what lists print."""

    def register(function: F) -> F:
        RECIPES.add(Entry(name, function, {"source": source}))
        return function

    return register
