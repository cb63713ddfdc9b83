"""The small grammars: quantifiers of `for`, selectors of `where`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attncheck.spec.model import Quota, Selector
from attncheck.spec.quantifiers import MOST_LINKS, parse_quantifier, pattern
from attncheck.spec.selectors import parse_selector

QUANTIFIERS = {
    "all": (Quota("all"),),
    "any": (Quota("any"),),
    "no": (Quota("no"),),
    "all layers": (Quota("all", unit="layer"),),
    "every head": (Quota("all", unit="head"),),
    "no query": (Quota("no", unit="query"),),
    "all but 2 heads": (Quota("all_but", 2, unit="head"),),
    "all  but 1   layer": (Quota("all_but", 1, unit="layer"),),
    "2 of 3 seeds": (Quota("count", 2, 3, "seed"),),
    "80% of heads": (Quota("share", 0.8, unit="head"),),
    "99.5 % of queries": (Quota("share", 0.995, unit="query"),),
    "100% of samples": (Quota("share", 1.0, unit="sample"),),
    "80% of heads in every layer": (Quota("share", 0.8, unit="head"), Quota("all", unit="layer")),
    "all layers in 2 of 3 seeds": (Quota("all", unit="layer"), Quota("count", 2, 3, "seed")),
    "any layer in 2 of 3 seeds": (Quota("any", unit="layer"), Quota("count", 2, 3, "seed")),
    "any key in all but 2 queries in 90% of heads": (
        Quota("any", unit="key"),
        Quota("all_but", 2, unit="query"),
        Quota("share", 0.9, unit="head"),
    ),
}


@pytest.mark.parametrize("text", QUANTIFIERS)
def test_quantifiers(text: str) -> None:
    assert parse_quantifier(text) == QUANTIFIERS[text]
    assert re.search(pattern(MOST_LINKS), " ".join(text.split()))


@pytest.mark.parametrize(
    ("text", "found", "column"),
    [
        ("most heads", "not a quantifier", 1),
        ("80% heads", "not a quantifier", 1),
        ("80% of", "of what", 1),
        ("2 of 3", "of what", 1),
        ("all but 2", "of what", 1),
        ("all but 0 heads", "is all", 1),
        ("0 of 3 seeds", "a count from 1 to 3", 1),
        ("4 of 3 seeds", "cannot be", 1),
        ("0% of heads", "cannot be", 1),
        ("101% of heads", "cannot be", 1),
        ("all heds", "'heds' is no unit", 5),
        ("all in 2 of 3 seeds", "without a unit", 1),
        ("", "not a quantifier", 1),
        ("all heads in 2 of 3 epochs", "'epochs' is no unit", 21),
        ("all heads in any head", "names head twice", 1),
        ("all layers in 80% of heads", "layers inside heads", 1),
        (True, "not a quantifier", 1),
        (5, "not a quantifier", 1),
        ("all " * 100, "characters", 1),
        ("all keys in all queries in all heads in all layers in all seeds", "nests 5", 1),
        ("all heads in ", "not a quantifier", 1),
        ("-1 of 3 seeds", "not a quantifier", 1),
        ("no of heads", "not a quantifier", 1),
    ],
)
def test_nonsense_is_refused(text: object, found: str, column: int) -> None:
    with pytest.raises(ValueError, match=found) as caught:
        parse_quantifier(text)
    assert getattr(caught.value, "column", None) == column
    assert "allowed: " in str(caught.value)


@given(st.text(max_size=60) | st.from_regex(pattern(2).replace("\\d", "[0-9]")))
def test_any_quantifier_is_parsed_or_refused(text: str) -> None:
    try:
        links = parse_quantifier(text)
    except ValueError:
        return
    assert links
    assert re.search(pattern(MOST_LINKS), " ".join(text.split()))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, (0, 0, True, None)),
        (-1, (-1, -1, True, None)),
        ("4..511", (4, 511, False, None)),
        ("512..", (512, None, False, None)),
        ("-4..-1", (-4, -1, False, None)),
        ("-2..", (-2, None, False, None)),
        ("last quarter", (None, None, False, ("last", 0.25))),
        ("first 10%", (None, None, False, ("first", 0.1))),
        ("first 2", (0, 1, False, None)),
        ("last 3", (-3, None, False, None)),
        ("middle third", (None, None, False, ("middle", 1 / 3))),
        ("0..-2", (0, -2, False, None)),
    ],
)
def test_selectors(value: object, expected: tuple[object, ...]) -> None:
    found = parse_selector(value)
    assert (found.start, found.stop, found.single, found.part) == expected
    assert found == Selector(*expected[:3], expected[3], " ".join(str(value).split()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        18.1,
        "5..2",
        "-1..-4",
        "..5",
        "a",
        "",
        "last",
        "first 0",
        "first 0%",
        "first 200%",
        "middle 2",
        True,
        None,
        10**20,
        "1..2..3",
        "first -2",
        "1 .. 2",
    ],
)
def test_bad_selectors(value: object) -> None:
    with pytest.raises(ValueError, match=r"allowed|share|at least"):
        parse_selector(value)


def test_a_head_as_a_decimal_is_explained() -> None:
    with pytest.raises(ValueError, match=r"a head is \{layer: 18, head: 10\}"):
        parse_selector(18.1)
