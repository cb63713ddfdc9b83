"""Which keys each query may see, read from the mask that the kernel reads."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from attncheck.capture.masks import hidden_in

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.evidence import AttentionCall

HIDDEN = -1e30
"""Score of a key that is not visible: finite, so that 0 * HIDDEN is 0 and not NaN; exp underflows to exactly 0."""


def rows_per_tile(keys: int) -> int:
    """Query rows of a tile: as many as let its scores and exponentials stay in a core's cache, for fewer steps where rows are short."""
    return 128 if keys <= 1024 else 64


@dataclass
class Visibility:
    """What the mask of one call lets through, found once for each distinct mask and shared by the layers.

    `ranges[b][h]` holds for every tile of query rows the half-open range of keys outside which nothing is visible, and whether
    everything inside is (so that neither hidden keys nor an all-zero mask cost anything).
    """

    counts: Tensor
    """int64 [B or 1, H or 1, N]: visible keys of each query."""
    ranges: list[list[list[tuple[int, int, bool]]]]
    causal: bool
    """The kernel is causal by itself (no mask)."""
    rows_per_tile: int
    only_past: bool = False
    """No query sees a key in a later slot."""
    triangle: Tensor = field(repr=False, default_factory=lambda: torch.empty(0))

    def range(self, batch: int, head: int, tile: int) -> tuple[int, int, bool]:
        per_head = self.ranges[batch if len(self.ranges) > 1 else 0]
        return per_head[head if len(per_head) > 1 else 0][tile]


class Visibilities:
    """The `Visibility` of the latest few masks; one a pass. Layers share masks, few in number; a mask by layer must not pile up."""

    def __init__(self, held: int = 4) -> None:
        self.held = held
        self._found: OrderedDict[object, tuple[Visibility, object]] = OrderedDict()

    def of(self, call: AttentionCall) -> Visibility:
        queries, keys = call.query.shape[2], call.key.shape[2]
        mask = call.mask
        if mask is None:
            key: object = (queries, keys, call.is_causal, call.query.device)
        else:
            version = None if mask.is_inference() else mask._version
            key = (mask.data_ptr(), tuple(mask.shape), mask.stride(), mask.dtype, version, queries, keys, call.is_causal)
        if key not in self._found:
            # The mask is kept alive beside its result: its address identifies it only as long as nobody else can get the same.
            self._found[key] = (self._find(call, queries, keys), mask)
            while len(self._found) > self.held:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return self._found[key][0]

    def _find(self, call: AttentionCall, queries: int, keys: int) -> Visibility:
        step = rows_per_tile(keys)
        triangle = torch.full((step, step), HIDDEN, device=call.query.device).triu(1)
        starts = range(0, queries, step)
        if call.mask is None:
            if call.is_causal:
                counts = torch.arange(1, queries + 1, device=call.query.device).clamp(max=keys)
                spans = [(0, min(start + step, queries, keys), False) for start in starts]
            else:
                counts = torch.full((queries,), keys, device=call.query.device)
                spans = [(0, keys, True) for _ in starts]
            return Visibility(counts.view(1, 1, -1), [[spans]], call.is_causal, step, call.is_causal, triangle)

        mask = call.mask[..., :keys]
        mask = mask[(None,) * (4 - mask.dim())].expand(-1, -1, -1, keys)
        batch, heads, rows = mask.shape[:3]
        counts = torch.empty(batch, heads, rows, dtype=torch.int64, device=mask.device)
        plain = mask.dtype == torch.bool
        only_past = True
        ranges: list[list[list[tuple[int, int, bool]]]] = []
        for b in range(batch):
            per_head: list[list[tuple[int, int, bool]]] = []
            for h in range(heads):
                spans = []
                for start in starts:
                    tile = mask[b, h, start : start + step] if rows > 1 else mask[b, h]
                    visible = ~hidden_in(tile)
                    if call.is_causal:
                        visible = visible & self._causal(start, min(start + step, queries), keys, mask.device)
                    counts_here = visible.sum(-1)
                    if only_past:
                        earlier = self._causal(start, min(start + step, queries), keys, mask.device)
                        only_past = not bool((visible & ~earlier).any())
                    if rows > 1:
                        counts[b, h, start : start + step] = counts_here
                    else:
                        counts[b, h] = counts_here
                    some = visible.any(0).nonzero()
                    low, high = (int(some[0]), int(some[-1]) + 1) if len(some) else (0, keys)
                    whole = bool(visible[:, low:high].all()) and (plain or not bool(tile[:, low:high].any()))
                    spans.append((low, high, whole))
                per_head.append(spans)
            ranges.append(per_head)
        if rows == 1 and queries > 1:
            counts = counts.expand(batch, heads, queries)
        return Visibility(counts, ranges, call.is_causal, step, only_past, triangle)

    @staticmethod
    def _causal(start: int, stop: int, keys: int, device: torch.device) -> Tensor:
        return torch.arange(keys, device=device)[None, :] <= torch.arange(start, stop, device=device)[:, None]


def visible_rows(call: AttentionCall, batch: int, head: int, rows: slice) -> Tensor:
    """bool [rows, M]: what the queries `rows` of one head may see."""
    queries, keys, device = call.query.shape[2], call.key.shape[2], call.key.device
    start, stop, _ = rows.indices(queries)
    seen = torch.ones(stop - start, keys, dtype=torch.bool, device=device)
    if call.mask is not None:
        mask = call.mask[(None,) * (4 - call.mask.dim())][..., :keys]
        tile = mask[batch if mask.shape[0] > 1 else 0, head if mask.shape[1] > 1 else 0]
        seen &= ~hidden_in(tile[rows] if tile.shape[0] > 1 else tile)
    if call.is_causal:
        seen &= torch.arange(keys, device=device)[None, :] <= torch.arange(start, stop, device=device)[:, None]
    return seen
