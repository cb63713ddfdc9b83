"""pytest-html's report has the pictures: in itself, or as its assets."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

pytest.importorskip("pytest_html")
PNG = base64.b64encode(b"\x89PNG\r\n").decode()[:6]


def test_one_file_holds_the_pictures(project: Project, workers: tuple[str, ...]) -> None:
    project.spec("specs/x.attn.yaml", f"good: {{{project.holds}}}\nlow: {{{project.fails}}}")
    project.run("--attn-spec", "--html=report.html", "--self-contained-html", *workers).assert_outcomes(passed=1, failed=1)
    page = (project.pytester.path / "report.html").read_text()
    assert len(re.findall(rf"data:image/png;base64,{PNG}", page)) == 1
    assert "low-tiny-words.png" in page
    assert "entropy " in page
    assert not (project.pytester.path / "assets").exists()


def test_passing_ones_too_where_all_are_drawn_and_none_where_none_is(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"good: {{{project.holds}}}\nlow: {{{project.fails}}}")
    for which, count in (("all", 2), ("none", 0)):
        project.run("--attn-spec", "--html=report.html", "--self-contained-html", "--attn-plots", which)
        assert (project.pytester.path / "report.html").read_text().count(PNG) == count


def test_as_assets_of_the_report(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"low: {{{project.fails}}}")
    project.run("--attn-spec", "--html=out/report.html")
    pictures = list((project.pytester.path / "out/assets").glob("*.png"))
    assert len(pictures) == 1
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
