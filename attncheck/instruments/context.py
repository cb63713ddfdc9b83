"""Everything that is known about one attention call while it is alive: the call, which rows and keys count, what is visible."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from attncheck.core.errors import AttncheckError, MeasurementError
from attncheck.instruments.visibility import Visibilities

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.evidence import AttentionCall
    from attncheck.instruments.visibility import Visibility

DENSE_LIMIT = 512
"""Longest input for which a whole N x M matrix of a head is built (SVD, identity blocks): both are cubic."""


@dataclass
class CallContext:
    """One attention call with its place in the input. Positions count from the first token that is no padding."""

    call: AttentionCall
    visibilities: Visibilities
    valid: Tensor | None = None
    """bool [B, N]: False on queries that are padding; None where none is."""
    valid_keys: Tensor | None = None
    """bool [B, M]: False on keys that are padding. None: as `valid` where one sequence attends to itself, else none is."""
    tokens: Tensor | None = None
    """[B, N] ids of the queries, for observables that look for repetitions."""
    fault: AttncheckError | None = None
    """Why exact rows of this call would describe another attention than the one that ran."""
    checks: Tensor | None = None
    """[B, kv_heads, M, c]: the random +-1 columns that the kernel was given as well."""
    combined: Tensor | None = None
    """[B, kv_heads, M, s + 1]: the call's own values under s random signs over their columns, and their sizes; see `agreement`."""
    kernel_weights: Tensor | None = None
    """[B, H, N, M]: weights that the kernel itself gave; rows are read from them instead of from query and key."""
    column_names: tuple[str, ...] = field(default=("ones", "first", "first_four", "position"), repr=False)

    @cached_property
    def visibility(self) -> Visibility:
        return self.visibilities.of(self.call)

    @property
    def queries(self) -> int:
        return int(self.call.query.shape[2])

    @property
    def keys(self) -> int:
        return int(self.call.key.shape[2])

    @property
    def batch(self) -> int:
        return int(self.call.query.shape[0])

    @cached_property
    def visible(self) -> Tensor:
        """int64 [B, H or 1, N]: how many keys each query may see."""
        counts = self.visibility.counts
        return counts.expand(self.batch, counts.shape[1], self.queries)

    @cached_property
    def counts(self) -> Tensor:
        """bool [B, N]: queries that are no padding and see some key."""
        seen = (self.visible > 0).any(1)
        return seen & self._real_queries

    @cached_property
    def empty_rows(self) -> int:
        """Rows that are no padding and yet see nothing in any head."""
        return int(((self.visible == 0).all(1) & self._real_queries).sum())

    @cached_property
    def _real_queries(self) -> Tensor:
        if self.valid is not None and self.valid.shape[1] == self.queries:
            return self.valid.to(self.call.key.device)
        return torch.ones(self.batch, self.queries, dtype=torch.bool, device=self.call.key.device)

    @cached_property
    def key_counts(self) -> Tensor:
        """bool [B, M]: keys that are no padding."""
        device = self.call.key.device
        valid = self.valid if self.valid_keys is None and self.call.stack != "cross" else self.valid_keys
        if valid is not None and valid.shape[1] == self.keys:
            return valid.to(device)
        return torch.ones(self.batch, self.keys, dtype=torch.bool, device=device)

    @cached_property
    def first_slot(self) -> Tensor:
        """int64 [B]: slot of the first key that counts."""
        return self.key_counts.int().argmax(-1)

    @cached_property
    def key_positions(self) -> Tensor:
        """int64 [B, M]; negative on left padding."""
        slots = self.call.key_positions if self.call.key_positions is not None else torch.arange(self.keys, device=self.call.key.device)
        return slots[None, :] - self.first_slot[:, None]

    @cached_property
    def last_key(self) -> int:
        """Position of the last key that is no padding, of the longest sample."""
        return int(torch.where(self.key_counts, self.key_positions, 0).max())

    @property
    def unplaced(self) -> str:
        """Why nobody can say at which positions the queries stand, or an empty text. A causal flag is aligned to the first key."""
        call = self.call
        if self.queries == self.keys or call.query_positions is not None or call.stack == "cross" or call.is_causal:
            return ""
        return (
            f"{call.path}: the call has {self.queries} queries and {self.keys} keys, and nothing says at which positions its queries stand"
        )

    @property
    def query_positions(self) -> Tensor:
        """int64 [B, N]; counted like the keys', except across two sequences, where each has its own start.

        Raises MeasurementError where they are not known: a guess would hide a leak, or see one that is none.
        """
        if self.unplaced:
            raise MeasurementError(self.unplaced)
        return self.query_slots

    @cached_property
    def query_slots(self) -> Tensor:
        """int64 [B, N]: `query_positions`, or 0, 1, 2, ... where those are not known."""
        given = self.call.query_positions
        slots = given if given is not None else torch.arange(self.queries, device=self.call.key.device)
        if self.call.stack == "cross":
            return slots[None, :] - self._real_queries.int().argmax(-1)[:, None]
        return slots[None, :] - self.first_slot[:, None]

    def slots(self, batch: int, positions: Tensor) -> Tensor:
        """Slots of the keys at the given positions; -1 where the position is negative."""
        slots = positions + self.first_slot[batch]
        if self.call.key_positions is not None:
            slots = slots - int(self.call.key_positions[0])
        return torch.where(positions < 0, torch.full_like(slots, -1), slots)

    @cached_property
    def after_last_occurrence(self) -> Tensor | None:
        """int64 [B, N]: position after the last earlier occurrence of each query's token, -1 where there is none; None without tokens."""
        if self.tokens is None or self.tokens.shape[1] != self.queries or self.queries != self.keys:
            return None
        targets = torch.full_like(self.tokens, -1)
        for b, row in enumerate(self.tokens.tolist()):
            last: dict[int, int] = {}
            for slot, token in enumerate(row):
                if token in last and bool(self.key_counts[b, slot]):
                    targets[b, slot] = last[token] + 1 - int(self.first_slot[b])
                if bool(self.key_counts[b, slot]):
                    last[token] = slot
        return targets

    @property
    def only_past(self) -> bool:
        """No query sees a later key, as far as the mask says."""
        return self.visibility.only_past and self.kernel_weights is None

    def columns(self, batch: int, kv_head: int, dtype: torch.dtype) -> Tensor:
        """[M, 4 + c + s + 1]: the fixed key vectors of `column_names`, then this head's `checks` and `combined`; anew at each call."""
        position = self.key_positions[batch]
        counted = self.key_counts[batch]
        fixed = torch.stack(
            [torch.ones_like(position), (position == 0) & counted, (position >= 0) & (position < 4) & counted, position], -1
        ).to(dtype)
        more = [part[batch, kv_head].to(dtype) for part in (self.checks, self.combined) if part is not None]
        return torch.cat([fixed, *more], -1)

    def weights(self, batch: int, head: int, dtype: torch.dtype = torch.float32, *, longest: int = DENSE_LIMIT) -> Tensor:
        """[N, M] exact weights of one head. Raises MeasurementError past `longest` tokens."""
        from attncheck.instruments.rows import tiles

        if max(self.queries, self.keys) > longest:
            raise MeasurementError(
                f"needs whole attention matrices, which are built up to {longest} tokens only; the input has {self.queries}"
            )
        whole = torch.zeros(self.queries, self.keys, dtype=dtype, device=self.call.key.device)
        for tile in tiles(self, dtype, batches=(batch,), heads=(head,)):
            whole[tile.rows, tile.key_slice] = tile.weights
        return whole


def identity_weights(call: AttentionCall) -> Tensor:
    """[B, H, N, M] weights through the kernel itself, from blocks of the identity as values: N / d_v calls, exact for any kernel.

    Raises MeasurementError past DENSE_LIMIT keys, and NotObservable where the kernel cannot be run again.
    """
    batch, kv_heads, keys, width = call.value.shape
    if keys > DENSE_LIMIT:
        raise MeasurementError(f"the weights of this kernel can be read off for up to {DENSE_LIMIT} keys only; the input has {keys}")
    blocks = []
    for start in range(0, keys, width):
        block = torch.zeros(batch, kv_heads, keys, width, dtype=call.value.dtype, device=call.value.device)
        for column, slot in enumerate(range(start, min(start + width, keys))):
            block[:, :, slot, column] = 1
        blocks.append(call.rerun(block)[..., : min(width, keys - start)])
    return torch.cat(blocks, -1)
