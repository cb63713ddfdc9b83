"""Reading YAML: 1.2 scalars, places, and everything that is refused, in bounded time and memory."""

from __future__ import annotations

import math
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attncheck.core.errors import SpecError
from attncheck.spec.nodes import DEEPEST, LARGEST_FILE, MOST_NODES, read, read_or_raise


def problems(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    return [str(problem) for problem in read(data, "f")[1]]


def value(text: str) -> object:
    return read_or_raise(f"x: {text}\n".encode(), "f").plain["x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("12:30", "12:30"),
        ("190:20:30", "190:20:30"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("Null", None),
        ("1_000", "1_000"),
        (".5", 0.5),
        ("5.", 5.0),
        ("+3", 3),
        ("-0.0", -0.0),
        ("2001-01-01", "2001-01-01"),
        ("'5'", "5"),
        ('"null"', "null"),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
        ("4..511", "4..511"),
        ("1..", "1.."),
        ("80%", "80%"),
        ("=", "="),
        ("0b11", "0b11"),
        ("tRue", "tRue"),
        ("9" * 400, "9" * 400),
        ("1e999999999", math.inf),
        ("18.10", 18.1),
    ],
)
def test_scalars_by_the_core_schema_of_yaml_1_2(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_not_a_number() -> None:
    assert math.isnan(value(".nan"))  # type: ignore[arg-type]


def test_places_of_keys_and_values() -> None:
    node = read_or_raise(b"a:\n  bee: 1\n  c: [2, {d: 3}]\n", "f")
    inner = node.entries["a"]
    assert (inner.keys["bee"].line, inner.keys["bee"].column) == (2, 3)
    assert (inner.entries["bee"].line, inner.entries["bee"].column) == (2, 8)
    deep = inner.entries["c"].items[1]
    assert (deep.keys["d"].line, deep.keys["d"].column) == (3, 11)
    assert [path for path, _ in node.walk()] == ["a", "a.bee", "a.c", "a.c.0", "a.c.1", "a.c.1.d"]


def test_keys_are_text_as_written() -> None:
    assert list(read_or_raise(b"off: 1\n1: 2\ntrue: 3\n", "f").entries) == ["off", "1", "true"]


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ("", "f:1:1", "an empty file"),
        ("# only a comment\n", "f:1:1", "an empty file"),
        ("a: 1\nb: 2\na: 3\n", "f:3:1", "the key 'a' again; it was given at line 1"),
        ("a: {x: 1, x: 2}\n", "f:1:11", "the key 'x' again"),
        ("a: &a {x: 1}\nb:\n  <<: *a\n", "f:3:3", "a merge key"),
        ("a: !!python/object:os.system x\n", "f:1:4", "the tag !!python/object"),
        ("a: !!str 5\n", "f:1:4", "the tag !!str"),
        ("a: !mine 5\n", "f:1:4", "the tag !mine"),
        ("a: *b\n", "f:1:4", "the alias *b"),
        ("a: &a [*a]\n", "f:1:8", "the alias *a"),
        ("? [a]\n: 1\n", "f:1:3", "a key that is no text"),
        ("a: 1\n---\nb: 2\n", "f:2:1", "a second document"),
        ("a:\n\tb: 1\n", "f:2:1", "not YAML"),
        ("a: >= 0.75\n", "f:1:5", "not YAML"),
        ("a: 'x\n", "f:2:1", "not YAML"),
        ("a: [1\n", "f:2:1", "not YAML"),
        ("a: \x00\n", "f:1:4", "the control character U+0000"),
        ("a: 1\nb: \x07\n", "f:2:4", "the control character U+0007"),
        ("a: @x\n", "f:1:4", "not YAML"),
        ("%YAML 3.0\n---\na: 1\n", "f:1:1", "not YAML"),
    ],
)
def test_what_is_refused(text: str, place: str, found: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"{place}: {found}")


def test_advice_on_tabs_and_operators() -> None:
    assert "spaces" in problems("a:\n\tb: 1\n")[0]
    assert "at_least" in problems("a: >= 0.75\n")[0]


def test_bytes_that_are_not_utf_8() -> None:
    assert problems(b"a: 1\nb: \xff\n") == ["f:2:4: byte 0xff is not UTF-8; allowed: UTF-8 text"]
    assert problems("a: 1\n".encode("utf-16"))[0].startswith("f:1:1: byte 0xff")
    assert read_or_raise(b"\xef\xbb\xbfa: 1\n", "f").plain == {"a": 1}


def test_a_large_file_and_a_deep_one_are_refused() -> None:
    assert "bytes" in problems(b"a: " + b"x" * LARGEST_FILE)[0]
    assert "nesting depth" in problems("[" * 10_000)[0]
    assert f"more than {DEEPEST} deep" in problems("[\n" * 10_000)[0]
    assert f"more than {DEEPEST} deep" in problems("a: " + "{a: " * 10_000)[0]
    assert read(("[" * DEEPEST + "]" * DEEPEST).encode(), "f")[1] == []


def test_an_alias_bomb_is_refused_in_bounded_time_and_memory() -> None:
    rows = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 15)]
    tracemalloc.start()
    started = time.process_time()
    found = problems("\n".join(rows))
    elapsed, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"more than {MOST_NODES} values" in found[0]
    assert elapsed < 60, "something unbounded"
    assert peak < 5_000_000


def test_honest_aliases_are_read() -> None:
    assert read_or_raise(b"a: &x {k: 1}\nb: *x\nc: [*x, *x]\n", "f").plain == {"a": {"k": 1}, "b": {"k": 1}, "c": [{"k": 1}, {"k": 1}]}


def test_several_mistakes_are_told_together() -> None:
    assert len(problems("a: !x 1\na: 2\nb: {<<: 3}\nc: *no\n")) == 4


@given(st.text(max_size=200))
def test_any_text_gives_a_tree_or_problems(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    node, found = read(data, "f")
    assert node is not None or found
    for problem in found:
        assert problem.place.line >= 1
        assert problem.place.column >= 1


@given(st.binary(max_size=100))
def test_any_bytes_give_a_tree_or_problems(data: bytes) -> None:
    try:
        read_or_raise(data, "f")
    except SpecError as error:
        told = error.problems
    else:
        told = (None,)
    assert told
