"""docs/generate.py as a module."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from documents import ROOT


@pytest.fixture(scope="session")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
