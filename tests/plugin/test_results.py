"""What a run leaves for machines and people: JSON, junit, pictures, the header."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING, Any

import pytest

from attncheck.engine import results

if TYPE_CHECKING:
    from conftest import Project


def told(project: Project, path: str = "out.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((project.pytester.path / path).read_text())
    return content


def test_the_json_file_holds_verdicts_numbers_measurements_and_environment(project: Project) -> None:
    subjects = f"tiny: {{config: {project.model}}}\ncuda: {{like: tiny, attn_implementation: flash_attention_2}}"
    exempt = "unless: [{subject: tiny, because: only here}]"
    expect = f"holds: {{{project.holds}}}\nfails: {{{project.fails}}}\nexempt: {{{project.holds}, subjects: tiny, {exempt}}}"
    project.spec("specs/x.attn.yaml", expect + f"\nfar: {{{project.holds}, where: {{head: 7}}, subjects: tiny}}", subjects=subjects)
    project.run("--attn-spec", "--attn-json", "deep/out.json").assert_outcomes(passed=1, failed=1, errors=1, skipped=3)
    found = told(project, "deep/out.json")
    assert found["environment"].keys() >= {"attncheck", "torch", "transformers", "python", "platform"}
    cases = {case["test"].split("::")[1]: case for case in found["cases"]}
    assert {name: case["outcome"] for name, case in cases.items()} == {
        "holds[tiny/words]": "passed",
        "holds[cuda/words]": "skipped",
        "fails[tiny/words]": "failed",
        "fails[cuda/words]": "skipped",
        "exempt[tiny/words]": "skipped",
        "far[tiny/words]": "error",
    }
    fails = cases["fails[tiny/words]"]
    assert fails["numbers"]
    assert all(isinstance(number, float | int) for number in fails["numbers"].values())
    assert fails["offenders"][0]["observed"] > 0.01
    assert fails["place"] == "specs/x.attn.yaml:9:3"
    assert "flash-attn" in cases["holds[cuda/words]"]["headline"]
    assert cases["exempt[tiny/words]"]["headline"] == "unless: only here"
    (key,) = fails["passes"]
    (entropy,) = [one for one in found["measurements"] if one["pass"] == key and one["quantity"].startswith("attention.entropy")]
    assert (entropy["dtype"], entropy["unit"], entropy["decided"]) == ("float32", "nats", "exact")
    assert entropy["summary"]["sizes"] == {"sample": 1, "layer": 2, "head": 2}
    assert entropy["dims"] == ["sample", "layer", "head"]
    assert entropy["labels"] == {"sample": [0], "layer": [0, 1], "head": [0, 1]}
    assert len(entropy["values"]) == 4
    assert max(entropy["values"]) == pytest.approx(fails["numbers"]["max"], rel=1e-5)
    assert [one["quantity"] for one in found["measurements"] if one.get("fault")], "what could not be measured is told too"


def test_a_quantity_of_too_many_numbers_is_left_out_and_says_so(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_VALUES", 3)
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}")
    project.run("--attn-spec", "--attn-json", "out.json").assert_outcomes(passed=1)
    (measured,) = told(project, "out.json")["measurements"]
    assert measured["values"] is None
    assert measured["left_out"] == "4 values, more than 3"
    assert measured["summary"]["finite"] == 4


def test_the_json_file_names_the_files_that_were_refused(project: Project) -> None:
    project.spec("specs/x.attn.yaml", "p: {observe: attention.entrophy, at_most: 1}")
    project.run("--attn-spec", "--attn-json", "out.json").assert_outcomes(errors=1)
    (refused,) = told(project)["refused"]
    assert refused["file"] == "specs/x.attn.yaml"
    assert "attention.entrophy" in refused["message"]
    assert told(project)["cases"] == []


def test_the_ini_file_may_ask_for_json_and_each_run_replaces_it(project: Project) -> None:
    project.ini("attn_json = verdicts.json")
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}")
    for _ in range(2):
        project.run("--attn-spec").assert_outcomes(passed=1)
    assert len(told(project, "verdicts.json")["cases"]) == 1


def test_junit_carries_the_measured_numbers(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}\nq: {{{project.fails}}}")
    project.run("--attn-spec", "--junitxml", "junit.xml")
    cases = ElementTree.parse(project.pytester.path / "junit.xml").getroot().iter("testcase")
    numbers = {case.get("name"): {one.get("name"): float(one.get("value", "nan")) for one in case.iter("property")} for case in cases}
    assert numbers.keys() == {"p[tiny/words]", "q[tiny/words]"}
    assert numbers["p[tiny/words]"]["attn.median"] == pytest.approx(1, abs=1e-5)
    assert numbers["q[tiny/words]"]["attn.min"] > 0.01


@pytest.mark.parametrize(("which", "drawn"), [("failed", {"q"}), ("all", {"p", "q"}), ("none", set())])
def test_pictures_are_drawn_for_those_that_were_asked_for(project: Project, which: str, drawn: set[str]) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}\nq: {{{project.fails}}}")
    result = project.run("--attn-spec", f"--attn-plots={which}")
    pictures = (project.pytester.path / ".attncheck" / "plots" / "x").glob("*.png")
    assert {picture.name[0] for picture in pictures} == drawn
    if "q" in drawn:
        result.stdout.fnmatch_lines(["  picture   .attncheck/plots/x/q-tiny-words.png"])


def test_the_header_says_versions_and_device_where_specs_run(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}, unless: [{{subject: tiny, because: header only}}]}}")
    project.write("tests/test_plain.py", "def test_plain(): pass")
    project.run("--attn-spec", "--attn-device", "cpu").stdout.fnmatch_lines(["attncheck: attncheck 0.*, torch *, device cpu"])
    project.run("tests").stdout.no_fnmatch_line("attncheck: *")


def test_nothing_but_results_is_printed_when_nobody_watches(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}")
    result = project.run("--attn-spec", "-q")
    assert result.outlines[0].startswith(".")
    result.stdout.no_fnmatch_line("*measuring*")


def test_a_file_that_cannot_be_written_does_not_cost_the_report(project: Project) -> None:
    project.write("taken/x", "")
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}\nq: {{{project.fails}}}")
    result = project.run("--attn-spec", "--attn-json", "taken")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["entropy * > 0.01 *", "--attn-json taken could not be written: *"])
    assert "Traceback" not in result.stdout.str()
    passing = project.run("--attn-spec", "-k", "p and not q", "--attn-json", "taken")
    assert passing.ret != 0, "a gate whose file is missing has not passed"
