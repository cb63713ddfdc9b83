"""Operators alone: rows are read through the kernel, and what cannot be read that way says so."""

from __future__ import annotations

from typing import Any

import kernels
import naive
import pytest
import torch
from observing import wanted
from torch import Tensor
from torch.nn import functional as F

from attncheck.capture.operator_call import observe_operator
from attncheck.core.errors import AttncheckError, MeasurementError
from attncheck.instruments.session import Session


def feed(queries: int = 20, *, heads: int = 6, kv_heads: int = 6, value_width: int = 8, seed: int = 0, **more: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"query": (2, heads, queries, 8), "key": (2, kv_heads, queries, 8), "value": (2, kv_heads, queries, value_width)}
    return {**{name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}, **more}


def measured(operator: Any, arguments: dict[str, Any], *names: Any) -> Session:
    session = Session(wanted(*names), kernel_rows=True)
    observe_operator(operator, arguments, session.on_call, name="mine")
    return session


def polynomial(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
    """x^3 / sqrt(N): weights of either sign that sum to anything."""
    return ((query @ key.mT * query.shape[-1] ** -0.5) ** 3 / query.shape[2] ** 0.5) @ value


ROWS = ("attention.frobenius_norm", ("attention.row_sum", {"per": "query"}), "attention.largest_weight", "attention.sink_mass")


@pytest.mark.parametrize("value_width", [3, 8, 64])
def test_an_unnormalised_polynomial_is_read_through_its_kernel(value_width: int) -> None:
    given = feed(value_width=value_width)
    session = measured(polynomial, given, *ROWS, "attention.mean_distance", "attention.column_mass", "attention.spectral_norm")
    assert not session.faults
    exact = (given["query"].double() @ given["key"].double().mT * 8**-0.5) ** 3 / 20**0.5
    assert float(exact.min()) < -0.5
    at = torch.arange(20)
    for name, expected in (
        ("attention.frobenius_norm", exact.square().sum((-1, -2)).sqrt()),
        ("attention.row_sum", exact.sum(-1)),
        ("attention.largest_weight", exact.amax(-1).mean(-1)),
        ("attention.sink_mass", exact[..., 0].mean(-1)),
        ("attention.mean_distance", (exact * (at[:, None] - at[None]).abs()).sum(-1).mean(-1)),
        ("attention.column_mass", exact.mean(-2)),
        ("attention.spectral_norm", torch.linalg.matrix_norm(exact, ord=2)),
    ):
        assert torch.allclose(kernels.values(session, name), expected, atol=1e-4, rtol=1e-5), name


def test_scores_of_an_operator_cannot_be_seen() -> None:
    with pytest.raises(MeasurementError, match=r"mine: logits cannot be seen: its weights were read off the kernel itself"):
        kernels.values(measured(polynomial, feed(), "logits.max"), "logits.max")


def test_entropy_of_weights_that_are_no_distribution_is_no_number() -> None:
    found = kernels.values(measured(polynomial, feed(), "attention.entropy"), "attention.entropy")
    assert bool(found.isnan().all())


@pytest.mark.parametrize("given", ["plain", "causal", "mask", "additive", "grouped", "scale"])
def test_torchs_own_operator(given: str) -> None:
    arguments = feed(kv_heads=2 if given == "grouped" else 6)
    options: dict[str, Any] = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": torch.ones(20, 20, dtype=torch.bool).tril().triu(-4)},
        "additive": {"attn_mask": torch.randn(2, 6, 20, 20, generator=torch.Generator().manual_seed(3))},
        "grouped": {"enable_gqa": True, "is_causal": True},
        "scale": {"scale": 0.9},
    }.get(given, {})
    session = measured(F.scaled_dot_product_attention, {**arguments, **options}, *ROWS, "attention.entropy", "kernel.error")
    assert not session.faults
    twin = naive.attention(
        arguments["query"],
        arguments["key"],
        mask=options.get("attn_mask"),
        causal=options.get("is_causal", False),
        scale=options.get("scale"),
    )
    assert torch.allclose(kernels.values(session, "attention.entropy"), naive.entropy(twin.weights).mean(-1), atol=3e-6)
    assert torch.allclose(kernels.values(session, "attention.frobenius_norm"), twin.weights.square().sum((-1, -2)).sqrt(), atol=3e-6)
    assert float(kernels.values(session, "kernel.error").max()) < 1e-5


def test_the_kernel_check_of_an_operator_is_against_the_formula() -> None:
    """Its rows are its own; whether they are the softmax of its arguments is what `kernel.error` asks."""

    def off(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return 0.98 * F.scaled_dot_product_attention(query, key, value, **options)

    session = measured(off, feed(is_causal=True), "kernel.error", "attention.row_sum", "attention.frobenius_norm")
    assert kernels.values(session, "kernel.error") == pytest.approx(torch.full((2, 6), 0.02), rel=1e-3)
    assert kernels.values(session, "attention.row_sum") == pytest.approx(torch.full((2, 6), 0.98), abs=1e-5)


def test_an_operator_that_is_not_linear_in_its_values_has_no_rows() -> None:
    def squashed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return torch.tanh(F.scaled_dot_product_attention(query, key, value, **options))

    session = measured(squashed, feed(), "attention.frobenius_norm", "attention.column_mass", "attention.effective_rank")
    for name in ("attention.frobenius_norm", "attention.column_mass", "attention.effective_rank"):
        with pytest.raises(AttncheckError, match=r"at head .* not linear in its values"):
            kernels.values(session, name)


def test_long_inputs_fall_back_to_the_formula_and_its_check() -> None:
    given = feed(520, heads=2, kv_heads=2, is_causal=True)
    session = measured(F.scaled_dot_product_attention, given, "attention.frobenius_norm", "logits.max")
    twin = naive.attention(given["query"], given["key"], causal=True)
    assert torch.allclose(kernels.values(session, "attention.frobenius_norm"), twin.weights.square().sum((-1, -2)).sqrt(), atol=1e-5)
    refused = measured(polynomial, feed(520, heads=2, kv_heads=2), "attention.frobenius_norm", "attention.row_sum")
    with pytest.raises(MeasurementError, match="does not apply the attention"):
        kernels.values(refused, "attention.frobenius_norm")
    assert bool(kernels.values(refused, "attention.row_sum").isfinite().all())


def test_sinks_softcap_and_bias_reach_the_formula() -> None:
    def capped(query: Tensor, key: Tensor, value: Tensor, *, softcap: float, sinks: Tensor, position_bias: Tensor, **_: Any) -> Tensor:
        scores = softcap * torch.tanh(query @ key.mT * 8**-0.5 / softcap) + position_bias
        logits = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
        return torch.softmax(logits, -1)[..., :-1] @ value

    generator = torch.Generator().manual_seed(7)
    more = {"softcap": 1.3, "sinks": torch.randn(6, generator=generator), "position_bias": torch.randn(1, 6, 20, 20, generator=generator)}
    session = measured(capped, feed(**more), "kernel.error", "attention.row_sum")
    assert float(kernels.values(session, "kernel.error").max()) < 1e-5
    assert float(kernels.values(session, "attention.row_sum").max()) < 0.999


def test_an_operator_that_raises_or_returns_another_shape() -> None:
    def raising(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise ValueError("no such mask")

    with pytest.raises(MeasurementError, match="the operator mine raised ValueError: no such mask"):
        measured(raising, feed(), "attention.row_sum")
    with pytest.raises(MeasurementError, match=r"returned shape \(2, 20, 6, 8\); expected \[batch, heads, N, d_v\] = \(2, 6, 20, 8\)"):
        measured(lambda q, k, v: polynomial(q, k, v).transpose(1, 2), feed(), "attention.row_sum")


def test_an_operator_that_returns_more_than_its_output() -> None:
    session = measured(lambda q, k, v: (polynomial(q, k, v), None), feed(), "attention.row_sum")
    assert not session.faults


@pytest.mark.parametrize("operator", [polynomial, F.scaled_dot_product_attention])
@pytest.mark.parametrize("queries", [20, 520])
@pytest.mark.parametrize("column", [0, 5, 7, 8, 14, 15])
def test_an_operator_that_loses_a_column_of_its_values(operator: Any, queries: int, column: int) -> None:
    def broken(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
        output: Tensor = operator(query, key, value).clone()
        output[..., column] = 0
        return output

    session = measured(broken, feed(queries, value_width=16), "attention.row_sum", "attention.frobenius_norm", "kernel.error")
    assert {name.partition("{")[0] for name in session.faults} == {"attention.row_sum", "attention.frobenius_norm"}
    assert float(kernels.values(session, "kernel.error").min()) > 0.02


def test_an_operator_that_returns_nothing_is_told() -> None:
    with pytest.raises(MeasurementError, match=r"mine returned NoneType; expected a tensor .* = \(2, 6, 20, 8\)"):
        measured(lambda query, key, value: None, feed(), "attention.row_sum")
