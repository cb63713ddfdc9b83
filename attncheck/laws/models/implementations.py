"""Implementations of attention that are claimed to agree."""

from __future__ import annotations

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import LawViolation, NotApplicable


@model_law("accepted", family="implementations", needs=claims("implementations"), once=True)
def accepted(trial: ModelTrial) -> None:
    """Every claimed implementation is one that the model accepts."""
    for name in trial.claims.implementations or ():
        if reason := trial.subject.refused(name):
            raise LawViolation(reason, f"model.set_attn_implementation({name!r})")


def _several(trial: ModelTrial) -> list[str]:
    """The claimed implementations that the model accepts."""
    names = [name for name in trial.claims.implementations or () if not trial.subject.refused(name)]
    if len(names) < 2:
        raise NotApplicable("fewer than two of the claimed implementations are accepted")
    return names


@model_law("agree", family="implementations", needs=claims("implementations"))
def agree(trial: ModelTrial) -> None:
    """Every claimed implementation gives what the first one gives, after every block and in the output."""
    first, *others = _several(trial)
    wanted = trial.but(implementation=first, ask=False)
    for name in others:
        trial = wanted.but(implementation=name)
        trial.agree_everywhere(
            trial.plain,
            wanted.plain,
            f"output of {name}, against {first}",
            then=f"model.set_attn_implementation({first!r})\nprint((model(**inputs)[0] - out[0]).abs().max())",
        )


@model_law("gradients", family="implementations", needs=claims("implementations"), once=True)
def gradients(trial: ModelTrial) -> None:
    """Gradients of the parameters are the same under every claimed implementation."""
    from attncheck.laws.models.gradients import compared, parameters

    first, *others = _several(trial)
    wanted = parameters(trial.but(implementation=first, ask=False, cache=False))
    for name in others:
        compared(trial, parameters(trial.but(implementation=name, ask=False, cache=False)), wanted, f"under {name}, against {first}")
