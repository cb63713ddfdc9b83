"""granite_swa and granitemoe_swa return weights without the sink's share.

transformers 5.24.0, torch 2.13.0, CPU. The output is scaled by sigmoid(log-sum-exp - sink) after the softmax, the returned weights are not:
applied to the values they do not give the output. Found by model-extras-weights_output.
"""

from __future__ import annotations

import torch
import transformers


def main(kind: str = "GraniteSWA") -> float:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64, hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=6, num_key_value_heads=2,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")._from_config(config, attn_implementation="eager").eval()
    layer = model.model.layers[0].self_attn
    kept = {}
    layer.v_proj.register_forward_hook(lambda module, given, made: kept.update(values=made))
    layer.o_proj.register_forward_pre_hook(lambda module, given: kept.update(output=given[0]))
    with torch.no_grad():
        weights = model(input_ids=torch.arange(3, 11)[None], use_cache=False, output_attentions=True).attentions[0]
    width = kept["output"].shape[-1] // 6
    values = kept["values"].reshape(1, 8, 2, width).transpose(1, 2).repeat_interleave(3, 1)
    wanted = (weights @ values).transpose(1, 2).flatten(2)
    return float((wanted - kept["output"]).abs().max() / kept["output"].abs().max())


if __name__ == "__main__":
    for kind in ("GraniteSWA", "GraniteMoeSWA"):
        print(kind, "returned weights times values differ from the output by", main(kind), "of its largest number")
