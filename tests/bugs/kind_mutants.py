"""More executable copies of reported bugs: of kernels that do more than attend (`kinds.py`), and of plain ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from kernel import Kernel
from kinds import (
    BlockKernel,
    BudgetKernel,
    ConvertingKernel,
    DecayKernel,
    EightBitKernel,
    InterleavedKernel,
    NormedBudgetKernel,
    PackedKernel,
    RotaryKernel,
    SegmentKernel,
    Sharded,
    ShardedAlibiKernel,
    ShardedKernel,
    ShardedNormKernel,
    ThreeAxesKernel,
    WidthNormKernel,
)
from mutants import bug
from torch import Tensor


@bug("cm-12", right=BlockKernel)
class AnyImage(BlockKernel):
    """Tokens of images see each other if both are of an image, not if they are of the same one."""

    def same(self, ids: Tensor) -> Tensor:
        return (ids != 0)[:, None, :, None] & (ids != 0)[:, None, None, :]


@bug("pk-02", right=SegmentKernel)
class BordersFromMask(SegmentKernel):
    """Beside a mask the given borders are ignored: the whole row is one document."""

    def together(self, attn_mask: Tensor | None) -> Tensor:
        together = super().together(attn_mask)
        return together if attn_mask is None else torch.ones_like(together)


@bug("pd-07", right=DecayKernel)
class PaddingDecays(DecayKernel):
    """Padding between tokens is hidden, and its decay still acts on what came before."""

    def gated(self, decay: Tensor, attn_mask: Tensor | None) -> Tensor:
        return decay


@bug("rp-06", right=InterleavedKernel)
class HalvesAlways(RotaryKernel):
    """Channels i and i + d/2 are rotated where neighbours should be."""

    claims = InterleavedKernel.claims


@bug("rp-14", right=ThreeAxesKernel)
class TwoSplits(ThreeAxesKernel):
    """Channels are split over the axes by two formulas, which round differently where a third of d is odd."""

    def angles(self, width: int) -> Tensor:
        built = [10000.0 ** (-torch.arange(0, size, 2) / size) for size in self.sizes(width)]
        rates = torch.cat(built).repeat_interleave(2)
        used = [width - 2 * (width // 3), width // 3, width // 3]
        axis = torch.arange(3).repeat_interleave(torch.tensor(used))
        return (self.places[..., axis] * rates)[:, None]


@bug("rb-02", right=ShardedAlibiKernel)
class FirstSlopes(ShardedAlibiKernel):
    """Every rank takes the slopes of the first heads."""

    def of_rank(self, slopes: Tensor, heads: int) -> Tensor:
        return slopes[:heads]


@bug("qn-02", right=ShardedNormKernel)
class LocalNorm(Sharded, WidthNormKernel):
    """The mean square over the width is that of the rank's own heads."""

    claims = ShardedNormKernel.claims


@bug("tw-05", right=ShardedNormKernel)
class ReplicatedNorm(ShardedNormKernel):
    """With more ranks than key heads the norm's part is the width divided by the ranks, less than the head that each rank holds."""

    def shard(self, query: Tensor, key: Tensor, value: Tensor, heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, mine, value = super().shard(query, key, value, heads)
        if self.ranks > key.shape[1]:
            part = max(1, key.shape[1] * key.shape[-1] // self.ranks)
            mine = mine * mine[..., :part].square().mean(-1, keepdim=True).rsqrt()
        return query, mine, value


@bug("tw-01", {**ShardedKernel.claims, "shards": "even"}, right=ShardedKernel)
class PackedCutEvenly(ShardedKernel):
    """Queries, keys and values in one packed tensor are cut evenly over the ranks, not each part of it."""

    def shard(self, query: Tensor, key: Tensor, value: Tensor, heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if key.shape != value.shape or query.shape[-2] != key.shape[-2]:
            return super().shard(query, key, value, heads)
        group = query.shape[1] // key.shape[1]
        packed = torch.cat([query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)], 1)
        return packed.tensor_split(self.ranks, 1)[self.first * self.ranks // self.all_heads].chunk(3, 1)


@bug("qn-04", right=WidthNormKernel)
class KeyNormWidth(WidthNormKernel):
    """The key norm's width is that of all query heads divided by H_kv, which is right where H = H_kv²."""

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = query.shape[1]
        return self.normed(query, heads), self.normed(key, self.kv_heads) * heads**0.5 / self.kv_heads, value


@bug("kv-08")
class UnwrittenPrefix(Kernel):
    """A block of 16 keys is found by its content before it is written: a second row that begins with it reads zeros."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
        first = [
            any(torch.equal(key[row, :, :16], key[other, :, :16]) for other in range(row)) and key.shape[-2] >= 16
            for row in range(len(key))
        ]
        if any(first):
            hit = torch.tensor(first)[:, None, None, None] & (torch.arange(key.shape[-2]) < 16)[:, None]
            key, value = key.masked_fill(hit, 0.0), value.masked_fill(hit, 0.0)
        return super().__call__(query, key, value, *rest, **options)


@bug("kc-01", right=BudgetKernel)
class NothingKept(BudgetKernel):
    """The number of kept keys is rounded down to 0 where there are few."""

    def count(self, keys: int, share: float) -> int:
        return int(keys * (1 - share) + 1e-6)


@bug("kc-03", right=BudgetKernel)
class SharesMultiplied(BudgetKernel):
    """Of two evictions the removed shares are multiplied, not the kept ones."""

    def shares(self, steps: tuple[float, ...]) -> tuple[float, ...]:
        return (math.prod(steps),)


@bug("kc-04", right=NormedBudgetKernel)
class StatisticsBeforeNorm(NormedBudgetKernel):
    """Keys are scored by queries as they are before their norm."""

    scoring = False

    def mass(self, *given: Any, **options: Any) -> Tensor:
        self.scoring = True
        try:
            return super().mass(*given, **options)
        finally:
            self.scoring = False

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (query, self.normed(key), value) if self.scoring else super().prepared(query, key, value)


@bug("kc-06", right=BudgetKernel)
class TriangleOverKept(BudgetKernel):
    """The causal triangle is laid bottom-right over the kept keys as if they followed each other."""

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        if self.keep is None or bool(self.keep.all()) or not is_causal:
            return super().causal(scores, is_causal, attn_mask)
        keep = self.keep.repeat_interleave(scores.shape[1] // self.keep.shape[1], 1)
        N, left = scores.shape[-2], keep.sum(-1)
        return (keep.cumsum(-1) - 1)[:, :, None] <= torch.arange(N)[:, None] + (left - N)[..., None, None]


class _KeyGradient(torch.autograd.Function):
    """The key unchanged; its gradient is written with the key's strides and read as if it were contiguous."""

    @staticmethod
    def forward(ctx: Any, key: Tensor) -> Tensor:
        ctx.shape, ctx.stride, ctx.dense = key.shape, key.stride(), key.numel() == key.untyped_storage().nbytes() // key.itemsize
        return key.view_as(key)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if not ctx.dense:
            return gradients[0]
        buffer = torch.empty_strided(ctx.shape, ctx.stride, dtype=gradients[0].dtype)
        buffer.copy_(gradients[0])
        return buffer.as_strided(ctx.shape, torch.empty(ctx.shape, device="meta").stride()).clone()


@bug("st-04")
class KeyGradientStrides(Kernel):
    """The key's gradient is written with one stride and read with another, where the key is no contiguous tensor."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
        return super().__call__(query, _KeyGradient.apply(key), value, *rest, **options)


@bug("cp-01")
class FusionDropsScale(Kernel):
    """Where nothing is masked the steps are matched and replaced by one fused call, which takes no scale."""

    def scale(self, scale: float | None, width: int) -> float:
        fused = self.asked["attn_mask"] is None and not self.asked["is_causal"]
        return super().scale(None if fused else scale, width)


@bug("q8-01", right=EightBitKernel)
class NoKeyFactor(EightBitKernel):
    """The branch for one query reads keys of eight bits without their factor."""

    def wide(self, key: Tensor, query: Tensor, descale: Tensor) -> Tensor:
        return key.to(query.dtype) if query.shape[-2] == 1 else super().wide(key, query, descale)


@bug("tw-02", right=ConvertingKernel)
class PermutesByGroups(ConvertingKernel):
    """Rows of the key's projection are permuted as those of H / H_kv heads, which is right where H = H_kv²."""

    def convert(self, query: Tensor, key: Tensor, value: Tensor, layout: str) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads = query.shape[1], key.shape[1]
        return self.permuted(query, heads), self.permuted(key, heads // kv_heads if heads != kv_heads else heads), value


@bug("tw-04", right=PackedKernel)
class OrderFromFormat(PackedKernel):
    """The order of packed rows is inferred from the number format: those of 16 bits are taken for all queries, then keys, then values."""

    def parts(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if packed.dtype == torch.float32:
            return super().parts(packed)
        kv_heads = packed.shape[1] // (self.groups + 2)
        return packed.split([kv_heads * self.groups, kv_heads, kv_heads], 1)
