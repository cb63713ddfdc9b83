"""Every reduction against a loop in plain Python, with and without absent places and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging_toolkit import data

from attncheck.core.errors import MeasurementError
from attncheck.core.measurement import measurement
from attncheck.expectations.field import Field
from attncheck.expectations.reduce import reduce_one
from attncheck.spec.model import Reduction

STEPS = np.array([1, 2, 5, 10, 20, 50])


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def least_squares(pairs: Sequence[tuple[float, float]]) -> float:
    mean_t, mean_v = sum(t for t, _ in pairs) / len(pairs), sum(v for _, v in pairs) / len(pairs)
    return sum((t - mean_t) * (v - mean_v) for t, v in pairs) / sum((t - mean_t) ** 2 for t, _ in pairs)


def naive(how: str, pairs: Sequence[tuple[float, float]], *, last_label: float, first_label: float, above: float) -> float:
    values = [value for _, value in pairs]
    twins: dict[str, Callable[[], float]] = {
        "mean": lambda: sum(values) / len(values),
        "median": lambda: percentile(values, 0.5),
        "max": lambda: max(values),
        "min": lambda: min(values),
        "sum": lambda: sum(values),
        "spread": lambda: max(values) - min(values),
        "decades": lambda: math.log10(percentile(values, 0.95) / percentile(values, 0.05)),
        "growth": lambda: values[-1] / values[0],
        "first": lambda: values[0],
        "last": lambda: values[-1],
        "slope": lambda: least_squares(pairs),
        "peak": lambda: (max(pairs, key=lambda p: p[1])[0] - first_label) / (last_label - first_label),
        "exponent": lambda: least_squares([(math.log(t), math.log(v)) for t, v in pairs if t > 0]),
        "largest_rise": lambda: max([0.0, *(later - v for i, v in enumerate(values) for later in values[i + 1 :])]),
        "largest_fall": lambda: max([0.0, *(v - later for i, v in enumerate(values) for later in values[i + 1 :])]),
        "first_above": lambda: next((t for t, v in pairs if v > above), math.inf),
        "first_below": lambda: next((t for t, v in pairs if v < above), math.inf),
    }
    return twins[how]()


HOWS = ["mean", "median", "max", "min", "sum", "spread", "decades", "growth", "first", "last", "slope", "peak", "first_above"]
HOWS += ["exponent", "largest_rise", "largest_fall", "first_below"]


def field(values: np.ndarray, **more: object) -> Field:
    coords = {"step": (("step",), STEPS), "layer": (("layer",), np.arange(values.shape[1]))}
    return Field.of(measurement(values, ("step", "layer"), coords=coords, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("how", HOWS)
def test_reductions_equal_their_naive_twins(how: str) -> None:
    values = np.random.default_rng(1).uniform(0.1, 3, (6, 5))
    made = reduce_one(field(values), Reduction("step", how, above=2.0))
    assert made.dims == ("layer",)
    for layer in range(5):
        pairs = list(zip(STEPS.tolist(), values[:, layer].tolist(), strict=True))
        assert made.value[layer] == pytest.approx(naive(how, pairs, first_label=1, last_label=50, above=2.0), rel=1e-12)


@pytest.mark.parametrize("how", HOWS)
def test_absent_places_do_not_count(how: str) -> None:
    rng = np.random.default_rng(2)
    values = rng.uniform(0.1, 3, (6, 5))
    present = rng.uniform(size=(6, 5)) < 0.6
    present[:2] = True
    present[:, 4] = False
    poisoned = np.where(present, values, np.nan)
    made = reduce_one(field(poisoned, present=present), Reduction("step", how, above=2.0))
    assert made.present is not None
    assert made.present.tolist() == [True, True, True, True, False]
    for layer in range(4):
        pairs = [(float(t), float(v)) for t, v, p in zip(STEPS, values[:, layer], present[:, layer], strict=True) if p]
        assert made.value[layer] == pytest.approx(naive(how, pairs, first_label=1, last_label=50, above=2.0), rel=1e-12)


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_an_interval_holds_the_reduction_of_any_values_within_it(how: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.uniform(0.1, 3, (6, 3))
    high = low + rng.uniform(0, 0.5, (6, 3))
    truth = rng.uniform(low, high)
    made = reduce_one(field((low + high) / 2, lower=low, upper=high), Reduction("step", how, above=2.0))
    exact = reduce_one(field(truth), Reduction("step", how, above=2.0))
    lower, upper = made.interval()
    assert (lower <= exact.value + 1e-12).all()
    assert (exact.value <= upper + 1e-12).all()


def test_a_power_law_has_its_exponent_and_step_0_is_left_out() -> None:
    steps = np.array([0, 1, 10, 100, 1000])
    values = np.array([[7.0], *(3 * steps[1:, None] ** 0.5)])
    made = Field.of(measurement(values, ("step", "layer"), coords={"step": (("step",), steps)}))
    assert reduce_one(made, Reduction("step", "exponent")).value == pytest.approx(0.5)
    for wrong, message in (
        (-values, "needs positive values; the smallest is -94.9"),
        (values * [[1], [1], [0], [1], [1]], "smallest is 0"),
    ):
        course = Field.of(measurement(wrong, ("step", "layer"), coords={"step": (("step",), steps)}))
        with pytest.raises(MeasurementError, match=message):
            reduce_one(course, Reduction("step", "exponent"))
    few = Field.of(measurement(values[:2], ("step", "layer"), coords={"step": (("step",), steps[:2])}))
    with pytest.raises(MeasurementError, match="exponent over step needs 2 steps above 0, measured are 0, 1"):
        reduce_one(few, Reduction("step", "exponent"))


def test_a_peak_lies_in_the_whole_model_and_not_in_what_was_selected() -> None:
    from judging_toolkit import case

    from attncheck.expectations.select import select
    from attncheck.spec.model import Selector

    alphas = np.linspace(0.1, 0.2, 30)
    alphas[0], alphas[23] = 0.9, 0.7
    found = Field.of(data(alphas, ("layer",)))
    selected = select(found, case(where=[{"layer": Selector(1, None)}]).property)
    assert reduce_one(selected, Reduction("layer", "peak")).value == pytest.approx(23 / 29)


def test_symbols_that_vary_are_lost_and_others_are_kept() -> None:
    found = Field.of(
        data(np.ones((2, 3)), ("sample", "layer"), symbols={"N": (("sample",), np.array([10, 20])), "d": (("sample",), np.array([8, 8]))})
    )
    made = reduce_one(found, Reduction("sample", "mean"))
    assert made.lost == {"N": "sample"}
    assert made.symbols["d"][1] == 8


@pytest.mark.parametrize("how", ["spread", "growth", "slope", "peak", "decades"])
def test_a_reduction_that_would_say_nothing_is_an_error(how: str) -> None:
    with pytest.raises(MeasurementError, match="at least 2"):
        reduce_one(Field.of(data([[1.0, 2.0]], ("layer", "head"))), Reduction("layer", how))


def test_decades_of_values_that_reach_zero_is_an_error_that_says_where() -> None:
    with pytest.raises(MeasurementError, match=r"positive values.*layer 1"):
        reduce_one(Field.of(data([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]], ("layer", "key"))), Reduction("key", "decades"))


def test_growth_from_zero_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="not a number"):
        reduce_one(Field.of(data([[0.0], [0.0]], ("step", "layer"))), Reduction("step", "growth"))


def test_a_symbol_that_only_lacks_heads_does_not_vary() -> None:
    value = np.array([[1.5, 1.4, np.nan], [1.2, 1.3, 1.1]])
    made = {"present": np.isfinite(value), "symbols": {"uniform_norm": (("layer", "head"), np.array([[1.0, 1, np.nan], [2.0, 2, 2]]))}}
    found = reduce_one(Field.of(measurement(value, ("layer", "head"), **made)), Reduction("head", "mean"))
    dims, kept = found.symbols["uniform_norm"]
    assert (dims, kept.tolist()) == (("layer",), [1.0, 2.0])
