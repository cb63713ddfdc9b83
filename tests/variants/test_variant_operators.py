"""Each variant's operator against its equation in float64, and against the laws that follow from its claims."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import variant_twins as twins
from torch import Tensor

import attncheck
from attncheck import variants

N, D = 7, 4
SINKS = [-0.5, 1.3, 0.2, 2.0]
FACTORS = [0.5, -1.0, 2.0, 0.1]
Twin = Any
"""(query, key, seen, scale) -> weights."""


def scored(weigh: Any) -> Twin:
    return lambda q, k, seen, scale: twins.pairs(q.double(), k.double(), weigh, seen, scale)


def featured(feature: str, normalised: bool) -> Twin:
    return lambda q, k, seen, scale: twins.feature_products(feature, normalised)(q, k, seen)


def on_normalised(q: Tensor, k: Tensor, seen: Any, scale: Any) -> Tensor:
    return twins.pairs(twins.normalised(q), twins.normalised(k), twins.softmax, seen, scale)


CASES: list[tuple[Any, Twin, dict[str, Any]]] = [
    ("softmax", scored(twins.softmax), {}),
    ("mqa", scored(twins.softmax), {}),
    ({"gqa": {"kv_heads": 2}}, scored(twins.softmax), {}),
    ({"mla": {"rank": 4}}, scored(twins.softmax), {}),
    ({"lrkv": {"rank": 2}}, scored(twins.softmax), {}),
    ("sinks", scored(twins.with_sinks(SINKS)), {"sinks": torch.tensor(SINKS)}),
    ("sinks", scored(twins.with_sinks([0.0] * 4)), {"sinks": 0.0}),
    ({"softcap": {"cap": 1.5}}, scored(twins.capped(1.5)), {}),
    ("softcap", scored(twins.capped(0.5)), {"softcap": 0.5}),
    ("qk_norm", on_normalised, {}),
    ({"polynomial": {"power": 3, "factor": 1}}, scored(twins.polynomial(3, 1.0)), {}),
    ("polynomial", scored(twins.polynomial(3, N**-0.5)), {}),
    ({"polynomial": {"power": 1, "factor": "2 / (N * sqrt(d))"}}, scored(twins.polynomial(1, 2 / (N * 2))), {}),
    ({"polynomial": {"power": 2, "factor": "1/N"}}, scored(twins.polynomial(2, 1 / 196)), {"tokens": 196}),
    ({"polynomial": {"power": 2, "factor": "learned"}}, scored(twins.polynomial(2, FACTORS)), {"factor": torch.tensor(FACTORS)}),
    ("sigmoid", scored(twins.sigmoid(-math.log(N))), {}),
    ({"sigmoid": {"bias": 0.25}}, scored(twins.sigmoid(0.25)), {}),
    ("linear", featured("elu", True), {}),
    ({"linear": {"feature": "relu"}}, featured("relu", True), {}),
    ({"linear": {"feature": "identity", "normalised": False}}, featured("identity", False), {}),
]


def feed(kv_heads: int, rows: int = N, keys: int = N, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(2, heads, n, w, generator=generator) for heads, n, w in ((4, rows, D), (kv_heads, keys, D), (kv_heads, keys, 3))
    )  # type: ignore[return-value]


@pytest.mark.parametrize("given", ["all", "causal", "mask", "additive", "one key head"])
@pytest.mark.parametrize(("definition", "twin", "extras"), CASES, ids=[str(case[0]) + "+".join(case[2]) for case in CASES])
def test_every_operator_is_its_equation(definition: Any, twin: Twin, extras: dict[str, Any], given: str) -> None:
    query, key, value = feed(1 if given == "one key head" else 4)
    shown = torch.rand(N, N, generator=torch.Generator().manual_seed(1)) < 0.6
    shown[2] = False
    seen = {"causal": lambda i, j: j <= i, "mask": lambda i, j: bool(shown[i, j]), "additive": lambda i, j: bool(shown[i, j])}.get(
        given, lambda i, j: True
    )
    options: dict[str, Any] = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": shown},
        "additive": {"attn_mask": torch.zeros(N, N).masked_fill(~shown, -math.inf)},
    }.get(given, {})
    found = variants.operator(definition)(query, key, value, **options, **extras)
    expected = twins.applied(twin(query, key, seen, None), value)
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 3, N])
def test_sliding_window(window: int, causal: bool) -> None:
    query, key, value = feed(4)
    found = variants.operator({"sliding_window": {"window": window}})(query, key, value, is_causal=causal)
    weights = twins.pairs(query.double(), key.double(), twins.windowed(window, causal), lambda i, j: not causal or j <= i, None)
    torch.testing.assert_close(found.double(), twins.applied(weights, value), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("definition", ["softmax", "polynomial", "sigmoid"])
def test_what_an_additive_mask_adds_is_added_to_the_scores(definition: str) -> None:
    query, key, value = feed(4)
    bias = torch.randn(4, N, N, generator=torch.Generator().manual_seed(2))
    # One more channel of the keys carries the bias where queries are the identity.
    basis = torch.eye(N).expand(2, 4, N, N)
    operator = variants.operator(definition)
    by_mask = operator(query, key, value, attn_mask=bias, scale=0.5)
    by_scores = operator(torch.cat([query * 0.5, basis], -1), torch.cat([key, bias.mT.expand(2, 4, N, N)], -1), value, scale=1.0)
    torch.testing.assert_close(by_mask, by_scores, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("definition", ["polynomial", "sigmoid", "linear", "softmax", "sinks"])
@pytest.mark.parametrize("low", [-1e4, -3e38])
def test_what_hides_in_practice_hides(definition: str, low: float) -> None:
    query, key, value = feed(4)
    shown = torch.ones(N, N, dtype=torch.bool).tril()
    operator = variants.operator(definition)
    by_number = operator(query, key, value, attn_mask=torch.zeros(N, N).masked_fill(~shown, low))
    torch.testing.assert_close(by_number, operator(query, key, value, attn_mask=shown))


def test_qk_norm_is_differentiable() -> None:
    query, key, value = (part[:1, :2].double().requires_grad_() for part in feed(4))
    assert torch.autograd.gradcheck(variants.operator("qk_norm"), (query, key, value))


@pytest.mark.parametrize("power", [1, 3])
def test_the_factor_divides_to_rounding(power: int) -> None:
    """196 tokens, as 14 x 14 patches: φ/√N is φ over 14."""
    generator = torch.Generator().manual_seed(3)
    query, key = (3 * torch.randn(1, 3, 196, 16, generator=generator) for _ in range(2))
    eye = torch.eye(196).expand(1, 3, 196, 196)
    plain = variants.operator({"polynomial": {"power": power, "factor": 1}})(query, key, eye)
    scaled = variants.operator({"polynomial": {"power": power, "factor": "1/sqrt(N)"}})(query, key, eye)
    assert float((scaled * 14 / plain - 1).abs().max()) < 1e-6
    assert float((scaled.norm() * 14 / plain.norm() - 1).abs()) < 1e-6


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("normalised", [True, False])
def test_linear_attention_by_sums_is_linear_attention_by_weights(length: int, normalised: bool) -> None:
    query, key, value = (part.double() for part in feed(2, length, length))
    operator = variants.operator({"linear": {"normalised": normalised}})
    everything, causal = torch.ones(length, length, dtype=torch.bool), torch.ones(length, length, dtype=torch.bool).tril()
    torch.testing.assert_close(operator(query, key, value), operator(query, key, value, attn_mask=everything))
    torch.testing.assert_close(operator(query, key, value, is_causal=True), operator(query, key, value, attn_mask=causal))


def test_linear_attention_never_holds_the_weights() -> None:
    """2 x 65,536 tokens causally: its weights alone would be 17 GB."""
    query = torch.randn(1, 1, 65_536, 2)
    assert variants.operator("linear")(query, query, query, is_causal=True).isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
def test_mlas_absorbed_form_is_its_module(causal: bool) -> None:
    torch.manual_seed(0)
    layer = variants.module({"mla": {"rank": 12, "rope_dim": 4}}, width=24, heads=3, causal=causal, rotary=True).double()
    hidden = torch.randn(2, 9, 24, dtype=torch.float64)
    query = layer.finished(layer.split(layer.q_proj(hidden), 3), torch.arange(9))
    latent, tail = (
        layer.kv_down(hidden)[:, None],
        layer.rotated(torch.cat([hidden.new_zeros(2, 1, 9, 8), layer.k_rope(hidden)[:, None]], -1), torch.arange(9)),
    )
    up_key, up_value = layer.k_up.weight.view(3, 8, 12), layer.v_up.weight.view(3, 8, 12)
    absorbed = torch.cat([query[..., :8] @ up_key, query[..., 8:]], -1)
    operator = variants.operator({"mla": {"rank": 12}})
    read = operator(absorbed, torch.cat([latent, tail[..., 8:]], -1), latent, is_causal=causal, scale=12**-0.5)
    output = layer.o_proj((read @ up_value.mT).transpose(1, 2).reshape(2, 9, 24))
    torch.testing.assert_close(output, layer(hidden))


SOFTMAX_CLAIMS: dict[str, Any] = {
    "causal": "flag", "alignment": "top_left", "mask": ("bool", "additive"), "mask_with_causal": "allowed", "gqa": True, "normalised": True,
    "nonnegative": True, "scale": "1/sqrt(d)", "empty_rows": "zero", "reference": "softmax", "linear_in_values": True,
    "deterministic": ("forward",), "differentiable": True, "dropout": "weights_rescaled",
}  # fmt: skip
VERIFIED: list[tuple[Any, dict[str, Any]]] = [
    ("softmax", SOFTMAX_CLAIMS),
    ("mqa", SOFTMAX_CLAIMS),
    ({"gqa": {"kv_heads": 2}}, SOFTMAX_CLAIMS),
    ({"mla": {"rank": 8}}, SOFTMAX_CLAIMS),
    ({"lrkv": {"rank": 2}}, SOFTMAX_CLAIMS),
    ({"sliding_window": {"window": 3}}, {**SOFTMAX_CLAIMS, "window": 3}),
    ({"softcap": {"cap": 2.0}}, {**SOFTMAX_CLAIMS, "softcap": 2.0}),
    ("sinks", {**SOFTMAX_CLAIMS, "sinks": "argument"}),
    # x / rms(x) bends too sharply for the law's difference quotient at queries of 0.001; it has a test of its own.
    ("qk_norm", {k: v for k, v in SOFTMAX_CLAIMS.items() if k not in ("reference", "scale", "differentiable")}),
    ("polynomial", {k: v for k, v in SOFTMAX_CLAIMS.items() if k not in ("reference", "normalised", "nonnegative", "scale")}),
    ("sigmoid", {k: v for k, v in SOFTMAX_CLAIMS.items() if k not in ("reference", "normalised", "scale")}),
    ("linear", {k: v for k, v in SOFTMAX_CLAIMS.items() if k not in ("reference", "scale", "mask")} | {"mask": ("bool",)}),
]


@pytest.mark.parametrize(("definition", "claims"), VERIFIED, ids=[str(case[0]) for case in VERIFIED])
def test_the_laws_hold_under_right_claims(definition: Any, claims: dict[str, Any]) -> None:
    report = attncheck.verify(variants.operator(definition), claims, examples=3)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("definition", "claims", "broken"),
    [
        ("polynomial", SOFTMAX_CLAIMS, "reference"),
        ("sigmoid", {**SOFTMAX_CLAIMS, "reference": None}, "normalised"),
        ({"softcap": {"cap": 2.0}}, SOFTMAX_CLAIMS, "reference"),
        ({"sliding_window": {"window": 3}}, {**SOFTMAX_CLAIMS, "window": 4}, "window"),
    ],
    ids=["polynomial", "sigmoid", "softcap", "window"],
)
def test_the_laws_break_under_wrong_claims(definition: Any, claims: dict[str, Any], broken: str) -> None:
    report = attncheck.verify(variants.operator(definition), claims, examples=0)
    assert not report.passed
    assert report.violations


def test_a_reproducer_names_the_definition() -> None:
    report = attncheck.verify(variants.operator({"softcap": {"cap": 2.0}}), SOFTMAX_CLAIMS, examples=0, laws=["reference"])
    assert "operator = ...  # attncheck.variants.operator({'softcap': {'cap': 2.0}})" in report.violations[0][1]


def test_heads_that_do_not_group() -> None:
    query, key, value = feed(3)
    with pytest.raises(variants.VariantError, match="4 query heads do not divide into groups over 3 key-value heads"):
        variants.operator("softmax")(query, key, value)


def test_a_learned_factor_is_no_operators_own() -> None:
    with pytest.raises(variants.VariantError, match="factor: learned belongs to a module"):
        variants.operator({"polynomial": {"factor": "learned"}})(*feed(4))
