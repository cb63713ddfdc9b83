"""The plan: one list of requests per pass, for all cases together."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.definitions import InputDefinition, PassKey, SubjectDefinition
from attncheck.engine.plan import Defaults, plan
from attncheck.engine.vocabulary import vocabulary
from attncheck.spec.loader import load
from attncheck.spec.model import Spec

HANGS = 60.0
"""Seconds of processor time that only something unbounded takes; how fast it is, benchmarks/ measures."""

SPEC = """
attncheck: 1
subjects:
  tiny: {config: {model_type: llama}, attn_implementation: [eager, sdpa]}
  twin: {like: tiny, seeds: [3, 5], attn_implementation: sdpa}
inputs: {words: {tokens: random}, more: {tokens: random, length: 7}}
defaults: {inputs: words}
expect:
  rows: {observe: attention.row_sum, at_most: 2, subjects: tiny}
  low: {observe: attention.entropy, at_most: 2, subjects: tiny, inputs: [words, more]}
  again: {observe: attention.entropy, at_most: 3, subjects: tiny}
  ratio: {observe: attention.entropy, ratio_to: {subject: twin}, at_most: 3, subjects: tiny}
  same: {observe: attention.row_sum, agrees_with: {attn_implementation: eager}, subjects: tiny}
  norms: {observe: {weights.norm: {matrix: q}}, at_most: 3, subjects: tiny}
  exempt: {observe: logits.max, at_most: 3, subjects: tiny, unless: [{subject: tiny, because: not here}]}
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    path = tmp_path_factory.mktemp("plan") / "x.attn.yaml"
    path.write_text(SPEC.strip())
    return load(path, vocabulary())


def names(spec: Spec, *properties: str) -> dict[tuple[str, str | None, int, str | None], list[str]]:
    made = plan(case for case in spec.cases if case.property.name in properties)
    return {
        (key.subject.name, key.subject.attn_implementation, key.subject.seed, key.input.name if key.input else None): [
            request.name for request in requests
        ]
        for key, requests in made.requests.items()
    }


def test_a_pass_answers_the_union_of_its_properties_each_once(spec: Spec) -> None:
    assert names(spec, "rows", "low", "again") == {
        ("tiny", "eager", 0, "words"): ["attention.row_sum", "attention.entropy"],
        ("tiny", "sdpa", 0, "words"): ["attention.row_sum", "attention.entropy"],
        ("tiny", "eager", 0, "more"): ["attention.entropy"],
        ("tiny", "sdpa", 0, "more"): ["attention.entropy"],
    }


def test_a_counterpart_is_a_pass_for_each_of_its_seeds(spec: Spec) -> None:
    assert names(spec, "ratio").keys() == {
        ("tiny", "eager", 0, "words"),
        ("tiny", "sdpa", 0, "words"),
        ("twin", "sdpa", 3, "words"),
        ("twin", "sdpa", 5, "words"),
    }


def test_the_other_side_of_an_agreement_is_the_same_subject_on_another_axis_value(spec: Spec) -> None:
    assert names(spec, "same") == {("tiny", how, 0, "words"): ["attention.row_sum"] for how in ("sdpa", "eager")}


def test_what_reads_weights_has_no_input_and_what_is_exempt_no_pass(spec: Spec) -> None:
    assert names(spec, "norms", "exempt") == {("tiny", None, 0, None): ["weights.norm"]}


def test_selecting_nothing_plans_nothing() -> None:
    assert plan([]).requests == {}


def test_defaults_fill_in_what_is_open_and_change_the_key() -> None:
    open_, closed = (SubjectDefinition("s", "config", {}, dtype=dtype) for dtype in (None, "float32"))
    words = InputDefinition("words", "tokens", {})
    defaults = Defaults(device="cuda:1", dtype="float64")
    filled = defaults.fill(PassKey(open_, words))
    assert (filled.subject.device, filled.subject.dtype, filled.input) == ("cuda:1", "float64", words)
    assert filled.key != PassKey(open_, words).key
    assert defaults.fill(PassKey(closed, words)).subject.dtype == "float32"
    assert Defaults().fill(PassKey(open_, words)) == PassKey(open_, words)


def test_planning_is_quick_for_many_cases(tmp_path: Path) -> None:
    import time

    path = tmp_path / "many.attn.yaml"
    path.write_text(
        SPEC.split("expect:")[0].strip()
        + "\nexpect:\n"
        + "\n".join(f"  p-{number}: {{observe: attention.entropy, at_most: {number}, subjects: tiny}}" for number in range(1000))
    )
    cases = load(path, vocabulary()).cases
    begun = time.process_time()
    assert len(plan(cases).requests) == 2
    assert time.process_time() - begun < HANGS
