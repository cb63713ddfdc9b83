"""Attention that is wrong inside the kernel, on real packaged models: q, k, v and mask arrive right, and something else is applied.

Copied into the projects of these tests as the module that a spec's `python:` names, the way a user's own kernel would be.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Kernel = Callable[..., tuple[Tensor, Tensor | None]]
Fault = Callable[..., tuple[Tensor, Tensor | None]]


def visible(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """bool [batch, heads, N, M]: what the declared mask lets through, one copy for each head, to be changed."""
    shape = (*query.shape[:3], key.shape[2])
    if mask is None:
        seen = torch.ones(shape, dtype=torch.bool)
        return seen.tril() if getattr(module, "is_causal", True) else seen
    seen = mask if mask.dtype == torch.bool else mask == 0
    return seen.expand(shape).clone()


def masked(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, seen: Tensor, **named: Any) -> Any:
    """The sound kernel on another mask, in the form that it reads."""
    named["is_causal"] = False
    if kernel.__name__ == "eager_attention_forward":
        seen = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(query.dtype).min).to(query.dtype)
    return kernel(module, query, key, value, seen, **named)


def leaks_at_block_edges(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """The last row of three blocks of 16 reads one key of the next block, in one head."""
    head, seen = named.pop("head"), visible(module, query, key, mask)
    for row in (15, 31, 47):
        seen[:, head, row, row + 1] = True
    return masked(kernel, module, query, key, value, seen, **named)


def leaks_a_trace(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """One row of one head reads the next key with a weight of about e^-14: less than rounding moves the other weights."""
    head, seen = named.pop("head"), visible(module, query, key, mask)
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(query.dtype).min).to(query.dtype)
    added[:, head, 40, 41] = -14.0
    return kernel(module, query, key, value, added, **{**named, "is_causal": False})


def drops_one_percent(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """One head's output is 0.99 of what it should be."""
    head = named.pop("head")
    output, weights = kernel(module, query, key, value, mask, **named)
    output = output.clone()
    output[:, :, head] *= 0.99
    return output, weights


def drops_one_percent_of_a_key(
    kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any
) -> Any:
    """One head takes 0.99 of the weight that is due to its first key, and gives the rest to nobody."""
    head = named.pop("head")
    output, weights = kernel(module, query, key, value, mask, **named)
    first = torch.zeros_like(value)
    first[:, :, 0] = value[:, :, 0]
    lost = kernel(module, query, key, first, mask, **named)[0]
    output = output.clone()
    output[:, :, head] -= 0.01 * lost[:, :, head]
    return output, weights


def halves_the_last_columns(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """The second half of one head's output is half of what it should be: right in the columns of a value that come first."""
    head = named.pop("head")
    output, weights = kernel(module, query, key, value, mask, **named)
    output = output.clone()
    output[:, :, head, output.shape[-1] // 2 :] *= 0.5
    return output, weights


def forgets_the_last_column(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """A loop over blocks of columns that leaves the remainder out."""
    head = named.pop("head")
    output, weights = kernel(module, query, key, value, mask, **named)
    output = output.clone()
    output[:, :, head, -1] = 0
    return output, weights


def exchanges_two_columns(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """Two neighbouring columns of the output in each other's place, as a wrong swizzle leaves them."""
    head = named.pop("head")
    output, weights = kernel(module, query, key, value, mask, **named)
    output = output.clone()
    output[:, :, head, [4, 5]] = output[:, :, head, [5, 4]]
    return output, weights


def writes_a_column_onto_its_neighbour(
    kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any
) -> Any:
    head = named.pop("head")
    output, weights = kernel(module, query, key, value, mask, **named)
    output = output.clone()
    output[:, :, head, 7] += output[:, :, head, 6]
    output[:, :, head, 6] = 0
    return output, weights


def reads_a_padded_key(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """One head of the last batch row reads the first of its padding keys."""
    head, seen = named.pop("head"), visible(module, query, key, mask)
    first = int(seen[-1, head].any(0).nonzero().max()) + 1
    seen[-1, head, :, first] = True
    return masked(kernel, module, query, key, value, seen, **named)


def loses_the_scale(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """softmax(q k) for softmax(q k / sqrt(d)), in every head of the layer."""
    del named["head"]
    return kernel(module, query, key, value, mask, **{**named, "scaling": 1.0})


def takes_the_wrong_kv_head(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """One query head reads the keys and values of another group."""
    head = named.pop("head")
    output, weights = kernel(module, query, key, value, mask, **named)
    output = output.clone()
    output[:, :, head] = kernel(module, query, key.roll(1, 1), value.roll(1, 1), mask, **named)[0][:, :, head]
    return output, weights


def takes_the_keys_of_the_wrong_kv_head(
    kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any
) -> Any:
    """One query head weighs its own group's values by the keys of another group."""
    head = named.pop("head")
    output, weights = kernel(module, query, key, value, mask, **named)
    output = output.clone()
    output[:, :, head] = kernel(module, query, key.roll(1, 1), value, mask, **named)[0][:, :, head]
    return output, weights


def window_is_one_key_short(kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
    """One head does not see the oldest key of its sliding window."""
    head, seen = named.pop("head"), visible(module, query, key, mask)
    window = int(named["sliding_window"])
    rows = torch.arange(window - 1, seen.shape[2])
    seen[:, head, rows, rows - window + 1] = False
    return masked(kernel, module, query, key, value, seen, **named)


FAULTS: dict[str, Fault] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        leaks_at_block_edges,
        leaks_a_trace,
        drops_one_percent,
        drops_one_percent_of_a_key,
        halves_the_last_columns,
        forgets_the_last_column,
        exchanges_two_columns,
        writes_a_column_onto_its_neighbour,
        reads_a_padded_key,
        loses_the_scale,
        takes_the_wrong_kv_head,
        takes_the_keys_of_the_wrong_kv_head,
        window_is_one_key_short,
    )
}


def model(package: str, fault: str, layer: int = 1, head: int = 2, kernel: str = "sdpa") -> Any:
    """A packaged model whose own `kernel` (eager or sdpa) is wrong in one layer: the attention function is patched under its name."""
    module, encoder = sound(package)
    broken = _broken(FAULTS[fault], module, layer, head)
    if kernel == "sdpa":
        AttentionInterface.register("sdpa", broken(ALL_ATTENTION_FUNCTIONS["sdpa"]))
    else:
        home = _home(module)
        home.eager_attention_forward = broken(home.eager_attention_forward)
    module.set_attn_implementation(kernel)
    return module, encoder


def registered(package: str, fault: str | None = None, layer: int = 1, head: int = 2, kernel: str = "sdpa", with_mask: bool = True) -> Any:
    """The same through transformers' own door: an attention function registered under a new name, with the mask that it reads."""
    module, encoder = sound(package)
    base = ALL_ATTENTION_FUNCTIONS["sdpa"] if kernel == "sdpa" else _home(module).eager_attention_forward
    name = f"own-{kernel}-{fault or 'sound'}"
    AttentionInterface.register(name, _broken(FAULTS[fault], module, layer, head)(base) if fault else base)
    if with_mask:
        AttentionMaskInterface.register(name, AttentionMaskInterface()[kernel])
    module.set_attn_implementation(name)
    return module, encoder


def sound(package: str) -> Any:
    """A packaged model as it is; `windowed` is glassllm's trained weights in Mistral's code, with a sliding window of 16 keys."""
    from attncheck.core.definitions import SubjectDefinition
    from attncheck.subjects import load

    loaded = load(SubjectDefinition("own", "pretrained", {"name": f"package:{package.replace('windowed', 'glassllm')}"}))
    if package != "windowed":
        return loaded.model, loaded.encoder
    from transformers import MistralConfig, MistralForCausalLM

    assert loaded.model is not None
    config = {name: value for name, value in loaded.model.config.to_dict().items() if name in MistralConfig().to_dict()}
    module = MistralForCausalLM(MistralConfig(**{**config, "model_type": "mistral", "sliding_window": 16, "architectures": None}))
    module.load_state_dict(loaded.model.state_dict())
    return module.eval(), loaded.encoder


def _home(module: nn.Module) -> Any:
    """The modeling file that the model is written in; its eager kernel is a function there."""
    return sys.modules[type(module).__module__]


def _broken(fault: Fault, model: nn.Module, layer: int, head: int) -> Callable[[Kernel], Kernel]:
    """A kernel that is wrong in one layer of this model and right elsewhere and in every other model."""
    own = weakref.WeakSet(model.modules())

    def over(kernel: Kernel) -> Kernel:
        def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **named: Any) -> Any:
            # ALBERT's layers are one module without a number: wrong once, it is wrong in all of them.
            if module not in own or getattr(module, "layer_idx", layer) != layer:
                return kernel(module, query, key, value, attention_mask, **named)
            return fault(kernel, module, query, key, value, attention_mask, head=head, **named)

        return attention

    return over
