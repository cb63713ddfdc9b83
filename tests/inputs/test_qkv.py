"""Queries, keys and values for operators."""

from __future__ import annotations

import pytest
import torch

from attncheck.core.errors import MeasurementError


def test_shapes_and_flags(feed, load):
    fed = feed(
        "sdpa",
        "qkv",
        {"distribution": "normal", "queries": 5, "keys": 7, "heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 3},
        batch=2,
    )
    shapes = {name: tuple(fed.arguments[name].shape) for name in ("query", "key", "value")}
    assert shapes == {"query": (2, 4, 5, 8), "key": (2, 2, 7, 8), "value": (2, 2, 7, 3)}
    assert fed.arguments["enable_gqa"] is True
    assert "is_causal" not in fed.arguments
    assert load("sdpa").operator(**fed.arguments).shape == (2, 4, 5, 3)
    causal = feed("sdpa", "qkv", {"distribution": "normal", "causal": True}, length=6)
    assert causal.arguments["is_causal"] is True
    assert causal.arguments["query"].shape == (1, 4, 6, 32)


def test_draws_are_frozen_by_seed_and_row(feed):
    one = feed("sdpa", "qkv", {"distribution": "normal"}, length=6)
    two = feed("sdpa", "qkv", {"distribution": "normal"}, length=6, batch=2)
    other = feed("sdpa", "qkv", {"distribution": "normal", "seed": 1}, length=6)
    assert torch.equal(one.arguments["query"][0], two.arguments["query"][0])
    assert not torch.equal(two.arguments["query"][0], two.arguments["query"][1])
    assert not torch.equal(one.arguments["query"], other.arguments["query"])
    half = feed("sdpa", "qkv", {"distribution": "normal"}, length=6, dtype="float16")
    assert half.arguments["key"].dtype == torch.float16
    assert half.content_hash == one.content_hash
    assert feed("sdpa", "qkv", {"distribution": "normal", "causal": True}, length=6).content_hash != one.content_hash


def test_distributions_are_what_they_say(feed):
    normal = feed("sdpa", "qkv", {"distribution": "normal", "scale": 3.0}, length=256).arguments
    assert normal["query"].std().item() == pytest.approx(3, rel=0.02)
    assert normal["value"].std().item() == pytest.approx(1, rel=0.02)
    channels = feed("sdpa", "qkv", {"distribution": "outliers"}, length=256).arguments["key"].std(dim=(0, 1, 2))
    assert (channels > 10).sum() == 2, "one channel in sixteen of 32"
    sink = feed("sdpa", "qkv", {"distribution": "sink"}, length=64).arguments
    scores = (sink["query"] @ sink["key"].transpose(-2, -1) / 32**0.5).double()
    assert scores[..., 0].mean().item() == pytest.approx(12, rel=0.1)
    assert scores.softmax(-1)[..., 0].min() > 0.5


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_hides_keys(feed, load, side, causal):
    options = {"distribution": "normal", "causal": causal}
    fed = feed("softmax", "qkv", options, length=8, batch=2, padding={"side": side, "amount": 3})
    assert fed.valid.sum(1).tolist() == [7, 5]
    out = load("softmax").operator(**fed.arguments)
    for row in range(2):
        kept = fed.valid[row]
        alone = {name: fed.arguments[name][row : row + 1, :, kept] for name in ("query", "key", "value")}
        expected = load("softmax").operator(**alone, is_causal=causal)
        torch.testing.assert_close(out[row : row + 1, :, kept], expected)


@pytest.mark.parametrize(
    ("name", "options", "common", "message"),
    [
        ("glassllm", {"distribution": "normal"}, {}, "qkv is for operators"),
        ("sdpa", {"distribution": "gaussian"}, {}, "Input should be 'normal', 'outliers' or 'sink'"),
        ("sdpa", {"distribution": "normal", "kv_heads": 3}, {}, "4 heads do not divide among 3 kv_heads"),
        ("sdpa", {"distribution": "normal", "queries": 4}, {"length": 5}, "queries 4 and length 5 disagree"),
        ("sdpa", {"distribution": "normal", "head_dim": -1}, {}, "head_dim -1; allowed"),
        ("sdpa", {"distribution": "normal", "queries": 4, "keys": 6}, {"padding": {"amount": 2}}, "as many queries as keys; found 4 and 6"),
        ("sdpa", {"distribution": "normal", "queries": 2}, {"padding": {"amount": 2}}, "padding amount 2 leaves none of the 2 keys"),
    ],
)
def test_what_cannot_be_fed_says_why(feed, name, options, common, message):
    with pytest.raises(MeasurementError, match=message):
        feed(name, "qkv", options, **common)
