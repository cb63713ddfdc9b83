"""Baselines in real pytest runs: recording, gating, accepting, and what must never delete, tear or silently replace one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

EXPECT = """
entropy: {observe: attention.entropy, baseline: {}}
norm: {observe: attention.frobenius_norm, reduce: {sample: mean}, baseline: {}}
"""
UPDATE = ("--attn-spec", "--snapshot-update")


def subject(project: Project, more: str = "") -> str:
    """With weights that are large enough for its attention to be far from uniform."""
    return f"tiny: {{config: {project.model.replace('}', ', initializer_range: 0.5}')}{more}}}"


def spec(project: Project, *, more: str = "", expect: str = EXPECT, path: str = "specs/x.attn.yaml") -> None:
    """`more` changes the model: another seed is other weights."""
    project.spec(path, expect, subjects=subject(project, more))


def recorded(project: Project) -> dict[str, str]:
    """Every file under baselines/, temporary ones too, with its text."""
    folder = project.pytester.path / "baselines"
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def apart(project: Project, *args: str, **environment: str) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", *args]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.Popen(command, cwd=project.pytester.path, env=settings, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_baseline_that_is_missing_fails_and_names_the_command_that_records_it(project: Project) -> None:
    spec(project)
    result = project.run("--attn-spec")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*no baseline of entropy yet*", '  accept    pytest "specs/x.attn.yaml::entropy?tiny/words?" --snapshot-update']
    )
    assert not (project.pytester.path / "baselines").exists()
    project.run("specs/x.attn.yaml::entropy[tiny/words]", "--snapshot-update").assert_outcomes(passed=1)
    assert list(recorded(project)) == ["x/entropy-tiny-words.json"]
    project.run("--attn-spec").assert_outcomes(passed=1, failed=1)


def test_what_is_recorded_passes_and_a_moved_model_fails_with_old_new_and_change(project: Project) -> None:
    spec(project)
    result = project.run(*UPDATE)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["baselines: 2 recorded, 0 updated, 0 unchanged"])
    held = recorded(project)
    project.run("--attn-spec").assert_outcomes(passed=2)
    result = project.run(*UPDATE)
    result.stdout.fnmatch_lines(["baselines: 0 recorded, 0 updated, 2 unchanged"])
    assert recorded(project) == held
    spec(project, more=", seed: 1")
    result = project.run("--attn-spec")
    result.assert_outcomes(failed=2)
    result.stdout.re_match_lines(
        [
            r"entropy change in tolerances \d+ > 1 at layer \d, head \d \(\d of 4 places hold\)",
            r"\s+layer \d, head \d +[\d.]+ +\([\d.]+ then, [\d.]+ now, [+-][\d.e-]+\)",
            r"\s+baseline: baselines/x/entropy-tiny-words.json",
            r"  picture   .attncheck/plots/x/entropy-tiny-words.png",
            r'  accept    pytest "specs/x.attn.yaml::entropy\[tiny/words\]" --snapshot-update',
        ],
        consecutive=False,
    )
    assert recorded(project) == held
    project.run(*UPDATE).stdout.fnmatch_lines(["baselines: 0 recorded, 2 updated, 0 unchanged"])
    assert recorded(project) != held
    project.run("--attn-spec").assert_outcomes(passed=2)


def test_an_update_of_some_tests_leaves_all_other_files_alone(project: Project, workers: tuple[str, ...]) -> None:
    spec(project)
    spec(project, path="specs/y.attn.yaml")
    project.run(*UPDATE).assert_outcomes(passed=4)
    held = recorded(project)
    spec(project, more=", seed: 1")
    spec(project, more=", seed: 1", path="specs/y.attn.yaml")
    project.run(*UPDATE, "-k", "entropy", "--ignore", "specs/y.attn.yaml", *workers).assert_outcomes(passed=1)
    now = recorded(project)
    assert now.keys() == held.keys()
    assert [name for name in now if now[name] != held[name]] == ["x/entropy-tiny-words.json"]
    project.run("--snapshot-update", "--attn-spec", "specs/y.attn.yaml::norm[tiny/words]").assert_outcomes(passed=1)
    assert recorded(project).keys() == held.keys()


def test_snapshots_of_python_tests_are_not_touched_by_an_update_of_baselines_nor_baselines_by_theirs(project: Project) -> None:
    project.write("tests/test_snap.py", "def test_snap(snapshot):\n    assert {'a': 1} == snapshot")
    spec(project)
    project.run("--attn-spec", "specs", "tests", "--snapshot-update").assert_outcomes(passed=3)
    stored = project.pytester.path / "tests" / "__snapshots__" / "test_snap.ambr"
    held, text = recorded(project), stored.read_text()
    project.run(*UPDATE).assert_outcomes(passed=2)
    project.run("tests", "--snapshot-update").assert_outcomes(passed=1)
    project.run("--attn-spec", "specs", "tests", "-k", "norm", "--snapshot-update").assert_outcomes(passed=1)
    assert recorded(project) == held
    assert stored.read_text() == text


def test_updating_is_refused_in_ci_unless_asked_for(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    spec(project)
    monkeypatch.setenv("CI", "true")
    result = project.run(*UPDATE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*CI is set*--attn-update-in-ci"])
    result = project.run("specs/x.attn.yaml::norm[tiny/words]", "--snapshot-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not (project.pytester.path / "baselines").exists()
    project.run("--attn-spec").assert_outcomes(failed=2)
    project.run(*UPDATE, "--attn-update-in-ci").assert_outcomes(passed=2)
    project.run("--attn-spec").assert_outcomes(passed=2)
    project.write("tests/test_snap.py", "def test_snap(snapshot):\n    assert 1 == snapshot")
    project.run("tests", "--snapshot-update").assert_outcomes(passed=1)
    project.ini("attn_update_in_ci = true")
    project.run(*UPDATE).assert_outcomes(passed=2)
    monkeypatch.setenv("CI", "false")
    project.ini()
    project.run(*UPDATE).assert_outcomes(passed=2)


def test_without_syrupy_baselines_update_all_the_same(project: Project) -> None:
    spec(project)
    project.run("-p", "no:syrupy", *UPDATE).assert_outcomes(passed=2)
    project.run("-p", "no:syrupy", "--attn-spec").assert_outcomes(passed=2)


def test_new_only_records_and_never_overwrites(project: Project) -> None:
    spec(project, expect="entropy: {observe: attention.entropy, baseline: {}}")
    project.run(*UPDATE).assert_outcomes(passed=1)
    held = recorded(project)
    spec(project, more=", seed: 1")
    project.run("--attn-spec", "--snapshot-update-new-only").assert_outcomes(passed=1, failed=1)
    now = recorded(project)
    assert now["x/entropy-tiny-words.json"] == held["x/entropy-tiny-words.json"]
    assert "x/norm-tiny-words.json" in now


def test_another_input_is_not_comparable_and_neither_passes_nor_fails(project: Project) -> None:
    spec(project)
    project.run(*UPDATE)
    path = project.pytester.path / "specs" / "x.attn.yaml"
    path.write_text(path.read_text().replace("length: 12", "length: 13"))
    result = project.run("--attn-spec")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["*not comparable: baselines/x/entropy-tiny-words.json was recorded on another input*", "*--snapshot-update*"]
    )
    project.run("--attn-spec", "--snapshot-update-new-only").assert_outcomes(errors=2)
    project.run(*UPDATE).assert_outcomes(passed=2)
    project.run("--attn-spec").assert_outcomes(passed=2)


def test_another_selection_or_shape_is_not_comparable(project: Project) -> None:
    spec(project, expect="entropy: {observe: attention.entropy, baseline: {}}")
    project.run(*UPDATE)
    spec(project, expect="entropy: {observe: attention.entropy, where: {layer: 0}, baseline: {}}")
    project.run("--attn-spec").stdout.fnmatch_lines(["*not comparable*holds 'attention.entropy*'*measures*where layer 0*"])
    deeper = project.model.replace("num_hidden_layers: 2", "num_hidden_layers: 3")
    project.spec("specs/x.attn.yaml", "entropy: {observe: attention.entropy, baseline: {}}", subjects=f"tiny: {{config: {deeper}}}")
    result = project.run("--attn-spec")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*not comparable*has other places (1 sample, 2 layer, 2 head; now 1 sample, 3 layer, 2 head)*"])


def test_one_file_holds_several_environments_and_the_nearest_is_named(project: Project) -> None:
    model = project.model
    axes = "attn_implementation: [sdpa, eager], dtype: [float32, bfloat16]"
    expect = "entropy: {observe: attention.entropy, baseline: {}}"
    project.spec("specs/x.attn.yaml", expect, subjects=f"tiny: {{config: {model}, {axes}}}")
    project.run(*UPDATE).stdout.fnmatch_lines(["baselines: 1 recorded, 0 updated, 3 unchanged"])
    project.spec(
        "specs/x.attn.yaml", expect.replace("{}", "{across_dtypes: {rtol: 0, atol: 0}}"), subjects=f"tiny: {{config: {model}, {axes}}}"
    )
    result = project.run("--attn-spec")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*nearest recording is of another environment: float32, sdpa, cpu*"])
    project.run(*UPDATE)
    held = json.loads(recorded(project)["x/entropy-tiny-words.json"])["recordings"]
    found = [(one["environment"]["dtype"], one["environment"]["attn_implementation"]) for one in held]
    assert found[:2] == [("float32", "sdpa"), ("bfloat16", "sdpa")]


def test_a_control_cannot_have_a_baseline(project: Project) -> None:
    other = subject(project).replace("tiny:", "other:")
    expect = "entropy: {observe: attention.entropy, baseline: {}, subjects: tiny, must_fail_on: other}"
    project.spec("specs/x.attn.yaml", expect, subjects=f"{subject(project)}\n{other}")
    result = project.run(*UPDATE)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*a baseline has no negative control*"])


def test_a_damaged_baseline_is_an_error_and_kept(project: Project) -> None:
    spec(project, expect="entropy: {observe: attention.entropy, baseline: {}}")
    project.run(*UPDATE)
    path = project.pytester.path / "baselines" / "x" / "entropy-tiny-words.json"
    path.write_text("<<<<<<< ours\n" + path.read_text())
    broken = path.read_text()
    for args in (("--attn-spec",), UPDATE):
        result = project.run(*args)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["*is no baseline*merge conflict*"])
    assert path.read_text() == broken


def test_a_warning_level_and_exemptions_work_as_for_any_demand(project: Project) -> None:
    spec(project, expect="entropy: {observe: attention.entropy, baseline: {}, level: warn}")
    project.run("--attn-spec").assert_outcomes(passed=1, warnings=1)
    spec(project, expect="entropy: {observe: attention.entropy, baseline: {}, unless: {subject: tiny, because: rebuilt}}")
    project.run(*UPDATE).assert_outcomes(skipped=1)
    assert not (project.pytester.path / "baselines").exists()


KILLED = """
import os, signal
import attncheck.core.baseline as baseline
whole = os.replace
def replace(source, target):
    if str(target).endswith("norm-tiny-words.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    whole(source, target)
os.replace = replace
"""


def test_a_run_that_is_killed_while_it_writes_leaves_whole_files(project: Project) -> None:
    spec(project)
    project.run(*UPDATE).assert_outcomes(passed=2)
    held = recorded(project)
    spec(project, more=", seed: 1")
    conftest = project.write("conftest.py", KILLED)
    run = apart(project, *UPDATE)
    printed, _ = run.communicate(timeout=120)
    assert run.returncode == -signal.SIGKILL, printed
    now = {name: text for name, text in recorded(project).items() if name.endswith(".json")}
    assert now["x/norm-tiny-words.json"] == held["x/norm-tiny-words.json"]
    assert now["x/entropy-tiny-words.json"] != held["x/entropy-tiny-words.json"]
    assert len(recorded(project)) == 3
    conftest.unlink()
    project.run(*UPDATE).assert_outcomes(passed=2)
    assert recorded(project).keys() == held.keys()


@pytest.mark.slow
def test_two_runs_at_once_write_what_each_measured(project: Project) -> None:
    expect = "entropy: {observe: attention.entropy, baseline: {across_dtypes: {rtol: 0, atol: 0}}}"
    project.spec("specs/x.attn.yaml", expect, subjects=subject(project))
    runs = [apart(project, *UPDATE, "--attn-dtype", dtype) for dtype in ("float32", "bfloat16")]
    printed = [run.communicate(timeout=180)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], printed
    held = json.loads(recorded(project)["x/entropy-tiny-words.json"])["recordings"]
    assert {one["environment"]["dtype"] for one in held} == {"float32", "bfloat16"}
    assert len(recorded(project)) == 1


def test_check_reads_and_never_writes(project: Project) -> None:
    import attncheck

    spec(project)
    root = project.pytester.path
    path = root / "specs" / "x.attn.yaml"
    assert [verdict.passed for verdict in attncheck.check(path, root=root)] == [False, False]
    assert not (root / "baselines").exists()
    project.run(*UPDATE)
    held = recorded(project)
    assert [verdict.passed for verdict in attncheck.check(path, root=root)] == [True, True]
    spec(project, more=", seed: 1")
    assert [verdict.passed for verdict in attncheck.check(path, root=root)] == [False, False]
    assert recorded(project) == held
    outside = attncheck.check(path, root=Path(root / "specs"))
    assert [verdict.headline for verdict in outside if "no baseline" not in verdict.headline] == []


def test_orphans_are_found_from_the_specs_reported_and_deleted_on_request_alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from attncheck.cli import app

    spec(project)
    spec(project, path="specs/gone.attn.yaml")
    spec(project, path="specs/broken.attn.yaml")
    project.run(*UPDATE).assert_outcomes(passed=6)
    held = recorded(project)
    spec(project, expect="entropy: {observe: attention.entropy, baseline: {}}")
    result = project.run(*UPDATE, "specs/x.attn.yaml")
    result.stdout.fnmatch_lines(["1 of no test any more: baselines/x/norm-tiny-words.json; see attncheck baselines"])
    assert recorded(project) == held
    (project.pytester.path / "specs" / "gone.attn.yaml").unlink()
    project.write("specs/broken.attn.yaml", "attncheck: 1\nexpect: {")
    (project.pytester.path / "baselines" / "x" / "damaged.json").write_text("{")
    monkeypatch.chdir(project.pytester.path)
    shown = CliRunner().invoke(app, ["baselines", "--orphans"])
    assert shown.exit_code == 1
    assert [line.split("  ")[0] for line in shown.output.splitlines()[:-1]] == [
        "baselines/gone/entropy-tiny-words.json",
        "baselines/gone/norm-tiny-words.json",
        "baselines/x/norm-tiny-words.json",
    ]
    listed = CliRunner().invoke(app, ["baselines"]).output
    assert "the spec cannot be read" in listed
    assert "damaged.json is no baseline" in listed
    assert len(recorded(project)) == len(held) + 1
    assert "3 baselines deleted" in CliRunner().invoke(app, ["baselines", "--prune"]).output
    assert set(recorded(project)) == {
        "broken/entropy-tiny-words.json",
        "broken/norm-tiny-words.json",
        "x/damaged.json",
        "x/entropy-tiny-words.json",
    }
