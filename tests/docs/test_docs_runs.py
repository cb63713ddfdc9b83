"""What the documents show was printed by a run: the examples are executed, and the outputs compared."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from documents import DOCUMENTS, ROOT

OUTPUTS = [
    pytest.param(path, match[1], id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, match in enumerate(re.finditer(r"<!-- output: (.+?) -->", path.read_text(encoding="utf-8")))
]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--attn-spec", "-p", "no:cacheprovider", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_words_of_a_conftest_can_be_used_in_specs() -> None:
    printed = run("docs/examples/extending", "-q", "--attn-plots", "none")
    assert "3 passed" in printed, printed


@pytest.mark.slow
def test_the_planted_mistake_of_the_readme_is_found() -> None:
    printed = run("docs/examples/kernel", "-q")
    assert "1 failed, 1 passed, 1 error" in printed
    assert re.search(r"future_mass \S+ > 0 at .*query (31|63)\b", printed), printed
    assert "the kernel does not apply the attention that its query, key and mask define" in printed


@pytest.mark.slow
@pytest.mark.parametrize(("path", "what"), OUTPUTS)
def test_an_output_is_what_the_command_prints(path: Path, what: str, generate: ModuleType) -> None:
    text = path.read_text(encoding="utf-8")
    (shown,) = [match["text"] for match in generate.BLOCK.finditer(text) if match["kind"] == "output" and match["what"] == what]
    assert generate.comparable(shown) == generate.comparable(generate.output(what)), "run docs/generate.py"
