"""What the model's own kernel says: one more call with values of our choosing, shaped like the real ones.

Attention is linear in the values. Columns of ones give row sums; an indicator of a fixed key set gives the mass on it; a threshold
column 1[position > t] gives, in every row at or before t, mass on the future, which must be exactly 0 in a causal kernel; random +-1
columns go through kernel and exact rows alike and must agree. Thresholds are staggered over layers, heads and samples.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.context import CallContext

Cuts = Literal["staggered", "all"]
SEED = 20240607


def staggered(count: int, neighbours: int, first: int) -> list[int]:
    """`count` thresholds from 0..neighbours-1, numbers first, first+1, ... of a walk that meets all of them before any twice."""
    if neighbours < 1:
        return []
    stride = max(1, round(neighbours * 0.6180339887))
    while math.gcd(stride, neighbours) != 1:
        stride += 1
    return [(number * stride) % neighbours for number in range(first, first + min(count, neighbours))]


def _room(taken: int, width: int, wanted: int) -> int:
    """Columns left in the last call for `taken` columns, all of which cost nothing more; of one more call where they are too few."""
    left = -taken % width
    while left < wanted:
        left += width
    return left


@dataclass
class ProbeRequest:
    """What is to be packed beside the row sums and fixed masses."""

    checks: int = 8
    """Random +-1 columns for the kernel check."""
    future: set[Cuts] = field(default_factory=set)
    outside: set[tuple[int, Cuts]] = field(default_factory=set)
    """(window, cuts): windows outside of which nothing may be seen; keys visible, the query's own included."""
    padding: bool = False
    signs: int = 0
    """+-1 columns for an estimate of the Frobenius norm; at least 60 decide anything."""

    def add(
        self,
        *,
        future: Cuts | None = None,
        outside_window: int | None = None,
        window_cuts: Cuts = "staggered",
        signs: int = 0,
    ) -> None:
        """Pack what one more observable needs."""
        if outside_window is not None:
            self.outside.add((outside_window, window_cuts))
        if future is not None:
            self.future.add(future)
        self.signs = max(self.signs, signs)

    @property
    def windows(self) -> list[int]:
        return sorted({window for window, _ in self.outside})


def beyond(window: int) -> str:
    """What the mass outside a window is called among what the rows say."""
    return f"outside_window {window}"


@dataclass
class Probe:
    """The kernel's answers for one call, [B, H, N] each unless said otherwise."""

    context: CallContext
    row_sum: Tensor
    first: Tensor
    first_four: Tensor
    padding: Tensor | None
    future: dict[Cuts, Tensor]
    """Largest |mass| seen beyond a threshold at or after the row: a lower bound of the mass on the future, exactly 0 when causal. By the
    thresholds that were asked: what one request is told does not hang on what others ask for. Empty where a call has no positions."""
    outside_window: dict[tuple[int, Cuts], Tensor]
    """By window and thresholds, the same for keys that lie outside of it."""
    checked: Tensor
    """[B, H, N, c]: the +-1 columns through the kernel."""
    combined: Tensor | None
    """[B, H, N, s + 1]: the call's own values under random signs over their columns, each as one column through the kernel."""
    signs: Tensor | None
    """[B, H, N, m]."""
    sign_columns: Tensor | None
    """[B, kv_heads, M, m]."""
    from_rows: dict[str, Tensor] = field(default_factory=dict)
    """What the exact rows say of the same thing, [B, H, N]: "future", or `beyond(window)`."""
    error: Tensor | None = None
    """|kernel - exact rows| over the check columns, [B, H, N]; filled in once the rows are known."""

    def void(self, rows: Tensor) -> None:
        """Make all that the kernel showed for the rows [B, H, N] no number."""
        for name in ("row_sum", "first", "first_four", "padding"):
            shown = getattr(self, name)
            if shown is not None:
                setattr(self, name, torch.where(rows, torch.nan, shown))
        self.future = {cuts: torch.where(rows, torch.nan, shown) for cuts, shown in self.future.items()}
        self.outside_window = {key: torch.where(rows, torch.nan, shown) for key, shown in self.outside_window.items()}

    def outside(self, window: int, cuts: Cuts) -> Tensor | None:
        """The mass on keys outside a window, kernel and rows together; None where the call has no window."""
        shown = self.outside_window.get((window, cuts))
        return None if shown is None else self.with_rows(beyond(window), shown)

    def with_rows(self, name: str, shown: Tensor) -> Tensor:
        """The larger of what the kernel showed and what the rows say."""
        rows = self.from_rows.get(name)
        return shown if rows is None else torch.maximum(shown, rows.to(shown))


class Prober:
    """Packs columns and reruns kernels for one pass; numbers the thresholds through all its calls."""

    def __init__(self, request: ProbeRequest, seed: int = SEED) -> None:
        self.request, self.seed = request, seed
        self._walks: Counter[tuple[str, int]] = Counter()
        """How far the walk over the thresholds has come, by what they look for and how many there are."""
        self.separated: dict[tuple[str, int], set[int]] = {}
        """Thresholds used so far in any layer, head or sample, by the same."""

    def check_columns(self, context: CallContext, count: int, salt: int) -> Tensor:
        """[B, kv_heads, M, count] random +-1, the same for every run of the same call."""
        call = context.call
        generator = torch.Generator().manual_seed(self.seed + 7919 * call.layer + salt)
        shape = (*call.value.shape[:2], context.keys, count)
        return (torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) * 2 - 1).to(call.value.device, call.value.dtype)

    def prepare(self, context: CallContext) -> Tensor:
        """The check columns of this call; the rows read them from the context."""
        context.checks = self.check_columns(context, self.request.checks, salt=0)
        return context.checks

    def ask(self, context: CallContext) -> Probe:
        """Run the kernel. Raises NotObservable where it cannot be run again."""
        call, request = context.call, self.request
        batch, kv_heads, _, width = call.value.shape
        keys = context.keys
        dtype, device = call.value.dtype, call.value.device
        position = context.key_positions[:, None, :].expand(batch, kv_heads, keys)
        counted = context.key_counts[:, None, :].expand(batch, kv_heads, keys)
        fixed = [torch.ones_like(position), (position == 0) & counted, (position >= 0) & (position < 4) & counted]
        if request.padding:
            fixed.append(~counted)
        packed = [torch.stack([column.to(dtype) for column in fixed], -1)]
        checks = context.checks if context.checks is not None else self.prepare(context)
        packed.append(checks)
        if context.combined is not None:
            packed.append(context.combined.to(dtype))
        taken = sum(part.shape[-1] for part in packed)
        placed = keys > 1 and not context.unplaced
        # How many thresholds there are may not hang on what else is asked, or a test alone could pass and fail among others.
        ahead = behind = None
        if "staggered" in request.future and placed:
            ahead = self._thresholds(context, "future", _room(taken, width, 4))
            packed.append((position[..., None] > ahead[:, :, None, :].to(device)).to(dtype))
        if any(cuts == "staggered" for _, cuts in request.outside) and placed:
            behind = self._thresholds(context, "outside_window", max(width, 4))
            packed.append((position[..., None] <= behind[:, :, None, :].to(device)).to(dtype))
        sign_columns = self.check_columns(context, request.signs, salt=1) if request.signs else None
        if sign_columns is not None:
            packed.append(sign_columns)

        answer = self._through_kernel(context, torch.cat(packed, -1))
        sizes = [part.shape[-1] for part in packed]
        parts = list(torch.split(answer, sizes, -1))
        masses, checked = parts.pop(0), parts.pop(0)
        combined = parts.pop(0) if context.combined is not None else None
        future: dict[Cuts, Tensor] = {}
        outside: dict[tuple[int, Cuts], Tensor] = {}
        if ahead is not None:
            future["staggered"] = self._leak(context, parts.pop(0), ahead)
        if behind is not None:
            shown = parts.pop(0)
            outside = {(window, "staggered"): self._leak(context, shown, behind, window) for window in request.windows}
        signs = parts.pop(0) if sign_columns is not None else None
        if "all" in request.future and placed:
            future["all"] = self.every_threshold(context)
        for window, cuts in request.outside if placed else ():
            if cuts == "all":
                outside[window, "all"] = self.every_threshold(context, window)
        return Probe(
            context,
            row_sum=masses[..., 0],
            first=masses[..., 1],
            first_four=masses[..., 2],
            padding=masses[..., 3] if request.padding else None,
            future=future,
            outside_window=outside,
            checked=checked,
            combined=combined,
            signs=signs,
            sign_columns=sign_columns,
        )

    def _thresholds(self, context: CallContext, what: str, count: int) -> Tensor:
        """[B, kv_heads, count]; samples of one length share a walk over their neighbours."""
        rows = []
        for real in context.key_counts.sum(-1).tolist():
            walk = (what, max(int(real) - 1, 1))
            for _ in range(context.call.kv_heads):
                cuts = staggered(count, walk[1], self._walks[walk])
                self._walks[walk] += len(cuts)
                self.separated.setdefault(walk, set()).update(cuts)
                rows.append(cuts + cuts[-1:] * (count - len(cuts)))
        return torch.tensor(rows).view(context.batch, context.call.kv_heads, count)

    def every_threshold(self, context: CallContext, window: int | None = None) -> Tensor:
        """[B, H, N]: what the kernel shows of the future, or outside a window, over all thresholds, for every head, a value's width of
        them at a time."""
        call = context.call
        batch, kv_heads, _, width = call.value.shape
        position = context.key_positions[:, None, :, None].expand(batch, kv_heads, context.keys, 1)
        largest = torch.zeros(batch, call.heads, context.queries, device=call.value.device)
        for start in range(0, context.keys - 1, width):
            cuts = torch.arange(start, min(start + width, context.keys - 1), device=call.value.device).expand(batch, kv_heads, -1)
            marked = position > cuts[:, :, None, :] if window is None else position <= cuts[:, :, None, :]
            answer = self._through_kernel(context, marked.to(call.value.dtype))
            largest = torch.maximum(largest, self._leak(context, answer, cuts, window))
        return largest

    def coverage(self, what: str) -> tuple[int, int]:
        """(neighbouring positions told apart, all of them) for the length that came off worst."""
        walks = [(len(found), neighbours) for (name, neighbours), found in self.separated.items() if name == what]
        return min(walks, key=lambda walk: walk[0] / walk[1], default=(0, 0))

    def _through_kernel(self, context: CallContext, columns: Tensor) -> Tensor:
        """[B, H, N, total] in float32: columns cut into values of the real width, the last one filled with zeros."""
        call = context.call
        width = call.value.shape[-1]
        answers = []
        for start in range(0, columns.shape[-1], width):
            block = columns[..., start : start + width]
            used = block.shape[-1]
            if used < width:
                block = torch.cat([block, block.new_zeros(*block.shape[:-1], width - used)], -1)
            if context.keys < call.value.shape[2]:
                block = torch.cat([block, block.new_zeros(*block.shape[:2], call.value.shape[2] - context.keys, width)], 2)
            answers.append(call.rerun(block.contiguous())[..., :used].float())
        return torch.cat(answers, -1)

    def _leak(self, context: CallContext, answer: Tensor, cuts: Tensor, window: int | None = None) -> Tensor:
        """[B, H, N]: largest |answer| over the thresholds whose indicator must be empty for the row."""
        group = context.call.heads // context.call.kv_heads
        cuts = cuts.to(answer.device).repeat_interleave(group, 1)[:, :, None, :]
        queries = context.query_positions[:, None, :, None]
        must_be_empty = queries <= cuts if window is None else queries - window >= cuts
        return (answer.abs() * must_be_empty).amax(-1)
