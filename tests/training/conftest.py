"""A tiny recipe's options, and a cache folder of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.definitions import SubjectDefinition
from attncheck.core.evidence import SubjectSeries
from attncheck.engine.vocabulary import vocabulary
from attncheck.subjects import load_any

TINY = {"recipe": "bytes-lm", "attention": "mha", "layers": 1, "width": 16, "heads": 2, "tokens": 16, "batch": 2}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    vocabulary()
    monkeypatch.setenv("ATTNCHECK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "trained"


@pytest.fixture
def trained() -> Callable[..., SubjectSeries]:
    def make(progress: Any = None, weights: str = "trained", seed: int = 0, **options: Any) -> SubjectSeries:
        definition = SubjectDefinition("tiny", "train", {**TINY, **options}, seed=seed, device="cpu", weights=weights)
        found = load_any(definition, progress=progress)
        assert isinstance(found, SubjectSeries)
        return found

    return make
