"""Correct attention operators in the styles in which they are written, with what each claims: no law may flag one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bugs"))

from kernel import Kernel
from kinds import KINDS

SOFTMAX: dict[str, Any] = {
    "causal": "flag", "alignment": "top_left", "mask": ["bool", "additive"], "normalised": True, "nonnegative": True, "scale": "1/sqrt(d)",
    "reference": "softmax", "linear_in_values": True, "deterministic": ["forward"], "differentiable": True,
}  # fmt: skip
SDPA = {**SOFTMAX, "gqa": True, "empty_rows": "zero", "dropout": "weights_rescaled", "dtypes": ["float32", "float16", "bfloat16"]}

OPERATORS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}


def correct(claims: dict[str, Any]) -> Any:
    def register(function: Any) -> Any:
        OPERATORS[function.__name__] = (function() if isinstance(function, type) else function, claims)
        return function

    return register


OPERATORS["sdpa"] = (scaled_dot_product_attention, SDPA)


@correct({**SDPA, "causal": "flag", "signed_scale": True})
def sdpa_math(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Torch's own without a fused kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, **options)


@correct({**SDPA, "causal": True, "mask": None, "empty_rows": None})
def sdpa_always_causal(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **options: Any) -> Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, **options)


@correct({**SDPA, "causal": False, "mask": None, "empty_rows": None, "positional": "none"})
def sdpa_bidirectional(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return scaled_dot_product_attention(query, key, value, **options)


@correct({**SOFTMAX, "gqa": True})
def sdpa_grouped_by_hand(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool = False, **options: Any) -> Tensor:
    """Query heads of a group as further queries of their key head: five dimensions, no copies."""
    if query.shape[1] == key.shape[1]:
        return scaled_dot_product_attention(query, key, value, **options)
    kv, group = key.shape[1], query.shape[1] // key.shape[1]
    mask = options.pop("attn_mask", None)
    if mask is not None:
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2]).unflatten(1, (kv, group))
    found = scaled_dot_product_attention(query.unflatten(1, (kv, group)), key.unsqueeze(2), value.unsqueeze(2), attn_mask=mask, **options)
    return found.flatten(1, 2)


@correct({**SOFTMAX, "mask_polarity": "drop", "mask": ["bool"]})
def drops_where_true(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    return scaled_dot_product_attention(query, key, value, attn_mask=None if attn_mask is None else ~attn_mask, **options)


@correct({**SOFTMAX, "empty_rows": "uniform", "differentiable": None})
def naive_finite_fill(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Masked scores are the dtype's least number: rows that see nothing are uniform."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    least = torch.finfo(scores.dtype).min
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, least) if attn_mask.dtype == torch.bool else (scores + attn_mask).clamp(min=least)
        if attn_mask.dtype != torch.bool:
            scores = scores.masked_fill(attn_mask <= least, least)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), least)
    return scores.softmax(-1) @ value


@correct({**SOFTMAX, "empty_rows": "nan", "mask_with_causal": "allowed"})
def naive_scaled_twice(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """The scale is split between queries and keys; rows that see nothing are NaN."""
    root = math.sqrt(query.shape[-1] ** -0.5 if scale is None else scale)
    scores = (query * root) @ (key * root).mT
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ value


@correct({**SOFTMAX, "alignment": "bottom_right", "mask": ["bool"], "empty_rows": "zero", "mask_with_causal": "allowed", "gqa": True})
def online_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Blocks of 16 keys with a running maximum and sum; causality anchored bottom-right."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    N, M = query.shape[-2], key.shape[-2]
    seen = torch.ones(*query.shape[:-1], M, dtype=torch.bool)
    seen = seen if attn_mask is None else seen & attn_mask
    if is_causal:
        seen = seen & (torch.arange(N)[:, None] + M - N >= torch.arange(M))
    top = query.new_full((*query.shape[:-1], 1), -math.inf)
    total = query.new_zeros(*query.shape[:-1], 1)
    output = query.new_zeros(*query.shape[:-1], value.shape[-1])
    for start in range(0, M, 16):
        block = slice(start, start + 16)
        scores = query @ key[..., block, :].mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores.masked_fill(~seen[..., block], -math.inf)
        higher = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
        safe = higher.masked_fill(higher == -math.inf, 0.0)
        powers, shrink = (scores - safe).exp(), (top - safe).exp()
        total = total * shrink + powers.sum(-1, keepdim=True)
        output = output * shrink + powers @ value[..., block, :]
        top = higher
    return output / total.masked_fill(total == 0, 1.0)


@correct({**SOFTMAX, "causal": False, "mask": None, "returns": "output+lse", "lse": "natural"})
def split_keys(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Three parts of the keys, each attended alone, merged by log-sum-exp."""
    outputs, sums = [], []
    for k, v in zip(key.tensor_split(3, -2), value.tensor_split(3, -2), strict=True):
        if k.shape[-2]:
            scores = query @ k.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
            outputs.append(scores.softmax(-1) @ v)
            sums.append(scores.logsumexp(-1))
    lse = torch.stack(sums)
    return (lse.softmax(0)[..., None] * torch.stack(outputs)).sum(0), lse.logsumexp(0)


@correct({"causal": "flag", "alignment": "top_left", "mask": ["bool"], "linear_in_values": True, "deterministic": ["forward"],
          "differentiable": True, "gqa": False, "scale": "1/sqrt(d)", "empty_rows": "zero", "mask_with_causal": "allowed"})  # fmt: skip
def polynomial(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """(q kᵀ · scale)³ / N instead of the softmax: signed, not normalised."""
    weights = (query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)) ** 3 / query.shape[-2]
    if attn_mask is not None:
        weights = weights * attn_mask
    if is_causal:
        weights = weights.tril()
    return weights @ value


@correct({"causal": "flag", "alignment": "top_left", "mask": ["bool", "additive"], "linear_in_values": True, "deterministic": ["forward"],
          "differentiable": True, "nonnegative": True, "scale": "1/sqrt(d)", "empty_rows": "zero"})  # fmt: skip
def sigmoid(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """A sigmoid of each score, with the bias −log M that keeps rows near 1."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale) - math.log(key.shape[-2])
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.sigmoid() @ value


@correct({**SOFTMAX, "alignment": "bottom_right", "position_bias": "alibi", "empty_rows": "zero", "gqa": True})
class AlibiKernel(Kernel):
    corner, alibi = "bottom_right", True


@correct({**SOFTMAX, "window": "argument", "softcap": "argument", "sinks": "argument", "position_bias": "argument", "empty_rows": "zero",
          "gqa": True, "mask_with_causal": "allowed", "dropout": "weights_rescaled"})  # fmt: skip
class EverythingKernel(Kernel):
    """Window, softcap, sinks and bias as arguments, all at once."""


@correct({**SOFTMAX, "alignment": "bottom_right", "window": 4, "empty_rows": "zero", "gqa": True})
class FixedWindowKernel(Kernel):
    corner, fixed_window = "bottom_right", 4


@correct({**SOFTMAX, "softcap": 5.0, "empty_rows": "zero"})
class FixedCapKernel(Kernel):
    def capped(self, scores: Tensor, softcap: float | None) -> Tensor:
        return 5.0 * torch.tanh(scores / 5.0)


@correct({**SOFTMAX, "nan_safe": True, "empty_rows": "zero", "mask_with_causal": "allowed"})
class NanSafeKernel(Kernel):
    """Values that have no weight are not multiplied."""

    def summed(self, weights: Tensor, value: Tensor) -> Tensor:
        return torch.where(weights[..., None] == 0, 0.0, weights[..., None] * value[..., None, :, :]).sum(-2)


@correct({**SOFTMAX, "returns": "output+weights", "empty_rows": "zero"})
class WeightsKernel(Kernel):
    pass


@correct({**SOFTMAX, "gqa": True, "empty_rows": "zero", "dtypes": ["float32", "float16", "bfloat16"]})
class HalfKernel(Kernel):
    pass


@correct({**SOFTMAX, "scale": "1/d", "alignment": None})
def scaled_by_width(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **options: Any) -> Tensor:
    return scaled_dot_product_attention(query, key, value, scale=1 / query.shape[-1] if scale is None else scale, **options)


@correct({**SOFTMAX, "mask": None, "deterministic": ["forward", "backward", "batch"]})
def row_by_row(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Each row of the batch by a call of its own, so that no bit depends on how many there are."""
    rows = zip(query, key, value, strict=True)
    return torch.cat([scaled_dot_product_attention(*(tensor[None] for tensor in row), **options) for row in rows])


@correct({**SOFTMAX, "mask": None, "gqa": True, "segments": "argument"})
def document_by_document(
    query: Tensor, key: Tensor, value: Tensor, segment_ids: Tensor | None = None, is_causal: bool = False, **options: Any
) -> Tensor:
    """Each document of each row by a call of its own, as kernels of cumulative lengths do."""
    if segment_ids is None:
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal, **options)
    rows = []
    for q, k, v, ids in zip(query, key, value, segment_ids, strict=True):
        lengths = ids.unique_consecutive(return_counts=True)[1].tolist()
        parts = zip(*(tensor[None].split(lengths, -2) for tensor in (q, k, v)), strict=True)
        rows.append(torch.cat([scaled_dot_product_attention(*part, is_causal=is_causal, **options) for part in parts], -2))
    return torch.cat(rows)


@correct({**SOFTMAX, "mask": None, "rotary": "interleaved", "positional": "relative"})
def rotary_by_complex_numbers(query: Tensor, key: Tensor, value: Tensor, position_ids: Tensor | None = None, **options: Any) -> Tensor:
    """Neighbouring channels are a complex number, which is turned."""
    places = torch.arange(query.shape[-2])[None] if position_ids is None else position_ids
    width = query.shape[-1]
    angle = places[:, None, :, None].double() * 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    turn = torch.polar(torch.ones_like(angle), angle)

    def rotated(tensor: Tensor) -> Tensor:
        pairs = torch.view_as_complex(tensor.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2).to(tensor.dtype)

    return scaled_dot_product_attention(rotated(query), rotated(key), value, **options)


@correct({**SOFTMAX, "causal": True, "mask": None, "budget": "argument"})
def keeps_the_latest(query: Tensor, key: Tensor, value: Tensor, ratio: Any = None, scale: float | None = None) -> Any:
    """The oldest keys go; what is left stays where it was."""
    if ratio is None:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    M = left = key.shape[-2]
    for share in ratio if isinstance(ratio, tuple) else (ratio,):
        left = max(1, round(left * (1 - share)))
    first = M - left
    seen = torch.arange(query.shape[-2])[:, None] >= torch.arange(first, M)
    output = scaled_dot_product_attention(query, key[..., first:, :], value[..., first:, :], attn_mask=seen, scale=scale)
    return output, (torch.arange(M) >= first).expand(key.shape[:-1])


@correct({**SOFTMAX, "gqa": True, "quantised": ["int8", "float8_e4m3fn", "float8_e5m2"]})
def factors_in_the_scores(
    query: Tensor, key: Tensor, value: Tensor, k_descale: Tensor | None = None, v_descale: Tensor | None = None, **options: Any
) -> Tensor:
    """The key's factor is multiplied into the query, that of the value into the output."""
    if k_descale is None or v_descale is None:
        return scaled_dot_product_attention(query, key, value, **options)
    group = query.shape[1] // key.shape[1]
    k_factor, v_factor = (factor.repeat_interleave(group, 1)[..., None, None] for factor in (k_descale, v_descale))
    return scaled_dot_product_attention(query * k_factor, key.to(query.dtype), value.to(query.dtype), **options) * v_factor


@correct({"causal": True, "decay": "argument", "linear_in_values": True, "deterministic": ["forward"], "differentiable": True,
          "scale": "1/sqrt(d)", "alignment": "top_left"})  # fmt: skip
def linear_recurrence(query: Tensor, key: Tensor, value: Tensor, decay: Tensor | None = None, scale: float | None = None) -> Tensor:
    """No softmax: a state that decays, key by key."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    state = query.new_zeros(*query.shape[:2], query.shape[-1], value.shape[-1])
    outputs = []
    for i in range(query.shape[-2]):
        if decay is not None:
            state = state * decay[..., i, None, None].exp()
        if i < key.shape[-2]:
            state = state + key[..., i, :, None] * value[..., i, None, :]
        outputs.append(query[..., i, None, :] @ state * scale)
    return torch.cat(outputs, -2)


# --- what was reported as a bug and is none: a documented choice, or a promise that nobody made ------------------------------------


@correct({**SOFTMAX, "mask": None})
def heads_by_remainder(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Query head h reads key head h mod H_kv; grouping in order is not claimed."""
    times = query.shape[1] // key.shape[1]
    return scaled_dot_product_attention(query, key.repeat(1, times, 1, 1), value.repeat(1, times, 1, 1), **options)


class _Unsteady(torch.autograd.Function):
    """The identity, whose gradient is summed in another order at every call, as by atomic additions."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (1 + torch.finfo(gradient.dtype).eps * torch.randint(-1, 2, gradient.shape))


@correct({**SOFTMAX, "mask": None})
def backward_that_differs(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Gradients of the queries repeat to rounding alone; only the forward is claimed to repeat bit by bit."""
    return scaled_dot_product_attention(_Unsteady.apply(query), key, value, **options)


@correct({**SOFTMAX, "mask": None, "alignment": None})
def another_kernel_from_nine_queries(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Sums in another order from nine queries on: a step of rounding, and no promise of the same bits at any size."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    weights = scores.softmax(-1)
    if query.shape[-2] < 9:
        return weights @ value
    half = (value.shape[-2] + 1) // 2
    return weights[..., half:] @ value[..., half:, :] + weights[..., :half] @ value[..., :half, :]


@correct({**SOFTMAX, "returns": "output+weights", "empty_rows": "zero", "dropout": "weights_rescaled"})
class DroppedWeightsKernel(Kernel):
    """Under dropout the returned weights are those that were applied, rescaled, so that rows may sum to more than 1."""

    def dropped(self, weights: Tensor, p: float) -> Tensor:
        self.applied = super().dropped(weights, p)
        return self.applied

    def told(self, weights: Tensor) -> Tensor:
        return self.applied


@correct({**SOFTMAX, "mask": None, "rotary": "half", "positional": "relative"})
def halves_turned_as_neighbours(query: Tensor, key: Tensor, value: Tensor, position_ids: Tensor | None = None, **options: Any) -> Tensor:
    """Channels i and i + d/2 are brought beside each other in query and key alike, and turned as neighbours are."""
    order = torch.arange(query.shape[-1]).view(2, -1).T.flatten()
    return rotary_by_complex_numbers(query[..., order], key[..., order], value, position_ids, **options)


def flex(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """flex_attention, not compiled, with causality as a change of scores."""
    from torch.nn.attention.flex_attention import flex_attention

    def later(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(q >= k, score, -math.inf)

    found = flex_attention(query, key, value, score_mod=later if is_causal else None, scale=scale)
    assert isinstance(found, Tensor)
    return found


SLOW = {"flex": (flex, {**SOFTMAX, "mask": None, "alignment": None, "differentiable": None})}
OPERATORS.update({kind.__name__: (kind(), kind.claims) for kind in KINDS})
