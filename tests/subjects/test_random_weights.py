"""`weights: random` is the same architecture, the seed alone decides, and nothing else is disturbed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from attncheck.core.errors import MeasurementError
from attncheck.subjects import load

CHEAP = ["glassllm", "microformer-mgm", "rxnmapper"]


def state(define, name, **axes):
    return load(define("pretrained", {"name": f"package:{name}"}, **axes)).model.state_dict()


@pytest.mark.parametrize("name", CHEAP)
def test_the_seed_alone_decides(define, name):
    trained = state(define, name)
    torch.manual_seed(1)
    first = state(define, name, weights="random", seed=3)
    torch.manual_seed(2)
    again = state(define, name, weights="random", seed=3)
    other = state(define, name, weights="random", seed=4)
    assert {key: value.shape for key, value in first.items()} == {key: value.shape for key, value in trained.items()}
    assert all(torch.equal(first[key], again[key]) for key in first)
    matrices = [key for key, value in first.items() if value.ndim == 2 and "LayerNorm" not in key]
    assert matrices
    for key in matrices:
        assert not torch.equal(first[key], other[key])
        assert not torch.equal(first[key], trained[key])


def test_trained_weights_are_not_read(define, monkeypatch):
    from transformers import PreTrainedModel

    def refuse(*arguments, **options):
        raise AssertionError("from_pretrained was called")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert state(define, "microformer-mgm", weights="random")


def test_the_global_generators_are_left_alone(define, tiny):
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    load(define("config", tiny, seed=9))
    state(define, "rxnmapper", weights="random", seed=9)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert before[2] == random.getstate()


def test_dtype_rounds_the_same_draw(define, tiny):
    full = load(define("config", tiny, dtype="float32")).model.state_dict()
    half = load(define("config", tiny, dtype="bfloat16")).model.state_dict()
    double = load(define("config", tiny, dtype="float64")).model.state_dict()
    for key, value in full.items():
        assert torch.equal(value.bfloat16(), half[key])
        assert torch.equal(value.double(), double[key])
    assert half["lm_head.weight"].dtype == torch.bfloat16


def test_the_scale_is_the_configuration_s(define, tiny):
    weights = load(define("config", {**tiny, "initializer_range": 0.05})).model.state_dict()["model.layers.0.self_attn.q_proj.weight"]
    assert weights.std().item() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(("kind", "options"), [("python", {"factory": "torch.nn:Identity"}), ("operator", {"name": "sdpa"})])
def test_it_is_refused_where_it_means_nothing(define, kind, options):
    with pytest.raises(MeasurementError, match="weights: random does not go with"):
        load(define(kind, options, weights="random"))


def test_other_words_are_refused(define, tiny):
    with pytest.raises(MeasurementError, match="weights 'fresh'; allowed: trained, random"):
        load(define("config", tiny, weights="fresh"))
