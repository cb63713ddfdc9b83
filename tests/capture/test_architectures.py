"""Every architecture of transformers that a small configuration builds: observed without moving a bit, or refused by name."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
import transformers as tf
from observing import run

from attncheck.core.errors import NotObservable

SMALL = {
    **dict.fromkeys(("vocab_size",), 64),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "hidden_dim", "ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads", "num_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 128),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "num_key_value_heads", "type_vocab_size"), 2),
    **dict.fromkeys(("num_experts_per_tok", "n_group", "topk_group", "first_k_dense_replace", "mamba_n_groups", "bos_token_id"), 1),
    **dict.fromkeys(("head_dim", "d_kv", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim", "num_buckets"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_state", "sliding_window", "patch_size"), 8),
    **dict.fromkeys(("rotary_dim", "qk_rope_head_dim", "attention_window", "block_size", "mamba_n_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("projection_dim", "num_mel_bins", "mamba_d_head", "moe_intermediate_size"), 16),
    **dict.fromkeys(("linear_num_key_heads", "mamba_expand", "eos_token_id", "decoder_start_token_id"), 2),
    "image_size": 32,
    "pad_token_id": 0,
}
LARGEST = 20_000_000
PARTS = ("text_config", "vision_config", "encoder", "audio_config")
REFUSED = {
    "longformer": "not seen applied to values",
    "led": "not seen applied to values",
    "pegasus_x": "not seen applied to values",
    "sam2_vision_model": "not seen applied to values",
    "deepseek_v4": "attn_hc",
    "swiftformer": "not seen applied to values",
    "mra": "These modules look like attention",
    "yoso": "These modules look like attention",
}
"""Sparse, pooled or approximated attention, and softmax that is none."""
CHANCE = {"vit_mae", "vits"}
"""Models that draw random numbers in eval mode."""


def built(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model and its input. Skips what the small fields do not suit."""
    kind = tf.CONFIG_MAPPING[name]
    known = {field for base in kind.__mro__ for field in getattr(base, "__annotations__", {})}
    try:
        config = kind(**{field: value for field, value in SMALL.items() if field in known})
        if any(hasattr(config, part) for part in PARTS):
            pytest.skip("made of several models")
        chosen = tf.MODEL_MAPPING[kind]
        chosen = chosen[0] if isinstance(chosen, tuple) else chosen
        with torch.device("meta"):
            if sum(parameter.numel() for parameter in chosen(copy.deepcopy(config)).parameters()) > LARGEST:
                pytest.skip("not small")
        torch.manual_seed(0)
        model = chosen._from_config(config).eval()
        takes = inspect.signature(model.forward).parameters
        ids = torch.randint(3, 60, (2, 12))
        arguments = {"input_ids": ids} if "input_ids" in takes else {"pixel_values": torch.randn(2, 3, 32, 32)}
        if "decoder_input_ids" in takes:
            arguments["decoder_input_ids"] = ids[:, :7]
        with torch.no_grad():
            model(**arguments)
    except Exception as error:
        pytest.skip(f"not built or not run with small fields: {type(error).__name__}: {error}"[:120])
    return model, arguments


def first(output: Any) -> torch.Tensor:
    return first(output[0]) if not isinstance(output, torch.Tensor) else output


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(tf.CONFIG_MAPPING.keys()))
def test_observed_without_moving_a_bit_or_refused_by_name(name: str) -> None:
    model, arguments = built(name)
    with torch.no_grad():
        torch.manual_seed(1)
        expected = first(model(**arguments))
    torch.manual_seed(1)
    names = ("attention.entropy", "attention.row_sum", "kernel.error")
    try:
        seen = run(model, arguments, names, kernel=False)
    except NotObservable as error:
        assert REFUSED.get(name, "no attention call was seen") in str(error), str(error)  # noqa: PT017
        return
    assert name not in REFUSED
    assert torch.equal(first(seen.output), expected) or name in CHANCE
    assert max(float(one.values["kernel.error"].max()) for one in seen.calls) < 1e-5
    assert all(one.values["attention.row_sum"].max() < 1 + 1e-5 for one in seen.calls)
