"""Definitions in one line, and a tiny real architecture that is built in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attncheck.core.definitions import SubjectDefinition

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": 300,
    "max_position_embeddings": 64,
}


@pytest.fixture
def tiny() -> dict[str, Any]:
    return dict(TINY)


@pytest.fixture
def define() -> Callable[..., SubjectDefinition]:
    def make(kind: str, options: dict[str, Any], **axes: Any) -> SubjectDefinition:
        return SubjectDefinition("subject", kind, options, **axes)

    return make
