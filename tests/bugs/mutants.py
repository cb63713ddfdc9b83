"""Executable copies of reported attention bugs: each one step of a correct kernel, with the condition under which it shows.

Every class says what users saw, and after `row` the report's short name. The claims are those that a correct kernel of that kind makes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from kernel import Kernel
from torch import Tensor

FULL: dict[str, Any] = {
    "causal": "flag", "alignment": "top_left", "mask": ["bool", "additive"], "mask_with_causal": "allowed", "gqa": True, "normalised": True,
    "nonnegative": True, "scale": "1/sqrt(d)", "empty_rows": "zero", "reference": "softmax", "linear_in_values": True,
    "deterministic": ["forward"], "differentiable": True,
}  # fmt: skip
DROPOUT = {**FULL, "dropout": "weights_rescaled"}
CAPPED = {**FULL, "softcap": "argument"}
SINKS = {**FULL, "sinks": "argument"}
WINDOW = {**FULL, "window": "argument"}
DECODING = {**FULL, "alignment": "bottom_right"}
BIASED = {**FULL, "position_bias": "argument"}
ALIBI = {**DECODING, "position_bias": "alibi"}
LSE = {**FULL, "returns": "output+lse", "lse": "natural", "empty_rows": "unspecified"}
WEIGHTS = {**FULL, "returns": "output+weights"}
HALF = {**FULL, "dtypes": ["float32", "float16", "bfloat16"]}


@dataclass(frozen=True)
class Mutant:
    row: str
    what: str
    kernel: type[Kernel]
    claims: dict[str, Any] = field(hash=False)
    right: type[Kernel] | None = None
    """What it is a copy of, where that does more than torch's own."""


MUTANTS: list[Mutant] = []


def bug(row: str, claims: dict[str, Any] | None = None, right: type[Kernel] | None = None) -> Any:
    def register(kernel: type[Kernel]) -> type[Kernel]:
        made = claims or getattr(kernel, "claims", FULL)
        MUTANTS.append(Mutant(row, (kernel.__doc__ or "").split("\n")[0].rstrip("."), kernel, made, right))
        return kernel

    return register


@bug("sc-01")
class IgnoresScale(Kernel):
    """The scale that is given never reaches the kernel."""

    def scale(self, scale: float | None, width: int) -> float:
        return 1 / math.sqrt(width)


@bug("sc-06")
class ScalesAgain(Kernel):
    """A scale of 1 is taken for none given."""

    def scale(self, scale: float | None, width: int) -> float:
        return 1 / math.sqrt(width) if scale in (None, 1.0) else scale


@bug("cs-01", CAPPED)
class NoCap(Kernel):
    """The softcap is handed to a call that ignores it."""

    def capped(self, scores: Tensor, softcap: float | None) -> Tensor:
        return scores


@bug("cs-02", CAPPED)
class CapAfterMask(Kernel):
    """The cap is applied after the mask and turns −inf into −cap."""

    def masked(self, scores: Tensor, seen: Tensor) -> Tensor:
        scores = super().masked(scores, seen)
        return scores if self.cap is None else self.cap * torch.tanh(scores / self.cap)

    def capped(self, scores: Tensor, softcap: float | None) -> Tensor:
        self.cap = softcap
        return scores


@bug("cs-03", SINKS)
class SinkInDecodeOnly(Kernel):
    """Sinks act with one query only; prefill accepts and ignores them."""

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return super().softmax(scores, sinks if scores.shape[-2] == 1 else None)


@bug("cs-04", SINKS)
class NoSinkInLongRows(Kernel):
    """The path for more keys than a block forgets the sink in its denominator."""

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return super().softmax(scores, sinks if scores.shape[-1] <= 64 else None)


@bug("sm-01", HALF)
class RoundsBeforeScaling(Kernel):
    """Raw scores are rounded to half precision before they are scaled."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return (query @ key.mT).to(self.dtype).to(query.dtype) * scale


@bug("sm-03")
class SoftmaxOverQueries(Kernel):
    """Columns are normalised, not rows."""

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return scores.softmax(-2).nan_to_num()


@bug("sm-04")
class FiniteFill(Kernel):
    """Masked scores are filled with −1e5, while real ones can lie below."""

    def masked(self, scores: Tensor, seen: Tensor) -> Tensor:
        filled = scores.masked_fill(~seen, -1e5)
        return filled.masked_fill(~seen.any(-1, keepdim=True), -math.inf)


@bug("sm-05")
class MaskedAfterwards(Kernel):
    """Weights are multiplied by the mask after the softmax, not renormalised."""

    def masked(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores.masked_fill(scores == -math.inf, -1e4)

    def weighted(self, weights: Tensor, seen: Tensor) -> Tensor:
        return weights * seen


@bug("sm-07", LSE)
class BaseTwo(Kernel):
    """The log-sum-exp is returned in base 2."""

    def lse(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return scores.logsumexp(-1) / math.log(2)


@bug("cm-01")
class MaskTimesTriangle(Kernel):
    """The additive mask is multiplied by a triangle of ones, which erases its −inf above the diagonal."""

    def kept(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        kept = super().kept(scores, attn_mask)
        if attn_mask is None or attn_mask.dtype == torch.bool:
            return kept
        return kept | (self.distance(scores) < 0)

    def biased(self, scores: Tensor, attn_mask: Tensor | None, position_bias: Tensor | None) -> Tensor:
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.masked_fill(self.distance(scores) < 0, 0.0)
        return super().biased(scores, attn_mask, position_bias)


@bug("cm-03", WEIGHTS)
class WeightsWithoutMask(Kernel):
    """Asking for the weights takes a slow path without the mask."""

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        return None if self.asked["return_weights"] else super().causal(scores, is_causal, attn_mask)


@bug("cm-03b", DROPOUT)
class DropoutWithoutMask(Kernel):
    """Dropout takes a slow path that is not causal."""

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        return None if self.asked["dropout_p"] else super().causal(scores, is_causal, attn_mask)


@bug("cm-04")
class InvertedMask(Kernel):
    """The boolean mask is read the other way round."""

    def kept(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        kept = super().kept(scores, attn_mask)
        return ~kept if kept is not None and attn_mask is not None and attn_mask.dtype == torch.bool else kept


@bug("cm-06")
class CausalWithoutMask(Kernel):
    """A padding mask switches causality off."""

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        return super().causal(scores, is_causal and attn_mask is None, attn_mask)


@bug("cm-07")
class CausalWithMask(Kernel):
    """Causality acts only where a mask is given as well."""

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        return super().causal(scores, is_causal and attn_mask is not None, attn_mask)


@bug("cm-10")
class AlwaysCausal(Kernel):
    """A bidirectional layer gets a triangle."""

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        return super().causal(scores, True, attn_mask)


@bug("al-01", DECODING)
class TopLeft(Kernel):
    """The triangle is anchored top-left where there are fewer queries than keys."""

    corner = "bottom_right"

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        N, M = scores.shape[-2:]
        return torch.arange(N)[:, None] >= torch.arange(M) if is_causal else None


@bug("al-03", DECODING)
class FirstKeyOnly(Kernel):
    """One query over a buffer gets tril(1, M) on top of the mask of filled slots."""

    corner = "bottom_right"

    def kept(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        kept = super().kept(scores, attn_mask)
        return kept & (torch.arange(scores.shape[-1]) < 1) if kept is not None and scores.shape[-2] == 1 else kept


@bug("pd-01")
class AddsMinima(Kernel):
    """Masks of the dtype's least number are added to one another: −inf beside the least number."""

    def masked(self, scores: Tensor, seen: Tensor) -> Tensor:
        least = torch.finfo(scores.dtype).min
        causal = self.causal(scores, self.asked["is_causal"], None)
        mask = self.asked["attn_mask"]
        total = torch.zeros_like(scores)
        if causal is not None:
            total = total + torch.zeros(scores.shape).masked_fill(~causal, least)
        if mask is not None:
            total = total + torch.zeros(scores.shape).masked_fill(~(mask if mask.dtype == torch.bool else mask > least), least)
        return scores.masked_fill(scores == -math.inf, 0.0) + total

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return scores.softmax(-1).nan_to_num()


@bug("pd-03")
class IgnoresMask(Kernel):
    """The mask is accepted and never used."""

    def kept(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        return None

    def biased(self, scores: Tensor, attn_mask: Tensor | None, position_bias: Tensor | None) -> Tensor:
        return scores


@bug("pd-08", {**FULL, "nan_safe": True})
class ZeroTimesNan(Kernel):
    """NaN in a masked value reaches the output as 0·NaN."""


@bug("em-01")
class EmptyRowsNan(Kernel):
    """A row that sees nothing is a softmax over an empty set: NaN."""

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return scores.softmax(-1)


@bug("em-02", {**WEIGHTS, "empty_rows": "zero"})
class EmptyRowsByPath(Kernel):
    """Only the path without weights is safe for rows that see nothing."""

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return scores.softmax(-1) if self.asked["return_weights"] else super().softmax(scores, sinks)


@bug("em-04")
class LeastNumberOverflows(Kernel):
    """A finite mask of the least number overflows when the scale is applied after it: NaN."""

    def kept(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        return attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else None

    def biased(self, scores: Tensor, attn_mask: Tensor | None, position_bias: Tensor | None) -> Tensor:
        scores = super().biased(scores, attn_mask, position_bias)
        return scores * 1.4427 / 1.4427

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        top = scores.amax(-1, keepdim=True)
        powers = (scores - top).exp()
        safe = powers / powers.sum(-1, keepdim=True)
        return safe.masked_fill((top == -math.inf) & ~self._additive(), 0.0)

    def _additive(self) -> bool | Tensor:
        mask = self.asked["attn_mask"]
        return torch.tensor(mask is not None and mask.dtype != torch.bool)


@bug("sw-01", WINDOW)
class OneKeyMore(Kernel):
    """The window holds one key too many."""

    def windowed(self, scores: Tensor, window: int | None) -> Tensor | None:
        return None if window is None else self.distance(scores).abs() <= window


@bug("sw-03", WINDOW)
class WindowNeverActs(Kernel):
    """The window's test is never true."""

    def windowed(self, scores: Tensor, window: int | None) -> Tensor | None:
        return None if window is None else self.distance(scores) > -window - scores.shape[-1]


@bug("sw-04", WINDOW)
class WindowThoughOff(Kernel):
    """A window of 64 is applied though it is off, which shows past 64 keys only."""

    fixed_window = 64


@bug("sw-09", WINDOW)
class WindowAtItsLength(Kernel):
    """The window rolls one key early, exactly when the length reaches it."""

    def windowed(self, scores: Tensor, window: int | None) -> Tensor | None:
        if window is None:
            return None
        early = scores.shape[-1] == window and window > 1
        return self.distance(scores).abs() < (window - 1 if early else window)


@bug("sw-10", WINDOW)
class MaskSlicedToWindow(Kernel):
    """A padding mask is cut to the window's length and the keys are not."""

    def windowed(self, scores: Tensor, window: int | None) -> Tensor | None:
        self.window = window
        return super().windowed(scores, window)

    def kept(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        kept = super().kept(scores, attn_mask)
        if kept is None or self.window is None or kept.shape[-1] <= self.window:
            return kept
        kept = kept.clone()
        kept[..., : self.window] = kept[..., -self.window :].clone()
        kept[..., self.window :] = True
        return kept


@bug("rb-01", ALIBI)
class PlainSlopes(Kernel):
    """ALiBi slopes are one geometric series, right for powers of two."""

    corner, alibi = "bottom_right", True

    def slopes(self, heads: int) -> Tensor:
        return torch.tensor([2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)])


@bug("rb-05", ALIBI)
class BiasFromZero(Kernel):
    """The bias of new tokens is computed as if nothing came before."""

    corner, alibi = "bottom_right", True

    def biased(self, scores: Tensor, attn_mask: Tensor | None, position_bias: Tensor | None) -> Tensor:
        self.corner = "top_left"
        try:
            return super().biased(scores, attn_mask, position_bias)
        finally:
            self.corner = "bottom_right"


@bug("hd-01")
class TiledHeads(Kernel):
    """Query head h reads key head h mod H_kv; right where there are as many, or one."""

    def repeated(self, tensor: Tensor, heads: int) -> Tensor:
        return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


@bug("hd-02")
class ViewedHeads(Kernel):
    """Tensors laid out as [batch, length, heads, d] are viewed as heads without a transpose."""

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query, key.transpose(1, 2).reshape(key.shape), value.transpose(1, 2).reshape(value.shape)


@bug("hd-04")
class ThreeHeads(Kernel):
    """An axis of size 3 is taken for the query, key and value axis."""

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (query, key.flip(1), value) if query.shape[1] == 3 else (query, key, value)


@bug("qn-01")
class NormOnValues(Kernel):
    """The norm that belongs to queries is applied to the values."""

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query, key, torch.nn.functional.rms_norm(value, value.shape[-1:])


@bug("kv-07")
class WholeBlocks(Kernel):
    """Keys after the current one are masked in whole blocks of 16 only."""

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        if not is_causal or scores.shape[-1] <= 16:
            return super().causal(scores, is_causal, attn_mask)
        N, M = scores.shape[-2:]
        return torch.arange(N)[:, None] // 16 >= torch.arange(M) // 16


@bug("rp-09")
class RowsPastTheFirst(Kernel):
    """With one query, rows of the batch after the first are read with a wrong stride."""

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query.shape[-2] == 1 and query.shape[0] > 1:
            query = torch.cat([query[:1], query[1:].roll(1, -1)])
        return query, key, value


@bug("st-01")
class AsIfContiguous(Kernel):
    """With a mask, the storage of a strided key is read as if it were contiguous."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **options: Any) -> Any:
        if attn_mask is not None and not key.is_contiguous() and key.storage_offset() == 0 and key.untyped_storage().nbytes() >= key.nbytes:
            key = key.as_strided(key.shape, torch.empty(key.shape, device="meta").stride())
        return super().__call__(query, key, value, attn_mask, *rest, **options)


@bug("st-03")
class BroadcastTail(Kernel):
    """Keys expanded by a stride of 0 are misread in the tail when their number is 1 mod 32."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
        if 0 in key.stride()[:2] and key.shape[-2] % 32 == 1 and key.shape[-2] > 1:
            key = torch.cat([key[..., :-1, :], key[..., :1, :]], -2)
        return super().__call__(query, key, value, *rest, **options)


@bug("st-05")
class OutputOfKeyWidth(Kernel):
    """The output has the width of the keys where the values' differs."""

    def summed(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().summed(weights, value)
        width = self.width
        return output[..., :width] if width < output.shape[-1] else torch.nn.functional.pad(output, (0, width - output.shape[-1]))

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.width = key.shape[-1]
        return query, key, value


@bug("cp-03")
class FusedWithoutMask(Kernel):
    """A fused path for 16 and more queries loses the additive mask."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **options: Any) -> Any:
        if query.shape[-2] >= 16 and attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = None
        return super().__call__(query, key, value, attn_mask, *rest, **options)


@bug("cp-04")
class FirstBatchOnly(Kernel):
    """Rows past the first of a batch are 0 where there are more keys than a block and fewer queries."""

    def summed(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().summed(weights, value)
        if weights.shape[-1] > 32 and weights.shape[-2] < weights.shape[-1]:
            output = torch.cat([output[:1], output[1:] * 0])
        return output


class _Sum(torch.autograd.Function):
    """weights @ value with a backward pass of its own: 'partial' leaves the last block out of dV, 'group' mixes the heads up."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor, wrong: Any) -> Tensor:
        ctx.save_for_backward(weights, value)
        ctx.wrong = wrong
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, value = ctx.saved_tensors
        return *ctx.wrong(weights, value, gradients[0]), None


@bug("cp-06")
class PartialBlocks(Kernel):
    """The backward pass drops the last partial block of 16 queries from the values' gradient."""

    def summed(self, weights: Tensor, value: Tensor) -> Tensor:
        def wrong(weights: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
            whole = weights.shape[-2] // 16 * 16 if weights.shape[-2] > 16 else weights.shape[-2]
            return gradient @ value.mT, weights[..., :whole, :].mT @ gradient[..., :whole, :]

        return _Sum.apply(weights, value, wrong)


@bug("gr-01")
class DetachedSharedKeys(Kernel):
    """Keys that several query heads share are detached: the forward pass is exact."""

    def repeated(self, tensor: Tensor, heads: int) -> Tensor:
        group = heads // tensor.shape[1]
        if group == 1:
            return tensor
        first = tensor.repeat_interleave(group, 1)
        shared = (torch.arange(heads) % group > 0).view(1, -1, 1, 1)
        return torch.where(shared, first.detach(), first)


@bug("gr-03")
class LargeActivations(Kernel):
    """The queries' gradient is five times too big where scores are large, which Gaussian inputs never are."""

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query.requires_grad and query.shape[0] > 1 and float(query.detach().abs().max()) > 20:
            query = 5 * query - 4 * query.detach()
        return query, key, value


@bug("gr-04")
class WrongGroupInBackward(Kernel):
    """In the backward pass the head index is divided by H_kv, not by the group's size: right if they are the same."""

    def repeated(self, tensor: Tensor, heads: int) -> Tensor:
        kv, group = tensor.shape[1], heads // tensor.shape[1]
        right = tensor.repeat_interleave(group, 1)
        wrong = tensor[:, (torch.arange(heads) // kv).clamp(max=kv - 1)]
        return right.detach() + (wrong - wrong.detach()) if group > 1 else right


@bug("gr-05")
class EmptyRowsInBackward(Kernel):
    """Rows that see nothing are guarded in the forward pass and give NaN in the backward pass."""

    def masked(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores + torch.zeros(scores.shape).to(scores.dtype).masked_fill(~seen, -math.inf)

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return torch.where((scores == -math.inf).all(-1, keepdim=True), torch.zeros_like(scores), scores.softmax(-1))


@bug("gr-07")
class UnclampedBackward(Kernel):
    """Weights are exp(score) / sum without a reference point in long rows: large scores give NaN."""

    def softmax(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        powers = scores.exp()
        total = powers.sum(-1, keepdim=True)
        return powers / total.masked_fill(total == 0, 1.0)


@bug("bd-01", {**FULL, "deterministic": ["forward", "batch"]})
class SplitsByBatch(Kernel):
    """The number of splits, and with it the order of sums, follows from the batch size."""

    def summed(self, weights: Tensor, value: Tensor) -> Tensor:
        parts = 1 if weights.shape[0] == 1 else 2
        total = torch.zeros(*weights.shape[:-1], value.shape[-1], dtype=value.dtype)
        for w, v in zip(weights.tensor_split(parts, -1), value.tensor_split(parts, -2), strict=True):
            total = total + w @ v
        return total


@bug("dr-01", {**FULL, "dropout": "none"})
class DropoutAlways(Kernel):
    """A dropout of 0.1 is active whatever is asked for."""

    def dropped(self, weights: Tensor, p: float) -> Tensor:
        return torch.nn.functional.dropout(weights, p or 0.1)


@bug("dr-03", DROPOUT)
class OtherDropoutInBackward(Kernel):
    """The backward pass draws its dropout anew."""

    def dropped(self, weights: Tensor, p: float) -> Tensor:
        self.p = p
        return weights

    def summed(self, weights: Tensor, value: Tensor) -> Tensor:
        if not self.p:
            return super().summed(weights, value)
        first, second = ((torch.rand_like(weights) > self.p) / (1 - self.p) for _ in range(2))

        def wrong(weights: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
            return gradient @ value.mT, (weights.detach() / first.clamp(min=1e-9) * second).mT @ gradient

        return _Sum.apply(weights * first, value, wrong)


@bug("ob-02", LSE)
class TransposedLse(Kernel):
    """The log-sum-exp is returned as [batch, tokens, heads]."""

    def lse(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        return super().lse(scores, sinks).mT


@bug("ob-03", WEIGHTS)
class NoWeights(Kernel):
    """Weights that are asked for come back as None."""

    def told(self, weights: Tensor) -> Any:
        return None


@bug("rp-02", BIASED)
class StaleTable(Kernel):
    """After one long call a table stays rescaled, and short calls change."""

    longest = 0

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stale = self.longest > 70 >= query.shape[-2]
        self.longest = max(self.longest, query.shape[-2])
        return (query * 1.05 if stale else query), key, value
