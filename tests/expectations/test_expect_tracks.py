"""`tracks`: every statistic against a loop in plain Python; which places hold; what cannot be judged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from judging_toolkit import case, data, expectation, fetching
from pydantic import ValidationError

from attncheck.core.definitions import Request
from attncheck.core.errors import MeasurementError
from attncheck.core.verdict import Verdict
from attncheck.expectations import judge, requirements, statistics
from attncheck.spec.model import Quota, Selector

KEYS = 40


def sides(seed: int = 0, noise: float = 0.3, shape: tuple[int, ...] = (2, 3)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    expected = 10 ** rng.normal(-3, 0.7, (*shape, KEYS))
    return expected, expected * 10 ** rng.normal(0, noise, (*shape, KEYS))


def correlation(x: list[float], y: list[float]) -> float:
    a, b = sum(x) / len(x), sum(y) / len(y)
    top = sum((p - a) * (q - b) for p, q in zip(x, y, strict=True))
    return top / math.sqrt(sum((p - a) ** 2 for p in x) * sum((q - b) ** 2 for q in y))


def ranks(x: list[float]) -> list[float]:
    return [sum(q < p for q in x) + (sum(q == p for q in x) + 1) / 2 for p in x]


def line(x: list[float], y: list[float]) -> float:
    a, b = sum(x) / len(x), sum(y) / len(y)
    return sum((p - a) * (q - b) for p, q in zip(x, y, strict=True)) / sum((p - a) ** 2 for p in x)


def best(x: list[float], count: int) -> set[int]:
    return set(sorted(range(len(x)), key=lambda i: (-x[i], i))[:count])


def naive(name: str, x: list[float], y: list[float]) -> float:
    count = max(1, math.floor(0.5 * len(x) + 0.5))
    match name:
        case "pearson":
            return correlation(x, y)
        case "spearman":
            return correlation(ranks(x), ranks(y))
        case "slope":
            return line(x, y)
        case "share_within":
            return sum(abs(math.log10(q / p)) <= 0.3 for p, q in zip(x, y, strict=True)) / len(x)
        case "top_overlap":
            return len(best(x, count) & best(y, count)) / count
    return sum(y[i] for i in best(x, count)) / sum(y)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "pearson": {},
    "spearman": {},
    "slope": {},
    "share_within": {"decades": 0.3},
    "top_overlap": {"top": "50%"},
    "mass_kept": {"top": 0.5},
}


def both(expected: np.ndarray, observed: np.ndarray, present: np.ndarray | None = None) -> dict[str, Any]:
    dims = ("layer", "head", "key")
    return {"attention.observed": data(observed, dims, present=present), "attention.expected": data(expected, dims)}


def judged(
    expected: np.ndarray, observed: np.ndarray, *, present: np.ndarray | None = None, scale: str = "linear", **asked: Any
) -> Verdict:
    demand = expectation("tracks", observable="attention.expected", scale=scale, **asked)
    return judge(case(observe="attention.observed", demand=demand), fetching(both(expected, observed, present)))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", ["linear", "log-log"])
@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_statistics_equal_their_naive_twins(name: str, scale: str, masked: bool) -> None:
    expected, observed = sides()
    observed = np.round(observed, 4) + 1e-5
    present = np.random.default_rng(5).uniform(size=observed.shape) < 0.7 if masked else np.ones(observed.shape, dtype=bool)
    # An unreachable bound makes every place an offender, so that every statistic is seen.
    made = judged(expected, observed, present=present, scale=scale, **{name: {"at_least": 1e9, **ARGUMENTS[name]}})
    logs = scale == "log-log" and name in ("pearson", "spearman", "slope")
    assert len(made.offenders) == 6
    for offender in made.offenders:
        at = offender.where["layer"], offender.where["head"]
        x, y = (side[at][present[at]].tolist() for side in (expected, observed))
        if logs:
            x, y = [math.log10(v) for v in x], [math.log10(v) for v in y]
        assert offender.observed == pytest.approx(naive(name, x, y), abs=1e-9)


def test_a_place_holds_when_every_statistic_does() -> None:
    expected, observed = sides(noise=0.01)
    observed[0, 1] = expected[0, 1] ** 2
    observed[1, 2] = expected[1, 2][::-1]
    made = judged(expected, observed, scale="log-log", pearson={"at_least": 0.9}, slope={"between": [0.6, 1.4]})
    assert [(o.where["layer"], o.where["head"]) for o in made.offenders] == [(1, 2), (0, 1)]
    assert "slope 2 (not <= 1.4)" in made.offenders[1].note
    assert made.numbers["pearson_median"] > 0.9


def test_observed_is_on_the_vertical_axis() -> None:
    expected, _ = sides()
    assert judged(expected, expected**2, scale="log-log", slope={"equals": 2}).passed


def test_for_no_heads_a_head_counts_only_where_every_statistic_holds() -> None:
    expected, observed = sides(noise=0.01)
    observed[0, 0] = expected[0, 0] ** 2
    answers = both(expected, observed)
    demand = expectation(
        "tracks", observable="attention.expected", scale="log-log", pearson={"at_least": 0.9}, slope={"between": [0.6, 1.4]}
    )
    made = judge(case(observe="attention.observed", demand=demand, quotas=[Quota("no", unit="head")], text="no heads"), fetching(answers))
    assert not made.passed
    assert (0, 0) not in [(o.where["layer"], o.where["head"]) for o in made.offenders]
    assert len(made.offenders) == 5


def test_where_selects_on_both_sides() -> None:
    expected, observed = sides()
    answers = both(expected, observed)
    one = case(
        observe="attention.observed",
        demand=expectation("tracks", observable="attention.expected", spearman={"at_least": 2}),
        where=[{"layer": Selector(1, 1, single=True), "head": Selector(0, 0, single=True)}],
    )
    made = judge(one, fetching(answers))
    assert [o.where for o in made.offenders] == [{"layer": 1, "head": 0}]
    assert made.offenders[0].observed == pytest.approx(naive("spearman", expected[1, 0].tolist(), observed[1, 0].tolist()))


def test_logarithms_of_zero_are_an_error_with_the_key() -> None:
    expected, observed = sides()
    observed[1, 2, 7] = 0
    with pytest.raises(MeasurementError, match=r"pearson takes logarithms, and attention.observed is 0 at layer 1, head 2, key 7"):
        judged(expected, observed, scale="log-log", pearson={"at_least": 0})
    assert judged(expected, observed, pearson={"at_least": -1}).passed


def test_a_constant_row_has_no_correlation() -> None:
    expected, observed = sides()
    observed[0, 0] = 0.5
    with pytest.raises(MeasurementError, match=r"pearson .*not a number at 1 of 6 places, first at layer 0, head 0"):
        judged(expected, observed, pearson={"at_least": 0})


def test_no_statistic_is_an_error() -> None:
    expected, observed = sides()
    with pytest.raises(MeasurementError, match="names no statistic"):
        judged(expected, observed)


def test_values_without_keys_are_an_error() -> None:
    demand = expectation("tracks", observable="attention.expected", pearson={"at_least": 0})
    with pytest.raises(MeasurementError, match="by key or query"):
        judge(case(observe="attention.observed", demand=demand), fetching(data(np.ones((2, 2)), ("layer", "head"))))


@pytest.mark.parametrize(
    "wrong",
    [{"pearson": {}}, {"share_within": {"at_least": 1}}, {"mass_kept": {"top": "150%", "at_least": 1}}, {"pearsn": {"at_least": 1}}],
)
def test_wrong_arguments_are_refused_by_the_language(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        expectation("tracks", observable="attention.expected", **wrong)


def test_the_second_observable_is_required() -> None:
    demand = expectation("tracks", observable={"attention.expected": {"future": "512.."}}, pearson={"at_least": 0})
    wanted = requirements(case(observe="attention.observed", demand=demand))
    assert [request for _, request in wanted] == [Request("attention.observed"), Request.of("attention.expected", {"future": "512.."})]


@pytest.mark.parametrize(("keys", "top", "count"), [(1, 0.01, 1), (3, 0.5, 2), (508, 0.5, 254), (10, 0.25, 3), (10, 1.0, 10)])
def test_top_counts(keys: int, top: float, count: int) -> None:
    assert statistics.top_count(keys, top) == count
