"""`verify_model`: every law that the claims bring with them, on the adversarial examples first and then on drawn ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import MeasurementError, raised
from attncheck.core.model_claims import ModelClaims
from attncheck.laws.engine import Found, LawReport, Outcome
from attncheck.laws.models.example import PLAIN, ModelExample, adversarial, drawn, fitted, smaller
from attncheck.laws.models.inferred import claimed
from attncheck.laws.models.registry import ModelLaw, model_laws
from attncheck.laws.models.subject import Subject
from attncheck.laws.models.trial import ModelTrial, lines
from attncheck.laws.picture import drawn as drawn_of
from attncheck.laws.registry import LawViolation, NotApplicable

if TYPE_CHECKING:
    from torch import nn

ENOUGH = 8
"""A battery in which fewer laws applied has hardly tested anything, and says so."""
SHRINKING = 10.0
"""Seconds for the way to a smaller example."""


def verify_model(
    model: nn.Module | Subject,
    claims: ModelClaims | Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    budget: float = 120.0,
    examples: int = 4,
    laws: Sequence[str] | None = None,
    first: bool = False,
) -> LawReport:
    """Hold a model against the laws that follow from what is claimed of it.

    model: a PreTrainedModel or any module that takes `input_ids` or `pixel_values`; the laws work on a copy. claims: a mapping is laid
    over what the model's class and configuration declare, None there withdraws a claim; a ModelClaims is all that is claimed. seed: of
    every random number; the same seed repeats the run. budget: seconds, after which no new example begins; laws that saw none are
    reported as skipped. examples: how many are drawn by hypothesis after the adversarial ones. laws: ids of laws or families
    ("model-cache"). first: stop at the first violation. Raises ClaimError for claims that are unknown or contradictory, AttncheckError
    for an unknown law, MeasurementError for a model that cannot be copied or whose inputs cannot be made.
    """
    import torch

    if budget <= 0:
        raise ValueError(f"budget: {budget}; allowed: seconds above 0")
    ModelClaims.of(claims or {})
    wanted = model_laws(list(laws) if laws is not None else None)
    subject = model if isinstance(model, Subject) else Subject(model)
    known = claimed(subject, claims)
    model_laws(list(known.exceptions))
    _runs(subject, known, seed)
    outcomes: dict[str, Outcome] = {}
    applying = []
    for law in wanted:
        excepted = known.exceptions.get(law.id)
        reason = f"claims.exceptions: {excepted}" if excepted else law.needs(known)
        outcomes[law.id] = Outcome(law, 0, skipped=reason)
        if reason is None:
            applying.append(law)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hard = list(adversarial(known, subject, seed))
        # every law has a turn before any has its second, as a model may be slow
        every = hard[:1], hard[1:], drawn(known, subject, seed, examples)
        # from here on, so that a first call's imports cost no law its turn
        end = time.monotonic() + budget
        for number, tried in enumerate(every):
            for law in applying:
                if outcomes[law.id].violation is None and not (law.once and number):
                    chosen = tried[:1] if law.once else tried
                    outcomes[law.id] = _held(law, subject, known, chosen, outcomes[law.id], end)
                if first and outcomes[law.id].violation is not None:
                    return LawReport(subject.name, known, seed, list(outcomes.values()), ENOUGH, laws)
    return LawReport(subject.name, known, seed, list(outcomes.values()), ENOUGH, laws)


def _runs(subject: Subject, claims: ModelClaims, seed: int) -> None:
    """Raise MeasurementError where the model does not even run on what the laws feed it: no law is to blame for that."""
    trial = ModelTrial(subject, claims, fitted(PLAIN.but(batch=1, seed=seed), claims, subject))
    try:
        inputs = trial.inputs
        subject.run(inputs)
    except LawViolation as problem:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items() if hasattr(value, "shape"))
        raise MeasurementError(f"{subject.name} does not run on what the laws feed it ({shapes}): {problem}") from problem


def _held(law: ModelLaw, subject: Subject, claims: ModelClaims, examples: list[ModelExample], before: Outcome, end: float) -> Outcome:
    """The law on these examples, added to what it did on others."""
    count, reason = before.examples, before.skipped
    for example in examples:
        if time.monotonic() > end:
            reason = reason or "the budget was spent before its turn"
            break
        trail: list[ModelExample] = []
        try:
            law.check(ModelTrial(subject, claims, example, trail))
        except NotApplicable as skipped:
            reason = reason or str(skipped)
            continue
        except (MemoryError, MeasurementError):
            raise
        except LawViolation as violation:
            told = subject.cache.setdefault(("raised", str(violation)), law.id)
            if violation.__cause__ is not None and told != law.id:
                reason = reason or f"the model raises as under {told}"
                continue
            smallest, found = _smallest(law, subject, claims, example, (trail[-1], violation), end)
            script = reproducer(subject, smallest, found.then)
            return Outcome(law, count + 1, Found(str(found), smallest, script, found.picture and drawn_of(found.picture)))
        except Exception as problem:  # outputs of a shape that nobody foresaw must not cost the other laws their say
            reason = reason or f"it could not be tried: {raised(problem)[:300]}"
            continue
        count += 1
    return Outcome(law, count, skipped=None if count else reason or "no example")


def _smallest(
    law: ModelLaw, subject: Subject, claims: ModelClaims, example: ModelExample, failed: tuple[ModelExample, LawViolation], end: float
) -> tuple[ModelExample, LawViolation]:
    """The smallest example that greedy steps reach and that still fails, and what the law said of it."""
    stop = min(end, time.monotonic() + SHRINKING)
    seen, moved = {example}, not law.once
    while moved:
        moved = False
        for candidate in smaller(example):
            candidate = fitted(candidate, claims, subject)
            if candidate in seen or time.monotonic() > stop:
                continue
            seen.add(candidate)
            trail: list[ModelExample] = []
            try:
                law.check(ModelTrial(subject, claims, candidate, trail))
            except LawViolation as found:
                example, failed, moved = candidate, (trail[-1], found), True
                break
            except NotApplicable:
                pass
    return failed


def reproducer(subject: Subject, example: ModelExample, then: str | None = None) -> list[str]:
    """A script that builds the example's inputs, calls the model and takes the law's own step, with torch alone."""
    text = ["import torch", f"model = ...  # {subject.name}, in eval mode"]
    if example.implementation:
        text.append(f"model.set_attn_implementation({example.implementation!r})")
    if then is not None and then.startswith("#alone\n"):
        return [*text, *then.removeprefix("#alone\n").splitlines()]
    return [*text, *lines(example, subject), "out = model(**inputs)", *(then or "print(out)").splitlines()]
