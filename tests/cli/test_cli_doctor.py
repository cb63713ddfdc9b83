"""`attncheck doctor`: what is said of machines and of models is what measuring finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attncheck.cli import app
from attncheck.core.errors import MeasurementError, Unavailable
from attncheck.engine.doctor import diagnose

FACTORIES = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Attention(nn.Module):
    num_heads = 4

    def __init__(self, by_hand=False):
        super().__init__()
        self.by_hand = by_hand
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.by_hand:
            y = torch.softmax(q @ k.mT * 8**-0.5, -1) @ v
        else:
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.table, self.first, self.layers = nn.Embedding(60, 32), Attention(by_hand=True), layers

    def forward(self, input_ids):
        x = self.first(self.table(input_ids))
        for layer in self.layers:
            x = layer(x)
        return x


def good(): return Model(nn.ModuleList([Attention(), Attention()]))
def hidden(): return Model([Attention(), Attention()])
def broken():
    model = good()
    model.layers[1].forward = lambda x: x.nothing
    return model
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models_of_the_doctor.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    if isinstance(result.exception, MeasurementError):
        raise result.exception
    return result.exit_code, result.output


def test_the_machine() -> None:
    import torch

    code, text = told()
    assert code == 0
    assert f"torch {torch.__version__}" in text
    assert "sdpa" in next(line for line in text.splitlines() if line.startswith("attention "))
    assert "package:glassllm" in text
    assert ("built without CUDA" in text) == (torch.version.cuda is None)


def test_a_packaged_model() -> None:
    code, text = told("package:glassllm", "--attn-implementation", "eager")
    assert code == 0
    assert "layers 0..3  (self; the first is model.layers.0.self_attn)" in text
    assert "4 heads on 2, N 32, M 32, d 32" in text
    assert "interface, eager" in text
    assert text.endswith("all attention that ran is seen\n")


def test_a_model_of_ones_own(project: Path) -> None:
    found = diagnose("models_of_the_doctor:good", project)
    assert [(call.path, call.route) for call in found.calls] == [("first", "softmax"), ("layers.0", "operator"), ("layers.1", "operator")]
    assert [call.rules.startswith("causal") for call in found.calls] == [False, True, True]
    assert [call.probe.startswith("yes") for call in found.calls][1:] == [True, True]
    assert found.weights == "3 layers; q of all, k of all, v of all, o of all"
    assert not found.refused


def test_what_would_be_an_error_is_told_with_its_reason(project: Path) -> None:
    code, text = told("models_of_the_doctor:hidden")
    assert code == 1
    assert "measurements would be errors: attention ran in Attention, which the model runs but which is no part of it" in text
    with pytest.raises(MeasurementError, match=r"the forward pass raised AttributeError.*nothing.*models_of_the_doctor\.py:"):
        told("models_of_the_doctor:broken")
    with pytest.raises(MeasurementError, match="has no 'nope'"):
        told("models_of_the_doctor:nope")
    with pytest.raises(Unavailable, match="there is no directory"):
        diagnose("./nowhere", project)
