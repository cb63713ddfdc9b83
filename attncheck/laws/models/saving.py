"""A model saved and loaded is the same model."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

from attncheck.laws.models.gradients import LARGEST
from attncheck.laws.models.registry import model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import LawViolation, NotApplicable
from attncheck.subjects.models import quiet


def _small(trial: ModelTrial) -> Any:
    model: Any = trial.subject.model
    if trial.subject.config is None or not hasattr(model, "save_pretrained"):
        raise NotApplicable("the model is none of transformers")
    if sum(p.numel() for p in model.parameters()) > LARGEST:
        raise NotApplicable(f"the model has more than {LARGEST:,} parameters")
    return model


def _same(trial: ModelTrial, other: Any, how: str, then: str) -> None:
    found = trial.run(model=other.eval())
    trial.agree_everywhere(found, trial.plain, f"output of the model {how}", then=then)


@model_law("load", family="saving", once=True)
def load(trial: ModelTrial) -> None:
    """A model that is saved and loaded again gives the same."""
    model = _small(trial)
    implementation = trial.example.implementation or getattr(model.config, "_attn_implementation", None)
    with tempfile.TemporaryDirectory(prefix="attncheck-") as folder:
        try:
            with quiet():
                model.save_pretrained(folder)
                other = type(model).from_pretrained(folder, attn_implementation=implementation, dtype=trial.subject.dtype)
        except Exception as problem:
            raise LawViolation(f"saving and loading raised {type(problem).__name__}: {str(problem)[:200]}") from problem
    _same(
        trial,
        other,
        "saved and loaded, against before",
        "model.save_pretrained('saved')\nprint((type(model).from_pretrained('saved').eval()(**inputs)[0] - out[0]).abs().max())",
    )


@model_law("state", family="saving", once=True)
def state(trial: ModelTrial) -> None:
    """A new model of the same configuration gives the same once it has the state_dict: nothing is kept outside of both."""
    import torch

    model = _small(trial)
    config = copy.deepcopy(model.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        try:
            other = type(model)(config).to(trial.subject.dtype)
        except (TypeError, ValueError) as problem:
            raise NotApplicable(f"{type(model).__name__} cannot be built from its configuration alone: {problem}") from problem
    other.load_state_dict(model.state_dict())
    if hasattr(other, "set_attn_implementation") and (trial.example.implementation or getattr(config, "_attn_implementation", None)):
        other.set_attn_implementation(trial.example.implementation or config._attn_implementation)
    _same(
        trial,
        other,
        "with its state_dict in a new one of the same configuration",
        "other = type(model)(model.config).eval(); other.load_state_dict(model.state_dict())\n"
        "print((other(**inputs)[0] - out[0]).abs().max())",
    )
