"""Specs on the checkpoints of a training, run by pytest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture
def run(project) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
    model = LlamaForCausalLM(config)
    folder = project.pytester.path / "specs" / "run"
    for step in (0, 10, 100):
        with torch.no_grad():
            model.model.layers[1].self_attn.k_proj.weight.mul_(3)
        model.save_pretrained(folder / f"checkpoint-{step}")
    return folder


SUBJECTS = "run: {checkpoints: ./run}\nrandom: {like: run, weights: random}"


def test_growth_over_the_steps_with_a_control(project, run: Path) -> None:
    project.spec(
        "specs/a.attn.yaml",
        "keys-grow: {observe: keys.frobenius_norm, where: {layer: 1}, reduce: {sample: mean, head: mean, step: growth}, at_least: 8.9, "
        "subjects: run, must_fail_on: random}\n"
        "first-layer-stays: {observe: keys.frobenius_norm, where: {layer: 0}, reduce: {step: growth}, equals: 1, subjects: run}\n"
        "rows: {observe: attention.row_sum, between: [0.999, 1.001], subjects: run}",
        subjects=SUBJECTS,
    )
    project.run("--attn-spec", "specs").assert_outcomes(passed=4)


def test_a_failure_names_the_step_and_draws_the_course(project, run: Path) -> None:
    project.spec("specs/a.attn.yaml", "small: {observe: {weights.norm: {matrix: k}}, at_most: 1.5, subjects: run}", subjects=SUBJECTS)
    result = project.run("--attn-spec", "specs", "--attn-plots", "all")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "step 100, layer 1, head 0" in text
    assert list((project.pytester.path / ".attncheck" / "plots").rglob("*.png"))


def test_mistakes_have_their_line(project, run: Path) -> None:
    (run / "checkpoint-100" / "model.safetensors").write_bytes(b"cut")
    spec = project.spec(
        "specs/a.attn.yaml",
        f"rows: {{{project.holds}}}",
        subjects='cut: {checkpoints: ./run}\nnone: {checkpoints: "./run/step*"}\naway: {checkpoints: ./away}',
    )
    result = project.run("--attn-spec", "specs")
    result.assert_outcomes(errors=2, skipped=1)
    text, lines = result.stdout.str(), spec.read_text().splitlines()
    assert "cut: step 100 (" in text
    for subject in ("cut", "none"):
        number = next(n for n, line in enumerate(lines, 1) if line.strip().startswith(f"{subject}:"))
        assert f"at        specs/a.attn.yaml:{number}" in text
    assert "none: no folder matches" in text


def test_lists_are_checked_at_collection(project, run: Path) -> None:
    project.spec("specs/a.attn.yaml", f"rows: {{{project.holds}}}", subjects="two: {checkpoints: [./run/checkpoint-0, ./run/step0]}")
    result = project.run("--attn-spec", "specs")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a.attn.yaml:3:22: subject two: checkpoints: step 0 twice, './run/checkpoint-0' and './run/step0'*"])
