"""Variants as modules: their equations in float64, decoding against prefill, what they have in common with each other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import variant_twins as twins
from torch import Tensor

from attncheck import variants

DEFINITIONS: list[Any] = [
    "mha",
    "mqa",
    {"gqa": {"kv_heads": 2}},
    {"mla": {"rank": 20}},
    {"lrkv": {"rank": 5}},
    {"sliding_window": {"window": 4}},
    "sinks",
    {"softcap": {"cap": 2.0}},
    {"qk_norm": {"gain": "learned"}},
    "polynomial",
    {"polynomial": {"power": 1, "factor": "learned"}},
    "sigmoid",
    "linear",
]
names = pytest.mark.parametrize("definition", DEFINITIONS, ids=str)


def made(definition: Any, *, seed: int = 0, **more: Any) -> Any:
    torch.manual_seed(seed)
    layer = variants.module(definition, **{"width": 48, "heads": 4, "tokens": 11, "causal": True, **more})
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() == 1:  # gains, sinks and factors away from where they start
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    return layer


def hidden(batch: int = 2, tokens: int = 11) -> Tensor:
    return torch.randn(batch, tokens, 48, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@names
def test_decoding_is_prefill(definition: Any, rotary: bool, qk_norm: bool) -> None:
    layer, x = made(definition, rotary=rotary, qk_norm=qk_norm), hidden()
    with torch.no_grad():
        whole = layer(x)
        for cuts in (range(12), (0, 4, 5, 9, 11), (0, 11)):
            cache = layer.cache()
            parts = [layer(x[:, a:b], cache=cache) for a, b in zip(list(cuts)[:-1], list(cuts)[1:], strict=True)]
            # Cubes of normalised scores reach a few hundred; the others are of the order of one.
            torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-5)
            assert cache.length == 11


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@names
@torch.no_grad()
def test_every_module_is_its_equations(definition: Any, rotary: bool, causal: bool) -> None:
    layer, x = made(definition, rotary=rotary, causal=causal), hidden(1)
    weights = {name: part.double() for name, part in layer.projection_weights().items()}
    kv_heads, positions = weights["key"].shape[0], list(range(11))
    query, key, value = (torch.stack([x[0].double() @ w.T for w in weights[part]])[None] for part in ("query", "key", "value"))
    still = 12 if "mla" in str(definition) else 0
    if "qk_norm" in str(definition):
        query, key = twins.normalised(query) * layer.q_gain.double(), twins.normalised(key) * layer.k_gain.double()
    if rotary:
        query, key = (torch.cat([part[..., :still], twins.rotated(part[..., still:], positions)], -1) for part in (query, key))
    weigh = {
        "sinks": lambda: twins.with_sinks(layer.sinks.tolist()),
        "softcap": lambda: twins.capped(2.0),
        "sliding_window": lambda: twins.windowed(4, causal),
        "polynomial": lambda: twins.polynomial(1, layer.factor.tolist()) if hasattr(layer, "factor") else twins.polynomial(3, 11**-0.5),
        "sigmoid": lambda: twins.sigmoid(-math.log(11)),
    }.get(layer.definition.name, lambda: twins.softmax)()
    seen = (lambda i, j: j <= i) if causal else (lambda i, j: True)
    if layer.definition.name == "linear":
        applied = twins.feature_products("elu", True)(query, key, seen)
    else:
        applied = twins.pairs(query, key, weigh, seen, None)
    assert kv_heads == {"mqa": 1, "gqa": 2}.get(layer.definition.name, 4)
    output = torch.einsum("bhnd,whd->bnw", twins.applied(applied, value), weights["output"])
    torch.testing.assert_close(layer(x).double(), output, atol=3e-6, rtol=1e-5)


@names
def test_every_parameter_learns(definition: Any) -> None:
    layer = made(definition, rotary=True)
    layer(hidden()).square().sum().backward()
    assert all(parameter.grad is not None and float(parameter.grad.abs().max()) > 0 for parameter in layer.parameters())


@names
def test_the_same_seed_gives_the_same_module(definition: Any) -> None:
    one, other, third = made(definition), made(definition), made(definition, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one(hidden()), third(hidden()))


def test_positions_shift_and_turn() -> None:
    """Rotary scores are relative: every position moved by 100 changes nothing; one token moved alone does."""
    layer, x = made("mha", rotary=True), hidden()
    with torch.no_grad():
        torch.testing.assert_close(layer(x, positions=torch.arange(11) + 100), layer(x), atol=2e-5, rtol=1e-4)
        apart = torch.arange(11)
        apart[-1] = 30
        assert float((layer(x, positions=apart) - layer(x))[:, -1].abs().max()) > 1e-3


def test_positions_are_kept_with_the_cache() -> None:
    layer, x = made({"lrkv": {"rank": 5}}, rotary=True, qk_norm=True), hidden()
    with torch.no_grad():
        cache = layer.cache()
        parts = [layer(x[:, a:b], cache=cache, positions=torch.arange(a, b) + 40) for a, b in ((0, 6), (6, 11))]
        torch.testing.assert_close(torch.cat(parts, 1), layer(x), atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_a_norm_without_gain_commutes_with_rotation_and_a_gain_does_not() -> None:
    layer, x = made({"qk_norm": {"gain": "learned"}}, rotary=True), torch.randn(1, 4, 11, 12)
    places = torch.arange(11)
    plain = layer.finished(x, places)
    after = torch.nn.functional.rms_norm(layer.rotated(x, places), (12,))
    torch.testing.assert_close(plain, after)
    gained = layer.finished(x, places, layer.q_gain)
    assert float((gained - after * layer.q_gain).abs().max()) > 0.01


def test_a_grouped_module_with_equal_heads_is_an_ungrouped_one() -> None:
    one, grouped = made("mha", rotary=True), made({"gqa": {"kv_heads": 2}}, rotary=True)
    with torch.no_grad():
        grouped.q_proj.weight.copy_(one.q_proj.weight)
        grouped.o_proj.weight.copy_(one.o_proj.weight)
        for name in ("k_proj", "v_proj"):
            heads = getattr(grouped, name).weight.view(2, 12, 48)
            getattr(one, name).weight.copy_(heads.repeat_interleave(2, 0).reshape(48, 48))
        torch.testing.assert_close(one(hidden()), grouped(hidden()))


@pytest.mark.parametrize(
    ("definition", "place", "told"),
    [
        ({"lrkv": {"rank": 13}}, {}, "lrkv: rank: 13 is larger than the head dim 12; allowed: 0 to 12"),
        ({"gqa": {"kv_heads": 3}}, {}, "4 query heads do not divide into groups over kv_heads: 3"),
        ({"mla": {"rank": 49}}, {}, "mla: rank: 49 is larger than all heads together, 4 x 12"),
        ({"mla": {"rank": 9, "rope_dim": 4}}, {}, "mla: rope_dim: 4 without rotary embeddings"),
        ({"mla": {"rank": 9, "rope_dim": 3}}, {"rotary": True}, "mla: rope_dim: 3; allowed: an even number"),
        ("mha", {"width": 50}, "a width of 50 does not divide into 4 heads"),
        ("mha", {"width": 36, "rotary": True}, r"rotary embeddings need heads of an even width; found 36 / 4 = 9"),
        ("mha", {"tokens": 0}, "tokens: 0; allowed: 1 or more"),
        ({"lrkv": {"rank": 13}}, {"tokens": 0}, "tokens: 0; allowed: 1 or more; lrkv: rank: 13"),
        ("sofmax", {}, "unknown attention variant 'sofmax'; did you mean 'softmax'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(definition: Any, place: dict[str, Any], told: str) -> None:
    with pytest.raises(variants.VariantError, match=told):
        made(definition, **place)
    at = {"width": 48, "heads": 4, "tokens": 11, **place}
    assert "; ".join(variants.check(definition, **at))
