"""`--attn-selftest`: what can fail passes, what nothing makes false is listed, with what was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

CAN = "observe: attention.row_sum, equals: 1"
CANNOT = "observe: attention.entropy, at_least: 0"
WEIGHTS = "observe: {weights.spectral_norm: {matrix: k}}, between: [0, 1e30]"


def test_a_property_that_can_only_pass_is_found(project: Project, workers: tuple[str, ...]) -> None:
    project.spec("specs/x.attn.yaml", f"can: {{{CAN}}}\ncannot: {{{CANNOT}}}")
    result = project.run("--attn-spec", "--attn-selftest", "-v", *workers)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*specs/x.attn.yaml::can[[]selftest]*", "nothing that was done to tiny makes this property false"])
    result.stdout.fnmatch_lines(
        [
            "  claim     cannot is false of a subject whose attention goes wrong",
            "  observed  10 perturbations, none noticed*",
            "            noise* on tiny: holds: *",
            '  again     pytest "specs/x.attn.yaml::cannot[[]selftest]" --attn-selftest',
            "  accept    tighten the property, name a control with `must_fail_on:`, or take it out: *",
        ]
    )


def test_without_the_option_the_tests_are_the_ordinary_ones(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"can: {{{CAN}}}")
    assert project.ids("--attn-spec") == ["specs/x.attn.yaml::can[tiny/words]"]
    assert project.ids("--attn-spec", "--attn-selftest") == ["specs/x.attn.yaml::can[selftest]"]


def test_a_control_is_enough(project: Project) -> None:
    twins = f"tiny: {{config: {project.model}}}\ntwin: {{like: tiny, seed: 1}}"
    project.spec("specs/x.attn.yaml", f"norms: {{{project.fails}, must_fail_on: twin, subjects: tiny}}", subjects=twins)
    result = project.run("--attn-spec", "--attn-selftest", "-v")
    result.stdout.fnmatch_lines(["*::norms[[]selftest] PASSED*"])


def test_what_reads_weights_is_perturbed_there(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"loose: {{{WEIGHTS}}}")
    result = project.run("--attn-spec", "--attn-selftest")
    result.stdout.fnmatch_lines(["  observed  5 perturbations, none noticed*"])


def test_what_cannot_be_judged_is_an_error(project: Project) -> None:
    project.spec("specs/x.attn.yaml", "none: {observe: attention.row_sum, where: {layer: 99}, equals: 1}")
    result = project.run("--attn-spec", "--attn-selftest")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*it could be judged under no perturbation: *"])


@pytest.mark.parametrize(("name", "outcome"), [("masks", "passed"), ("shapes-lengths", "passed")])
def test_laws_notice_a_perturbed_operator(project: Project, name: str, outcome: str) -> None:
    claims = "{causal: flag, reference: softmax, normalised: true, scale: 1/sqrt(d)}"
    project.spec(
        "specs/x.attn.yaml", f"obeys: {{laws: {{of: {name}, examples: 0}}}}", subjects=f"sdpa: {{operator: sdpa, claims: {claims}}}"
    )
    project.run("--attn-spec", "--attn-selftest").assert_outcomes(**{outcome: 1})
