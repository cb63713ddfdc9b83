"""Which command runs what. The specs' only test is exempt, so that nothing is measured and torch stays out of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

EXEMPT = "p: {observe: attention.row_sum, at_most: 2, unless: [{subject: tiny, because: this is about collecting}]}"
MINE, OTHER, NEAR = (f"{name}.attn.yaml::p[tiny/words]" for name in ("specs/mine", "more/other", "tests/near"))
IN_SPECS, PLAIN = "specs/test_beside.py::test_beside", "tests/test_plain.py::test_plain"


@pytest.fixture
def table(project: Project) -> Project:
    for path in ("specs/mine.attn.yaml", "more/other.attn.yaml", "tests/near.attn.yaml"):
        project.spec(path, EXEMPT)
    project.write("specs/test_beside.py", "def test_beside(): pass")
    project.write("tests/test_plain.py", "def test_plain(): pass")
    project.ini("testpaths = tests")
    return project


def test_the_flag_alone_runs_attn_specs_and_nothing_else(table: Project) -> None:
    assert table.ids("--attn-spec") == [MINE, IN_SPECS]


def test_attn_specs_is_relative_to_the_ini_file(table: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    table.ini("testpaths = tests", "attn_specs = more tests/near.attn.yaml")
    monkeypatch.chdir(table.pytester.path / "tests")
    assert table.ids("--attn-spec") == [OTHER, NEAR]


def test_the_flag_with_a_folder(table: Project) -> None:
    assert table.ids("--attn-spec", "more/") == [OTHER]
    assert table.ids("--attn-spec", "specs/") == [MINE, IN_SPECS]


def test_the_flag_with_folders_keeps_their_order(table: Project) -> None:
    assert table.ids("--attn-spec", "specs/", "tests/") == [MINE, IN_SPECS, NEAR, PLAIN]
    assert table.ids("tests/", "specs/", "--attn-spec") == [NEAR, PLAIN, MINE, IN_SPECS]


def test_a_spec_named_explicitly_needs_no_flag(table: Project) -> None:
    assert table.ids(MINE) == [MINE]
    assert table.ids("specs/mine.attn.yaml::p") == [MINE]
    assert table.ids("specs/mine.attn.yaml", "tests/test_plain.py") == [MINE, PLAIN]


def test_without_the_flag_no_spec_runs(table: Project) -> None:
    assert table.ids() == [PLAIN]
    assert table.ids("tests/") == [PLAIN]


def test_attn_collect_takes_those_that_are_met(table: Project) -> None:
    table.ini("testpaths = tests", "attn_collect = true")
    assert table.ids() == [NEAR, PLAIN]


def test_addopts_adds_the_specs_to_testpaths(table: Project) -> None:
    table.ini("testpaths = tests", "addopts = --attn-spec")
    assert table.ids() == [NEAR, PLAIN, MINE, IN_SPECS]
    assert table.ids("tests/test_plain.py") == [PLAIN]


def test_addopts_without_testpaths_collects_each_once(table: Project) -> None:
    table.ini("addopts = --attn-spec")
    assert sorted(table.ids()) == sorted([OTHER, MINE, IN_SPECS, NEAR, PLAIN])


def test_addopts_without_any_spec_folder_is_no_error(project: Project) -> None:
    project.ini("testpaths = tests", "addopts = --attn-spec")
    project.write("tests/test_plain.py", "def test_plain(): pass")
    assert project.ids() == [PLAIN]


def test_the_flag_without_any_spec_folder_says_so(project: Project) -> None:
    result = project.run("--attn-spec")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--attn-spec: *specs does not exist (the default of the ini option attn_specs)*"])


def test_a_configured_folder_that_is_absent_says_so(project: Project) -> None:
    project.ini("attn_specs = speks")
    result = project.run("--attn-spec")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*speks does not exist (the ini option attn_specs)*"])


def test_specs_that_are_met_and_not_run_are_counted(table: Project, workers: tuple[str, ...]) -> None:
    for number in range(3):
        table.spec(f"specs/x{number}.attn.yaml", EXEMPT)
    Path(table.pytester.path / "specs/test_beside.py").unlink()
    result = table.run("specs/", *workers)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["4 spec files were met; add --attn-spec"])


def test_an_ordinary_run_is_not_told_about_specs(table: Project) -> None:
    table.spec("tests/second.attn.yaml", EXEMPT)
    result = table.run()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*--attn-spec*")


@pytest.mark.parametrize(
    ("args", "passed", "skipped"),
    [(("--attn-spec",), 1, 1), (("--attn-spec", "specs/", "tests/"), 2, 2), ((MINE,), 0, 1), ((), 1, 0)],
    ids=["flag", "flag-and-folders", "explicit", "nothing"],
)
def test_workers_run_the_same(table: Project, args: tuple[str, ...], passed: int, skipped: int) -> None:
    table.run("-n", "2", *args).assert_outcomes(passed=passed, skipped=skipped)


def test_workers_with_addopts(table: Project) -> None:
    table.ini("testpaths = tests", "addopts = --attn-spec")
    table.run("-n", "2").assert_outcomes(passed=2, skipped=2)


@pytest.mark.parametrize(
    ("option", "allowed"),
    [("--attn-plots=some", "failed, all, none"), ("--attn-dtype=fp7", "float64, float32, *"), ("--attn-device=gpu", "auto, cpu, *")],
)
def test_option_values_are_checked_at_once(table: Project, option: str, allowed: str) -> None:
    result = table.run("--attn-spec", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{option.split('=')[0]}: * is not known; allowed: {allowed}*"])
