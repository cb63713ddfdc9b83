"""`attncheck init`: what it writes passes, says what was measured, and costs nothing that was there before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from attncheck.cli import app
from attncheck.core.errors import AttncheckError, MeasurementError, Unavailable
from attncheck.engine.starter import down, up
from attncheck.engine.starter_text import begin, label_of, quoted
from attncheck.engine.vocabulary import vocabulary
from attncheck.spec.loader import load

KERNELS = """
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa


def unnormalised(q, k, v, **given):
    return 3 * sdpa(q, k, v, **given)


def broken(q, k, v, **given):
    raise RuntimeError("no such kernel on this machine")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kernels_of_init.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def told(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["init", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_model(project: Path, implementation: str) -> None:
    text = told("package:glassllm", "--attn-implementation", implementation)
    spec = project / "specs/glassllm.attn.yaml"
    assert "wrote specs/glassllm.attn.yaml: 9 properties, 13 tests, all passing" in text
    assert "left out" not in text
    assert [path.name for path in project.glob("baselines/**/*.json")] == ["entropy-is-as-recorded-glassllm-plain.json"]
    written = spec.read_text()
    assert "# measured 1, asked of the kernel itself" in written
    assert f"agrees_with: {{attn_implementation: {'eager' if implementation == 'sdpa' else 'sdpa'}}}" in written
    # Another process, without what this one has measured.
    command = [sys.executable, "-m", "pytest", "--attn-spec", str(spec), f"--rootdir={project}", "--attn-strict"]
    again = subprocess.run(command, capture_output=True, text=True, cwd=project, check=False)
    assert again.returncode == 0, again.stdout
    assert "13 passed" in again.stdout


def test_a_model_in_half_precision_and_an_operator(project: Path) -> None:
    assert "13 tests, all passing" in told("package:glassllm", "--dtype", "bfloat16", "--to", "half.attn.yaml")
    assert "dtype: bfloat16" in (project / "half.attn.yaml").read_text()
    text = told("sdpa", "--operator")
    assert "laws: " in text
    assert " 0 broken" in text
    written = (project / "specs/sdpa.attn.yaml").read_text()
    assert "inputs: [normal-causal, outliers-causal, sink-causal]" in written
    assert "      causal: flag" in written
    assert "    laws: all" in written


def test_what_does_not_hold_is_not_claimed(project: Path) -> None:
    made = begin("kernels_of_init:unnormalised", Path("odd.attn.yaml"), project, operator=True)
    assert not {"rows-sum-to-one", "kernel-applies-what-it-was-given", "norm-lies-between-uniform-and-one-key"} & set(made.properties)
    assert "nothing-from-the-future" in made.properties
    assert made.left_out[0] == "attention.row_sum: measured 3, which is no distribution over keys"
    assert made.left_out[1].startswith("kernel.error: measured ")
    assert "not claimed, since a law breaks it: normalised: True, reference: softmax" in made.laws
    written = made.path.read_text()
    assert "      normalised:" not in written
    assert "      reference:" not in written
    assert len(load(made.path, vocabulary(), root=project).cases) == made.tests


def test_where_nothing_holds_that_is_said(project: Path) -> None:
    (project / "strange.py").write_text("def square(q, k, v, **given): return (v * v).mean(-2, keepdim=True).expand(*q.shape[:3], -1)")
    with pytest.raises(MeasurementError, match=r"nothing that a first spec claims holds of strange:square: .*not linear in its values"):
        told("strange:square", "--operator")
    assert not (project / "specs/square.attn.yaml").exists()


def test_nothing_that_is_there_is_lost(project: Path) -> None:
    spec = project / "mine.attn.yaml"
    spec.write_text("mine")
    with pytest.raises(AttncheckError, match=r"mine\.attn\.yaml exists; name another file with --to, or overwrite it with --force"):
        told("sdpa", "--operator", "--to", "mine.attn.yaml")
    with pytest.raises(MeasurementError, match="no such kernel on this machine"):
        told("kernels_of_init:broken", "--operator", "--to", "mine.attn.yaml", "--force")
    assert spec.read_text() == "mine"
    with pytest.raises(MeasurementError):
        told("kernels_of_init:broken", "--operator", "--to", "new.attn.yaml")
    assert sorted(path.name for path in project.glob("*.yaml")) == ["mine.attn.yaml"]
    assert not (project / "baselines").exists()


def test_where_it_may_write(project: Path) -> None:
    with pytest.raises(AttncheckError, match="outside"):
        told("sdpa", "--operator", "--to", "../elsewhere.attn.yaml")
    with pytest.raises(AttncheckError, match=r"a spec's name ends in \.attn\.yaml"):
        told("sdpa", "--operator", "--to", "specs/sdpa.yaml")
    with pytest.raises(Unavailable, match="there is no directory"):
        told("./nowhere")
    assert not (project / "specs").exists()


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("package:glassllm", "glassllm"),
        ("org/Some_Model-1.5B", "some-model-1-5b"),
        ("./checkpoints/run 7/", "run-7"),
        ("my.models:make", "make"),
        ("./日本", "model"),
    ],
)
def test_what_a_subject_is_called(name: str, label: str) -> None:
    assert label_of(name) == label


@pytest.mark.parametrize("text", ["package:glassllm", "a: b", "- x", "it's", "yes", "./a #b", "1.5", "{x}", "a, b", "''"])
def test_a_scalar_reads_back(text: str) -> None:
    import yaml

    assert yaml.safe_load(f"{{name: {quoted(text)}}}") == {"name": text}


def test_bounds_leave_room() -> None:
    draw = np.random.default_rng(0)
    values: list[Any] = [*(draw.lognormal(0, 5, 200) * draw.choice([-1, 1], 200)), 0, 10, 0.1, 99.5]
    for value in values:
        assert down(value) <= value <= up(value)
        assert up(value) - down(value) <= 0.2 * abs(value) + 1e-300
