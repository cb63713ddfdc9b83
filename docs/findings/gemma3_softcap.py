"""Gemma 3's attn_logit_softcapping changes nothing.

transformers 5.24.0, torch 2.13.0, CPU. The attention module stores the field and does not hand it to the attention function. Released
checkpoints leave it at None. Found by model-configuration-matter.
"""

from __future__ import annotations

import torch
import transformers


def main() -> float:
    outputs = []
    for cap in (None, 0.1):
        config = transformers.Gemma3TextConfig(
            vocab_size=64, hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=6, num_key_value_heads=2,
            head_dim=8, query_pre_attn_scalar=1, attn_logit_softcapping=cap,
        )  # fmt: skip
        torch.manual_seed(0)
        model = transformers.Gemma3ForCausalLM._from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            outputs.append(model(input_ids=torch.arange(3, 13)[None], use_cache=False).logits)
    return float((outputs[0] - outputs[1]).abs().max())


if __name__ == "__main__":
    print("logits with scores capped at 0.1 differ from those without a cap by", main())
