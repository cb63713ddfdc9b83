"""The scripts of docs/findings still show what they say. One that fails here was mended by a release: remove it and say so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "findings"


def run(name, *arguments):
    spec = importlib.util.spec_from_file_location(f"finding_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(*arguments)


@pytest.mark.parametrize(
    "name", ["falcon_attentions", "window_of_one", "longrope_cache", "granite_swa_weights", "moshi_window", "convbert_padding"]
)
def test_the_difference_is_no_rounding(name):
    assert run(name) > 1e-2


def test_a_softcap_of_gemma3_changes_nothing():
    assert run("gemma3_softcap") == 0


def test_bloom_raises_with_a_static_cache_and_a_mask():
    assert "must match the existing size" in run("bloom_static_cache")


def test_torch_gives_nan_for_a_scale_that_is_not_positive():
    found = run("sdpa_negative_scale")
    assert found[0.5] == 0
    assert found[0.0] > 0
    assert found[-0.5] > 0


def test_packed_documents_are_apart_without_a_cache_only():
    moved = run("packing_with_cache")
    assert moved.pop("use_cache=False") < 1e-5
    assert min(moved.values()) > 1e-2


@pytest.mark.slow
def test_t5_under_flex_fails_at_a_batch_of_two():
    assert run("t5_flex")


def test_every_script_is_listed():
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in listed for path in FOLDER.glob("*.py"))
