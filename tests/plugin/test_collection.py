"""How specs become tests: ids, places, marks, malformed files, selection, and what collecting costs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HANGS = 60.0
"""Seconds of processor time that only something unbounded takes; how fast it is, benchmarks/ measures."""

if TYPE_CHECKING:
    from conftest import Project

MALFORMED = """
attncheck: 1
subjects: {tiny: {config: {model_type: llama}}}
inputs: {words: {tokens: random}}
expect:
  one: {observe: attention.entrophy, at_most: 1}
  two: {observe: attention.entropy, at_most: 1, at_leest: 0}
"""


def test_a_malformed_file_is_one_error_with_all_its_places_and_costs_no_other_file(project: Project, workers: tuple[str, ...]) -> None:
    project.write("specs/bad.attn.yaml", MALFORMED.strip())
    project.spec("specs/good.attn.yaml", f"p: {{{project.holds}, unless: [{{subject: tiny, because: torch takes seconds to load}}]}}")
    result = project.run("--attn-spec", *workers)
    result.assert_outcomes(skipped=1, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*ERROR collecting specs/bad.attn.yaml*",
            "2 problems:",
            "specs/bad.attn.yaml:5:*attention.entrophy*did you mean 'attention.entropy'*",
            "specs/bad.attn.yaml:6:*at_leest*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_ids_name_the_axes_that_vary(project: Project) -> None:
    subjects = f"tiny: {{config: {project.model}, attn_implementation: [eager, sdpa], dtype: float32}}"
    project.spec(
        "specs/x.attn.yaml", f"p: {{{project.holds}}}\nq: {{observe: {{weights.norm: {{matrix: q}}}}, at_most: 9}}", subjects=subjects
    )
    assert project.ids("--attn-spec") == [f"specs/x.attn.yaml::{test}" for test in ("p[tiny/eager/words]", "p[tiny/sdpa/words]", "q[tiny]")]


def test_failures_lie_at_the_property_in_the_spec(project: Project) -> None:
    path = project.spec("specs/x.attn.yaml", f"holds: {{{project.holds}}}\nfails: {{{project.fails}}}")
    project.write(
        "conftest.py",
        "def pytest_runtest_logreport(report):\n"
        "    if report.when == 'call' and report.failed:\n"
        "        crash = report.longrepr.reprcrash\n"
        "        print('AT', report.location[:2], crash.path, crash.lineno)\n",
    )
    result = project.run("--attn-spec", "-s")
    result.stdout.fnmatch_lines([f"*AT ('specs/x.attn.yaml', 7) {path} 8"])


def test_marks_of_specs_are_known_under_strict_markers_and_select(project: Project) -> None:
    project.ini("addopts = --strict-markers", "markers =", "    large: big models")
    subjects = f"tiny: {{config: {project.model}}}\nbig: {{like: tiny, marks: [large, nightly]}}"
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}\nq: {{{project.holds}, marks: quick}}", subjects=subjects)
    assert project.ids("--attn-spec", "-m", "nightly") == ["specs/x.attn.yaml::p[big/words]", "specs/x.attn.yaml::q[big/words]"]
    assert project.ids("--attn-spec", "-m", "quick and not large") == ["specs/x.attn.yaml::q[tiny/words]"]


def test_an_ini_against_imported_tests_does_not_hide_specs(project: Project) -> None:
    project.ini("collect_imported_tests = false", "python_functions = check_*")
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}")
    assert project.ids("--attn-spec") == ["specs/x.attn.yaml::p[tiny/words]"]


def test_only_what_is_selected_is_measured(project: Project) -> None:
    subjects = f"tiny: {{config: {project.model}}}\nother: {{like: tiny, seed: 1}}"
    project.spec("specs/x.attn.yaml", f"rows: {{{project.holds}}}\nq: {{{project.fails}}}", subjects=subjects)
    project.run("--attn-spec", "-k", "rows and other").assert_outcomes(passed=1, deselected=3)
    (record,) = project.records
    text = record.read_text()
    assert '"name": "other on words"' in text
    assert "attention.entropy" not in text


def test_properties_of_one_pass_share_its_measurement(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}\nq: {{{project.fails}}}")
    project.spec("specs/y.attn.yaml", f"r: {{{project.holds}}}")
    project.run("--attn-spec").assert_outcomes(passed=2, failed=1)
    (record,) = project.records
    text = record.read_text()
    assert "attention.entropy" in text
    assert "attention.row_sum" in text


def test_last_failed_and_exit_first(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"a: {{{project.holds}}}\nb: {{{project.fails}}}\nc: {{{project.fails}}}")
    project.run("--attn-spec", "-x").assert_outcomes(passed=1, failed=1)
    project.run("--attn-spec").assert_outcomes(passed=1, failed=2)
    project.run("--attn-spec", "--lf").assert_outcomes(failed=2)


def test_collecting_measures_nothing_and_leaves_nothing(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}")
    assert project.ids("--attn-spec")
    assert not (project.pytester.path / ".attncheck").exists()


BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "xarray", "scipy", "matplotlib"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""


def test_collecting_needs_neither_torch_nor_transformers_nor_xarray(project: Project) -> None:
    project.write("conftest.py", BLOCK)
    subjects = f"tiny: {{config: {project.model}}}\nglass: {{pretrained: 'package:glassllm'}}"
    expect = f"p: {{{project.holds}}}\nq: {{observe: {{weights.alpha: {{matrix: q}}}}, reduce: {{layer: spread}}, at_least: 0}}"
    project.spec("specs/x.attn.yaml", expect, subjects=subjects)
    command = [sys.executable, "-m", "pytest", "--attn-spec", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=project.pytester.path, capture_output=True, text=True, timeout=120)
    assert "4 tests collected" in done.stdout, done.stdout + done.stderr


def test_two_thousand_tests_are_collected_in_seconds(project: Project) -> None:
    subjects = f"tiny: {{config: {project.model}, attn_implementation: [eager, sdpa]}}"
    project.spec(
        "specs/x.attn.yaml", "\n".join(f"p-{n}: {{observe: attention.entropy, at_most: {n}}}" for n in range(1000)), subjects=subjects
    )
    begun = time.process_time()
    assert len(project.ids("--attn-spec")) == 2000
    assert time.process_time() - begun < HANGS


def test_without_specs_the_plugin_imports_nothing_else(tmp_path: Path) -> None:
    listing = "import pytest, sys; pytest.main(['--collect-only', '-q']); print(*sorted(n for n in sys.modules if 'attncheck' in n))"
    done = subprocess.run([sys.executable, "-c", listing], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    imported = [name for name in done.stdout.split() if name.startswith("attncheck")]
    own = ["attncheck.core", "attncheck.core.session", "attncheck.plugin", "attncheck.plugin.controller", "attncheck.plugin.state"]
    assert imported == ["attncheck", *own]


def test_a_property_may_be_called_almost_anything(project: Project) -> None:
    project.spec("specs/x.attn.yaml", "\n".join(f"{name}: {{{project.holds}}}" for name in ("setup-module", "test", "class", "one")))
    project.run("--attn-spec").assert_outcomes(passed=4)
    project.spec("specs/x.attn.yaml", f"pytestmark: {{{project.holds}}}")
    project.run("--attn-spec").stdout.fnmatch_lines(["specs/x.attn.yaml:7:*: a property cannot be called 'pytestmark': *"])
