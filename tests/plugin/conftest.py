"""A project with specs on a two-layer model, which takes milliseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

QUICK = ("-p", "no:hypothesispytest", "-p", "no:anyio")
"""Without the plugins that take a second to load and have no part in these tests."""


@dataclass
class Project:
    pytester: pytest.Pytester
    model: str = (
        "{model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, "
        "num_attention_heads: 2, num_key_value_heads: 2, vocab_size: 64}"
    )
    holds: str = "observe: attention.row_sum, between: [0.999, 1.001]"
    fails: str = "observe: attention.entropy, at_most: 0.01"

    def spec(self, path: str, expect: str, *, subjects: str = "") -> Path:
        """Write a spec; `expect` and `subjects` hold one entry a line."""
        subjects = subjects or f"tiny: {{config: {self.model}}}"
        lines = ["attncheck: 1", "subjects:", *subjects.strip().splitlines(), "inputs:", "words: {tokens: random, length: 12}", "expect:"]
        lines += expect.strip().splitlines()
        sections = ("attncheck:", "subjects:", "inputs:", "expect:")
        text = "\n".join(line if line.startswith(sections) else f"  {line.strip()}" for line in lines)
        return self.write(path, text)

    def write(self, path: str, text: str) -> Path:
        target = self.pytester.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n", encoding="utf-8")
        return target

    def ini(self, *lines: str) -> None:
        self.write("pytest.ini", "\n".join(["[pytest]", *lines]))

    def run(self, *args: str) -> pytest.RunResult:
        return self.pytester.runpytest(*QUICK, *args)

    def ids(self, *args: str) -> list[str]:
        """What would run, in order."""
        result = self.run("--collect-only", "-q", *args)
        return [line for line in result.outlines if re.match(r"\S+::", line)]

    @property
    def records(self) -> list[Path]:
        return sorted((self.pytester.path / ".attncheck" / "runs").glob("*/*.json"))


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything that a run imports, imported beforehand: pytester puts sys.modules back, and numpy loads only once a process."""
    import importlib
    import pkgutil

    import attncheck

    for name in ("matplotlib.pyplot", "scipy.stats", "torch", "transformers", "xarray"):
        importlib.import_module(name)
    for module in pkgutil.walk_packages(attncheck.__path__, "attncheck."):
        importlib.import_module(module.name)
    folder = tmp_path_factory.mktemp("first")
    path = folder / "first.attn.yaml"
    subject, holds = f"tiny: {{config: {Project.model}}}", f"first: {{{Project.holds}}}"
    path.write_text(f"attncheck: 1\nsubjects: {{{subject}}}\ninputs: {{words: {{tokens: random}}}}\nexpect: {{{holds}}}\n")
    assert [verdict.passed for verdict in attncheck.check(path, root=folder)] == [True]


@pytest.fixture
def project(imported: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return Project(pytester)


@pytest.fixture(params=[(), ("-n", "2")], ids=["alone", "two-workers"])
def workers(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Command-line arguments; a test that takes them runs once alone and once under xdist."""
    chosen: tuple[str, ...] = request.param
    return chosen
