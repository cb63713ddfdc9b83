"""Bloom with a static cache raises as soon as an attention mask is given.

transformers 5.24.0, torch 2.13.0, CPU. The position bias is as long as the mask, the scores are as long as the cache. The class says of
itself that it can be compiled as one graph, which needs a static cache. Found by model-cache-static and model-cache-unwritten.
"""

from __future__ import annotations

import torch
import transformers


def main() -> str:
    config = transformers.BloomConfig(vocab_size=64, hidden_size=24, n_layer=1, n_head=6)
    torch.manual_seed(0)
    model = transformers.BloomForCausalLM._from_config(config).eval()
    ids = torch.arange(3, 11)[None]
    cache = transformers.StaticCache(config=config, max_cache_len=12)
    try:
        with torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
    except RuntimeError as problem:
        return str(problem).splitlines()[0]
    return ""


if __name__ == "__main__":
    print("a prompt with a mask and a static cache:", main() or "runs")
