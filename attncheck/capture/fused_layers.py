"""torch's fused encoder layer and native multi-head attention take weights, not values: query and key are worked out from their arguments."""

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


def _call(
    source: Tensor, heads: int, weight: Tensor, bias: Tensor, mask: Tensor | None, kind: int | None, name: str
) -> AttentionCall | str:
    if source.is_nested or weight.shape[0] != 3 * weight.shape[1]:
        return f"{name} on nested tensors or with separate key and value inputs"
    batch, length, width = source.shape
    projected = F.linear(source, weight, bias).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    query, key, value = projected[0], projected[1], projected[2]
    visible: Tensor | None = None
    if mask is not None:
        # mask_type 0: [N, N] source mask; 1: [B, N] padding; 2: both, merged to [B, H, N, N]. True hides.
        hidden = mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
        visible = ~(hidden[:, None, None, :] if kind == 1 else hidden)
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
    if given["norm_first"]:
        source = F.layer_norm(source, (given["embed_dim"],), given["norm_weight_1"], given["norm_bias_1"], given["eps"])
    return _call(
        source, given["num_heads"], given["qkv_weight"], given["qkv_bias"], given.get("mask"), given.get("mask_type"), "encoder_layer"
    )


def native_mha_call(func: Any, args: Any, kwargs: Any, result: Any) -> AttentionCall | str:
    """The attention inside `_native_multi_head_attention`, or why it cannot be told."""
    given = _named(func, args, kwargs)
    query, key, value = given["query"], given["key"], given["value"]
    if query is not key and (query.shape != key.shape or query.data_ptr() != key.data_ptr()) or key.data_ptr() != value.data_ptr():
        return "native multi-head attention with different query and key inputs"
    return _call(query, given["num_head"], given["qkv_weight"], given["qkv_bias"], given.get("mask"), given.get("mask_type"), "native_mha")
