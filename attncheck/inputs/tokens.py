"""`tokens:` ids themselves: given, random, or random and repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from attncheck.core.evidence import Feed
from attncheck.inputs.building import Building
from attncheck.inputs.kinds import input_kind
from attncheck.inputs.randomness import random_state
from attncheck.inputs.sequences import require_tokens, rows_feed

DEFAULT_COUNT = 64
DEFAULT_HALF = 25


def _token_ids(value: Any) -> Any:
    """One mistake is one message, whatever the branch of the union that it comes closest to."""
    if value in ("random", "repeated-random"):
        return value
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    wrong = [
        token
        for row in rows
        for token in (row if isinstance(row, list) else [row])
        if isinstance(token, bool) or not isinstance(token, int)
    ]
    if wrong or not isinstance(value, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError(
            f"{wrong[0] if wrong else value!r} is no token id; allowed: a list of ids, a list of such rows, random, repeated-random"
        )
    return value


TokenIds = Annotated[
    Literal["random", "repeated-random"] | list[int] | list[list[int]],
    PlainValidator(_token_ids, json_schema_input_type=Literal["random", "repeated-random"] | list[int] | list[list[int]]),
]


@input_kind("tokens", files=lambda arguments, root: [])
def tokens(
    building: Building,
    *,
    ids: TokenIds,
    count: int | None = None,
    half: int | None = None,
    seed: int = 0,
    bos: bool | None = None,
) -> Feed:
    """Token ids: a list, a list of rows, `random`, or `repeated-random`.

    random: `count` ids (64, or what `length` leaves), uniform over the vocabulary without its special tokens. repeated-random: `half`
    ids (25, or half of `length`), all different, and the same ids once more: what an induction head is measured on. Both start with
    the subject's begin-of-text token where it has one, unless `bos: false`; `bos: true` demands it. Rows of a batch differ. The draw
    depends on `seed` and the vocabulary alone.
    """
    require_tokens(building)
    side, pads = building.pads()
    if not isinstance(ids, str):
        for name, value in (("count", count), ("half", half), ("bos", bos)):
            if value is not None:
                raise building.error(f"{name} goes with random ids, not with a list")
        rows = [list(row) if isinstance(row, list) else [] for row in ids] if ids and isinstance(ids[0], list) else [_flat(ids)]
        if building.definition.batch not in (None, len(rows)):
            raise building.error(f"batch {building.definition.batch}, but {len(rows)} row(s) of ids are given")
        side, pads = replace(building, definition=replace(building.definition, batch=len(rows))).pads()
        return rows_feed(building, rows, total=_total(building, [len(row) + pad for row, pad in zip(rows, pads, strict=True)]), side=side)
    other = "half" if ids == "random" else "count"
    if (half if ids == "random" else count) is not None:
        raise building.error(f"{other} does not go with {ids}; allowed: {'count' if ids == 'random' else 'half'}")
    first = _first(building, bos)
    rows = []
    for row, pad in enumerate(pads):
        room = None if building.definition.length is None else building.definition.length - pad - len(first)
        if room is not None and room < 1:
            raise building.error(f"length {building.definition.length} has no room beside {pad} pad(s) and {len(first)} special token(s)")
        if ids == "random":
            size = _agreed(building, "count", count, room, DEFAULT_COUNT)
            rows.append([*first, *drawn(building, size, seed, row, distinct=False)])
        else:
            size = _agreed(building, "half", half, None if room is None else -(-room // 2), DEFAULT_HALF)
            once = drawn(building, size, seed, row, distinct=True)
            rows.append([*first, *(once + once)[: room if room is not None else 2 * size]])
    return rows_feed(building, rows, total=max(len(row) + pad for row, pad in zip(rows, pads, strict=True)), side=side)


def drawn(building: Building, count: int, seed: int, row: int, *, distinct: bool) -> list[int]:
    """`count` ids of the vocabulary without special tokens, from NumPy's frozen generator: the same on every version and machine."""
    building.require_room(building.batch * count)
    import numpy as np

    size = building.encoder.vocabulary_size if building.encoder else None
    if size is None:
        raise building.error(
            "random ids need the size of the vocabulary, which the subject does not tell: let the factory return (module, encoder), "
            "see `attncheck explain python`"
        )
    special = set(building.extra("special_tokens", ()))
    allowed = np.array([token for token in range(size) if token not in special])
    if count < 1 or len(allowed) < (count if distinct else 1):
        raise building.error(f"{count} {'different ' if distinct else ''}ids asked for; the vocabulary has {len(allowed)} ordinary ones")
    state = random_state(building, seed, row)
    return [int(token) for token in (state.permutation(allowed)[:count] if distinct else state.choice(allowed, count))]


def _first(building: Building, bos: bool | None) -> list[int]:
    if bos is False or building.encoder is None:
        return []
    token = building.encoder.bos_token
    if token is None and building.extra("prefix", ()):
        token = building.extra("prefix", ())[0]
    if token is None and bos:
        raise building.error("bos: true, but the subject has no begin-of-text token")
    return [] if token is None else [token]


def _agreed(building: Building, name: str, given: int | None, from_length: int | None, default: int) -> int:
    if given is not None and from_length is not None and given != from_length:
        raise building.error(
            f"{name} {given} and length {building.definition.length} disagree: the length leaves {from_length}; give one of them"
        )
    return given if given is not None else from_length if from_length is not None else default


def _total(building: Building, widths: list[int]) -> int:
    length = building.definition.length
    if length is not None and length < max(widths):
        raise building.error(f"length {length} is less than the {max(widths)} ids and pads of the longest row")
    return length if length is not None else max(widths)


def _flat(ids: list[int] | list[list[int]]) -> list[int]:
    return [token for token in ids if isinstance(token, int)]
