"""Singular values: the interval of the largest against an SVD, the ranks against their definitions."""

from __future__ import annotations

import kernels
import numpy as np
import pytest
import torch
import zoo
from kernels import measured, values
from observing import run, wanted

from attncheck.core.errors import NotObservable
from attncheck.instruments import context as context_module
from attncheck.instruments.context import CallContext
from attncheck.instruments.power import Products, spectral_interval
from attncheck.instruments.visibility import Visibilities


def singular(call: kernels.AttentionCall, counts: torch.Tensor | None = None) -> torch.Tensor:
    """[B, H, min(N, M)] of the float64 weights, over the rows that count."""
    weights = kernels.naive.attention(
        call.query,
        call.key,
        mask=call.mask,
        causal=call.is_causal,
        scale=call.scale,
        softcap=call.softcap,
        bias=call.bias,
        sinks=call.sinks,
    ).weights
    return torch.linalg.svdvals(weights if counts is None else weights * counts[:, None, :, None])


@pytest.mark.parametrize("case", ["grouped", "one key-value head", "bidirectional", "cross", "sinks", "sharp", "narrow values", "bfloat16"])
def test_the_interval_holds_the_largest_singular_value(case: str) -> None:
    options = {
        "grouped": {},
        "one key-value head": {"kv_heads": 1},
        "bidirectional": {"causal": False},
        "cross": {"causal": False, "queries": 7, "keys": 61},
        "sinks": {"sinks": torch.linspace(-2, 2, 6)},
        "sharp": {"sharpness": 12.0},
        "narrow values": {"kv_heads": 1, "value_width": 3},
        "bfloat16": {"dtype": torch.bfloat16, "causal": False},
    }[case]
    call = kernels.call(batch=2, seed=3, **options)  # type: ignore[arg-type]
    lower, upper = spectral_interval(CallContext(call, Visibilities()))
    exact = singular(call)[..., 0]
    assert bool((lower <= exact).all())
    assert bool((exact <= upper).all())
    # A previous-token-like head converges slowest; ten steps leave a few per cent there and little elsewhere.
    width = (upper - lower) / exact
    assert float(width.max()) < (0.35 if case == "sharp" else 0.08)
    assert float(width.median()) < (0.1 if case == "sharp" else 0.02)
    few = spectral_interval(CallContext(call, Visibilities()), 2)
    assert bool((few[0] <= exact).all() and (exact <= few[1]).all())
    assert float((few[1] - few[0]).sum()) >= float((upper - lower).sum())


@pytest.mark.parametrize("shape", ["uniform", "local", "identity", "two blocks"])
def test_heads_whose_largest_singular_value_is_known(shape: str) -> None:
    size = 40
    eye = torch.eye(size, dtype=torch.float64)
    made, exact = {
        "uniform": (torch.full((size, size), 1 / size, dtype=torch.float64), 1.0),
        "local": (eye[torch.arange(-1, size - 1).clamp(min=0)], 2**0.5),
        "identity": (eye, 1.0),
        "two blocks": (torch.block_diag(torch.full((10, 10), 0.1), torch.full((30, 30), 1 / 30)).double(), 1.0),
    }[shape]
    call = kernels.call(queries=size, causal=False, change=lambda weights: made.expand_as(weights))
    lower, upper = spectral_interval(CallContext(call, Visibilities()))
    assert bool((lower <= exact * (1 + 1e-9)).all())
    assert bool((upper >= exact * (1 - 1e-9)).all())
    assert float((upper / lower).max()) < 1.5


def test_query_heads_of_a_group_do_not_mix() -> None:
    """The gradient of a shared value is the sum over its query heads: a naive product would be wrong by far."""
    call = kernels.call(kv_heads=2, value_width=8)
    context = CallContext(call, Visibilities())
    weights = kernels.naive.attention(call.query, call.key, causal=True).weights
    for columns in (1, 2):
        x = torch.rand(1, 6, 50, columns, generator=torch.Generator().manual_seed(0))
        image, pulled = Products(context).gram(x)
        assert torch.allclose(image.double(), weights @ x.double(), atol=1e-5)
        assert torch.allclose(pulled.double(), weights.mT @ weights @ x.double(), atol=1e-5)
    shared = torch.zeros(1, 2, 50, 8)
    shared[..., 0] = 1
    shared.requires_grad_(True)
    out = call.rerun(shared)
    (gradient,) = torch.autograd.grad(out[..., 0].sum(), shared)
    assert float((gradient[0, 0, :, 0] - weights[0, 0].sum(0)).abs().max()) > 0.5


def test_padded_rows_are_left_out() -> None:
    valid = torch.ones(2, 30, dtype=torch.bool)
    valid[1, :9] = False
    mask = valid[:, None, None, :] & torch.ones(30, 30, dtype=torch.bool).tril()
    mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)  # padded rows attend evenly to everything in eager code
    call = kernels.call(batch=2, queries=30, causal=False, mask=mask)
    context = CallContext(call, Visibilities(), valid=valid)
    lower, upper = spectral_interval(context)
    exact = singular(call, valid)[..., 0]
    assert bool((lower <= exact).all() and (exact <= upper).all())
    assert float((upper / lower).max()) < 1.1
    session = measured(call, "attention.stable_rank", "attention.participation_ratio", "attention.effective_rank", valid=valid)
    check_ranks(session, singular(call, valid))


def check_ranks(session: kernels.Session, exact: torch.Tensor) -> None:
    squares = exact.square()
    stable = next(v for key, v in session.layers[0].values.items() if "stable_rank" in key)
    expected = (squares.sum(-1) / squares[..., 0]).numpy()
    assert (stable.lower <= expected * (1 + 1e-6)).all()
    assert (expected <= stable.upper * (1 + 1e-6)).all()
    ratio = squares.sum(-1) ** 2 / squares.square().sum(-1)
    assert torch.allclose(values(session, "attention.participation_ratio"), ratio, rtol=1e-5)
    share = exact / exact.sum(-1, keepdim=True)
    entropy = -torch.where(share > 0, share * share.clamp(min=1e-300).log(), 0.0).sum(-1)
    assert torch.allclose(values(session, "attention.effective_rank"), entropy.exp(), rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_ranks_against_their_definitions(causal: bool) -> None:
    call = kernels.call(batch=2, causal=causal)
    check_ranks(measured(call, "attention.stable_rank", "attention.participation_ratio", "attention.effective_rank"), singular(call))


def test_the_estimated_participation_ratio_is_within_its_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the dense limit it is estimated; the errors stated are those that occur."""
    monkeypatch.setattr(context_module, "DENSE_LIMIT", 40)
    deviations = []
    for seed in range(12):
        call = kernels.call(queries=60, seed=seed, value_width=12)
        value = next(iter(measured(call, ("attention.participation_ratio", {"seed": seed})).layers[0].values.values()))
        squares = singular(call).square()
        exact = (squares.sum(-1) ** 2 / squares.square().sum(-1)).numpy()
        deviations += list(((value.value - exact) / value.stderr).ravel())
    size = np.abs(np.array(deviations))
    assert 0.5 < np.median(size) / 0.6745 < 1.6
    assert (size > 3).mean() < 0.05
    assert size.max() < 6


def test_a_kernel_without_a_derivative_uses_whole_matrices_where_they_fit() -> None:
    call = kernels.call()
    replay = call.replay
    call.replay = lambda other: replay(other.detach()).detach()  # type: ignore[misc]
    lower, upper = spectral_interval(CallContext(call, Visibilities()))
    exact = singular(call)[..., 0]
    assert bool((lower <= exact).all() and (exact <= upper).all())
    long = kernels.call(queries=520)
    long.replay = None
    with pytest.raises(NotObservable, match="built up to 512 tokens only"):
        spectral_interval(CallContext(long, Visibilities()))


def test_negative_weights_have_their_singular_values_computed() -> None:
    call = kernels.call(causal=False, change=lambda weights: weights - 0.05)
    session = measured(call, "attention.spectral_norm", kernel_rows=True)
    weights = kernels.naive.attention(call.query, call.key).weights - 0.05
    assert torch.allclose(values(session, "attention.spectral_norm"), torch.linalg.svdvals(weights)[..., 0], rtol=1e-5)


def test_negative_weights_of_a_length_that_is_not_written_out_have_no_interval() -> None:
    """The iteration would converge to something else: a polynomial's row sums may be small where its norm is large."""
    from attncheck.capture.operator_call import observe_operator
    from attncheck.instruments.session import Session

    def signed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: object) -> torch.Tensor:
        return ((query @ key.mT) ** 3 / 100) @ value

    torch.manual_seed(0)
    for operator, refused in ((signed, True), (torch.nn.functional.scaled_dot_product_attention, False)):
        session = Session(wanted("attention.spectral_norm", "attention.stable_rank"), kernel_rows=True)
        given = {name: torch.randn(1, 2, 530, 8) for name in ("query", "key", "value")}
        observe_operator(operator, given, session.on_call, name="mine")
        assert bool(session.faults) == refused
        assert {name.partition("{")[0] for name in session.faults} in (set(), {"attention.spectral_norm", "attention.stable_rank"})
        assert not refused or "may be negative" in str(next(iter(session.faults.values())))


def test_numbers_that_are_none_stay_none() -> None:
    call = kernels.call()
    call.query[0, 2, 7, 0] = torch.nan
    session = measured(call, "attention.spectral_norm", "attention.stable_rank", check_kernel=False)
    for name in ("attention.spectral_norm", "attention.stable_rank"):
        # The query heads of a group share values, so one of them may take its group along.
        assert bool(values(session, name)[0, 2].isnan())
        assert not bool(values(session, name)[0, 3:].isnan().any())
    ranks = measured(call, "attention.effective_rank", "attention.participation_ratio", check_kernel=False)
    for name in ("attention.effective_rank", "attention.participation_ratio"):
        assert bool(values(ranks, name)[0, 2].isnan())
        assert not bool(values(ranks, name)[0, 3].isnan())


@pytest.mark.parametrize("name", ["gpt2", "bloom", "deepseek_v3", "gpt_oss", "t5"])
def test_models(name: str) -> None:
    arguments = zoo.tokens(2, 20)
    if name == "t5":
        arguments["decoder_input_ids"] = zoo.tokens(2, 9, seed=1)["input_ids"]
    for seen in run(zoo.build(name, "eager"), arguments, ["attention.spectral_norm"], kernel=False).calls:
        assert seen.twin is not None
        exact = torch.linalg.svdvals(seen.twin.weights)[..., 0].numpy()
        found = seen.whole["attention.spectral_norm"]
        assert (found.lower <= exact * (1 + 1e-6)).all()
        assert (exact <= found.upper * (1 + 1e-6)).all()
        assert (found.upper / found.lower).max() < 1.2


def test_under_inference_mode() -> None:
    model, ids = zoo.build("llama", "sdpa"), zoo.tokens(1, 20)
    with torch.inference_mode():
        seen = run(model, ids, ["attention.spectral_norm"], kernel=False)
    plain = run(model, ids, ["attention.spectral_norm"], kernel=False)
    for one, other in zip(seen.calls, plain.calls, strict=True):
        assert np.array_equal(one.values["attention.spectral_norm"], other.values["attention.spectral_norm"])
