"""Bounds: symbols, slack that never decides against a claim, intervals, infinities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging_toolkit import bound, case, data, fetching

from attncheck.core.errors import MeasurementError, Undecided
from attncheck.core.verdict import Verdict
from attncheck.expectations import judge
from attncheck.expectations.bound import against, number
from attncheck.spec.model import Quota, Reduction, Tolerance


def verdict(values: object, dims: tuple[str, ...] = ("layer",), *, more: dict[str, object] | None = None, **options: object) -> Verdict:
    return judge(case(**options), fetching(data(values, dims, **(more or {}))))  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-10, 10).map(lambda x: round(x, 2)), min_size=1, max_size=8),
    st.sampled_from(["at_least", "at_most", "between", "equals"]),
    st.floats(-5, 5).map(lambda x: round(x, 2)),
    st.floats(0, 5).map(lambda x: round(x, 2)),
)
def test_plain_bounds_equal_comparisons_one_by_one(values: list[float], side: str, low: float, width: float) -> None:
    sides: dict[str, object] = {side: [low, low + width] if side == "between" else low}
    holds = {
        "at_least": lambda v: v >= low,
        "at_most": lambda v: v <= low,
        "between": lambda v: low <= v <= low + width,
        "equals": lambda v: v == low,
    }[side]
    made = verdict(values, demand=bound(**sides))
    wrong = [i for i, v in enumerate(values) if not holds(v)]
    assert made.passed is (not wrong)
    assert sorted(o.where["layer"] for o in made.offenders) == wrong
    assert [o.excess for o in made.offenders] == sorted((o.excess for o in made.offenders), reverse=True)
    assert made.checked == len(values)


def test_symbols_vary_over_the_places_that_are_left() -> None:
    norms = np.array([[3.0, 5.0], [3.0, 5.0]])
    more = {"symbols": {"N": (("sample",), np.array([16, 36]))}}
    made = verdict(norms, ("sample", "layer"), more=more, demand=bound(at_most="sqrt(N)"))
    assert [o.where for o in made.offenders] == [{"sample": 0, "layer": 1}]
    assert made.offenders[0].limit == "<= sqrt(N) = 4"


def test_a_symbol_that_was_reduced_away_is_an_error() -> None:
    more = {"symbols": {"N": (("sample",), np.array([16, 36]))}}
    with pytest.raises(MeasurementError, match=r"36:5: N in 'sqrt\(N\)' varies over sample, which `reduce` folded"):
        verdict(np.ones((2, 3)), ("sample", "layer"), more=more, demand=bound(at_most="sqrt(N)"), reduce=[Reduction("sample", "mean")])


def test_a_symbol_that_the_measurement_lacks_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="no symbol 'N'; it has d"):
        verdict([1.0], more={"symbols": {"d": ((), 64)}}, demand=bound(at_most="sqrt(N)"))


def test_a_bound_that_comes_to_no_number_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="comes to nan"):
        verdict([1.0], more={"symbols": {"d": ((), -1)}}, demand=bound(at_most="sqrt(d)"))


@pytest.mark.parametrize(("dtype", "resolution"), [("float64", 1e-10), ("float32", 1e-5), ("bfloat16", 1e-2), ("float16", 1e-2)])
def test_the_slack_is_that_of_the_compute_dtype_and_is_said(dtype: str, resolution: float) -> None:
    more = {"attrs": {"dtype": dtype}}
    inside = verdict([1 + resolution / 2, 0.5], more=more, demand=bound(at_most=1))
    assert inside.passed
    assert inside.resolution.startswith("1 of 2 places lies on the bound to within rounding")
    assert not verdict([1 + resolution * 2, 0.5], more=more, demand=bound(at_most=1)).passed
    assert verdict([0.5], more=more, demand=bound(at_most=1)).resolution == ""


def test_the_measurements_own_resolution_wins() -> None:
    assert verdict([1.003], more={"attrs": {"resolution": 2**-8}}, demand=bound(at_most=1)).passed
    assert not verdict([1.003], demand=bound(at_most=1)).passed


def test_a_claim_of_zero_has_no_slack() -> None:
    assert not verdict([1e-30], demand=bound(at_most=0)).passed
    assert verdict([0.0], demand=bound(at_most=0)).passed


def test_slack_favours_the_claim_under_no_as_well() -> None:
    none = {"demand": bound(at_most=1), "quotas": [Quota("no", unit="layer")], "text": "no layers"}
    assert verdict([1 - 1e-6, 3.0], **none).passed
    assert not verdict([1 - 1e-4, 3.0], **none).passed


def test_equals_takes_the_tolerance() -> None:
    third = {"demand": bound(equals="1/3"), "tolerance": Tolerance(rtol=1e-2)}
    assert verdict([0.335], **third).passed
    assert not verdict([0.34], **third).passed
    assert not verdict([0.335], demand=bound(equals="1/3")).passed
    exact = {"demand": bound(equals=1), "tolerance": Tolerance("exact")}
    assert verdict([1.0], **exact).passed
    assert not verdict([1.0 + 2**-40], **exact).passed


def interval(low: list[float], high: list[float]) -> dict[str, object]:
    return {"lower": np.array(low), "upper": np.array(high), "attrs": {"decided": "estimated(1e-6)"}}


def test_an_interval_is_judged_on_the_side_that_decides() -> None:
    assert verdict([1.5], more=interval([1.0], [2.0]), demand=bound(at_most=2)).passed
    made = verdict([1.5], more=interval([1.0], [2.0]), demand=bound(at_most=0.9))
    assert not made.passed
    assert made.decided == "estimated(1e-6)"


def test_an_interval_across_the_bound_is_undecided_with_its_places() -> None:
    with pytest.raises(Undecided, match=r"layer 1 the value lies between 0\.8 and 1\.30, and the bound <= 1") as caught:
        verdict([0.5, 1.1], more=interval([0.4, 0.8], [0.6, 1.3]), demand=bound(at_most=1))
    assert caught.value.places == ({"layer": 1},)


def test_decided_places_settle_a_quota_while_others_are_open() -> None:
    more = interval([0.1, 0.1, 0.1, 0.9], [0.2, 0.2, 0.2, 1.1])
    quotas = [Quota("share", 0.75, unit="layer")]
    assert verdict([0.15, 0.15, 0.15, 1], more=more, demand=bound(at_most=1), quotas=quotas, text="75% of layers").passed
    more = interval([2, 2, 0.1, 0.9], [3, 3, 0.2, 1.1])
    made = verdict([2.5, 2.5, 0.15, 1], more=more, demand=bound(at_most=1), quotas=quotas, text="75% of layers")
    assert not made.passed
    assert {o.where["layer"] for o in made.offenders} == {0, 1}


def test_nan_is_an_error_that_says_where() -> None:
    with pytest.raises(MeasurementError, match="not a number at 1 of 3 places, first at layer 1"):
        verdict([1.0, np.nan, 2.0], demand=bound(at_most=5))


def test_nan_where_nothing_exists_is_no_error() -> None:
    made = verdict([1.0, np.nan], more={"present": np.array([True, False])}, demand=bound(at_most=5))
    assert (made.passed, made.checked) == (True, 1)


@pytest.mark.parametrize("side", ["at_least", "at_most"])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_measurement_breaks_every_bound(side: str, value: float) -> None:
    assert not verdict([1.0, value], demand=bound(**{side: 1})).passed
    assert not verdict([1.0, value], demand=bound(**{side: 1}), quotas=[Quota("no")], text="no").passed


def test_never_above_is_infinite_and_judged() -> None:
    rises = {"demand": bound(at_most=3), "reduce": [Reduction("step", "first_above", 0.5)]}
    assert verdict([0.0, 0.2, 0.7, 0.9], ("step",), **rises).passed
    made = verdict([0.0, 0.2, 0.3, 0.3], ("step",), **rises)
    assert not made.passed
    assert "never" in made.headline


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.06, "1.06"), (41.23, "41.2"), (0.41, "0.41"), (1e-7, "1e-07"), (125.0, "125"), (1234567.0, "1.23e+06")],
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_a_number_shows_the_digits_that_tell_it_from_the_limit() -> None:
    assert against(1.1499, 1.15) == "1.1499"
    assert against(7.9987, 8.0) == "7.999"
    assert against(1.06, 1.15) == "1.06"


def test_a_head_that_a_layer_lacks_has_no_bound_either() -> None:
    """Layers of 2 and of 4 heads: the symbol is NaN where the value does not exist."""
    value = np.array([[1.5, 1.4, np.nan, np.nan], [1.2, 1.3, 1.1, 1.6]])
    present = np.isfinite(value)
    symbol = np.where(present, 1.0, np.nan)
    more = {"present": present, "symbols": {"uniform_norm": (("layer", "head"), symbol)}}
    assert verdict(value, dims=("layer", "head"), more=more, demand=bound(at_least="uniform_norm")).checked == 6
    assert not verdict(value, dims=("layer", "head"), more=more, demand=bound(at_least="uniform_norm * 1.2")).passed
