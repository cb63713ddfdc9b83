"""glassllm: a small Llama with an independent NumPy implementation beside it, English and Portuguese."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attncheck.subjects.packaged.package import Package, packaged

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.evidence import LoadedSubject
    from attncheck.subjects.loading import Loading


@packaged(
    "glassllm",
    distribution="glassllm",
    version="0.1.0",
    about="decoder, Llama: 4 layers, 4 heads over 2 key-value heads, width 128, 0.85 M parameters; English (en) and Portuguese (pt)",
    licence="MIT",
    variants=("en", "pt"),
)
def glassllm(loading: Loading, package: Package, variant: str) -> LoadedSubject:
    """The model as LlamaForCausalLM and the package's own tokenizer, which needs NumPy alone."""
    import numpy as np
    from transformers import LlamaConfig, LlamaForCausalLM

    from attncheck.subjects.encoders import encoder_for
    from attncheck.subjects.models import finish, fresh, from_state

    with np.load(package.where(f"glassllm/weights/{variant}.npz"), allow_pickle=False) as stored:
        own = json.loads(str(stored["__config__"]))
        config = LlamaConfig(
            vocab_size=own["vocab_size"],
            hidden_size=own["d_model"],
            intermediate_size=int(stored["blocks.0.ffn.W1"].shape[1]),
            num_hidden_layers=own["n_layers"],
            num_attention_heads=own["n_heads"],
            num_key_value_heads=own["n_kv_heads"],
            rms_norm_eps=own["eps"],
            max_position_embeddings=own["max_len"],
            rope_parameters={"rope_type": "default", "rope_theta": own["rope_base"]},
            tie_word_embeddings=True,
            bos_token_id=2,
            eos_token_id=3,
            pad_token_id=0,
        )
        model = (
            fresh(loading, LlamaForCausalLM, config)
            if loading.random
            else from_state(loading, LlamaForCausalLM, config, renamed({k: stored[k] for k in stored.files if k != "__config__"}, own))
        )
    return finish(loading, model, encoder_for(model, **tokenizer(package, variant)))


def renamed(arrays: dict[str, Any], own: dict[str, Any]) -> dict[str, Tensor]:
    """The package's arrays under transformers' names, [out, in], with the rotary pairs moved apart.

    Its rotary embedding turns the neighbours (2i, 2i+1) of a head, transformers' the halves (i, i + d/2): the rows of the query and key
    projections are permuted to match, which changes no score.
    """
    import torch

    width, heads, kv_heads, depth = own["d_model"], own["n_heads"], own["n_kv_heads"], own["n_layers"]
    found = {name: torch.from_numpy(array).float() for name, array in arrays.items()}

    def halves(weight: Tensor, count: int) -> Tensor:
        return weight.T.reshape(count, width // heads // 2, 2, width).transpose(1, 2).reshape(-1, width)

    state = {
        "model.embed_tokens.weight": found["E"],
        "lm_head.weight": found["E"],
        "model.norm.weight": found["norm_f.gamma"],
    }
    for layer in range(depth):
        theirs, ours = f"blocks.{layer}.", f"model.layers.{layer}."
        state |= {
            ours + "input_layernorm.weight": found[theirs + "norm1.gamma"],
            ours + "post_attention_layernorm.weight": found[theirs + "norm2.gamma"],
            ours + "self_attn.q_proj.weight": halves(found[theirs + "attn.W_Q"], heads),
            ours + "self_attn.k_proj.weight": halves(found[theirs + "attn.W_K"], kv_heads),
            ours + "self_attn.v_proj.weight": found[theirs + "attn.W_V"].T,
            ours + "self_attn.o_proj.weight": found[theirs + "attn.W_O"].T,
            ours + "mlp.gate_proj.weight": found[theirs + "ffn.W1"].T,
            ours + "mlp.up_proj.weight": found[theirs + "ffn.W3"].T,
            ours + "mlp.down_proj.weight": found[theirs + "ffn.W2"].T,
        }
    return state


def tokenizer(package: Package, variant: str) -> dict[str, Any]:
    """Encoder facts of the package's byte-pair tokenizer. Texts get no special tokens, as in its training."""
    from glassllm.tokenizer import SPECIALS, Tokenizer  # type: ignore[import-untyped, import-not-found, unused-ignore]

    own = Tokenizer.load(package.where(f"glassllm/weights/{variant}.tokenizer.json"))
    return {
        "encode_plain": own.encode,
        "token_text": lambda token: own.vocab[token].replace("▁", " "),
        "special_tokens": frozenset(range(len(SPECIALS))),
    }
