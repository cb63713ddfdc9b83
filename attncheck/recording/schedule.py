"""At which steps a training is measured."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from attncheck.core.errors import AttncheckError

ALLOWED = "None for 0, 1, 2, 4, 8, ..., a whole number from 1 for its multiples, or a list of steps that increase"


@dataclass(frozen=True)
class Schedule:
    """None: 0, 1, 2, 4, 8, ..., as recipes record; a number: its multiples; a list: its steps. The first two end with the last step."""

    every: int | tuple[int, ...] | None = None

    @classmethod
    def of(cls, every: Any) -> Schedule:
        """Raises AttncheckError on anything else."""
        if every is None:
            return cls()
        try:
            if isinstance(every, Sequence) and not isinstance(every, str):
                steps = tuple(whole(step) for step in every)
                if steps and steps[0] >= 0 and all(a < b for a, b in pairwise(steps)):
                    return cls(steps)
            elif (number := whole(every)) >= 1:
                return cls(number)
        except TypeError:
            pass
        raise AttncheckError(f"every: {every!r}; allowed: {ALLOWED}")

    def due(self, before: int, step: int) -> bool:
        """Whether a step is to be measured that follows on `before`: whether one of the schedule lies in (before, step].

        So a loop that tells every tenth of its steps alone is measured nearly as often as one that tells all; and of the step that is told
        first (`before` is -1) the same holds, unless a list begins later.
        """
        if self.every is None:
            latest = 1 << (step.bit_length() - 1) if step else 0
        elif isinstance(self.every, int):
            latest = step - step % self.every
        else:
            place = bisect_right(self.every, step)
            latest = self.every[place - 1] if place else -1
        return latest > before

    @property
    def ends_with_the_last(self) -> bool:
        return not isinstance(self.every, tuple)


def whole(value: Any) -> int:
    """A whole number of any library's. Raises TypeError for what is none, True and False among it."""
    if isinstance(value, bool):
        raise TypeError("a bool is no number of steps")
    return operator.index(value)
