"""`for:` how many places must satisfy the demand: 'all', 'any layer in 2 of 3 seeds', '80% of heads in every layer'."""

from __future__ import annotations

import re

from attncheck.core.bounds import BoundError
from attncheck.spec.model import Quota

UNITS = ("head", "layer", "query", "key", "sample", "seed", "step")
ALLOWED = (
    "all (default), any, no, all but 2, 2 of 3, 80% of, with a unit (heads, layers, queries, keys, samples, seeds, steps), nested by ' in '"
)
LONGEST = 120
MOST_LINKS = 4

_PLURALS = {"queries": "query", **{f"{unit}s": unit for unit in UNITS if unit != "query"}, **{unit: unit for unit in UNITS}}
_LINK = re.compile(
    r"(?:(?P<word>all|every|any|no)"
    r"|all\ but\ (?P<but>\d{1,9})"
    r"|(?P<count>\d{1,9})\ of\ (?P<total>\d{1,9})"
    r"|(?P<share>\d{1,3}(?:\.\d{1,9})?)\ ?%\ of)"
    r"(?:\ (?P<unit>[a-z]+))?",
    re.VERBOSE,
)


def parse_quantifier(value: object) -> tuple[Quota, ...]:
    """The links from inner to outer, as they are read. Raises BoundError (a ValueError with the column)."""
    if not isinstance(value, str):
        raise BoundError(f"{value!r} is not a quantifier; allowed: {ALLOWED}")
    text = " ".join(value.split())
    if len(text) > LONGEST:
        raise BoundError(f"a quantifier of {len(text)} characters; allowed: {LONGEST}")
    links: list[Quota] = []
    column = 1
    for part in text.split(" in "):
        links.append(_link(part, column, text))
        column += len(part) + len(" in ")
    if len(links) > MOST_LINKS:
        raise BoundError(f"{text!r} nests {len(links)} quantifiers; allowed: {MOST_LINKS}")
    if len(links) > 1:
        _check_nesting(links, text)
    return tuple(links)


def _link(part: str, column: int, text: str) -> Quota:
    match = _LINK.fullmatch(part)
    if not match:
        raise BoundError(f"{part!r} is not a quantifier; allowed: {ALLOWED}", column)
    unit = match["unit"]
    if unit is not None and unit not in _PLURALS:
        raise BoundError(f"{unit!r} is no unit; allowed: heads, layers, queries, keys, samples, seeds, steps", column + match.start("unit"))
    if unit is None and match["word"] is None:
        raise BoundError(f"{part!r} of what?; allowed: a unit after it, as in '{part} heads'", column)
    unit = _PLURALS[unit] if unit is not None else None
    if match["word"]:
        kind = match["word"]
        return Quota("any" if kind == "any" else "no" if kind == "no" else "all", unit=unit)
    if match["but"]:
        if int(match["but"]) == 0:
            raise BoundError(f"{part!r} is all; allowed: 'all', or 'all but 1' and more", column)
        return Quota("all_but", amount=int(match["but"]), unit=unit)
    if match["share"]:
        share = float(match["share"]) / 100
        if not 0 < share <= 1:
            raise BoundError(f"{part!r} cannot be; allowed: a share above 0% and up to 100%", column)
        return Quota("share", amount=share, unit=unit)
    count, total = int(match["count"]), int(match["total"])
    if not 0 < count <= total:
        raise BoundError(
            f"{part!r} cannot be; allowed: a count from 1 to {total}" if total else f"{part!r} cannot be; allowed: '2 of 3'", column
        )
    return Quota("count", amount=count, total=total, unit=unit)


def _check_nesting(links: list[Quota], text: str) -> None:
    units = [link.unit for link in links]
    if None in units:
        raise BoundError(f"{text!r} nests a quantifier without a unit; allowed: a unit in each, as in 'all layers in 2 of 3 seeds'")
    for position, unit in enumerate(units):
        if unit in units[:position]:
            raise BoundError(f"{text!r} names {unit} twice; allowed: each unit once")
    if "layer" in units and "head" in units[units.index("layer") :]:
        raise BoundError(f"{text!r} puts layers inside heads; allowed: heads inside layers, as in '80% of heads in every layer'")


def pattern(most: int) -> str:
    """The grammar as a regular expression of JSON Schema, without what only arithmetic can tell."""
    units = "|".join(_PLURALS)
    link = rf"((all|every|any|no)( ({units}))?|(all but \d+|\d+ of \d+|\d+(\.\d+)? ?% of) ({units}))"
    return rf"^{link}( in {link}){{0,{most - 1}}}$"
