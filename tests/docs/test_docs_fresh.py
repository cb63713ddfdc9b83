"""The documents are up to date: generated parts, links, pictures, the list of layers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from documents import DOCUMENTS, ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_the_page_of_observables_is_that_of_the_registry(generate: ModuleType) -> None:
    assert (ROOT / "docs" / "observables.md").read_text(encoding="utf-8") == generate.observables(), "run docs/generate.py"
    assert (ROOT / "docs" / "variants.md").read_text(encoding="utf-8") == generate.variants(), "run docs/generate.py"


def test_every_observable_has_a_cost_class(generate: ModuleType) -> None:
    from attncheck.engine.vocabulary import vocabulary

    assert set(generate.DEARER) <= set(vocabulary().observables)
    assert "its own" not in generate.observables(), "name the cost of a new `call` observable in DEARER"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_blocks_of_files_are_those_files(path: Path, generate: ModuleType) -> None:
    text = path.read_text(encoding="utf-8")
    assert generate.refreshed(text, generate.from_file) == text, "run docs/generate.py"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in LINK.findall(text):
        if target.startswith(("http://", "https://")):
            continue
        place, _, anchor = target.partition("#")
        found = (path.parent / place).resolve() if place else path
        assert found.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(found), f"{path.name}: {target} is no heading of {found.name}"


def anchors(path: Path) -> set[str]:
    """The anchors that a renderer of Markdown makes of headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pictures_are_small_and_shown(generate: ModuleType) -> None:
    shown = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    pictures = sorted((ROOT / "docs" / "images").iterdir())
    assert {str(picture.relative_to(ROOT)) for picture in pictures} == set(generate.PICTURES)
    for picture in pictures:
        assert picture.stat().st_size < 150_000
        assert picture.name in shown


def test_the_layers_are_those_of_the_contract() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        (contract,) = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"attncheck\.(\w+)", layer) for layer in contract["layers"]]
    section = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## The layers")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", section, re.MULTILINE)
    assert [re.findall(r"\w+", names) for names, _ in rows] == layers
    absent = {name for names, what in rows for name in re.findall(r"\w+", names) if what.startswith("not there yet")}
    optional = {name for layer in contract["layers"] if layer.startswith("(") for name in re.findall(r"attncheck\.(\w+)", layer)}
    missing = {name for names in layers for name in names if not any((ROOT / "attncheck" / tail).exists() for tail in (name, f"{name}.py"))}
    assert absent == missing
    assert missing <= optional


def test_files_that_are_named_exist() -> None:
    """`core/errors.py` and the like in the documents for contributors."""
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        for text in re.findall(r"`((?:attncheck/)?[\w/]+\.(?:py|md|yaml|txt|toml))`", (ROOT / name).read_text(encoding="utf-8")):
            assert (ROOT / text).exists() or (ROOT / "attncheck" / text).exists(), f"{name}: {text}"


def test_the_packages_of_the_documents_are_those_that_are_known() -> None:
    from attncheck.subjects.packaged import known_packages

    readme, notice = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "NOTICE"))
    for name, package in known_packages().items():
        assert f"| `{name}` |" in readme
        assert re.search(rf"^  {re.escape(package.distribution)} {re.escape(package.version)}  ", notice, re.MULTILINE), name


def test_options_of_the_command_line_are_documented(pytestconfig: pytest.Config) -> None:
    from attncheck import plugin

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    options = set(re.findall(r'addoption\("(--attn-[\w-]+)"', Path(plugin.__file__).read_text(encoding="utf-8")))
    assert len(options) > 5
    assert {option for option in options if option not in readme} == set()
