"""Tiny random models of many architectures, and plain torch models, for tests of capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from torch import Tensor, nn

VOCABULARY = 64
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 6}
LLAMA = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _llama() -> Any:
    return tf.LlamaForCausalLM, tf.LlamaConfig(**{**LLAMA, "head_dim": 8})


def _gemma2() -> Any:
    return tf.Gemma2ForCausalLM, tf.Gemma2Config(
        **{**LLAMA, "head_dim": 8}, attn_logit_softcapping=1.5, final_logit_softcapping=None, query_pre_attn_scalar=1, sliding_window=5
    )


def _gpt_oss() -> Any:
    return tf.GptOssForCausalLM, tf.GptOssConfig(
        **{**LLAMA, "head_dim": 8}, num_local_experts=2, num_experts_per_tok=1, sliding_window=7, rope_parameters=ROPE
    )


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MLA = {
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}


def _deepseek_v3() -> Any:
    return tf.DeepseekV3ForCausalLM, tf.DeepseekV3Config(**{**LLAMA, "num_key_value_heads": 6}, **MLA, rope_parameters=ROPE)


def _bart() -> Any:
    return tf.BartForConditionalGeneration, tf.BartConfig(
        vocab_size=VOCABULARY, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=2,
    )  # fmt: skip


def _albert() -> Any:
    sizes = {**SIZES, "num_hidden_layers": 4}
    return tf.AlbertModel, tf.AlbertConfig(**sizes, embedding_size=16, max_position_embeddings=256)


def _t5() -> Any:
    return tf.T5ForConditionalGeneration, tf.T5Config(
        vocab_size=VOCABULARY, d_model=24, d_kv=4, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=6, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip


MAKERS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "mistral": lambda: (tf.MistralForCausalLM, tf.MistralConfig(**LLAMA, head_dim=8, sliding_window=6)),
    "qwen3": lambda: (tf.Qwen3ForCausalLM, tf.Qwen3Config(**LLAMA, head_dim=8)),
    "phi": lambda: (tf.PhiForCausalLM, tf.PhiConfig(**{**LLAMA, "num_key_value_heads": 6}, partial_rotary_factor=0.5)),
    "gpt_neox": lambda: (tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig(**SIZES, max_position_embeddings=256)),
    "gpt2": lambda: (tf.GPT2LMHeadModel, tf.GPT2Config(vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=6, n_positions=256)),
    "gemma2": _gemma2,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek_v3,
    "bert": lambda: (tf.BertModel, tf.BertConfig(**SIZES, max_position_embeddings=256)),
    "albert": _albert,
    "bart": _bart,
    "t5": _t5,
    "bloom": lambda: (tf.BloomForCausalLM, tf.BloomConfig(vocab_size=VOCABULARY, hidden_size=24, n_layer=2, n_head=6)),
    "falcon": lambda: (
        tf.FalconForCausalLM,
        tf.FalconConfig(vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=2, num_attention_heads=6, alibi=False),
    ),
    "mpt": lambda: (tf.MptForCausalLM, tf.MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=256)),
    "gpt_neo": lambda: (
        tf.GPTNeoForCausalLM,
        tf.GPTNeoConfig(
            vocab_size=VOCABULARY, hidden_size=24, num_layers=2, num_heads=6, attention_types=[[["global", "local"], 1]], window_size=5,
            max_position_embeddings=256,
        ),
    ),
    "deberta-v2": lambda: (tf.DebertaV2Model, tf.DebertaV2Config(**SIZES, max_position_embeddings=256, relative_attention=True,
                                                                  pos_att_type=["p2c", "c2p"])),
    "modernbert": lambda: (tf.ModernBertModel, tf.ModernBertConfig(
        **SIZES, max_position_embeddings=256, local_attention=32, layer_types=["full_attention", "sliding_attention"], pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)),
    "mixtral": lambda: (tf.MixtralForCausalLM, tf.MixtralConfig(**LLAMA, head_dim=8, num_local_experts=3, num_experts_per_tok=1)),
}  # fmt: skip


def build(name: str, attn_implementation: str | None = None, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The model in eval mode, its weights enlarged so that attention is neither uniform nor saturated."""
    kind, config = MAKERS[name]()
    for field, value in changes.items():
        setattr(config, field, value)
    torch.manual_seed(seed)
    model = kind._from_config(config, **({} if attn_implementation is None else {"attn_implementation": attn_implementation}))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5 if name == "t5" else 6)
            if "sinks" in path or "relative_attention_bias" in path:
                parameter.copy_(torch.randn_like(parameter))
    return model.to(dtype).eval()


def tokens(batch: int, length: int, *, pad: str = "", seed: int = 0) -> dict[str, Tensor]:
    """input_ids; with `pad` left or right, row b has b * length // 4 pads and there is an attention_mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
    if not pad:
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    for b in range(batch):
        pads = b * length // 4
        if pads:
            mask[b, slice(0, pads) if pad == "left" else slice(length - pads, None)] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


class Plain(nn.Module):
    """Self-attention in plain torch through F.scaled_dot_product_attention."""

    def __init__(self, heads: int = 6, kv_heads: int = 2, width: int = 8, value_width: int | None = None, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width, self.causal = heads, kv_heads, width, causal
        self.value_width = value_width or width
        self.query = nn.Linear(16, heads * width)
        self.key = nn.Linear(16, kv_heads * width)
        self.value = nn.Linear(16, kv_heads * self.value_width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        def split(t: Tensor, count: int) -> Tensor:
            return t.unflatten(-1, (count, -1)).transpose(1, 2)

        return nn.functional.scaled_dot_product_attention(
            split(self.query(x), self.heads),
            split(self.key(x), self.kv_heads),
            split(self.value(x), self.kv_heads),
            attn_mask=mask,
            is_causal=self.causal and mask is None,
            enable_gqa=self.heads != self.kv_heads,
        )
