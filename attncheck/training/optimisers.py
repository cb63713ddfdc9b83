"""The optimisers of recipes, their schedule, and their state as plain tensors. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from attncheck.training.recipes import RATES, Recipe

BETAS = (0.9, 0.95)
WARMUP = 0.05
"""Share of the steps over which the rate rises; after it a cosine falls to FLOOR of it."""
FLOOR = 0.1


def optimisers(recipe: Recipe, model: nn.Module) -> list[torch.optim.Optimizer]:
    """muon: Muon for the matrices of the layers, AdamW at its own default rate for the rest; adamw: AdamW for all."""
    learned = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    matrices = {name for name, parameter in learned.items() if parameter.dim() == 2 and "layers." in name and recipe.optimiser == "muon"}
    rest = [parameter for name, parameter in learned.items() if name not in matrices]
    rate = RATES["adamw"] if matrices else recipe.rate
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, lr=rate, betas=BETAS, weight_decay=recipe.weight_decay)]
    if matrices:
        made.append(torch.optim.Muon([learned[name] for name in sorted(matrices)], lr=recipe.rate, weight_decay=recipe.weight_decay))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return made


def share_of_rate(step: int, steps: int) -> float:
    """Of the peak, at a step from 1 on: linear up over the first WARMUP of the steps, then half a cosine down to FLOOR."""
    rising = max(1, round(steps * WARMUP))
    if step <= rising:
        return step / rising
    done = (step - rising) / max(1, steps - rising)
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * done)) / 2


def set_rate(made: Sequence[torch.optim.Optimizer], share: float) -> None:
    for optimiser in made:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * share


def state_of(made: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """'optimiser.0.12.exp_avg' -> tensor: all that an optimiser carries from step to step, besides its settings."""
    found = {}
    for number, optimiser in enumerate(made):
        for index, entries in optimiser.state_dict()["state"].items():
            for name, value in entries.items():
                if value is not None:
                    found[f"optimiser.{number}.{index}.{name}"] = torch.as_tensor(value)
    return found


def restore(made: Sequence[torch.optim.Optimizer], state: Mapping[str, Tensor]) -> None:
    """Put back what `state_of` gave."""
    for number, optimiser in enumerate(made):
        told = optimiser.state_dict()
        told["state"] = {}
        for key, value in state.items():
            kind, owner, index, name = key.split(".", 3)
            if kind == "optimiser" and int(owner) == number:
                told["state"].setdefault(int(index), {})[name] = value
        optimiser.load_state_dict(told)
