"""A sliding window of 1 with a cache keeps and reads all keys.

transformers 5.24.0, torch 2.13.0, CPU. DynamicSlidingWindowLayer keeps `keys[:, :, -sliding_window + 1 :]`, which is all of them where the
window is 1, while the mask is made for none. Found by model-cache-stepwise with sliding_window at other than its default.
"""

from __future__ import annotations

import torch
import transformers


def main() -> float:
    config = transformers.MistralConfig(
        vocab_size=64, hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
        sliding_window=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM._from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(6)
    ids = torch.arange(3, 9)[None]
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
