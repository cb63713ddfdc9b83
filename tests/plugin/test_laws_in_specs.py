"""`laws:` of a spec: a test for each law, of operators and of models, with a picture, a control and a last test that enough applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

OPERATORS = """
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

def right(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return sdpa(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale)

def leaky(query, key, value, attn_mask=None, is_causal=False, scale=None):
    if is_causal and query.shape[-2] == key.shape[-2] > 5:
        attn_mask, is_causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(), False
        attn_mask[3, 4] = True
    return sdpa(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale)
"""
CLAIMS = "{causal: flag, reference: softmax, normalised: true, nonnegative: true, linear_in_values: true, scale: 1/sqrt(d)}"
SUBJECTS = f'right: {{operator: "operators:right", claims: {CLAIMS}}}\nleaky: {{like: right, operator: "operators:leaky"}}'


@pytest.fixture
def operators(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    project.pytester.makepyfile(operators=OPERATORS)
    monkeypatch.syspath_prepend(project.pytester.path)
    return project


def test_each_law_is_a_test(operators: Project) -> None:
    operators.spec("specs/x.attn.yaml", "obeys: {laws: [masks, values-linear], subjects: right}", subjects=SUBJECTS)
    ids = operators.ids("--attn-spec")
    assert "specs/x.attn.yaml::obeys[right/masks-influence]" in ids
    assert ids[-1] == "specs/x.attn.yaml::obeys[right/enough-laws-applied]"
    assert not any("values-row_sums" in name for name in ids)
    result = operators.run("--attn-spec", "-rs")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] >= 4
    assert "failed" not in outcomes


def test_a_broken_law_shows_the_counterexample_and_a_script(operators: Project) -> None:
    operators.spec("specs/x.attn.yaml", "obeys: {laws: masks-influence, subjects: leaky}", subjects=SUBJECTS)
    result = operators.run("--attn-spec")
    result.stdout.fnmatch_lines(
        [
            "masks-influence is broken: query 3 reads a key that it must not: key 4 (batch 0, head 0), weight *",
            "  observed*broken on example *; the smallest: q[[]1,1,6,1] k[[]1,1,6,1] v[[]...,1] causal=True*",
            "  picture   .attncheck/plots/x/obeys-leaky-masks-influence-*.png",
            "  reproduce import torch",
            "            from operators import leaky as operator",
            "  accept    withdraw the claim that brings the law at specs/x.attn.yaml:*",
            "FAILED specs/x.attn.yaml::obeys[[]leaky/masks-influence] - *masks-influe*",
        ]
    )
    (picture,) = (operators.pytester.path / ".attncheck" / "plots" / "x").glob("*.png")
    assert picture.stat().st_size > 5_000


def test_a_control_breaks_some_law(operators: Project) -> None:
    operators.spec("specs/x.attn.yaml", "obeys: {laws: masks, subjects: right, must_fail_on: leaky}", subjects=SUBJECTS)
    result = operators.run("--attn-spec", "-v")
    result.stdout.fnmatch_lines(["*::obeys[[]leaky/must-fail] PASSED*"])
    assert "failed" not in result.parseoutcomes()


def test_a_model_is_held_against_what_its_configuration_says(project: Project) -> None:
    laws = "laws: [model-causal-future, model-batch, model-cache-stepwise, model-packing]"
    subject = f"tiny: {{config: {project.model}, claims: {{exceptions: {{model-batch-order: known}}}}}}"
    project.spec("specs/x.attn.yaml", f"obeys: {{{laws}}}", subjects=subject)
    result = project.run("--attn-spec", "-rs", "-v")
    result.stdout.fnmatch_lines(
        [
            "*::obeys[[]tiny/model-cache-stepwise] PASSED*",
            "*::obeys[[]tiny/enough-laws-applied] FAILED*",
            "*laws applied, none of model-packing*",
            "            claims.packing is not claimed (4)",
            "SKIPPED*claims.exceptions: known*",
        ]
    )


@pytest.mark.parametrize(
    ("line", "subject", "said"),
    [
        ("laws: maskz", SUBJECTS, "*x.attn.yaml:*obeys: laws: no law 'maskz'; did you mean 'masks'?*"),
        ("laws: model-causal", SUBJECTS, "*x.attn.yaml:*obeys: laws: no law 'model-causal'*"),
        ("laws: all", 'right: {operator: "operators:right"}', "*x.attn.yaml:*subject right: claims: none, and the laws*"),
        ("laws: all", 'right: {operator: "operators:right", claims: {casual: flag}}', "*subject right: claims: unknown claim 'casual'*"),
        ("laws: {of: all, budget: 0}", SUBJECTS, "*x.attn.yaml:*budget*"),
        ("laws: []", SUBJECTS, "*x.attn.yaml:*obeys: laws*"),
        ("observe: attention.entropy, laws: all", SUBJECTS, "*obeys: observe beside laws*"),
    ],
)
def test_mistakes_are_told_when_the_spec_is_read(operators: Project, line: str, subject: str, said: str) -> None:
    operators.spec("specs/x.attn.yaml", f"obeys: {{{line}}}", subjects=subject)
    result = operators.run("--attn-spec")
    result.stdout.fnmatch_lines([said])
    result.assert_outcomes(errors=1)


def test_a_thorough_search_compiles(operators: Project) -> None:
    operators.spec("specs/x.attn.yaml", "obeys: {laws: {of: compiled, examples: 0}, subjects: right}", subjects=SUBJECTS)
    plain = operators.run("--attn-spec", "-rs")
    plain.stdout.fnmatch_lines(["SKIPPED*--attn-thorough*"])


@pytest.mark.slow
def test_a_thorough_search_passes_what_is_right(operators: Project) -> None:
    operators.spec("specs/x.attn.yaml", "obeys: {laws: {of: compiled, examples: 0, budget: 20}, subjects: right}", subjects=SUBJECTS)
    operators.run("--attn-spec", "--attn-thorough").assert_outcomes(passed=2)
