"""`config: {tiny: true}`: small, of the same build, and everything of the architecture still there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from attncheck.core.definitions import SubjectDefinition
from attncheck.core.errors import MeasurementError
from attncheck.engine.observe import observe
from attncheck.subjects import load
from attncheck.subjects.tiny import tiny_fields

DECODERS = ("llama", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_next", "phi", "bloom", "falcon_h1", "gemma4_text", "qwen2_vl_text")


def tiny(model_type: str, **fields: Any) -> Any:
    return load(SubjectDefinition("s", "config", {"model_type": model_type, "tiny": True, **fields})).model


@pytest.mark.parametrize("model_type", DECODERS)
def test_it_runs_and_all_its_attention_is_seen(model_type: str) -> None:
    model = tiny(model_type)
    assert sum(parameter.numel() for parameter in model.parameters()) < 40_000_000
    found = observe(model, {"input_ids": torch.arange(3, 27)[None]}, ["kernel.error"])["kernel.error"]
    assert float(found.max()) < 1e-5


@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt_oss", "qwen3_next", "falcon_h1"])
def test_what_tells_architectures_apart_stays(model_type: str) -> None:
    large, small = CONFIG_MAPPING[model_type](), tiny(model_type).config
    assert small.num_hidden_layers < large.num_hidden_layers
    assert set(small.layer_types or ()) == set(large.layer_types or ())
    assert small.num_attention_heads == large.num_attention_heads
    assert small.num_key_value_heads == large.num_key_value_heads
    ratio = large.hidden_size // small.hidden_size
    assert ratio > 1
    if hasattr(large, "head_dim"):
        assert small.head_dim * ratio == large.head_dim


def test_what_is_given_wins() -> None:
    config = tiny("llama", num_hidden_layers=5, num_attention_heads=6, hidden_size=48, head_dim=8, num_key_value_heads=3).config
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_size, config.num_key_value_heads) == (5, 6, 48, 3)
    assert config.vocab_size == 512


def test_tokens_stay_in_the_vocabulary() -> None:
    fields = tiny_fields(CONFIG_MAPPING["gemma3"], {}, 16)
    numbers = [value for name, value in fields.items() if name.endswith(("token_id", "token_index")) and isinstance(value, int)]
    assert numbers
    assert all(0 <= value < 512 for value in numbers)


def test_depth_without_kinds_is_cut_to_two() -> None:
    assert tiny_fields(CONFIG_MAPPING["llama"], {}, 16)["num_hidden_layers"] == 2


def test_what_cannot_be_made_says_why() -> None:
    with pytest.raises(MeasurementError, match=r"unknown model_type 'lama'; did you mean 'llama'"):
        tiny("lama")
    with pytest.raises(MeasurementError, match=r"unknown field of LlamaConfig 'hidden'; did you mean"):
        tiny("llama", hidden=4)
    with pytest.raises(MeasurementError, match=r"'llama' cannot be made tiny: .*give the fields that it needs, or leave `tiny` out"):
        tiny("llama", hidden_act="nothing")
    with pytest.raises(MeasurementError, match=r"LlamaConfig refuses these values: .*hidden size \(33\) is not a multiple"):
        tiny("llama", hidden_size=33, num_attention_heads=4)
