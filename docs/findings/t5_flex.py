"""T5 under flex_attention fails on CPU where the batch has two rows.

transformers 5.24.0, torch 2.13.0, CPU. The compiled kernel reports an index out of bounds (0 <= index < 1); the cause was not followed
further. Found by model-batch-order and model-batch-alone. Compiles C++, which takes some seconds.
"""

from __future__ import annotations

import torch
import transformers


def main() -> str:
    config = transformers.T5Config(
        vocab_size=64,
        d_model=24,
        d_kv=4,
        d_ff=32,
        num_layers=1,
        num_decoder_layers=1,
        num_heads=6,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="flex_attention").eval()
    ids = torch.arange(3, 13).reshape(2, 5)
    with torch.no_grad():
        model(input_ids=ids[:1], decoder_input_ids=ids[:1], use_cache=False)
        try:
            model(input_ids=ids, decoder_input_ids=ids, use_cache=False)
        except RuntimeError as problem:
            return str(problem).splitlines()[0]
    return ""


if __name__ == "__main__":
    print("a batch of one runs; a batch of two:", main() or "runs")
