"""The specs that ship, on the small models: the same verdicts alone and under workers, and pytest's own selection and reports."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from acceptance_project import SHIPPED, Acceptance

NOT_LARGE = ("-m", "not large")


def copied(acceptance: Acceptance, *names: str) -> None:
    (acceptance.path / "specs").mkdir()
    for path in sorted(SHIPPED.glob("*.attn.yaml")):
        if not names or path.name.split(".")[0] in names:
            shutil.copy(path, acceptance.path / "specs")
    shutil.copytree(SHIPPED.parent / "baselines", acceptance.path / "baselines")


def told(path: Path) -> dict[str, tuple[str, str]]:
    """Test -> (outcome, headline) of a run's --attn-json."""
    return {result["test"]: (result["outcome"], str(result.get("headline"))) for result in json.loads(path.read_text())["cases"]}


@pytest.mark.slow
def test_workers_come_to_the_same_verdicts_as_one_process(acceptance: Acceptance) -> None:
    copied(acceptance)
    alone, workers = acceptance.path / "alone.json", acceptance.path / "workers.json"
    one = acceptance.run("--attn-spec", "specs/", *NOT_LARGE, "--attn-json", str(alone))
    two = acceptance.run("--attn-spec", "specs/", *NOT_LARGE, "--attn-json", str(workers), "-n", "2")
    outcomes = one.parseoutcomes()
    assert outcomes["passed"] >= 40
    assert not {"failed", "errors"} & outcomes.keys()
    assert {name: count for name, count in outcomes.items() if name != "deselected"} == two.parseoutcomes()
    assert told(alone) == told(workers)


def spoiled(acceptance: Acceptance) -> None:
    """softmax_norms with a kernel bound that no float32 kernel keeps."""
    copied(acceptance, "softmax_norms")
    path = acceptance.path / "specs" / "softmax_norms.attn.yaml"
    text, count = re.subn(r"(observe: kernel.error\n    at_most:) \S+", r"\1 1e-9", path.read_text())
    assert count == 1
    path.write_text(text)


def test_keywords_exit_first_and_last_failed(acceptance: Acceptance) -> None:
    spoiled(acceptance)
    everything = acceptance.run("--attn-spec", "-k", "glassllm or mgm", *NOT_LARGE).parseoutcomes()
    assert everything["failed"] == 4
    assert everything["passed"] >= 12
    acceptance.run("--attn-spec", "--lf", *NOT_LARGE).assert_outcomes(failed=4)
    first = acceptance.run("--attn-spec", "-x", "-k", "mgm and kernel", *NOT_LARGE).parseoutcomes()
    assert first["failed"] == 1
    assert "passed" not in first
    only = acceptance.run("--attn-spec", "-k", "rows-sum-to-one and mgm and eager", *NOT_LARGE)
    only.assert_outcomes(passed=1, deselected=everything["passed"] + everything["failed"] + everything["deselected"] - 1)


def test_junit_names_places_messages_and_numbers(acceptance: Acceptance) -> None:
    spoiled(acceptance)
    acceptance.run("--attn-spec", "-k", "glassllm and sdpa", *NOT_LARGE, "--junitxml", "report.xml", "-o", "junit_family=xunit1")
    cases = {case.get("name"): case for case in ElementTree.parse(acceptance.path / "report.xml").iter("testcase")}
    failed = next(case for name, case in cases.items() if str(name).startswith("kernel-applies"))
    assert failed.get("file") == "specs/softmax_norms.attn.yaml"
    line = (acceptance.path / "specs" / "softmax_norms.attn.yaml").read_text().splitlines()[int(str(failed.get("line")))]
    assert line.strip() == "kernel-applies-what-it-was-given:"
    failure = failed.find("failure")
    assert failure is not None
    assert re.match(r"(Failed: )?kernel.error \S+ > 1e-09 at .*layer \d, head \d", str(failure.get("message")))
    numbers = {str(one.get("name")): one.get("value") for one in failed.iter("property")}
    assert float(str(numbers["attn.max"])) > 1e-9
    passed = [case for case in cases.values() if case.find("failure") is None]
    assert len(passed) >= 3
    assert all(case.find("properties") is not None for case in passed)


def test_the_line_that_a_failure_prints_repeats_it(acceptance: Acceptance) -> None:
    spoiled(acceptance)
    text = acceptance.run("--attn-spec", "-k", "rxnmapper and eager and kernel", *NOT_LARGE).stdout.str()
    again = re.search(r'^  again +pytest "(\S+)"$', text, flags=re.MULTILINE)
    assert again is not None
    result = acceptance.run(again[1])
    result.assert_outcomes(failed=1)
    headline = re.search(r"^kernel.error \S+ > .*$", text, flags=re.MULTILINE)
    assert headline is not None
    assert headline[0] in result.stdout.str()
