"""Correct kernels that do more than attend, each by one keyword, in small steps, so that a bug is one overridden step.

`claims` is what the author of such a kernel would say of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from kernel import Kernel
from mutants import ALIBI, FULL
from torch import Tensor


class SegmentKernel(Kernel):
    """Documents in a row see none of each other."""

    claims: ClassVar[dict[str, Any]] = {**FULL, "segments": "argument"}

    def __call__(self, *tensors: Tensor, segment_ids: Tensor | None = None, **options: Any) -> Any:
        self.ids = segment_ids
        return super().__call__(*tensors, **options)

    def seen(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool, window: int | None) -> Tensor:
        seen = super().seen(scores, attn_mask, is_causal, window)
        return seen if self.ids is None else seen & self.together(attn_mask)

    def together(self, attn_mask: Tensor | None) -> Tensor:
        return self.ids[:, None, :, None] == self.ids[:, None, None, :]


class BlockKernel(Kernel):
    """Tokens of an image see each other whatever causality says."""

    claims: ClassVar[dict[str, Any]] = {**FULL, "blocks": "argument"}

    def __call__(self, *tensors: Tensor, block_ids: Tensor | None = None, **options: Any) -> Any:
        self.ids = block_ids
        return super().__call__(*tensors, **options)

    def causal(self, scores: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor | None:
        seen = super().causal(scores, is_causal, attn_mask)
        return seen if seen is None or self.ids is None else seen | self.same(self.ids)

    def same(self, ids: Tensor) -> Tensor:
        return (ids[:, None, :, None] == ids[:, None, None, :]) & (ids != 0)[:, None, :, None]


class DecayKernel(Kernel):
    """A forget gate: the scores of earlier keys sink by the sum of what lies between, padding left out. Always causal."""

    claims: ClassVar[dict[str, Any]] = {**FULL, "causal": True, "decay": "argument", "mask": ["bool"]}

    def __call__(self, *tensors: Tensor, decay: Tensor | None = None, **options: Any) -> Any:
        self.decay = decay
        return super().__call__(*tensors, **{**options, "is_causal": True})

    def biased(self, scores: Tensor, attn_mask: Tensor | None, position_bias: Tensor | None) -> Tensor:
        scores = super().biased(scores, attn_mask, position_bias)
        if self.decay is None:
            return scores
        total = self.gated(self.decay, attn_mask).cumsum(-1)
        return scores + total[..., :, None] - total[..., None, :]

    def gated(self, decay: Tensor, attn_mask: Tensor | None) -> Tensor:
        padding = attn_mask is not None and attn_mask.ndim == 4 and attn_mask.shape[-2] == 1
        return decay.masked_fill(~attn_mask[:, :, 0], 0.0) if padding else decay


class RotaryKernel(Kernel):
    """Query and key are rotated inside, along one axis or several."""

    claims: ClassVar[dict[str, Any]] = {**FULL, "rotary": "half", "positional": "relative"}

    interleaved = False
    axes = 1

    def __call__(self, *tensors: Tensor, position_ids: Tensor | None = None, **options: Any) -> Any:
        N = tensors[0].shape[-2]
        places = torch.arange(N).expand(len(tensors[0]), -1) if position_ids is None else position_ids
        self.places = places if places.ndim == 3 else places[..., None].expand(*places.shape, self.axes)
        return super().__call__(*tensors, **options)

    def sizes(self, width: int) -> list[int]:
        """Channels of each axis, as the table is built."""
        each = 2 * (width // (2 * self.axes))
        return [width - (self.axes - 1) * each] + [each] * (self.axes - 1)

    def angles(self, width: int) -> Tensor:
        """One angle for each channel, [batch, 1, N, width]."""
        parts = []
        for axis, size in enumerate(self.sizes(width)):
            angle = self.places[..., axis, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
            parts.append(angle.repeat_interleave(2, -1) if self.interleaved else torch.cat([angle, angle], -1))
        return torch.cat(parts, -1)[:, None]

    def turned(self, part: Tensor) -> Tensor:
        """The channels of one axis, each replaced by its partner, the first with a minus sign."""
        if self.interleaved:
            return torch.stack([-part[..., 1::2], part[..., ::2]], -1).flatten(-2)
        first, second = part.chunk(2, -1)
        return torch.cat([-second, first], -1)

    def rotated(self, tensor: Tensor) -> Tensor:
        angle = self.angles(tensor.shape[-1]).to(tensor.dtype)
        turned = torch.cat([self.turned(part) for part in tensor.split(self.sizes(tensor.shape[-1]), -1)], -1)
        return tensor * angle.cos() + turned * angle.sin()

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.rotated(query), self.rotated(key), value


class InterleavedKernel(RotaryKernel):
    claims: ClassVar[dict[str, Any]] = {**RotaryKernel.claims, "rotary": "interleaved"}
    interleaved = True


class ThreeAxesKernel(InterleavedKernel):
    """As for video: frame, height and width."""

    claims: ClassVar[dict[str, Any]] = {**InterleavedKernel.claims, "rotary_axes": 3}
    axes = 3


class HeadNormKernel(Kernel):
    """Query and key heads are divided by their root mean square."""

    claims: ClassVar[dict[str, Any]] = {**FULL, "qk_norm": "head"}

    def normed(self, tensor: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(tensor, tensor.shape[-1:])

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.normed(query), self.normed(key), value


class WidthNormKernel(Kernel):
    """All heads of a token are divided by one root mean square."""

    claims: ClassVar[dict[str, Any]] = {**FULL, "qk_norm": "width"}

    def repeated(self, tensor: Tensor, heads: int) -> Tensor:
        self.kv_heads = tensor.shape[1]
        return super().repeated(tensor, heads)

    def normed(self, tensor: Tensor, heads: int) -> Tensor:
        """heads: as many as there are different ones; repeating them moves no mean."""
        return tensor * (tensor.square().mean((1, -1), keepdim=True) + torch.finfo(self.dtype).eps).rsqrt()

    def prepared(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.normed(query, query.shape[1]), self.normed(key, self.kv_heads), value


class Sharded:
    """Any kernel on several ranks: query heads are shared out, each rank holding the key heads that they read."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, ranks: int = 1, **options: Any) -> Any:
        self.ranks, self.all_heads = ranks, query.shape[1]
        if ranks == 1:
            self.first = 0
            return super().__call__(query, key, value, *rest, **options)  # type: ignore[misc]
        query, key, value = self.before(query, key, value)
        parts = []
        for heads in torch.arange(self.all_heads).tensor_split(ranks):
            self.first = int(heads[0])
            q, k, v = self.shard(query, key, value, heads)
            mine = self.own(options, heads)
            parts.append(super().__call__(q, k, v, *rest, **{**mine, "enable_gqa": False}))  # type: ignore[misc]
        return torch.cat(parts, 1)

    def before(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What needs all heads and is gathered from all ranks."""
        return query, key, value

    def shard(self, query: Tensor, key: Tensor, value: Tensor, heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        read = heads // (self.all_heads // key.shape[1])
        return query[:, heads], key[:, read], value[:, read]

    def own(self, options: dict[str, Any], heads: Tensor) -> dict[str, Any]:
        mask = options.get("attn_mask")
        return {**options, "attn_mask": mask[:, heads]} if mask is not None and mask.ndim == 4 and mask.shape[1] > 1 else options


class ShardedKernel(Sharded, Kernel):
    claims: ClassVar[dict[str, Any]] = {**FULL, "shards": "any"}


class ShardedAlibiKernel(Sharded, Kernel):
    """Each rank takes the slopes of its own heads."""

    claims: ClassVar[dict[str, Any]] = {**ALIBI, "shards": "any"}

    corner, alibi = "bottom_right", True

    def slopes(self, heads: int) -> Tensor:
        return self.of_rank(super().slopes(self.all_heads), heads)

    def of_rank(self, slopes: Tensor, heads: int) -> Tensor:
        return slopes[self.first : self.first + heads]


class ShardedNormKernel(Sharded, WidthNormKernel):
    """The mean square is that of the whole width, summed over the ranks."""

    claims: ClassVar[dict[str, Any]] = {**WidthNormKernel.claims, "shards": "any"}

    def before(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.dtype = query.dtype
        return super().normed(query, query.shape[1]), super().normed(key, key.shape[1]), value

    def normed(self, tensor: Tensor, heads: int) -> Tensor:
        return super().normed(tensor, heads) if self.ranks == 1 else tensor


class BudgetKernel(Kernel):
    """Keys with the least weight, summed over the queries, are evicted; what is left is read where it was."""

    claims: ClassVar[dict[str, Any]] = {**FULL, "budget": "argument", "evicts": "least_weight"}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, ratio: float | tuple[float, ...] = (), **options: Any) -> Any:
        self.keep = None
        steps = ratio if isinstance(ratio, tuple) else (ratio,)
        if not steps:
            return super().__call__(query, key, value, *rest, **options)
        kept = torch.ones(key.shape[:-1], dtype=torch.bool)
        mass = self.mass(query, key, value, *rest, **options)
        for share in self.shares(steps):
            left = int(kept.sum(-1).max())
            best = mass.masked_fill(~kept, -torch.inf).topk(self.count(left, share), -1).indices
            kept = torch.zeros_like(kept).scatter(-1, best, True)
        self.keep = kept
        try:
            return super().__call__(query, key, value, *rest, **options), kept
        finally:
            self.keep = None

    def shares(self, steps: tuple[float, ...]) -> tuple[float, ...]:
        return steps

    def count(self, keys: int, share: float) -> int:
        return max(1, int(keys * (1 - share) + 1e-6))

    def mass(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
        """Weight of each key over the queries that read it, [batch, kv_heads, M]."""
        _, weights = super().__call__(query, key, value, *rest, **options, return_weights=True)
        return weights.sum(-2).unflatten(1, (key.shape[1], -1)).sum(2)

    def kept(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        kept = super().kept(scores, attn_mask)
        if self.keep is None:
            return kept
        mine = self.keep.repeat_interleave(scores.shape[1] // self.keep.shape[1], 1)[:, :, None]
        return mine if kept is None else kept & mine


class NormedBudgetKernel(BudgetKernel, HeadNormKernel):
    claims: ClassVar[dict[str, Any]] = {**BudgetKernel.claims, "qk_norm": "head"}


class EightBitKernel(Kernel):
    """Keys and values in eight bits are multiplied by their heads' factors."""

    claims: ClassVar[dict[str, Any]] = {**FULL, "quantised": ["int8", "float8_e4m3fn"]}

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, k_descale: Any = None, v_descale: Any = None, **options: Any
    ) -> Any:
        if k_descale is not None:
            key = self.wide(key, query, k_descale)
            value = value.to(query.dtype) * v_descale[..., None, None]
        return super().__call__(query, key, value, *rest, **options)

    def wide(self, key: Tensor, query: Tensor, descale: Tensor) -> Tensor:
        return key.to(query.dtype) * descale[..., None, None]


class ConvertingKernel(RotaryKernel):
    """Halves are rotated; the layout 'neighbours' has what turns together side by side, as other formats store it."""

    claims: ClassVar[dict[str, Any]] = {**RotaryKernel.claims, "layouts": ["neighbours"]}

    def convert(self, query: Tensor, key: Tensor, value: Tensor, layout: str) -> tuple[Tensor, Tensor, Tensor]:
        return self.permuted(query, query.shape[1]), self.permuted(key, key.shape[1]), value

    def permuted(self, tensor: Tensor, heads: int) -> Tensor:
        """As of the rows of a projection: [heads · d], heads of two halves become heads of neighbours."""
        rows = tensor.transpose(1, 2).flatten(2)
        rows = rows.unflatten(-1, (heads, 2, -1)).transpose(-1, -2)
        return rows.flatten(2).unflatten(-1, (tensor.shape[1], -1)).transpose(1, 2)

    def __call__(self, *tensors: Tensor, layout: str | None = None, **options: Any) -> Any:
        self.interleaved = layout == "neighbours"
        return super().__call__(*tensors, **options)


class PackedKernel(Kernel):
    """The layout 'packed' is one tensor, the queries of each key head before it and its value."""

    claims: ClassVar[dict[str, Any]] = {**FULL, "layouts": ["packed"], "dtypes": ["float32", "float16", "bfloat16"]}

    def convert(self, query: Tensor, key: Tensor, value: Tensor, layout: str) -> tuple[Tensor, Any, Any]:
        self.groups = query.shape[1] // key.shape[1]
        parts = (query.unflatten(1, (key.shape[1], -1)), key[:, :, None], value[:, :, None])
        return torch.cat(parts, 2).flatten(1, 2), None, None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, layout: str | None = None, **options: Any) -> Any:
        if layout == "packed":
            query, key, value = self.parts(query)
        return super().__call__(query, key, value, *rest, **options)

    def parts(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        each = packed.unflatten(1, (-1, self.groups + 2))
        return each[:, :, :-2].flatten(1, 2), each[:, :, -2], each[:, :, -1]


KINDS: tuple[type[Kernel], ...] = (
    SegmentKernel, BlockKernel, DecayKernel, RotaryKernel, InterleavedKernel, ThreeAxesKernel, HeadNormKernel, WidthNormKernel,
    ShardedKernel, ShardedAlibiKernel, ShardedNormKernel, BudgetKernel, NormedBudgetKernel, EightBitKernel, ConvertingKernel, PackedKernel,
)  # fmt: skip
