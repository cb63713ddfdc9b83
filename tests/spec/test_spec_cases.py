"""The tests that come of a spec: order, ids, axes, inputs, controls, exemptions, marks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.core.vocabulary import Vocabulary
from attncheck.spec.loader import load, load_bytes
from attncheck.spec.model import Spec

HANGS = 60.0
"""Seconds of processor time that only something unbounded takes; how fast it is, benchmarks/ measures."""

Load = Callable[[str], Spec]
Refused = Callable[[str], list[str]]
FIGURES = Path(__file__).parent / "figures"

HEAD = """attncheck: 1
subjects:
  matrix: {pretrained: a, attn_implementation: [sdpa, kernels/flash], dtype: [float32, bfloat16], device: cpu, marks: large}
  single: {pretrained: b, attn_implementation: eager, inputs: short}
  open: {pretrained: c}
inputs:
  long: {text: abc}
  short: {text: a}
"""


def ids(spec: Spec) -> list[str]:
    return [case.id for case in spec.cases]


@pytest.mark.parametrize(
    ("name", "count"), [("attention_norms", 7), ("expected_attention", 12), ("lrkv_key_norms", 9), ("q_projection_alpha", 14)]
)
def test_the_four_figures(vocabulary: Vocabulary, name: str, count: int) -> None:
    spec = load(FIGURES / f"{name}.yaml", vocabulary)
    assert len(spec.cases) == count
    assert len({(case.property.name, case.id) for case in spec.cases}) == count


def test_ids_and_order(loaded: Load) -> None:
    spec = loaded(HEAD + "expect:\n  p: {observe: attention.entropy, at_least: 1, subjects: [matrix, single], must_fail_on: open}\n")
    assert ids(spec) == [
        *(
            f"matrix/{kernel}/{dtype}/{fed}"
            for kernel in ("sdpa", "kernels-flash")
            for dtype in ("float32", "bfloat16")
            for fed in ("long", "short")
        ),
        "single/short",
        "open/long/must-fail",
        "open/short/must-fail",
    ]
    first, last = spec.cases[0], spec.cases[-1]
    assert (first.variant.attn_implementation, first.variant.dtype, first.variant.device) == ("sdpa", "float32", "cpu")
    assert (last.variant.attn_implementation, last.variant.dtype, last.must_fail) == (None, None, True)
    assert spec.cases[4].variant.attn_implementation == "kernels/flash"


@pytest.mark.parametrize(
    ("defaults", "words", "expected"),
    [
        ("", "", ["open/long", "open/short", "single/short"]),
        ("defaults: {inputs: long}\n", "", ["open/long", "single/short"]),
        ("defaults: {inputs: long}\n", ", inputs: [short, long]", ["open/short", "open/long", "single/short", "single/long"]),
    ],
)
def test_whose_word_on_inputs_wins(loaded: Load, defaults: str, words: str, expected: list[str]) -> None:
    assert (
        ids(loaded(f"{HEAD}{defaults}expect:\n  p: {{observe: attention.entropy, at_least: 1, subjects: [open, single]{words}}}\n"))
        == expected
    )


def test_what_reads_weights_or_a_log_has_neither_input_nor_axes(loaded: Load) -> None:
    spec = loaded(
        HEAD + "expect:\n  p: {observe: {weights.alpha: {matrix: q}}, at_least: 1}\n"
        "  q: {observe: training.loss, at_most: 1, subjects: matrix}\n"
    )
    assert ids(spec) == ["matrix", "single", "open", "matrix"]
    assert all(case.input is None and case.variant.attn_implementation is None and case.variant.dtype is None for case in spec.cases)


def test_a_counterpart_that_needs_an_input_brings_it(loaded: Load) -> None:
    spec = loaded(
        HEAD + "defaults: {subjects: open}\nexpect:\n"
        "  p: {observe: {weights.norm: {matrix: q}}, ratio_to: {observable: {weights.norm: {matrix: k}}}, at_least: 1}\n"
        "  q: {observe: attention.entropy, reduce: {sample: mean}, ratio_to: {observable: {weights.norm: {matrix: k}}}, at_least: 1}\n"
    )
    assert ids(spec) == ["open", "open/long", "open/short"]


def test_without_subjects_all_but_the_controls_and_the_other_side(loaded: Load) -> None:
    spec = loaded(HEAD + "expect:\n  p: {observe: training.loss, ratio_to: {subject: open}, at_least: 1, must_fail_on: single}\n")
    assert ids(spec) == ["matrix", "single/must-fail"]
    defaults = loaded(HEAD + "defaults: {subjects: [open, single]}\nexpect:\n  p: {observe: training.loss, at_least: 1}\n")
    assert ids(defaults) == ["open", "single"]


def test_defaults_of_properties_and_axes(loaded: Load) -> None:
    spec = loaded(
        HEAD + "defaults: {level: warn, marks: gpu, tolerance: exact, source: there, dtype: [float64], inputs: short}\nexpect:\n"
        "  p: {observe: attention.entropy, at_least: 1, subjects: [matrix, open], marks: own}\n"
        "  q: {observe: attention.entropy, at_least: 1, subjects: open, level: fail, tolerance: {rtol: 1}, source: here}\n"
    )
    p, q = spec.properties.values()
    assert (p.level, p.tolerance.kind, p.source, q.level, q.tolerance.kind, q.source) == (
        "warn",
        "exact",
        "there",
        "fail",
        "allclose",
        "here",
    )
    assert spec.cases[0].marks == ("large", "gpu", "own")
    assert spec.cases[-1].marks == ("gpu",)
    assert spec.subjects["open"].axes["dtype"] == ("float64",)
    assert spec.subjects["matrix"].axes["dtype"] == ("float32", "bfloat16")


def test_a_control_carries_its_own_subjects_marks(loaded: Load) -> None:
    spec = loaded(HEAD + "expect:\n  p: {observe: training.loss, at_least: 1, subjects: open, must_fail_on: matrix, marks: slow}\n")
    assert [case.marks for case in spec.cases] == [("slow",), ("large", "slow")]


def test_exemptions_reach_the_cases_that_they_match(loaded: Load) -> None:
    spec = loaded(
        HEAD + "expect:\n  p:\n    observe: attention.entropy\n    at_least: 1\n    subjects: [matrix, open]\n    inputs: long\n"
        "    unless: [{subject: matrix, dtype: bfloat16, because: coarse}, {input: long, subject: open, because: other}]\n"
    )
    assert {case.id: case.exemption.because if case.exemption else None for case in spec.cases} == {
        "matrix/sdpa/float32/long": None,
        "matrix/sdpa/bfloat16/long": "coarse",
        "matrix/kernels-flash/float32/long": None,
        "matrix/kernels-flash/bfloat16/long": "coarse",
        "open/long": "other",
    }


def test_a_variant_is_not_compared_with_itself(loaded: Load, refused: Refused) -> None:
    spec = loaded(
        HEAD
        + "expect:\n  p: {observe: attention.entropy, agrees_with: {attn_implementation: sdpa}, subjects: [matrix, open], inputs: long}\n"
    )
    assert ids(spec) == ["matrix/kernels-flash/float32/long", "matrix/kernels-flash/bfloat16/long", "open/long"]
    body = "expect:\n  p: {observe: attention.entropy, ratio_to: {attn_implementation: eager}, at_least: 1, subjects: single}\n"
    assert "no test comes of it" in refused(HEAD + body)[0]


def test_counterparts_travel_with_the_case(loaded: Load) -> None:
    spec = loaded(
        HEAD + "expect:\n  p: {observe: attention.entropy, ratio_to: {subject: open}, at_least: 1, subjects: matrix, inputs: long}\n"
        "  q: {observe: training.loss, ratio_to: {subject: matrix}, at_least: 1, subjects: open}\n"
    )
    assert spec.cases[0].counterparts == {"open": spec.subjects["open"]}
    assert spec.cases[-1].counterparts["matrix"].axes == {}


@pytest.mark.parametrize(
    ("subjects", "found"),
    [
        ("a: {train: x, seeds: [0, 1]}\n  b: {train: x, seeds: [0, 2]}", "the same seeds on both sides"),
        ("a: {train: x}\n  b: {train: x, dtype: [float32, float16]}", "b has dtype float32, float16 and a leaves it open"),
        ("a: {train: x, dtype: [float32, float64]}\n  b: {train: x, dtype: [float32, float16]}", "and a has float64"),
    ],
)
def test_a_counterpart_that_does_not_exist(refused: Refused, subjects: str, found: str) -> None:
    (problem,) = refused(
        f"attncheck: 1\nsubjects:\n  {subjects}\ninputs: {{t: {{text: x}}}}\nexpect:\n"
        "  p: {observe: attention.entropy, ratio_to: {subject: b}, at_least: 1, subjects: a}\n"
    )
    assert found in problem


def test_axis_values_that_would_share_an_id(refused: Refused) -> None:
    (problem,) = refused(
        "attncheck: 1\nsubjects: {a: {train: x, attn_implementation: [k/f, k-f]}}\ninputs: {t: {text: x}}\n"
        "expect: {p: {observe: attention.entropy, at_least: 1}}\n"
    )
    assert "two tests are called 'a/k-f/t'" in problem


def test_a_matrix_beyond_all_measure_is_refused_before_it_is_built(refused: Refused) -> None:
    many = ", ".join(f"v{n}" for n in range(2000))
    devices = ", ".join(f"cuda:{n}" for n in range(2000))
    started = time.process_time()
    (problem,) = refused(
        f"attncheck: 1\nsubjects: {{a: {{train: x, attn_implementation: [{many}], device: [{devices}]}}}}\n"
        "inputs: {t: {text: x}}\nexpect: {p: {observe: attention.entropy, at_least: 1}}\n"
    )
    assert "more than" in problem
    assert time.process_time() - started < HANGS


def test_two_thousand_cases_are_expanded(vocabulary: Vocabulary) -> None:
    properties = "".join(
        f"  p{n}:\n    observe: {{attention.observed_scores: {{queries: 4.., keys: 0..3}}}}\n"
        "    where: {layer: 1..}\n    reduce: {key: mean}\n"
        f"    at_least: 1 / sqrt(N) - {n}\n    for: 80% of heads\n    why: because\n"
        for n in range(500)
    )
    data = (
        HEAD.partition("inputs:\n")[0].replace(", inputs: short", "")
        + "inputs: {t: {text: x}}\ndefaults: {subjects: matrix}\nexpect:\n"
        + properties
    ).encode()
    started = time.process_time()
    spec = load_bytes(data, Path("x.attn.yaml"), vocabulary)
    elapsed = time.process_time() - started
    assert len(spec.cases) == 2000
    assert elapsed < HANGS
