"""`attncheck diff`: what moved between two runs of pytest, or between the baselines of two revisions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from attncheck.cli import app
from attncheck.core import baseline
from attncheck.core.errors import AttncheckError
from attncheck.engine.diff import diff

if TYPE_CHECKING:
    from conftest import Project


def recorded(project: Project, name: str, *, scale: float = 0.5, expect: str = "", length: int = 12, extra: tuple[str, ...] = ()) -> str:
    """Run a spec on a model of this initialisation and keep its numbers."""
    model = project.model.replace("vocab_size: 64", f"vocab_size: 64, initializer_range: {scale}")
    expect = expect or f"rows: {{{project.holds}}}\nlow: {{observe: attention.entropy, at_most: 1}}"
    path = project.spec("x.attn.yaml", expect, subjects=f"tiny: {{config: {model}}}")
    path.write_text(path.read_text().replace("length: 12", f"length: {length}"))
    project.run("--attn-spec", "x.attn.yaml", "--attn-json", name, *extra)
    return name


def compared(project: Project, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    monkeypatch.chdir(project.pytester.path)
    result = CliRunner().invoke(app, ["diff", *arguments])
    if isinstance(result.exception, AttncheckError):
        raise result.exception
    return result.exit_code, result.output.splitlines()


def test_what_moved_is_told_with_old_new_and_tolerances(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = recorded(project, "a.json")
    assert compared(project, before, before, monkeypatch=monkeypatch) == (0, ["0 of 2 quantities moved"])
    after = recorded(project, "b.json", scale=0.1)
    code, lines = compared(project, before, after, monkeypatch=monkeypatch)
    assert code == 1
    assert lines[:4] == ["1 of 2 quantities moved", "", "attention.entropy (per: head) of tiny on words", lines[3]]
    assert lines[3].startswith("  4 of 4 places beyond rtol 1e-05, atol 1e-05; the model's output moved as well, by about ")
    held = [
        {one["quantity"].partition("{")[0]: one for one in json.loads((project.pytester.path / name).read_text())["measurements"]}
        for name in (before, after)
    ]
    old, new = (one["attention.entropy"]["values"] for one in held)
    gaps = {abs(b - a) / (1e-5 + 1e-5 * abs(a)): (a, b) for a, b in zip(old, new, strict=True)}
    a, b = gaps[max(gaps)]
    assert f"{a:.6g} then, {b:.6g} now, {b - a:+.3g}" in lines[4]
    assert "x.attn.yaml::low[tiny/words]: passed then, failed now" in lines


def test_a_tolerance_may_be_given(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = recorded(project, "a.json"), recorded(project, "b.json", scale=0.51)
    assert compared(project, before, after, monkeypatch=monkeypatch)[0] == 1
    assert compared(project, before, after, "--rtol", "0.5", "--atol", "0.5", monkeypatch=monkeypatch)[1][0] == "0 of 2 quantities moved"


def test_another_dtype_has_the_tolerance_of_the_pair(project: Project) -> None:
    before, after = recorded(project, "a.json"), recorded(project, "b.json", extra=("--attn-dtype", "bfloat16"))
    found = diff(before, after, project.pytester.path)
    assert found.compared == 2
    assert not [one for one in found.moved if one.tolerance != (3e-2, 3e-3)]
    strict = diff(before, after, project.pytester.path, rtol=1e-6, atol=0.0)
    assert "bfloat16" in strict.moved[0].note


def test_another_input_is_not_comparable_and_what_is_on_one_side_is_listed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = recorded(project, "a.json")
    after = recorded(project, "b.json", length=13, expect=f"rows: {{{project.holds}}}\nsink: {{observe: attention.sink_mass, at_most: 1}}")
    code, lines = compared(project, before, after, monkeypatch=monkeypatch)
    assert code == 1
    assert "not comparable: attention.row_sum (per: head) of tiny on words: the input is another" in lines
    assert lines[-5:] == [
        "only in a.json:",
        "  attention.entropy (per: head) of tiny on words",
        "",
        "only in b.json:",
        "  attention.sink_mass (per: head) of tiny on words",
    ]


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def committed(root: Path, values: list[float], message: str) -> None:
    environment = baseline.Environment("cpu", "AVX2", "float32", "sdpa", {"torch": "2.13.0"})
    held = baseline.Recording(environment, "attention.entropy", "h", ("layer", "head"), {"layer": [0, 1], "head": [0, 1]}, values)
    baseline.write(root, baseline.Proposal(baseline.Identity("specs/x.attn.yaml", "entropy", "tiny", "words"), held, "moved"))
    git(root, "add", "baselines")
    git(root, "commit", "-qm", message)


def test_baselines_of_two_revisions(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    committed(tmp_path, [1.0, 2.0, 3.0, 4.0], "first")
    committed(tmp_path, [1.0, 2.0, 3.0, 4.4], "second")
    (moved,) = diff("HEAD~1", "HEAD", tmp_path).moved
    assert moved.quantity == "attention.entropy: entropy of tiny on words in specs/x.attn.yaml (sdpa, float32, cpu)"
    (change,) = moved.changes
    assert (change.where, change.old, change.new) == ({"layer": 1, "head": 1}, 4.0, 4.4)
    assert change.units == pytest.approx(0.4 / (1e-5 + 4e-5))
    assert diff("HEAD", "", tmp_path).same
    assert not diff("HEAD~1", "", tmp_path).same


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("nothing.json", "HEAD", "there is no file nothing.json"),
        ("no-such-branch", "HEAD", "neither a file nor a revision of this project: .*no-such-branch"),
        ("--output=/tmp/x", "HEAD", "neither a file nor a revision"),
        ("torn.json", "torn.json", "torn.json is no file of --attn-json"),
        ("old.json", "old.json", "format 1; allowed: 2"),
        ("run.json", "HEAD", "run.json is a run and HEAD is a state of the baselines"),
    ],
)
def test_what_cannot_be_compared_is_told(tmp_path: Path, old: str, new: str, told: str) -> None:
    git(tmp_path, "init", "-q")
    committed(tmp_path, [1.0, 2.0, 3.0, 4.0], "first")
    (tmp_path / "torn.json").write_text('{"format": 2, "meas')
    (tmp_path / "old.json").write_text('{"format": 1}')
    (tmp_path / "run.json").write_text('{"format": 2, "environment": {}, "measurements": [], "cases": []}')
    with pytest.raises(AttncheckError, match=told):
        diff(old, new, tmp_path)
