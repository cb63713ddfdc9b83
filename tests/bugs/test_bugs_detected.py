"""Every executable bug is caught by a law, and docs/detection.md says which."""

from __future__ import annotations

import re
from pathlib import Path

import detection
import pytest
from model_mutants import MODEL_MUTANTS
from mutants import MUTANTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "detection.md"


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.row for mutant in MUTANTS])
def test_a_law_catches_the_bug(mutant):
    assert detection.caught(mutant), f"{mutant.row}: {mutant.what}"


def test_the_page_lists_every_bug():
    rows = re.findall(r"^\| ([a-z]\w-\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [mutant.row for mutant in (*MUTANTS, *MODEL_MUTANTS)], "run python tests/bugs/detection.py > docs/detection.md"


@pytest.mark.slow
def test_the_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == detection.page(), "run python tests/bugs/detection.py > docs/detection.md"
