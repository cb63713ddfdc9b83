"""Every executable bug of a model is caught by a law of models, and the unchanged models break none."""

from __future__ import annotations

import model_detection
import pytest
import zoo
from model_mutants import BASE, MODEL_MUTANTS, Correct, using

import attncheck


@pytest.mark.parametrize("mutant", MODEL_MUTANTS, ids=[mutant.row for mutant in MODEL_MUTANTS])
def test_a_law_of_models_catches_the_bug(mutant):
    assert model_detection.caught(mutant), f"{mutant.row}: {mutant.what}"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MODEL_MUTANTS, ids=[mutant.row for mutant in MODEL_MUTANTS])
def test_a_law_of_models_catches_the_bug_in_another_seed(mutant):
    assert model_detection.caught(mutant, seed=11), f"{mutant.row}: {mutant.what}"


@pytest.mark.parametrize("make", [lambda: zoo.build("llama"), lambda: using(Correct())], ids=["llama", "its mutants' attention"])
def test_what_the_mutants_are_made_of_breaks_no_law(make):
    report = attncheck.verify_model(make(), BASE, examples=1)
    assert report.passed, str(report)
