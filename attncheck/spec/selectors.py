"""`where:` a choice along one dim: 0, -1, 4..511, 512.., 'last quarter', 'first 2'."""

from __future__ import annotations

import re
from typing import Literal, cast

from attncheck.core.fields import parse_part
from attncheck.spec.model import Selector

ALLOWED = "an index (0, -1), a range with both ends (4..511, 512..), a part ('last quarter', 'first 10%', 'first 2')"
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})?")


def parse_selector(value: object) -> Selector:
    """Raises ValueError. 'first 2' is the range 0..1 and 'last 2' is -2.. ; a share stays a part, since it depends on the dim's size."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        hint = " (a head is {layer: 18, head: 10})" if isinstance(value, float) else ""
        raise ValueError(f"{value!r} selects nothing{hint}; allowed: {ALLOWED}")
    if isinstance(value, int):
        if abs(value) >= 10**18:
            raise ValueError(f"{value} is no index; allowed: {ALLOWED}")
        return Selector(value, value, single=True, text=str(value))
    text = " ".join(value.split())
    if match := _RANGE.fullmatch(text):
        start, stop = int(match[1]), int(match[2]) if match[2] is not None else None
        if stop is not None and stop < start and (stop < 0) == (start < 0):
            raise ValueError(f"{text!r} ends before it starts; allowed: the smaller end first")
        return Selector(start, stop, text=text)
    try:
        side, amount, counted = parse_part(text)
    except ValueError as error:
        if str(error).startswith(f"{text!r} is not a part"):
            raise ValueError(f"{text!r} selects nothing; allowed: {ALLOWED}") from None
        raise
    if not counted:
        return Selector(part=(cast(Literal["first", "last", "middle"], side), amount), text=text)
    if side == "middle":
        raise ValueError(f"{text!r} is not one place; allowed: 'middle third', 'middle 10%', or a range")
    count = int(amount)
    return Selector(0, count - 1, text=text) if side == "first" else Selector(-count, None, text=text)
