"""What an observable's function returned, checked before it is put among the others: a slip in one must not cost the pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attncheck.core.errors import MeasurementError
from attncheck.core.observable import Value

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.registry import Entry


def tensor(entry: Entry, found: Any, shape: tuple[int, ...], spoken: str) -> Tensor:
    """A tensor of just this shape. Raises MeasurementError with what came instead."""
    if isinstance(found, torch.Tensor) and tuple(found.shape) == shape:
        return found
    raise MeasurementError(f"the observable {entry.name} returned {described(found)}; allowed: a tensor of {spoken}, here {list(shape)}")


def per_key(entry: Entry, found: Any, keys: int) -> tuple[Tensor, Any]:
    """([M] sums, rows that went in or None) of an observable that reads columns."""
    if isinstance(found, tuple) and len(found) == 2:
        return tensor(entry, found[0], (keys,), "[keys], or such a one and the number of rows that went in"), found[1]
    return tensor(entry, found, (keys,), "[keys], or such a one and the number of rows that went in"), None


def value(entry: Entry, found: Any) -> Value:
    """A Value whose dims are its own. Raises MeasurementError where they are not the observable's."""
    own = [dim for dim in entry.about["dims"] if dim != "layer"]
    allowed = f"a Value over {', '.join(own)}" if own else "a Value without dims"
    if not isinstance(found, Value):
        raise MeasurementError(f"the observable {entry.name} returned {described(found)}; allowed: {allowed}")
    dims, size = list(found.dims), getattr(found.value, "ndim", 0)
    if len(dims) != size or not set(dims) <= {*own, "query", "key", "sample", "head"}:
        over = f" over {', '.join(map(str, dims))}" if dims else ""
        raise MeasurementError(f"the observable {entry.name} returned a Value of {size} dims{over}; allowed: {allowed}")
    return found


def described(found: Any) -> str:
    """'a tensor of [3]', 'a str', 'nothing'."""
    shape = getattr(found, "shape", None)
    if shape is not None:
        return f"a{'n array' if type(found).__name__ == 'ndarray' else ' tensor'} of {list(shape)}"
    kind = type(found).__name__
    return "nothing" if found is None else f"a{'n' if kind[0] in 'aeiou' else ''} {kind}"
