"""Moshi's cache forgets keys beyond the sliding window that its mask lets every token see.

transformers 5.24.0, torch 2.13.0, CPU. The mask is made by create_causal_mask, which knows no window; the cache is made from a
configuration with sliding_window and keeps so many keys. Tokens given one by one beyond the window therefore differ from tokens given
at once. Found by model-configuration-fields at sliding_window=5; the default is 3000.
"""

from __future__ import annotations

import torch
import transformers


def main() -> float:
    config = transformers.MoshiConfig(
        vocab_size=64, hidden_size=24, ffn_dim=32, num_hidden_layers=1, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
        sliding_window=4,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MoshiForCausalLM._from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(6)
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        cache, parts = None, []
        for token in ids.split(1, 1):
            step = model(input_ids=token, use_cache=True, **({} if cache is None else {"past_key_values": cache}))
            cache = step.past_key_values
            parts.append(step.logits)
    return float((torch.cat(parts, 1) - whole).abs().max())


if __name__ == "__main__":
    print("logits of tokens given one by one differ from those given at once by", main())
