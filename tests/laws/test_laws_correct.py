"""No law flags a correct operator."""

from __future__ import annotations

import pytest
from correct import OPERATORS, SLOW

import attncheck
from attncheck.core.claims import OperatorClaims
from attncheck.laws.registry import laws


def flagged(name: str, seed: int, examples: int) -> str:
    operator, claims = {**OPERATORS, **SLOW}[name]
    report = attncheck.verify(operator, claims, seed=seed, examples=examples)
    assert report.enough, str(report)
    return "" if report.passed else str(report)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_correct_operator_is_not_flagged(name):
    assert not flagged(name, seed=0, examples=1)


def test_every_law_is_tried_on_a_correct_operator():
    claims = [OperatorClaims.of(said) for _, said in OPERATORS.values()]
    assert [law.id for law in laws() if all(law.needs(said) for said in claims)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sdpa", "sdpa_math", "naive_finite_fill", "row_by_row"])
def test_a_correct_operator_is_not_flagged_in_a_thorough_search(name):
    operator, claims = OPERATORS[name]
    report = attncheck.verify(operator, claims, examples=2, thorough=True, laws=["compiled"])
    assert report.passed, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
@pytest.mark.parametrize("name", [*OPERATORS, *SLOW])
def test_a_correct_operator_is_not_flagged_in_other_seeds(name, seed):
    assert not flagged(name, seed, examples=4)
