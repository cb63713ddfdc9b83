"""Falcon under sdpa lets tokens see the future as soon as attentions are asked for.

transformers 5.24.0, torch 2.13.0, CPU. The path that makes weights adds sdpa's boolean mask to the scores, so that a key that may be seen
gains 1 and one that may not gains 0: nothing is masked. Found by model-extras-attentions and model-causal-future.
"""

from __future__ import annotations

import torch
import transformers


def main() -> float:
    config = transformers.FalconConfig(vocab_size=64, hidden_size=24, num_hidden_layers=1, num_attention_heads=6, alibi=False)
    torch.manual_seed(0)
    model = transformers.FalconForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    ids = torch.arange(3, 11)[None]
    other = ids.clone()
    other[:, 4:] += 20
    with torch.no_grad():
        one, two = (model(input_ids=tokens, use_cache=False, output_attentions=True).logits for tokens in (ids, other))
    return float((one - two)[:, :4].abs().max())


if __name__ == "__main__":
    print("logits of tokens 0 to 3 move, as tokens 4 to 7 change, by", main())
