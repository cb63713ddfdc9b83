"""Packed documents see each other unless no cache is asked for, and a cache is asked for by default.

transformers 5.24.0, torch 2.13.0, CPU. Position ids that begin anew tell documents apart only with use_cache=False and without an attention
mask, one of ones as well. Found by model-packing-default and model-packing-ones.
"""

from __future__ import annotations

import torch
import transformers


def main() -> dict[str, float]:
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM._from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(6)
    ids = torch.arange(3, 11)[None]
    places = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    calls = {
        "use_cache=False": {"use_cache": False},
        "as by default": {},
        "use_cache=False and a mask of ones": {"use_cache": False, "attention_mask": torch.ones_like(ids)},
    }
    with torch.no_grad():
        alone = model(input_ids=ids[:, 3:], use_cache=False).logits
        return {
            name: float((model(input_ids=ids, position_ids=places, **options).logits[:, 3:] - alone).abs().max())
            for name, options in calls.items()
        }


if __name__ == "__main__":
    for name, moved in main().items():
        print(f"{name}: the second document's logits differ from those alone by {moved:.3g}")
