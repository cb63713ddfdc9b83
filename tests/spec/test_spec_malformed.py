"""One file with more than twenty-five mistakes: all told at once, at their lines, in the words that a user reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.errors import SpecError
from attncheck.core.vocabulary import Vocabulary
from attncheck.spec.loader import load

HERE = Path(__file__).parent
EXPECTED = HERE / "malformed.txt"
"""Read it as a user would before changing it."""


@pytest.fixture
def error(vocabulary: Vocabulary) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load(HERE / "malformed.yaml", vocabulary, root=HERE)
    return caught.value


def test_the_text(error: SpecError) -> None:
    assert str(error) + "\n" == EXPECTED.read_text(encoding="utf-8")


def test_every_marked_line_and_no_other_is_reported(error: SpecError) -> None:
    lines = (HERE / "malformed.yaml").read_text(encoding="utf-8").splitlines()
    marked = {number: line.count("#!") for number, line in enumerate(lines, 1) if "#!" in line}
    assert sum(marked.values()) >= 25
    reported: dict[int, int] = {}
    for problem in error.problems:
        reported[problem.place.line] = reported.get(problem.place.line, 0) + 1
    assert reported == marked


def test_each_problem_says_what_is_allowed(error: SpecError) -> None:
    assert all(problem.allowed for problem in error.problems)
