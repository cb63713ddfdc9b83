"""Small subjects, loaded once, and inputs in one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from attncheck.core.definitions import InputDefinition, SubjectDefinition
from attncheck.core.evidence import Feed, LoadedSubject
from attncheck.inputs import build
from attncheck.subjects import load as load_subject

SMALL = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
CONFIGS = {
    "bert": {"model_type": "bert", **SMALL, "vocab_size": 300, "max_position_embeddings": 40},
    "llama": {"model_type": "llama", **SMALL, "vocab_size": 300, "max_position_embeddings": 40},
    "t5": {"model_type": "t5", "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 1, "d_ff": 32, "vocab_size": 300},
    "vit": {"model_type": "vit", **SMALL, "image_size": 32, "patch_size": 8},
    "grey-vit": {"model_type": "vit", **SMALL, "image_size": 32, "patch_size": 8, "num_channels": 1},
}


@cache
def subject(name: str) -> LoadedSubject:
    if name in ("sdpa", "softmax"):
        return load_subject(SubjectDefinition(name, "operator", {"name": name}, device="cpu"))
    if name in CONFIGS:
        return load_subject(SubjectDefinition(name, "config", CONFIGS[name], device="cpu"))
    return load_subject(SubjectDefinition(name, "pretrained", {"name": f"package:{name}"}, device="cpu"))


@pytest.fixture
def load() -> Callable[[str], LoadedSubject]:
    return subject


@pytest.fixture
def feed() -> Callable[..., Feed]:
    def make(name: str, kind: str, options: dict[str, Any], *, root: Any = None, dtype: str = "float32", **common: Any) -> Feed:
        return build(InputDefinition("input", kind, options, **common), subject(name).encoder, device="cpu", dtype=dtype, root=root)

    return make
