"""torch's fused encoder layer and native multi-head attention take weights, not values.

Query and key are worked out from their arguments. What that makes of the layer must be what the kernel made of it, or it is not observed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from attncheck.core.evidence import AttentionCall

if TYPE_CHECKING:
    from torch import Tensor

REFUSED = "the fused layer takes weights, not values"


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _call(given: dict[str, Any], source: Tensor, heads: int, name: str) -> AttentionCall | str:
    weight, mask, kind = given["qkv_weight"], given.get("mask"), given.get("mask_type")
    if source.is_nested or weight.shape[0] != 3 * weight.shape[1]:
        return f"{name} on nested tensors or with separate key and value inputs"
    batch, length, width = source.shape
    projected = F.linear(source, weight, given["qkv_bias"]).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    query, key, value = projected[0], projected[1], projected[2]
    visible: Tensor | None = None
    if mask is not None:
        # mask_type 1 is a padding mask [B, N]. True hides; a mask of numbers is made bool by the kernel, so that any but 0 hides.
        shown = mask == 0 if mask.dtype != torch.bool else ~mask
        visible = shown[:, None, None, :] if kind == 1 else shown
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
    return AttentionCall(
        layer=0, stack="", path="", implementation=name, query=query, key=key, value=value, output=output,
        scale=query.shape[-1] ** -0.5, mask=visible, replay=None, replay_refused=REFUSED,
    )  # fmt: skip


def encoder_layer_call(func: Any, args: Any, kwargs: Any, result: Any) -> AttentionCall | str:
    """The attention inside `_transformer_encoder_layer_fwd`, or why it cannot be told."""
    given = _named(func, args, kwargs)
    source = given["src"]
    if source.is_nested:
        return "the fused encoder layer on nested tensors (pass enable_nested_tensor=False, or no padding mask)"

    def norm(x: Tensor, number: int) -> Tensor:
        return F.layer_norm(x, (given["embed_dim"],), given[f"norm_weight_{number}"], given[f"norm_bias_{number}"], given["eps"])

    first = given["norm_first"]
    call = _call(given, norm(source, 1) if first else source, given["num_heads"], "encoder_layer")
    if isinstance(call, str):
        return call
    x = source + _projected(call.output, given)
    x = x if first else norm(x, 1)
    hidden = F.linear(norm(x, 2) if first else x, given["ffn_weight_1"], given["ffn_bias_1"])
    hidden = F.gelu(hidden) if given["use_gelu"] else F.relu(hidden)
    x = x + F.linear(hidden, given["ffn_weight_2"], given["ffn_bias_2"])
    return _confirmed(call, x if first else norm(x, 2), result)


def native_mha_call(func: Any, args: Any, kwargs: Any, result: Any) -> AttentionCall | str:
    """The attention inside `_native_multi_head_attention`, or why it cannot be told."""
    given = _named(func, args, kwargs)
    query, key, value = given["query"], given["key"], given["value"]
    if any(other.shape != query.shape or other.data_ptr() != query.data_ptr() for other in (key, value)):
        return "native multi-head attention with different query and key inputs"
    call = _call(given, query, given["num_head"], "native_mha")
    return call if isinstance(call, str) else _confirmed(call, _projected(call.output, given), result[0])


def _projected(output: Tensor, given: dict[str, Any]) -> Tensor:
    return F.linear(output.transpose(1, 2).flatten(2), given["proj_weight"], given["proj_bias"])


def _confirmed(call: AttentionCall, ours: Tensor, theirs: Tensor) -> AttentionCall | str:
    """Rows in which everything is hidden are the kernel's own affair."""
    seen = torch.ones_like(ours[..., 0], dtype=torch.bool)
    if call.mask is not None:
        seen = call.mask.any(-1).all(1).expand_as(seen) if call.mask.dim() == 4 else call.mask.any(-1).expand_as(seen)
    apart = float(((ours - theirs)[seen]).abs().amax()) if bool(seen.any()) else 0.0
    size = float(theirs[seen].abs().amax()) if bool(seen.any()) else 0.0
    if apart <= max(64 * torch.finfo(theirs.dtype).eps, 1e-4) * max(size, 1e-6):
        return call
    return f"{call.implementation}: its result differs by {apart:.2g} of {size:.2g} from what its arguments say"
