"""Rotary position embeddings as the running model applied them: put on, taken off, averaged over positions.

At every position a rotation R_t is a matrix with at most two entries in each row and column; it is read off the model's own function by
turning unit vectors, so half-split, interleaved, permuted and partial layouts, and any part of the head, are the same case. Scaled
embeddings (YaRN) have R^T R = a^2, so taking the rotation off is R^T / a^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attncheck.core.errors import NotObservable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from attncheck.core.evidence import AttentionCall


@dataclass(frozen=True)
class Sparse:
    """Matrices with two entries a row: y_a = sum_k weight[.., k, a] x[index[k, a]]; weight [batch or nothing, positions, 2, d]."""

    index: Tensor
    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., positions, d]; a single position serves any number."""
        return x[..., self.index[0]] * self.weight[..., 0, :] + x[..., self.index[1]] * self.weight[..., 1, :]

    def at(self, *where: Any) -> Sparse:
        return Sparse(self.index, self.weight[where])


@dataclass(frozen=True)
class Rotation:
    """R_t and its transpose for all query slots of a call, or for the positions of one sample."""

    forward: Sparse
    backward: Sparse

    @classmethod
    def of(cls, call: AttentionCall) -> Rotation | None:
        """The rotation of a call's queries by sample and slot; None where the call's queries were not rotated.

        Raises NotObservable where the model rotates in a way that is not known.
        """
        if call.rotation is None:
            if call.rotary is not None:
                raise NotObservable(f"{call.path}: the model has a rotary table, and nobody watched whether these queries were rotated")
            return None
        rotate = call.rotation()
        if rotate is None:
            return None
        # Layers that share function and tables share the map, and with it this memo.
        memo: dict[str, Any] = getattr(rotate, "memo", {})
        if "rotation" not in memo:
            memo["rotation"] = cls.read_off(rotate, call.query, call.path)
        made: Rotation = memo["rotation"]
        return made

    @classmethod
    def read_off(cls, rotate: Callable[[Tensor], Tensor], like: Tensor, path: str = "") -> Rotation:
        """Turn unit vectors, as many at a time as there are heads; `like` gives shape [batch, heads, N, d] and device."""
        batch, heads, positions, d = like.shape
        backward = torch.zeros(batch, positions, 2, d, dtype=torch.float64, device=like.device)
        rows = torch.zeros(2, d, dtype=torch.long, device=like.device)
        entries: list[list[tuple[int, int]]] = [[] for _ in range(d)]
        eye = torch.eye(d, device=like.device)
        for first in range(0, d, heads):
            count = min(heads, d - first)
            given = torch.zeros(batch, heads, positions, d, device=like.device)
            given[:, :count] = eye[first : first + count, None, :]
            turned = rotate(given).double()
            for head in range(count):
                column, touched = turned[:, head], turned[:, head].abs().amax((0, 1)).nonzero()[:, 0].tolist()
                if not 1 <= len(touched) <= 2:
                    raise NotObservable(f"{path}: its rotary function mixes {len(touched)} dims of a head; allowed: pairs")
                for k, row in enumerate(touched):
                    rows[k, first + head] = row
                    backward[:, :, k, first + head] = column[..., row]
                    entries[row].append((k, first + head))
        forward = torch.zeros_like(backward)
        columns = torch.zeros_like(rows)
        for row, found in enumerate(entries):
            if not 1 <= len(found) <= 2:
                raise NotObservable(f"{path}: its rotary function mixes {len(found)} dims of a head; allowed: pairs")
            for number, (k, column_) in enumerate(found):
                columns[number, row] = column_
                forward[:, :, number, row] = backward[:, :, k, column_]
        if bool((forward == forward[:1]).all()):
            forward, backward = forward[:1], backward[:1]
        made = cls(Sparse(columns, forward), Sparse(rows, backward))
        made._refuse_unless_orthogonal(path)
        return made

    def _refuse_unless_orthogonal(self, path: str) -> None:
        d = self.forward.index.shape[1]
        x = torch.linspace(-1, 1, d, dtype=torch.float64, device=self.forward.weight.device).expand(self.forward.weight.shape[1], d)
        if not torch.allclose(self.unapply(self.apply(x)), x.expand(self.forward.weight.shape[0], *x.shape), atol=1e-3):
            raise NotObservable(f"{path}: what its rotary function does is no rotation, not even a scaled one")

    def apply(self, x: Tensor) -> Tensor:
        """R_t x for x [..., positions, d]."""
        return self.forward(x)

    def transposed(self, x: Tensor) -> Tensor:
        """R_t^T x: like `unapply`, but scaled rotations scale again."""
        return self.backward(x)

    def unapply(self, x: Tensor) -> Tensor:
        """The inverse of `apply`."""
        return self.backward(x) / self.backward.weight.square().sum(-2)

    def at(self, sample: int, positions: Tensor | slice = slice(None)) -> Rotation:
        """One sample's rotation at the given slots."""
        row = sample if self.forward.weight.shape[0] > 1 else 0
        return Rotation(self.forward.at(row, positions), self.backward.at(row, positions))

    @property
    def positions(self) -> int:
        return int(self.forward.weight.shape[-3])

    def one(self, number: int) -> Rotation:
        """A single position of a sample's rotation."""
        where = slice(number, number + 1)
        return Rotation(self.forward.at(where), self.backward.at(where))

    def mean(self) -> Rotation:
        """The average over a sample's positions. Shorter than a rotation: pairs that turn fast nearly vanish, so it has no inverse."""
        forward, backward = (Sparse(s.index, s.weight.mean(0, keepdim=True)) for s in (self.forward, self.backward))
        return Rotation(forward, backward)

    def both_sides(self, matrix: Tensor) -> Tensor:
        """R M R^T for a single position and M [..., d, d]."""
        return self.apply(self.apply(matrix.mT).mT)
