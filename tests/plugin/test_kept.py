"""What is kept between runs of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from attncheck.engine import identity

if TYPE_CHECKING:
    from conftest import Project


def test_a_second_run_measures_nothing_and_says_so(project: Project, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNCHECK_CACHE", str(project.pytester.path / "cache"))
    monkeypatch.setenv("ATTNCHECK_CACHE_LIMIT", str(1 << 28))
    monkeypatch.setattr(identity, "loaded_code", lambda: "")  # in this process the tests are loaded; a worker has its own
    project.spec("x.attn.yaml", f"rows: {{{project.holds}}}\nlow: {{{project.fails}}}")
    first = project.run("--attn-spec", "x.attn.yaml", *workers)
    first.assert_outcomes(passed=1, failed=1)
    first.stdout.no_fnmatch_line("*kept from earlier runs*")
    second = project.run("--attn-spec", "x.attn.yaml", *workers)
    second.assert_outcomes(passed=1, failed=1)
    second.stdout.fnmatch_lines(["2 of 2 quantities are kept from earlier runs; --attn-no-cache measures anew"])
    again = project.run("--attn-spec", "x.attn.yaml", "--attn-no-cache", *workers)
    again.assert_outcomes(passed=1, failed=1)
    again.stdout.no_fnmatch_line("*kept from earlier runs*")


def test_with_a_conftest_everything_is_measured_anew(project: Project, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNCHECK_CACHE", str(project.pytester.path / "cache"))
    monkeypatch.setenv("ATTNCHECK_CACHE_LIMIT", str(1 << 28))
    project.write("conftest.py", "import os")
    project.spec("x.attn.yaml", f"rows: {{{project.holds}}}")
    for _ in range(2):
        result = project.run("--attn-spec", "x.attn.yaml", *workers)
        result.assert_outcomes(passed=1)
        result.stdout.no_fnmatch_line("*kept from earlier runs*")


def test_so_it_is_for_the_console_script(project: Project, tmp_path: Path) -> None:
    """It is a module of its own in the process, and under a second name once torch has imported multiprocessing."""
    project.spec("specs/x.attn.yaml", f"good: {{{project.holds}, inputs: [words, others]}}")
    path = project.pytester.path / "specs/x.attn.yaml"
    path.write_text(path.read_text().replace("inputs:\n", "inputs:\n  others: {tokens: random, length: 7}\n", 1))
    script = Path(sys.executable).with_name("pytest")
    environment = {**os.environ, "ATTNCHECK_CACHE": str(tmp_path / "kept"), "ATTNCHECK_CACHE_LIMIT": str(1 << 28)}
    command = [script, "--attn-spec", "-p", "no:cacheprovider"]
    for said in ("", "2 of 2 quantities are kept from earlier runs"):
        done = subprocess.run(command, cwd=project.pytester.path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert said in done.stdout
        assert bool(said) == ("are kept" in done.stdout)
