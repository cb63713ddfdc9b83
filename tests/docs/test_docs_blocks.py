"""Every YAML and Python block of the documents is valid: specs load, Python runs."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import ROOT, Block, blocks

from attncheck.core.errors import SpecError
from attncheck.engine.vocabulary import vocabulary
from attncheck.spec.loader import load_bytes
from attncheck.spec.model import Spec

SUBJECTS = """
subjects:
  model: {pretrained: package:glassllm}
  other: {like: model, pretrained: {variant: pt}}
  untrained: {like: model, weights: random}
"""
INPUTS = """
inputs:
  text: {corpus: python-manual, length: 96}
  padded: {corpus: python-manual, length: 96, batch: 2, padding: {side: right, amount: 8}}
"""
EXPECT = """
expect:
  anything: {observe: attention.entropy, at_least: 0}
"""
SECTIONS = {"subjects": SUBJECTS, "inputs": INPUTS, "expect": EXPECT}
OF_A_CI = ("runs-on:", "uses: OWNER", "image:")
"""Blocks of workflows; test_ci.py runs their scripts."""
WRONG_ON_PURPOSE = "docs/examples/mistakes/mistakes.attn.yaml"
WORDS_OF_ITS_OWN = "docs/examples/extending/extending.attn.yaml"
"""Speaks words that the conftest beside it registers; test_docs_runs.py runs it."""


def whole(text: str) -> str:
    """A spec out of a spec, a section, or properties."""
    first = text.partition(":")[0]
    if first == "attncheck":
        return text
    if first in (*SECTIONS, "defaults"):
        rest = "".join(section for name, section in SECTIONS.items() if name != first)
        return f"attncheck: 1\n{text}{rest}"
    return f"attncheck: 1{SUBJECTS}{INPUTS}expect:\n{textwrap.indent(text, '  ')}"


def loaded(text: str) -> Spec:
    return load_bytes(whole(text).encode(), ROOT / "docs" / "x.attn.yaml", vocabulary())


def is_a_spec(block: Block) -> bool:
    apart = [(ROOT / name).read_text(encoding="utf-8") for name in (WRONG_ON_PURPOSE, WORDS_OF_ITS_OWN)]
    return not any(word in block.text for word in OF_A_CI) and block.text not in apart


YAML = [block for block in blocks("yaml") if is_a_spec(block)]


@pytest.mark.parametrize("block", YAML, ids=str)
def test_a_yaml_block_is_a_spec_or_part_of_one(block: Block) -> None:
    assert loaded(block.text).cases


def test_the_documents_have_blocks_of_every_form() -> None:
    assert {"attncheck", "subjects", "inputs", "defaults"} <= {block.text.partition(":")[0] for block in YAML}
    assert len({name for block in YAML for name in loaded(block.text).properties}) > 25


def test_a_wrong_block_would_be_noticed() -> None:
    with pytest.raises(SpecError, match=r"unknown observable 'attention\.entrpy'"):
        loaded("wrong:\n  observe: attention.entrpy\n  at_least: 1\n")
    with pytest.raises(SpecError, match="4 problems"):
        loaded((ROOT / WRONG_ON_PURPOSE).read_text(encoding="utf-8"))


def test_the_workflow_of_the_readme_is_yaml() -> None:
    (block,) = [block for block in blocks("yaml") if "runs-on:" in block.text]
    steps = yaml.safe_load(block.text)["jobs"]["specs"]["steps"]
    (ours,) = [step for step in steps if step.get("uses") == "./"]
    known = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    assert ours["with"].keys() <= known.keys()


def test_every_word_of_the_language_is_in_its_reference() -> None:
    from attncheck.core.fields import BOUND_WORDS
    from attncheck.spec import inputs, properties, subjects

    text = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    known = vocabulary()
    ours = [name for name, entry in known.expectations.items() if entry.function.__module__.startswith("attncheck.")]
    kinds = [name for name, entry in known.subject_kinds.items() if entry.function.__module__.startswith("attncheck.")]
    named = [*ours, *kinds, *known.input_kinds, *known.symbols, *known.reductions]
    words = [*properties.STEPS, *properties.ABOUT, *BOUND_WORDS, *subjects.KEYS, *inputs.KEYS, *named]
    assert [word for word in words if word not in text] == []


@pytest.fixture
def beside_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the examples, in which a run may write."""
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def from_a_file(block: Block) -> bool:
    return any(block.text == path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "examples").rglob("*.py"))


RUNNABLE: dict[str, list[Block]] = {}
for found in blocks("python"):
    if not from_a_file(found):
        RUNNABLE.setdefault(found.document, []).append(found)


@pytest.mark.parametrize("document", RUNNABLE)
def test_the_python_of_a_document_runs(document: str, beside_the_examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    expected = []
    for block in RUNNABLE[document]:
        source = "\n" * block.line + block.text
        exec(compile(source, str(ROOT / document), "exec"), namespace)
        expected += [line.partition("# ")[2].partition(":")[0] for line in block.text.splitlines() if line.startswith("print(")]
    printed = capsys.readouterr().out.splitlines()
    assert printed[: len(expected)] == expected
    assert not [line for line in printed[len(expected) :] if not line.startswith(("passed  ", "  claim  ", "  note  "))]
