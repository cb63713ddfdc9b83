"""ConvBERT's real tokens depend on what stands at padded places.

transformers 5.24.0, torch 2.13.0, CPU. Half of its heads are convolutions over neighbouring tokens, and these are not masked. Found by
model-padding-content and model-padding-none. A design of the architecture as it was released, so that an author may claim it as an
exception, with this reason.
"""

from __future__ import annotations

import torch
import transformers


def main() -> float:
    config = transformers.ConvBertConfig(
        vocab_size=64, hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=6, embedding_size=24
    )
    torch.manual_seed(0)
    model = transformers.ConvBertModel(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(6)
    ids = torch.arange(3, 11)[None]
    mask = torch.ones_like(ids)
    mask[:, 5:] = 0
    other = ids.clone()
    other[:, 5:] += 20
    with torch.no_grad():
        one, two = (model(input_ids=tokens, attention_mask=mask).last_hidden_state for tokens in (ids, other))
    return float((one - two)[:, :5].abs().max())


if __name__ == "__main__":
    print("hidden states of tokens 0 to 4 move, as what stands at padded places changes, by", main())
