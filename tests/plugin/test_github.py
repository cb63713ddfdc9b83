"""What GitHub Actions shows: annotations at the spec's line, and the summary of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from attncheck.report.github import MOST_ANNOTATIONS, summary, workflow_commands

if TYPE_CHECKING:
    from conftest import Project


@pytest.fixture
def actions(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.pytester.path / "summary.md"))
    return project


def test_each_failure_is_told_at_its_line(actions: Project, workers: tuple[str, ...]) -> None:
    path = actions.spec(
        "specs/x.attn.yaml",
        f"good: {{{actions.holds}}}\nlow: {{{actions.fails}}}\nsoft: {{{actions.fails}, level: warn}}\n"
        "broken: {observe: attention.padding_mass, at_most: 0}",
    )
    actions.write("specs/bad.attn.yaml", "attncheck: 1\nnope: 3")
    lines = path.read_text().splitlines()
    number = {name: 1 + next(i for i, line in enumerate(lines) if line.startswith(f"  {name}:")) for name in ("low", "soft", "broken")}
    result = actions.run("--attn-spec", *workers)
    commands = {line.partition("::")[2].split("::")[0]: line for line in result.outlines if line.startswith("::")}
    malformed = "error file=specs/bad.attn.yaml,line=1,title=not a spec"
    low = f"error file=specs/x.attn.yaml,line={number['low']},col=3,title=low[tiny/words]"
    assert set(commands) == {
        malformed,
        low,
        f"error file=specs/x.attn.yaml,line={number['broken']},col=3,title=broken[tiny/words]",
        f"warning file=specs/x.attn.yaml,line={number['soft']},col=3,title=soft[tiny/words]",
    }
    assert "%0Aspecs/bad.attn.yaml:2:1: file: unknown key 'nope'" in commands[malformed]
    assert commands[low].endswith("::" + next(line for line in result.outlines if line.startswith("entropy ")))
    page = (actions.pytester.path / "summary.md").read_text()
    assert "1 failed, 1 error, 1 warning, 1 passed." in page
    assert "- **failed** `specs/x.attn.yaml::low[tiny/words]`" in page
    assert "worst: layer " in page
    assert "<details><summary>1 passed or skipped</summary>" in page


def test_elsewhere_nothing_is_added(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    project.spec("x.attn.yaml", f"low: {{{project.fails}}}")
    result = project.run("--attn-spec", "x.attn.yaml")
    assert not [line for line in result.outlines if line.startswith("::")]


def test_python_tests_alone_leave_the_summary_to_others(actions: Project) -> None:
    actions.write("test_x.py", "def test_x(): pass")
    actions.run("test_x.py").assert_outcomes(passed=1)
    assert not (actions.pytester.path / "summary.md").exists()


def test_texts_cannot_leave_their_place() -> None:
    """A headline ends no command and opens no tag or column; a title ends no property."""
    nasty = {
        "test": "a.attn.yaml::p[a,b:c]",
        "outcome": "failed",
        "place": "a,b.attn.yaml:3:5",
        "headline": "50% off\n::error::injected | <script> `x`",
        "offenders": [{"where": {"layer": 1}, "observed": None, "limit": "<= 1", "note": "a|b"}],
    }
    (command,) = workflow_commands([nasty])
    assert command == "::error file=a%2Cb.attn.yaml,line=3,col=5,title=p[a%2Cb%3Ac]::50%25 off%0A::error::injected | <script> `x`"
    page = summary([nasty], [], {})
    assert "<script>" not in page
    assert "injected \\| &lt;script&gt; \\`x\\`" in page


def test_more_than_github_shows_are_counted() -> None:
    many = [{"test": f"a.attn.yaml::p{i}[m]", "outcome": "failed", "place": f"a.attn.yaml:{i}:1", "headline": "no"} for i in range(30)]
    commands = list(workflow_commands(many))
    assert len(commands) == MOST_ANNOTATIONS + 1
    assert commands[-1] == "::notice title=attncheck::20 more in the job's summary"
