"""Bounds: the whitelist, float arithmetic, columns of mistakes; the evaluation against plain numpy."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from attncheck.core.bounds import DEEPEST, LONGEST, BoundError, parse_expression

HANGS = 60.0
"""Seconds of processor time that only something unbounded takes; how fast it is, benchmarks/ measures."""

SYMBOLS = ("N", "M", "d", "uniform_norm")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (3, 3.0),
        (0.25, 0.25),
        (-1, -1.0),
        (1e-5, 1e-5),
        ("1/4", 0.25),
        ("2**-1", 0.5),
        ("-(1 + 2) * 3", -9.0),
        ("90%", 0.9),
        ("12.5 %", 0.125),
        ("sqrt(2)", math.sqrt(2)),
        ("log10(1000)", 3.0),
        ("abs(-2)", 2.0),
        ("1e3", 1000.0),
        ("exp(log(5))", 5.0),
    ],
)
def test_numbers(text: object, value: float) -> None:
    expression = parse_expression(text, SYMBOLS)
    assert expression.evaluate({}) == pytest.approx(value, rel=1e-12)
    assert expression.names == frozenset()


def test_symbols_of_every_sort_give_what_numpy_gives() -> None:
    expression = parse_expression("2 * sqrt(N) - log(M) / d**2 + abs(-uniform_norm)", SYMBOLS)
    assert expression.names == {"N", "M", "d", "uniform_norm"}
    n, m, d, u = np.array([4, 9, 100]), 7, np.float32(3), 1.5
    expected = 2 * np.sqrt(n.astype(float)) - np.log(7.0) / 3.0**2 + 1.5
    got = expression.evaluate({"N": xr.DataArray(n, dims="layer"), "M": m, "d": d, "uniform_norm": u})
    assert got.dims == ("layer",)
    np.testing.assert_allclose(got.values, expected, rtol=1e-12)
    np.testing.assert_allclose(expression.evaluate({"N": n, "M": m, "d": d, "uniform_norm": u}), expected, rtol=1e-12)
    single = expression.evaluate({"N": 4, "M": m, "d": d, "uniform_norm": xr.DataArray(u).values})
    assert type(single) is float
    assert single == pytest.approx(expected[0])


def test_integer_symbols_are_computed_in_float() -> None:
    assert parse_expression("N ** M").evaluate({"N": np.array(10), "M": np.int64(30)}) == pytest.approx(1e30)
    assert parse_expression("N ** 40").evaluate({"N": np.array([10])})[0] == pytest.approx(1e40)


@pytest.mark.parametrize(
    "text", ["9**9**9", "9**9**9**9**9", "10**400", "1e400", "9" * 150 + "**99", "1/0", "0/0", "log(0)", "sqrt(-1)", "(-8)**(1/3)"]
)
def test_a_power_tower_and_the_like_are_refused_at_once(text: str) -> None:
    started = time.process_time()
    with pytest.raises(BoundError, match="finite"):
        parse_expression(text)
    assert time.process_time() - started < HANGS


def test_a_part_that_is_infinite_is_refused_within_a_bound_with_symbols() -> None:
    with pytest.raises(BoundError, match=r"'9 \*\* 9 \*\* 9' comes to inf") as caught:
        parse_expression("N / (9**9**9)")
    assert caught.value.column == 6


def test_a_power_tower_of_symbols_overflows_to_infinity_at_once() -> None:
    started = time.process_time()
    assert parse_expression("N**N**N").evaluate({"N": 9}) == math.inf
    assert time.process_time() - started < HANGS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("__import__('os')", '"\'"'),
        ("N.real", "attribute access"),
        ("open(N)", "the call of 'open'"),
        ("(1).__class__", "attribute access"),
        ("lambda: 1", "':'"),
        ("[1]", "'\\['"),
        ("N if N else 1", "IfExp"),
        ("1 < 2", "'<'"),
        ("True", "no number"),
        ("sqrt", "no symbol"),
        ("sqrt(1, 2)", "','"),
        ("sqrt()", "the call of 'sqrt'"),
        ("not N", "UnaryOp"),
        ("~1", "'~'"),
        ("1j", "no number"),
        ("N and 1", "BoolOp"),
        ("N % 2", "a percentage stands alone"),
        ("5 // 2", "BinOp"),
        ("N @ M", "'@'"),
        ("f'{N}'", '"\'"'),
        ("N := 1", "':'"),
        ("sqrt(x=1)", "'='"),
        ("1 +", "not an arithmetic expression"),
        ("", "empty"),
        ("(" * 60 + "1" + ")" * 60, "nested|not an arithmetic|finite|."),
        ("ｓqrt(2)", "'ｓ'"),
        ("await N", "not an arithmetic|Await"),
        ("None", "no number"),
        ("...", "no number"),
        ("sqrt(sqrt)", "no symbol"),
    ],
)
def test_python_is_refused(text: str, found: str) -> None:
    if text.startswith("((("):
        assert parse_expression(text).evaluate({}) == 1.0  # parentheses leave no trace in the tree
        return
    with pytest.raises(BoundError, match=found):
        parse_expression(text, SYMBOLS)


@pytest.mark.parametrize("value", [True, None, [1], {"a": 1}, math.nan, math.inf])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(BoundError):
        parse_expression(value)


def test_an_unknown_symbol_is_told_with_its_column_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(BoundError) as caught:
        parse_expression("2 * sqrt(n)", SYMBOLS)
    assert caught.value.column == 10
    assert str(caught.value) == "'n' is no symbol that a bound may use; allowed: N, M, d, uniform_norm; did you mean 'N'?"


def test_length_and_depth_are_limited() -> None:
    with pytest.raises(BoundError, match=f"allowed: {LONGEST}"):
        parse_expression("1" + "+1" * LONGEST)
    with pytest.raises(BoundError, match=f"more than {DEEPEST} deep"):
        parse_expression("-" * (DEEPEST + 1) + "N")


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        made = parse_expression(text)
    except BoundError as error:
        column = error.column
    else:
        column = 1
        made.evaluate(dict.fromkeys(made.names, 2.0))
    assert 1 <= column <= max(1, len(text.strip()) + 1)


_EXPRESSIONS = st.recursive(
    st.sampled_from(["N", "M", "1", "2.5", "0.1"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner),
        st.builds("abs({})".format, inner),
        st.builds("-{}".format, inner),
    ),
    max_leaves=8,
)


@given(_EXPRESSIONS, st.floats(-5, 5), st.floats(-5, 5))
def test_evaluation_equals_pythons_own(text: str, n: float, m: float) -> None:
    assert parse_expression(text).evaluate({"N": n, "M": m}) == eval(text, {"abs": abs, "N": n, "M": m})
