"""`python:` a factory of the project."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from attncheck.core.errors import MeasurementError
from attncheck.subjects import load
from attncheck.subjects.encoders import encoder_for

MODULE = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.table = nn.Embedding(50, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, idx):
        hidden = self.table(idx)
        return self.attention(hidden, hidden, hidden)[0]

class Encoder:
    vocabulary_size, bos_token, pad_token, max_positions, image_size, channels = 50, None, None, 16, None, 3
    def encode(self, text): return [ord(letter) % 50 for letter in text]
    def decode(self, tokens): return [f"t{token}" for token in tokens]

def plain(*, width=8): return Small(width)
def with_encoder(): return Small(8), Encoder()
def a_number(): return 3
def broken(): raise KeyError("weights")
def nothing():
    with torch.device("meta"): return Small(8)
def leaving(): raise SystemExit(3)
SETTING = 3
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "subjects_of_a_test.py").write_text(MODULE)
    (tmp_path / "a_script_of_a_test.py").write_text("import sys; sys.exit('usage: ...')")
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_nowhere")
    yield tmp_path
    sys.modules.pop("subjects_of_a_test", None)


def test_a_module_from_the_project_root(define, project):
    before = list(sys.path)
    loaded = load(define("python", {"factory": "subjects_of_a_test:plain", "arguments": {"width": 12}}), root=project)
    assert sys.path == before
    assert loaded.model.table.weight.shape == (50, 12)
    assert not loaded.model.training
    assert loaded.encoder.first_parameter == "idx"


def test_its_own_encoder_is_taken(define, project):
    loaded = load(define("python", {"factory": "subjects_of_a_test:with_encoder"}), root=project)
    assert loaded.encoder.encode("a") == [47]


def test_the_seed_decides_and_the_dtype_is_applied(define, project):
    def table(seed, dtype="float32"):
        definition = define("python", {"factory": "subjects_of_a_test:plain"}, seed=seed, dtype=dtype)
        return load(definition, root=project).model.table.weight

    assert torch.equal(table(1), table(1))
    assert not torch.equal(table(1), table(2))
    assert table(1, "bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factory": "subjects_of_a_test.plain"}, "is not of the form package.module:function"),
        ({"factory": "nowhere.at_all:f"}, "there is no module 'nowhere.at_all'"),
        ({"factory": "needs_more:f"}, "importing 'needs_more' needs the missing module 'a_module_that_is_nowhere'"),
        ({"factory": "subjects_of_a_test:plane"}, "has no 'plane'; did you mean 'plain'"),
        ({"factory": "subjects_of_a_test:SETTING"}, "is a int, not a function"),
        ({"factory": "subjects_of_a_test:a_number"}, "returned int; allowed: an nn.Module"),
        ({"factory": "subjects_of_a_test:broken"}, "raised KeyError: 'weights'"),
        ({"factory": "subjects_of_a_test:nothing"}, r"parameter table\.weight has no values \(it lies on the meta device\)"),
        ({"factory": "subjects_of_a_test:leaving"}, "subjects_of_a_test:leaving raised SystemExit: 3"),
        ({"factory": "a_script_of_a_test:f"}, "importing 'a_script_of_a_test' raised SystemExit: usage: ..."),
        ({"factory": "subjects_of_a_test:plain", "arguments": {"widht": 3}}, "unexpected keyword argument 'widht'; allowed: width"),
    ],
)
def test_mistakes_are_named(define, project, options, message):
    with pytest.raises(MeasurementError, match=message):
        load(define("python", options), root=project)


def test_an_implementation_that_it_cannot_switch_is_an_error(define, project):
    with pytest.raises(MeasurementError, match="Small has no set_attn_implementation"):
        load(define("python", {"factory": "subjects_of_a_test:plain"}, attn_implementation="sdpa"), root=project)


def test_a_transformers_model_is_switched(define, project):
    (project / "subjects_of_a_test.py").write_text(
        "from transformers import GPT2Config, GPT2Model\n"
        "def gpt2(): return GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32))\n"
    )
    loaded = load(define("python", {"factory": "subjects_of_a_test:gpt2"}, attn_implementation="eager"), root=project)
    assert loaded.model.config._attn_implementation == "eager"


def test_what_a_factory_sets_for_the_process_ends_with_it(project, define, monkeypatch) -> None:
    monkeypatch.chdir(project)
    (project / "elsewhere").mkdir()
    (project / "rude.py").write_text(
        "import os, torch\n\ntorch.set_grad_enabled(False)\n\n\ndef model():\n    os.chdir('elsewhere')\n"
        "    torch.set_default_dtype(torch.float64)\n    torch.set_default_device('meta')\n"
        "    return torch.nn.MultiheadAttention(8, 2, batch_first=True, device='cpu')\n"
    )
    before = torch.ones(1)
    load(define("python", {"factory": "rude:model"}), root=project)
    after = torch.ones(1)
    assert (after.dtype, after.device, torch.is_grad_enabled()) == (before.dtype, before.device, True)
    assert Path.cwd() == project.resolve()


def test_a_model_without_a_configuration_tells_its_vocabulary_by_its_only_table(project, define) -> None:
    loaded = load(define("python", {"factory": "subjects_of_a_test:plain"}), root=project)
    assert loaded.encoder.vocabulary_size == 50
    loaded.model.positions = torch.nn.Embedding(16, 8)
    assert encoder_for(loaded.model).vocabulary_size is None
