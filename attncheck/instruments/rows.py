"""Exact attention rows from the captured query, key and mask, a tile at a time, so that no N x M matrix ever exists.

A tile is 64 or 128 query rows of one head by the keys that they can see: small enough to stay in cache. Scores are put together in the
order scale, cap, bias, mask, sink, in float32 whatever the model's dtype. Statistics that several observables share are computed on
first use and kept for the life of the tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from attncheck.core.errors import MeasurementError
from attncheck.instruments.visibility import HIDDEN

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.context import CallContext


class Tile:
    """Rows r0..r1 of one (batch, head), over the slice of keys that any of them can see. Vectors are [rows] unless said otherwise."""

    def __init__(self, context: CallContext, batch: int, head: int, rows: slice, keys: slice, columns: Tensor) -> None:
        self.context, self.batch, self.head, self.rows, self.key_slice = context, batch, head, rows, keys
        self.counts: Tensor = context.counts[batch, rows]
        """bool: rows that count (not padding, and some key is visible)."""
        self.origin = context.query_slots[batch, rows.start]
        """Position of the first row, from which the column "position" counts: near ones are what local heads are made of."""
        self._columns = columns
        columns[:, context.column_names.index("position")] = context.key_positions[batch] - self.origin

    # What both kinds of tile provide.
    total: Tensor
    """What `exponentials` has to be divided by to give weights."""
    exponentials: Tensor
    """[rows, keys]: weights before the division by `total`."""

    @property
    def keys_total(self) -> int:
        return self.context.keys

    @property
    def query_positions(self) -> Tensor:
        return self.context.query_positions[self.batch, self.rows]

    @property
    def key_positions(self) -> Tensor:
        return self.context.key_positions[self.batch, self.key_slice]

    @cached_property
    def weights(self) -> Tensor:
        """[rows, keys] attention weights."""
        return self.exponentials / self.total[:, None]

    @cached_property
    def _dots(self) -> Tensor:
        return (self.exponentials @ self._columns[self.key_slice]) / self.total[:, None]

    @cached_property
    def row_sum(self) -> Tensor:
        """Sum of the weights; below 1 where a sink takes mass."""
        return self.column("ones")

    def column(self, name: str) -> Tensor:
        """The weights times one of the context's fixed key vectors: ones, first, first_four, position."""
        return self._dots[:, self.context.column_names.index(name)]

    @property
    def check(self) -> Tensor:
        """[rows, c]: the weights times the random +-1 columns that the kernel gets as well."""
        first, checks = len(self.context.column_names), self.context.checks
        return self._dots[:, first : first + (0 if checks is None else checks.shape[-1])]

    @property
    def combined(self) -> Tensor:
        """[rows, s + 1]: the weights times the call's own values under s random signs over their columns, and times their sizes."""
        checks = self.context.checks
        return self._dots[:, len(self.context.column_names) + (0 if checks is None else checks.shape[-1]) :]

    @cached_property
    def sink_share(self) -> Tensor:
        """What a row's weights lack of 1."""
        return 1 - self.row_sum

    @cached_property
    def sum_of_squares(self) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(self.exponentials, dim=-1)
        return (norm / self.total).square()

    @cached_property
    def largest_weight(self) -> Tensor:
        return self.exponentials.amax(-1) / self.total

    @cached_property
    def entropy(self) -> Tensor:
        """-sum p log p in nats, over the keys (a sink's share is left out)."""
        summed: Tensor = torch.special.xlogy(self.weights, self.weights).sum(-1)
        return -summed

    @property
    def largest_score(self) -> Tensor:
        """Largest score that enters the softmax. Raises MeasurementError where only the weights are known."""
        call = self.context.call
        raise MeasurementError(
            f"{call.path}: logits cannot be seen: its weights were read off the kernel itself ({call.implementation}), and no scores "
            "came with them"
        )

    def mass_where(self, chosen: Tensor) -> Tensor:
        """Mass on the keys of this tile's slice that the bool [keys] chooses."""
        return self.exponentials[:, chosen].sum(-1) / self.total

    def beyond(self, low: int | None, high: int | None) -> Tensor:
        """Mass on keys whose position minus the query's lies below `low` or above `high`."""
        distance = self.key_positions[None, :] - self.query_positions[:, None]
        outside = torch.zeros_like(distance, dtype=torch.bool)
        if low is not None:
            outside |= distance < low
        if high is not None:
            outside |= distance > high
        return (self.exponentials * outside).sum(-1) / self.total

    @cached_property
    def distance(self) -> Tensor:
        """Mean of |query position - key position| under the weights, with rows that sum to less than 1 as they are."""
        if self.context.only_past:
            return (self.query_positions - self.origin) * self.row_sum - self.column("position")
        apart = (self.key_positions[None, :] - self.query_positions[:, None]).abs().to(self.exponentials.dtype)
        summed: Tensor = torch.linalg.vecdot(self.exponentials, apart)
        return summed / self.total

    def at(self, positions: Tensor) -> Tensor:
        """Weight of each row on the key at the given position [rows]; 0 where the position is negative or not visible."""
        slots = self.context.slots(self.batch, positions) - self.key_slice.start
        inside = (slots >= 0) & (slots < self.exponentials.shape[1])
        picked = self.exponentials.gather(1, slots.clamp(0, self.exponentials.shape[1] - 1)[:, None])[:, 0]
        return torch.where(inside, picked / self.total, torch.zeros_like(picked))

    def scatter(self, values: Tensor) -> Tensor:
        """A vector over this tile's keys as one over all keys, zeros elsewhere."""
        whole = values.new_zeros(self.keys_total)
        whole[self.key_slice] = values
        return whole


class ScoreTile(Tile):
    """A tile whose scores are known: softmax attention computed from query and key, or from a softmax operator's input."""

    def __init__(self, *arguments: Any, scores: Tensor, scratch: Tensor, sink: Tensor | None) -> None:
        super().__init__(*arguments)
        self._largest = scores.amax(-1)
        top = self._largest if sink is None else torch.maximum(self._largest, sink)
        self.shifted = scores.sub_(top[:, None])
        """[rows, keys]: scores minus the row's largest."""
        self.top = top
        self.exponentials = torch.exp(self.shifted, out=scratch)
        self._sink = sink

    @cached_property
    def _dots_raw(self) -> Tensor:
        return self.exponentials @ self._columns[self.key_slice]

    @cached_property
    def total(self) -> Tensor:  # type: ignore[override]
        ones = self._dots_raw[:, self.context.column_names.index("ones")]
        return ones if self._sink is None else ones + torch.exp(self._sink - self.top)

    @cached_property
    def _dots(self) -> Tensor:
        return self._dots_raw / self.total[:, None]

    @cached_property
    def sink_share(self) -> Tensor:
        return torch.zeros_like(self.top) if self._sink is None else torch.exp(self._sink - self.top) / self.total

    @cached_property
    def log_sum_exp(self) -> Tensor:
        return self.top + self.total.log()

    @cached_property
    def largest_weight(self) -> Tensor:
        return torch.exp(self._largest - self.top) / self.total

    @cached_property
    def entropy(self) -> Tensor:
        # sum p log p = sum p (s - top) - (log total) * sum p; no logarithm per key.
        shifted: Tensor = torch.linalg.vecdot(self.exponentials, self.shifted)
        return self.row_sum * self.total.log() - shifted / self.total

    @property
    def largest_score(self) -> Tensor:
        return self._largest


class WeightTile(Tile):
    """A tile of weights that the kernel itself gave (identity values, or returned weights); nothing is known about scores."""

    def __init__(self, *arguments: Any, weights: Tensor) -> None:
        super().__init__(*arguments)
        self.exponentials = weights
        self.total = torch.ones_like(weights[:, 0])

    @property
    def combined(self) -> Tensor:
        # Weights without softmax may be negative: sizes must not cancel.
        sizes: Tensor = self.exponentials.abs() @ self._columns[self.key_slice, -1:]
        return torch.cat([super().combined[:, :-1], sizes], -1)


def tiles(
    context: CallContext,
    dtype: torch.dtype = torch.float32,
    *,
    batches: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[Tile]:
    """The tiles of a call, head by head. The tensors of a tile are overwritten by the next one.

    Raises the context's `fault` where the kernel was found to apply another attention.
    """
    if context.fault is not None:
        raise context.fault
    call, seen = context.call, context.visibility
    queries, keys, group = context.queries, context.keys, call.heads // call.kv_heads
    device = call.query.device
    step = seen.rows_per_tile
    scores_buffer = torch.empty(step * keys, dtype=dtype, device=device)
    scratch = torch.empty(step * keys, dtype=dtype, device=device)
    for b in batches if batches is not None else range(context.batch):
        columns_of_kv: dict[int, Tensor] = {}
        for h in heads if heads is not None else range(call.heads):
            kv = h // group
            if kv not in columns_of_kv:
                columns_of_kv = {kv: context.columns(b, kv, dtype)}
            columns = columns_of_kv[kv]
            known = context.kernel_weights if context.kernel_weights is not None else call.weights if call.scores is None else None
            if known is None and call.scores is None:
                query = call.query[b, h].to(dtype) * call.scale
                key = call.key[b, kv, :keys].to(dtype).transpose(0, 1)
            sinks = None if call.sinks is None else (call.sinks[h] if call.sinks.dim() == 1 else call.sinks[b, h]).to(dtype)
            for number, start in enumerate(range(0, queries, step)):
                rows = slice(start, min(start + step, queries))
                count = rows.stop - rows.start
                low, high, whole = seen.range(b, h, number)
                span = slice(low, high)
                shape = (count, high - low)
                if known is not None:
                    yield WeightTile(context, b, h, rows, slice(0, keys), columns, weights=known[b, h, rows].to(dtype))
                    continue
                scores = scores_buffer[: count * shape[1]].view(shape)
                if call.scores is not None:
                    scores.copy_(call.scores[b, h, rows, span])
                    scores.clamp_(min=HIDDEN)
                else:
                    torch.mm(query[rows], key[:, span], out=scores)
                    _finish_scores(context, scores, b, h, rows, span, whole)
                yield ScoreTile(
                    context, b, h, rows, span, columns,
                    scores=scores, scratch=scratch[: count * shape[1]].view(shape),
                    sink=sinks[rows] if sinks is not None and sinks.dim() else sinks,
                )  # fmt: skip


def _finish_scores(context: CallContext, scores: Tensor, b: int, h: int, rows: slice, span: slice, whole: bool) -> None:
    """Cap, bias, mask, in place."""
    call = context.call
    if call.softcap is not None:
        scores.div_(call.softcap).tanh_().mul_(call.softcap)
    if call.bias is not None:
        scores += _part(call.bias, b, h, rows, span)
    if whole:
        return
    if call.mask is not None:
        mask = _part(call.mask, b, h, rows, span)
        if mask.dtype == torch.bool:
            scores.masked_fill_(~mask, HIDDEN)
        else:
            scores += mask
            scores.clamp_(min=HIDDEN)
    if call.is_causal:
        count = rows.stop - rows.start
        first = rows.start - span.start
        width = min(count, scores.shape[1] - first)
        if width > 0:
            scores[:, first : first + width] += context.visibility.triangle[:count, :width].to(scores.dtype)


def _part(tensor: Tensor, b: int, h: int, rows: slice, span: slice) -> Tensor:
    """A tile of something that broadcasts to [batch, heads, N, M]."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    picked = tensor[b if tensor.shape[0] > 1 else 0, h if tensor.shape[1] > 1 else 0]
    if picked.shape[0] > 1:
        picked = picked[rows]
    return picked[:, span] if picked.shape[1] > 1 else picked
