"""Tensors of an example, built by running the very lines of Python that a failure prints."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from attncheck.core.claims import OperatorClaims
from attncheck.laws.example import Example

if TYPE_CHECKING:
    from torch import Tensor

_LAYOUT = {
    "contiguous": "",
    "transposed": ".transpose(1, 2).contiguous().transpose(1, 2)",
    "expanded": "[:1, :1].expand_as({name})",
    "sliced": ".repeat(1, 1, 2, 2)[:, :, ::2, : {name}.shape[-1]]",
    "flipped_stride": ".mT.contiguous().mT",
}
_MASK_SHAPE = {
    "full": "{b}, {h}, {n}, {m}",
    "padding": "{b}, 1, 1, {m}",
    "heads": "1, {h}, {n}, {m}",
    "shared": "1, 1, {n}, {m}",
    "plain": "{n}, {m}",
}


def lines(example: Example, claims: OperatorClaims) -> list[str]:
    """Python that makes q, k, v and options, with torch alone."""
    e = example
    dtype = "" if e.dtype == "float32" else f".to(torch.{e.dtype})"
    draw = "torch.randn({}, generator=g)"
    text = [
        f"g = torch.Generator().manual_seed({e.seed})",
        f"q = {draw.format(f'{e.batch}, {e.heads}, {e.queries}, {e.width}')} * {e.magnitude!r}",
        f"k = {draw.format(f'{e.batch}, {e.kv_heads}, {e.keys}, {e.width}')}",
        f"v = {draw.format(f'{e.batch}, {e.kv_heads}, {e.keys}, {e.value_width}')}",
    ]
    if e.inputs == "outliers":
        text.append("q[..., :1] *= 12; k[..., :1] = 3 + k[..., :1]; k[..., ::5, :] *= 3; v[..., ::3, :] *= 20")
    elif e.inputs == "repeated":
        text.append("k = k[..., torch.arange(k.shape[-2]) % 3, :]; q = q[..., torch.arange(q.shape[-2]) % 2, :]")
    elif e.inputs == "shifted":
        text.append("q[..., :1] = 300 + q[..., :1]; k[..., :1] = -500.0")
    layout = _LAYOUT[e.layout]
    if layout or dtype:
        names = ("k", "v") if e.layout == "expanded" else ("q", "k", "v")
        parts = [f"{name} = {name}{dtype}" + (layout.format(name=name) if name in names else "") for name in ("q", "k", "v")]
        text.append("; ".join(parts))
    text.append("options = {}")
    if e.causal and claims.causal == "flag":
        text.append("options['is_causal'] = True")
    if e.mask != "none":
        text += mask_lines(e, claims)
    if e.heads != e.kv_heads:
        text.append("options['enable_gqa'] = True")
    if e.scale is not None:
        text.append(f"options['scale'] = {e.scale!r}")
    if e.window is not None:
        text.append(f"options['window'] = {e.window}")
    if e.softcap is not None:
        text.append(f"options['softcap'] = {e.softcap!r}")
    if e.sinks:
        text.append(f"options['sinks'] = torch.randn({e.heads}, generator=g){dtype}")
    if e.bias:
        text.append(f"options['position_bias'] = torch.randn({e.heads}, {e.queries}, {e.keys}, generator=g){dtype}")
    # rows of the batch differ in all of these
    if e.segments:
        text.append(f"options['segment_ids'] = (torch.arange({e.keys}) + torch.arange({e.batch})[:, None]) // 5")
    if e.blocks:
        text += [f"b = (torch.arange({e.keys}) + torch.arange({e.batch})[:, None]) // 3", "options['block_ids'] = b * (b % 2)"]
    if e.decay:
        text.append(f"options['decay'] = -0.3 * torch.rand({e.batch}, {e.heads}, {e.keys}, generator=g){dtype}")
    if e.places:
        # more than shifted, which would change nothing
        text.append(f"p = torch.arange({e.keys}) * (1 + torch.arange({e.batch})[:, None] % 2) + 3 * torch.arange({e.batch})[:, None]")
        axes = claims.rotary_axes or 1
        text.append("options['position_ids'] = " + ("p" if axes == 1 else f"torch.stack([p, p // 2, p % 5] * {axes}, -1)[..., :{axes}]"))
    return text


def mask_lines(e: Example, claims: OperatorClaims) -> list[str]:
    shape = _MASK_SHAPE[e.mask_shape].format(b=e.batch, h=e.heads, n=e.queries, m=e.keys)
    if e.pattern == "ones":
        text = [f"keep = torch.ones({shape}, dtype=torch.bool)"]
    elif e.pattern in ("left", "right"):
        # each row of the batch is padded by another amount
        pads = "(torch.arange(keep.shape[0]).view(-1, *[1] * (keep.ndim - 1)) * 2 + 1) % keep.shape[-1]"
        text = [f"keep = torch.ones({shape}, dtype=torch.bool)"]
        place = "torch.arange(keep.shape[-1])" if e.pattern == "left" else "torch.arange(keep.shape[-1]).flip(0)"
        text.append(f"keep &= {place} >= {pads}")
    else:
        text = [f"keep = torch.rand({shape}, generator=g) > 0.4", f"keep[..., {_own(e, claims)}] = True"]
        if e.pattern == "empty":
            text.append("keep[..., ::3, :] = False")
    if e.mask == "bool":
        text.append("options['attn_mask'] = keep" if claims.mask_polarity == "keep" else "options['attn_mask'] = ~keep")
    else:
        dtype = "" if e.dtype == "float32" else f".to(torch.{e.dtype})"
        text.append(f"options['attn_mask'] = torch.randn({shape}, generator=g){dtype}.masked_fill(~keep, -torch.inf)")
    return text


def _own(e: Example, claims: OperatorClaims) -> str:
    """Places that stay visible, so that no row is empty by chance: each query's own position, and the first key."""
    if e.mask_shape == "padding":
        return "0"
    offset = e.keys - e.queries if claims.alignment == "bottom_right" else 0
    return f"torch.arange({e.queries}), (torch.arange({e.queries}) + {offset}).clamp(0, {e.keys - 1})"


def build(example: Example, claims: OperatorClaims) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """q, k, v and the options. The tensors are shared between laws: nobody writes into them."""
    return _built(example, claims)


@functools.lru_cache(maxsize=64)
def _built(example: Example, claims: OperatorClaims) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    import torch

    names: dict[str, Any] = {"torch": torch}
    exec(compile("\n".join(lines(example, claims)), "<example>", "exec"), names)
    return names["q"], names["k"], names["v"], names["options"]
