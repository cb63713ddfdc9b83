"""What the acceptance tests share: a project folder with specs, the properties that ship, and how a run came out."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "specs"
QUICK = ("-p", "no:hypothesispytest", "-p", "no:anyio")
"""Without the plugins that take a second to load and have no part in these tests."""


@dataclass
class Acceptance:
    """One project folder and the ways to run pytest in it."""

    pytester: pytest.Pytester

    @property
    def path(self) -> Path:
        return self.pytester.path

    def write(self, path: str, text: str) -> Path:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    def run(self, *args: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess(*QUICK, *args)

    def kernels(self) -> None:
        """Put the module of broken kernels where a spec's `python:` finds it."""
        shutil.copy(HERE / "broken_kernels.py", self.path)


def outcomes(result: pytest.RunResult) -> dict[str, str]:
    """Node id -> PASSED, FAILED or ERROR, of a run with -rA."""
    found = {}
    for line in result.outlines:
        told = re.match(r"(PASSED|FAILED|ERROR) (\S+\.attn\.yaml\S*)", line)
        if told:
            found[told[2]] = told[1]
    return found


def shipped_properties(*, causal: bool, padded: bool) -> str:
    """`expect:` of specs/softmax_norms.attn.yaml as it is shipped, for other subjects: all that go with such subjects, without controls."""
    text = (SHIPPED / "softmax_norms.attn.yaml").read_text(encoding="utf-8")
    properties = re.findall(r"^  [a-z-]+:\n(?:^    .*\n)+", text[text.index("expect:") :], flags=re.MULTILINE)
    applies = {"future": causal, "padding": padded}
    kept = [text for text in properties if all(fits or word not in text.split(":")[0] for word, fits in applies.items())]
    return "expect:\n" + "".join(re.sub(r"^    (subjects|must_fail_on): .*\n", "", text, flags=re.MULTILINE) for text in kept)
