"""Failed, error, skipped, warning: what each outcome is for, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

BROKEN = """
import torch

class Broken(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.config = type("Config", (), {"vocab_size": 64})()

    def forward(self, input_ids):
        raise ZeroDivisionError("the forward is broken")

def model():
    return Broken()
"""
NAN = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def model():
    made = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64))
    with torch.no_grad():
        made.model.layers[1].self_attn.q_proj.weight[3, 3] = float("nan")
    return made
"""


def test_a_property_that_holds_and_one_that_does_not(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"holds: {{{project.holds}}}\nfails: {{{project.fails}}}")
    result = project.run("--attn-spec")
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED specs/x.attn.yaml::fails[[]tiny/words] - *entropy * > 0.01*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*plugin*outcome.py*")


def test_a_must_fail_case_passes_when_the_property_fails_there(project: Project) -> None:
    twins = f"tiny: {{config: {project.model}}}\ntwin: {{like: tiny, seed: 1}}"
    rows = "observe: attention.row_sum, subjects: tiny, must_fail_on: twin"
    project.spec("specs/x.attn.yaml", f"empty: {{{rows}, at_most: 1.001}}\nreverse: {{{rows}, at_most: 0.5}}", subjects=twins)
    result = project.run("--attn-spec", "-v")
    result.stdout.fnmatch_lines(
        [
            "*::empty[[]tiny/words] PASSED*",
            "*::empty[[]twin/words/must-fail] FAILED*",
            "*::reverse[[]tiny/words] FAILED*",
            "*::reverse[[]twin/words/must-fail] PASSED*",
            "the property holds on twin too, so it says nothing: row_sum *",
        ]
    )


def test_a_forward_that_raises_is_an_error_of_each_property_and_told_at_length_once(project: Project) -> None:
    project.write("broken.py", BROKEN)
    subjects = f"tiny: {{config: {project.model}}}\nbroken: {{python: 'broken:model'}}"
    project.spec("specs/x.attn.yaml", f"one: {{{project.holds}}}\ntwo: {{{project.fails}}}", subjects=subjects)
    result = project.run("--attn-spec")
    result.assert_outcomes(passed=1, failed=1, errors=2)
    text = result.stdout.str()
    assert text.count('raise ZeroDivisionError("the forward is broken")') == 1
    result.stdout.fnmatch_lines(["*in full at specs/x.attn.yaml::*[[]broken/words]"])
    result.stdout.fnmatch_lines(["ERROR specs/x.attn.yaml::*[[]broken/words] - *the forward pass raised *"] * 2)


def test_weights_that_are_not_numbers_are_an_error_and_never_a_pass(project: Project) -> None:
    project.write("poisoned.py", NAN)
    norm, low = "observe: {weights.norm: {matrix: q}}, at_most: 1000", "observe: attention.entropy, at_least: 0"
    expect = f"norm: {{{norm}}}\nrows: {{{project.holds}}}\nlow: {{{low}}}"
    project.spec("specs/x.attn.yaml", expect, subjects="poisoned: {python: 'poisoned:model'}")
    result = project.run("--attn-spec")
    assert result.parseoutcomes().get("passed", 0) == 0
    result.stdout.fnmatch_lines(["ERROR specs/x.attn.yaml::norm[[]poisoned] - *", "ERROR specs/x.attn.yaml::*poisoned/words] - *"])


@pytest.mark.parametrize("where", ["{layer: 7}", "{head: 2}"])
def test_a_selection_of_nothing_is_an_error_at_its_place(project: Project, where: str) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}, where: {where}}}\nq: {{{project.holds}}}")
    result = project.run("--attn-spec")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*specs/x.attn.yaml:7*"])


MISSING = "attn_implementation: flash_attention_2"


def test_a_missing_package_skips_with_the_line_that_installs_it(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}", subjects=f"flash: {{config: {project.model}, {MISSING}}}")
    result = project.run("--attn-spec", "-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["SKIPPED [[]1] specs/x.attn.yaml:7: *flash_attention_2*; pip install flash-attn*"])


def test_strict_fails_what_is_missing_unless_it_is_optional(project: Project) -> None:
    flash = f"config: {project.model}, {MISSING}"
    subjects = f"flash: {{{flash}}}\nmaybe: {{{flash}, optional: true}}"
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}", subjects=subjects)
    result = project.run("--attn-spec", "--attn-strict")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*not available: *pip install flash-attn*", "*subject flash is not optional*"])
    project.ini("attn_strict = true")
    project.run("--attn-spec").assert_outcomes(failed=1, skipped=1)


def test_unless_skips_and_never_fails_and_measures_nothing(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.fails}, unless: [{{subject: tiny, because: its rows are flat}}]}}")
    result = project.run("--attn-spec", "--attn-strict", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED [[]1] specs/x.attn.yaml:7: unless: its rows are flat"])
    assert project.records == []


def test_level_warn_passes_with_a_warning_at_the_line_of_the_spec(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.fails}, level: warn}}")
    result = project.run("--attn-spec")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*specs/x.attn.yaml:7: AttentionWarning: p[[]tiny/words]: *entropy * > 0.01*"])


@pytest.mark.parametrize("filter_", ["error", "error::attncheck.AttentionWarning"])
def test_warnings_as_errors_make_it_fail_like_any_other(project: Project, filter_: str) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.fails}, level: warn}}")
    result = project.run("--attn-spec", "-W", filter_)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAILED specs/x.attn.yaml::p[[]tiny/words] - *entropy * > 0.01*"])


def test_one_propertys_fault_does_not_cost_another_its_measurement(project: Project) -> None:
    expect = f"far: {{observe: {{attention.observed_scores: {{queries: 512.., keys: 0..3}}}}, at_most: 1}}\nholds: {{{project.holds}}}"
    project.spec("specs/x.attn.yaml", expect)
    project.run("--attn-spec").assert_outcomes(passed=1, errors=1)


def test_the_line_printed_for_a_failure_runs_that_test_alone(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"fails: {{{project.fails}}}\nholds: {{{project.holds}}}")
    text = project.run("--attn-spec").stdout.str()
    assert 'pytest "specs/x.attn.yaml::fails[tiny/words]"' in text
    project.run("specs/x.attn.yaml::fails[tiny/words]").assert_outcomes(failed=1)


def test_the_command_line_fills_in_what_is_open_and_never_overrides(project: Project) -> None:
    subjects = f"tiny: {{config: {project.model}}}\nsingle: {{like: tiny, dtype: float32}}"
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}", subjects=subjects)
    result = project.run("--attn-spec", "--attn-dtype", "float64", "--attn-device", "cpu", "--attn-json", "out.json")
    result.assert_outcomes(passed=2)
    import json

    told = json.loads((project.pytester.path / "out.json").read_text())
    dtypes = {measured["name"]: measured["dtype"] for measured in told["measurements"]}
    assert dtypes == {"tiny on words": "float64", "single on words": "float32"}


def test_the_command_that_repeats_a_test_keeps_what_was_asked_on_the_command_line(project: Project) -> None:
    project.spec("x.attn.yaml", f"low: {{{project.fails}}}")
    plain = project.run("--attn-spec", "x.attn.yaml")
    plain.stdout.fnmatch_lines(['  again     pytest "x.attn.yaml::low?tiny/words?"'])
    asked = project.run("--attn-spec", "x.attn.yaml", "--attn-dtype", "bfloat16", "--attn-device", "cpu")
    asked.stdout.fnmatch_lines(['  again     pytest "x.attn.yaml::low?tiny/words?" --attn-device cpu --attn-dtype bfloat16'])
    # What the ini file says holds for the repetition as well.
    project.ini("attn_dtype = bfloat16")
    project.run("--attn-spec", "x.attn.yaml").stdout.fnmatch_lines(['  again     pytest "x.attn.yaml::low?tiny/words?"'])
