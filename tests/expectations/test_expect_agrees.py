"""`agrees_with`: the tolerance union, its defaults by pair of dtypes, and what is needed for each kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging_toolkit import case, data, expectation, fetching, subject

from attncheck.core.errors import MeasurementError
from attncheck.core.measurement import measurement
from attncheck.core.verdict import Verdict
from attncheck.expectations import judge, requirements
from attncheck.expectations.agreement import _refuse_itself, default_rtol
from attncheck.expectations.field import Field
from attncheck.spec.model import Case, Quota, Tolerance

SDPA = subject(attn_implementation="sdpa", dtype="float32")


def agreeing(tolerance: Tolerance | None = None, **options: Any) -> Case:
    return case(demand=expectation("agrees_with", axes={"attn_implementation": "eager"}), on=SDPA, tolerance=tolerance, **options)


def judged(
    a: np.ndarray, b: np.ndarray, tolerance: Tolerance | None = None, *, dtypes: tuple[str, str] = ("float32", "float32")
) -> Verdict:
    dims = ("sample", "layer", "head", "query")[-a.ndim :]
    answers = {name: data(v, dims, attrs={"dtype": dtype}) for name, v, dtype in zip(("sdpa", "eager"), (a, b), dtypes, strict=True)}
    return judge(agreeing(tolerance), fetching(answers))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-6, 0.2), st.floats(1e-8, 0.1))
def test_allclose_equals_numpys(seed: int, rtol: float, atol: float) -> None:
    rng = np.random.default_rng(seed)
    b = rng.normal(size=(4, 5))
    a = b + rng.normal(size=b.shape) * 10 ** rng.uniform(-8, 0, b.shape)
    made = judged(a, b, Tolerance("allclose", rtol=rtol, atol=atol))
    close = np.isclose(a, b, rtol=rtol, atol=atol)
    assert made.passed is bool(close.all())
    assert made.numbers["offenders"] == (~close).sum()


@pytest.mark.parametrize(
    ("ours", "theirs", "rtol"),
    [
        ("float32", "float32", 1e-5),
        ("float64", "float64", 1e-9),
        ("float64", "float32", 1e-5),
        ("float32", "bfloat16", 3e-2),
        ("bfloat16", "bfloat16", 3e-2),
        ("float16", "float32", 3e-2),
    ],
)
def test_defaults_belong_to_the_pair_of_dtypes(ours: str, theirs: str, rtol: float) -> None:
    assert default_rtol(ours, theirs) == rtol
    b = np.full((2, 3), 4.0)
    a = b.copy()
    a[1, 2] *= 1 + rtol * 0.9
    assert judged(a, b, dtypes=(ours, theirs)).passed
    a[1, 2] = 4 * (1 + rtol * 1.5)
    made = judged(a, b, dtypes=(ours, theirs))
    assert [(o.where["head"], o.where["query"]) for o in made.offenders] == [(1, 2)]


def test_exact_means_the_last_bit() -> None:
    b = np.ones((2, 2))
    assert judged(b, b, Tolerance("exact")).passed
    a = b.copy()
    a[0, 1] = np.nextafter(1, 2)
    assert not judged(a, b, Tolerance("exact")).passed


def test_the_rms_ratio_is_taken_within_each_head() -> None:
    rng = np.random.default_rng(0)
    b = rng.normal(size=(1, 2, 3, 50))
    a = b + rng.normal(size=b.shape) * 0.01
    a[0, 1, 2] += 0.5
    made = judged(a, b, Tolerance("rms_ratio", ratio=0.02))
    assert [o.where for o in made.offenders] == [{"layer": 1, "head": 2}]
    naive = np.sqrt(((a - b)[0, 1, 2] ** 2).mean() / (b[0, 1, 2] ** 2).mean())
    assert made.offenders[0].observed == pytest.approx(naive)


def test_an_error_against_float32_is_measured_in_the_others_error() -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(3, 4))
    theirs, ours = (truth + rng.uniform(0.005, 0.01, truth.shape) for _ in range(2))
    ours[2, 3] = truth[2, 3] + 0.5
    answers = {"sdpa": data(ours, ("layer", "head")), "eager": data(theirs, ("layer", "head"))}

    def fetch(key: Any, request: Any) -> Any:
        if key.subject.dtype == "float32":
            return data(truth, ("layer", "head"))
        return answers[key.subject.attn_implementation]

    on = subject(attn_implementation="sdpa", dtype="bfloat16")
    demand = expectation("agrees_with", axes={"attn_implementation": "eager"})
    asked = case(demand=demand, on=on, tolerance=Tolerance("vs_reference", factor=3.0))
    wanted = [(key.subject.attn_implementation, key.subject.dtype) for key, _ in requirements(asked)]
    assert wanted == [("sdpa", "bfloat16"), ("eager", "bfloat16"), ("eager", "float32")]
    made = judge(asked, fetching(fetch))
    worst = [max(abs(side[i] - truth[i])) for side in (ours, theirs) for i in range(3)]
    bad = [i for i in range(3) if worst[i] > 3 * worst[3 + i] + 1e-5 * abs(truth[i]).max()]
    assert [o.where["layer"] for o in made.offenders] == bad == [2]


def test_the_text_shows_both_numbers() -> None:
    made = judged(np.array([[1.0, 2.5]]), np.array([[1.0, 2.0]]))
    assert made.offenders[0].note == "2.5 here, 2 with eager"


def test_a_quota_applies() -> None:
    a, b = np.ones((2, 5)), np.ones((2, 5))
    a[0, 0] = 2
    answers = {"sdpa": data(a, ("layer", "head")), "eager": data(b, ("layer", "head"))}
    assert judge(agreeing(quotas=[Quota("share", 0.9, unit="head")], text="90% of heads"), fetching(answers)).passed


def test_runs_of_another_shape_are_an_error() -> None:
    answers = {"sdpa": data(np.ones((2, 5)), ("layer", "head")), "eager": data(np.ones((2, 4)), ("layer", "head"))}
    with pytest.raises(MeasurementError, match=r"smollm2 has 5 heads .* and smollm2 \(eager\) has 4 heads"):
        judge(agreeing(), fetching(answers))


def test_nan_on_the_other_side_is_an_error_too() -> None:
    with pytest.raises(MeasurementError, match=r"of smollm2 \(eager\) is not a number"):
        judged(np.ones((1, 2)), np.array([[1.0, np.nan]]))


@pytest.mark.parametrize("changed", ["implementation", "dtype", "device"])
def test_a_run_is_not_compared_with_itself(changed: str) -> None:
    here = {"implementation": "sdpa", "dtype": "float32", "device": "cpu"}
    there = {**here, changed: {"implementation": "eager", "dtype": "float64", "device": "cuda:0"}[changed]}
    ours, theirs, same = (Field.of(measurement(np.ones(3), ("layer",), attrs=attrs)) for attrs in (here, there, here))
    _refuse_itself(ours, theirs, {"attn_implementation": "eager"}, "a.attn.yaml:3:1")
    with pytest.raises(MeasurementError, match=r"^a\.attn\.yaml:3:1: both sides ran as sdpa, float32, cpu, .*: eager is what"):
        _refuse_itself(ours, same, {"attn_implementation": "eager"}, "a.attn.yaml:3:1")
