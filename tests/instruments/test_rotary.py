"""Rotary embeddings: against complex multiplication in float64, and against what real models do to their queries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from attncheck.capture.observe import observe
from attncheck.capture.rotation import watching_rotations
from attncheck.capture.weights import attention_weights
from attncheck.core.errors import NotObservable
from attncheck.instruments.rotary import Rotation


def naive(x: torch.Tensor, angle: torch.Tensor, *, interleaved: bool, start: int = 0, size: float = 1.0) -> torch.Tensor:
    """x [..., d] turned pair by pair as complex numbers; angle [pairs]."""
    turned = x.clone()
    pairs = len(angle)
    for pair in range(pairs):
        one, two = (start + 2 * pair, start + 2 * pair + 1) if interleaved else (start + pair, start + pairs + pair)
        number = torch.complex(x[..., one], x[..., two]) * torch.polar(torch.tensor(size, dtype=torch.float64), angle[pair])
        turned[..., one], turned[..., two] = number.real, number.imag
    return turned


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("start", "pairs"), [(0, 4), (0, 2), (4, 2)])
@pytest.mark.parametrize("size", [1.0, 1.3])
@pytest.mark.parametrize("heads", [1, 3, 9])
def test_apply_unapply_transposed_and_mean_against_complex_numbers(
    interleaved: bool, start: int, pairs: int, size: float, heads: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 8, generator=generator, dtype=torch.float64)
    angles = torch.randn(5, pairs, generator=generator, dtype=torch.float64)

    def rotate(given: torch.Tensor) -> torch.Tensor:
        given = given.double()
        return torch.stack([naive(given[:, :, t], angles[t], interleaved=interleaved, start=start, size=size) for t in range(5)], 2)

    found = Rotation.read_off(rotate, torch.zeros(2, heads, 5, 8))
    assert found.forward.weight.shape == (1, 5, 2, 8)  # both samples alike
    rotation = found.at(1)
    assert torch.allclose(rotation.apply(x), rotate(x[None])[0], atol=1e-14)
    if size == 1 or 2 * pairs == 8:
        assert torch.allclose(rotation.unapply(rotation.apply(x)), x, atol=1e-14)
    # R as a matrix, column by column.
    matrices = torch.stack([rotation.one(t).apply(torch.eye(8, dtype=torch.float64)).T for t in range(5)])
    assert torch.allclose(torch.einsum("tij,hti->htj", matrices, x), rotation.transposed(x), atol=1e-14)
    mean = matrices.mean(0)
    assert torch.allclose(rotation.mean().apply(x[:, :1])[:, 0], x[:, 0] @ mean.T, atol=1e-14)
    square = torch.randn(2, 8, 8, generator=generator, dtype=torch.float64)
    assert torch.allclose(rotation.mean().both_sides(square), mean @ square @ mean.T, atol=1e-13)


def test_samples_with_positions_of_their_own_are_told_apart() -> None:
    def rotate(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([naive(x[b].double(), torch.tensor([0.3 * (b + 1)], dtype=torch.float64), interleaved=False) for b in range(2)])

    found = Rotation.read_off(rotate, torch.zeros(2, 1, 4, 2))
    x = torch.randn(1, 4, 2, dtype=torch.float64)
    for sample in range(2):
        assert torch.allclose(
            found.at(sample).apply(x), naive(x, torch.tensor([0.3 * (sample + 1)], dtype=torch.float64), interleaved=False)
        )


def test_what_is_no_rotation_of_pairs_is_refused() -> None:
    mixing = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    shear = torch.eye(4)
    shear[0, 1] = 0.5
    for matrix, message in ((mixing, "mixes 4 dims"), (shear, "no rotation"), (torch.zeros(4, 4), "mixes 0 dims")):
        with pytest.raises(NotObservable, match=message):
            Rotation.read_off(lambda x, m=matrix: x @ m.T, torch.zeros(1, 2, 3, 4), "attn")


def test_a_call_says_whether_it_was_rotated() -> None:
    given = {"query": torch.zeros(1, 2, 3, 8), "rotary": None, "rotation": None, "path": "attn"}
    assert Rotation.of(SimpleNamespace(**given)) is None
    assert Rotation.of(SimpleNamespace(**{**given, "rotary": (1, 2), "rotation": lambda: None})) is None
    with pytest.raises(NotObservable, match="nobody watched"):
        Rotation.of(SimpleNamespace(**{**given, "rotary": (1, 2)}))


LM = {"vocab_size": 40, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 6}
GQA = {**LM, "num_key_value_heads": 2, "head_dim": 8}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16}
MLA = {**LM, "num_key_value_heads": 6, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 9,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "q_lora_rank": None}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", GQA),
    "llama-yarn": ("LlamaForCausalLM", {**GQA, "rope_parameters": YARN, "max_position_embeddings": 128}),
    "gpt-neox-partial": (
        "GPTNeoXForCausalLM",
        {**LM, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "phi-partial": ("PhiForCausalLM", {**LM, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "cohere-interleaved": ("CohereForCausalLM", {**LM, "num_key_value_heads": 2}),
    "gemma2": ("Gemma2ForCausalLM", {**GQA, "head_dim": 12, "query_pre_attn_scalar": 37}),
    "gpt-oss": ("GptOssForCausalLM", {**GQA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gptj": ("GPTJForCausalLM", {"vocab_size": 40, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 40, "rotary_dim": 4}),
    "codegen": ("CodeGenForCausalLM", {"vocab_size": 40, "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 40, "rotary_dim": 4}),
    "modernbert, two tables": (
        "ModernBertModel",
        {**LM, "num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "gemma3, two tables": ("Gemma3ForCausalLM", {**GQA, "num_hidden_layers": 6, "head_dim": 12}),
    "deepseek-v3, tail permuted": ("DeepseekV3ForCausalLM", {**MLA, "first_k_dense_replace": 2}),
    "deepseek-v2, complex": ("DeepseekV2ForCausalLM", {**MLA, "first_k_dense_replace": 2}),
    "helium, tabled in halves": ("HeliumForCausalLM", GQA),
    "glm, tabled in halves": ("GlmForCausalLM", {**GQA, "pad_token_id": 0}),
    "stablelm-partial": ("StableLmForCausalLM", {**LM, "num_key_value_heads": 2}),
    "smollm3, some unrotated": ("SmolLM3ForCausalLM", {**GQA, "num_hidden_layers": 4, "pad_token_id": 0}),
    "cohere2, some unrotated": ("Cohere2ForCausalLM", {**GQA, "num_hidden_layers": 4}),
    "llama4, complex": ("Llama4ForCausalLM", {**GQA, "num_hidden_layers": 4, "intermediate_size_mlp": 32, "num_local_experts": 2}),
    "nanochat, normed after": ("NanoChatForCausalLM", GQA),
    "qwen3-normed": ("Qwen3ForCausalLM", {**GQA, "head_dim": 12}),
}


def tiny(architecture: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, architecture)
    config = kind.config_class(**options)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.3)
    return model


@pytest.mark.parametrize("name", list(MODELS))
def test_unrotated_queries_are_what_the_projection_gave(name: str) -> None:
    architecture, options = MODELS[name]
    model = tiny(architecture, options)
    layers = attention_weights(model)
    hidden: list[torch.Tensor] = []
    calls: list[Any] = []
    handles = [
        model.get_submodule(layer.path).register_forward_pre_hook(
            lambda module, args, kwargs: hidden.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
        for layer in layers
    ]
    observe(model, {"input_ids": torch.randint(3, 39, (1, 40))}, calls.append)
    for handle in handles:
        handle.remove()
    rotated = []
    for layer, seen, fed in zip(layers, calls, hidden, strict=True):
        rotation = Rotation.of(seen)
        rotated.append(rotation is not None)
        made = torch.einsum("hdm,bnm->bhnd", layer.query.double(), fed.double())
        module = model.get_submodule(layer.path)
        if name in ("qwen3-normed", "gemma3, two tables"):
            made = module.q_norm(made.float()).detach().double()
        bias = getattr(getattr(module, "q_proj", None), "bias", None)
        if bias is not None:
            made = made + bias.double().reshape(1, layer.heads, 1, -1)
        if name == "gpt-neox-partial":
            made = made + module.query_key_value.bias.double().reshape(layer.heads, 3, 1, -1)[None, :, 0]
        back = seen.query.double() if rotation is None else rotation.at(0).unapply(seen.query.double())
        if name.startswith(("nanochat", "llama4")):  # scaled by a norm without gain, or by a temperature, after the rotation
            assert torch.cosine_similarity(back, made, dim=-1).min() > 1 - 1e-5
        else:
            assert torch.allclose(back, made, atol=2e-5), (back - made).abs().max()
        if rotation is not None:
            assert (seen.query.double() - back).abs().amax((0, 1, 3))[1:].min() > 1e-3
    unrotated = {"smollm3, some unrotated": [3], "cohere2, some unrotated": [3], "llama4, complex": [3]}.get(name, [])
    assert [number for number, was in enumerate(rotated) if not was] == unrotated


def test_queries_changed_after_their_rotation_are_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    model, gain = tiny(*MODELS["llama"]), torch.linspace(1, 2, 8)
    function, interface = modeling_llama.apply_rotary_pos_emb, transformers.AttentionInterface.get_interface
    answers: list[Any] = []

    with watching_rotations(model) as watch:
        assert modeling_llama.apply_rotary_pos_emb is not function

        def get_interface(self: Any, name: Any, default: Any) -> Any:
            real = interface(self, name, default)

            def attention(module: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                answers.append(watch.of(SimpleNamespace(query=query * gain, path="attn")))
                return real(module, query, *args, **kwargs)

            return attention

        monkeypatch.setattr(transformers.AttentionInterface, "get_interface", get_interface)
        model(torch.randint(3, 39, (1, 9)))
    assert modeling_llama.apply_rotary_pos_emb is function
    assert len(answers) == 2
    for answer in answers:
        with pytest.raises(NotObservable, match="attn: its queries are not what apply_rotary_pos_emb gave"):
            answer()


def test_a_model_that_rotates_where_nobody_sees_it_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    model = tiny(*MODELS["llama"])
    turn = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "turn", turn, raising=False)
    monkeypatch.delattr(modeling_llama, "apply_rotary_pos_emb")
    with watching_rotations(model) as watch:
        answer = watch.of(SimpleNamespace(query=torch.zeros(1, 6, 9, 8), path="attn"))
    with pytest.raises(NotObservable, match="attn: the model has a rotary embedding, but no function"):
        answer()


def test_layers_with_the_same_tables_share_one_rotation() -> None:
    calls: list[Any] = []
    observe(tiny(*MODELS["llama"]), {"input_ids": torch.randint(3, 39, (1, 9))}, calls.append)
    assert calls[0].rotation() is calls[1].rotation()
    assert Rotation.of(calls[0]) is Rotation.of(calls[1])


def test_watching_changes_no_output() -> None:
    model, ids = tiny(*MODELS["llama"]), torch.randint(3, 39, (1, 9))
    with torch.no_grad():
        before = model(ids).logits
        with watching_rotations(model):
            assert torch.equal(model(ids).logits, before)


def test_a_model_without_rotation_has_none() -> None:
    calls: list[Any] = []
    model = tiny("GPT2LMHeadModel", {"vocab_size": 40, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 40})
    observe(model, {"input_ids": torch.randint(3, 39, (1, 9))}, calls.append)
    assert [Rotation.of(seen) for seen in calls] == [None, None]
