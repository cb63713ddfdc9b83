"""Small trainings that attncheck runs itself: recipes, and the subject kind `train`, whose checkpoints are measured along `step`."""

from __future__ import annotations

from attncheck.training import bytes_lm, vit_digits  # noqa: F401  (registers the recipes)
from attncheck.training.recipes import RECIPES, Recipe, recipe

__all__ = ["RECIPES", "Recipe", "recipe"]
