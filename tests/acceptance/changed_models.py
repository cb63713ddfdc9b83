"""glassllm after one of the changes that a maintainer makes, on purpose or not. A module of its own: specs name it as `python:`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from attncheck.core.definitions import SubjectDefinition
from attncheck.subjects import load


def attention_of(model: Any) -> list[Any]:
    return [layer.self_attn for layer in model.model.layers]


def rope_base(model: Any) -> None:
    """10,000 becomes 12,000."""
    model.config.rope_parameters["rope_theta"] *= 1.2
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)


def scale(model: Any) -> None:
    """5% too large, in every layer."""
    for attention in attention_of(model):
        attention.scaling *= 1.05


def heads_swapped(model: Any) -> None:
    """In layer 1 the key-value groups change places, with their queries and with what reads them: the output is the same, and each head is
    another than it was."""
    attention, width = attention_of(model)[1], model.config.head_dim
    with torch.no_grad():
        for name, half in (("q_proj", 2 * width), ("k_proj", width), ("v_proj", width)):
            weight = getattr(attention, name).weight
            weight.copy_(torch.roll(weight, half, 0))
        attention.o_proj.weight.copy_(torch.roll(attention.o_proj.weight, 2 * width, 1))


def mask_one_key_short(model: Any) -> None:
    """No query but the first sees the first key."""
    forward = model.forward

    def shorter(input_ids: Tensor, **given: Any) -> Any:
        count = input_ids.shape[1]
        seen = torch.ones(count, count, dtype=torch.bool).tril()
        seen[1:, 0] = False
        return forward(input_ids=input_ids, **{**given, "attention_mask": seen.expand(input_ids.shape[0], 1, count, count)})

    model.forward = shorter


def fine_tuned(model: Any) -> None:
    """The query projection of layer 2 moves by 1%."""
    weight = attention_of(model)[2].q_proj.weight
    with torch.no_grad():
        weight += 0.01 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)).to(weight)


def quantised_keys(model: Any) -> None:
    """Keys as an 8-bit cache holds them: 255 steps a token and head."""
    width = model.config.head_dim

    def rounded(module: Any, given: Any, keys: Tensor) -> Tensor:
        heads = keys.unflatten(-1, (-1, width))
        step = heads.abs().amax(-1, keepdim=True) / 127
        return ((heads / step).round() * step).flatten(-2)

    for attention in attention_of(model):
        attention.k_proj.register_forward_hook(rounded)


def merge_reordered(model: Any) -> None:
    """The heads' outputs are joined in another order than the output projection reads them."""
    for attention in attention_of(model):
        attention.o_proj.register_forward_pre_hook(lambda module, given: (torch.roll(given[0], model.config.head_dim, -1),))


def nothing(model: Any) -> None:
    """The same model: only the attention implementation or the dtype is another."""


CHANGES: dict[str, Callable[[Any], None]] = {
    change.__name__: change
    for change in (rope_base, scale, heads_swapped, mask_one_key_short, fine_tuned, quantised_keys, merge_reordered, nothing)
}


def model(*, change: str) -> tuple[Any, Any]:
    """glassllm, changed, and its encoder."""
    loaded = load(SubjectDefinition("glassllm", "pretrained", {"name": "package:glassllm"}))
    CHANGES[change](loaded.model)
    return loaded.model, loaded.encoder


def with_qk_norm(*, dropped: bool) -> Any:
    """A model with QK-norm: none of the packaged ones has it. Large random weights, so that its heads choose."""
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=260,
        initializer_range=0.2,
    )
    made = Qwen3ForCausalLM(config).eval()
    for attention in attention_of(made) if dropped else ():
        attention.q_norm = attention.k_norm = torch.nn.Identity()
    return made
