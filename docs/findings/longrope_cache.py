"""Cached logits of stock longrope differ from uncached ones once the length crosses the original maximum.

transformers 5.24.0, torch 2.13.0, CPU. The long factors are chosen by the longest position of a call, and keys that are cached already were
rotated by the short ones. Found by model-cache-stepwise at the lengths around original_max_position_embeddings. A design of the method,
so that an author may claim it as an exception, with this reason.
"""

from __future__ import annotations

import torch
import transformers


def main() -> float:
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.0], "long_factor": [2.0, 4.0],
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    config = transformers.Phi3Config(
        vocab_size=64, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        max_position_embeddings=256, original_max_position_embeddings=16, pad_token_id=0, rope_parameters=rope,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Phi3ForCausalLM._from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(6)
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        prompt = model(input_ids=ids[:, :16], use_cache=True)
        rest = model(input_ids=ids[:, 16:], use_cache=True, past_key_values=prompt.past_key_values)
    return float((rest.logits - whole[:, 16:]).abs().max())


if __name__ == "__main__":
    print("logits behind the original maximum, cached against uncached, differ by", main())
