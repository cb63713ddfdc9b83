"""Directories and hub names: read as they say, refused where the result would not be what was asked for."""

from __future__ import annotations

import json
import threading

import pytest
import torch

from attncheck.core.errors import MeasurementError, Unavailable
from attncheck.subjects import hub, load


@pytest.fixture
def directory(define, tiny, tmp_path):
    model = load(define("config", tiny)).model
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit(directory, **changes):
    path = directory / "config.json"
    stated = json.loads(path.read_text())
    path.write_text(json.dumps({**stated, **changes}))


def test_a_directory_relative_to_the_root(define, directory):
    loaded = load(define("pretrained", {"name": "model"}), root=directory.parent)
    absolute = load(define("pretrained", {"name": str(directory)}))
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert all(torch.equal(a, b) for a, b in zip(loaded.model.parameters(), absolute.model.parameters(), strict=True))


def test_the_task_wins_over_the_checkpoint_s_class(define, directory):
    assert type(load(define("pretrained", {"name": str(directory), "task": "base"})).model).__name__ == "LlamaModel"


def test_a_head_that_the_checkpoint_lacks_is_an_error(define, directory):
    with pytest.raises(MeasurementError, match=r"are not in the checkpoint and would be random: score\.weight"):
        load(define("pretrained", {"name": str(directory), "task": "sequence-classification"}))


def test_a_layer_that_the_checkpoint_lacks_is_an_error(define, directory):
    edit(directory, num_hidden_layers=3)
    with pytest.raises(MeasurementError, match=r"would be random: model\.layers\.2\..* and \d+ more"):
        load(define("pretrained", {"name": str(directory)}))


def test_nan_in_the_weights_is_named(define, directory):
    from safetensors.torch import load_file, save_file

    state = load_file(directory / "model.safetensors")
    state["model.layers.1.self_attn.k_proj.weight"][0, 0] = torch.nan
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MeasurementError, match=r"parameter model\.layers\.1\.self_attn\.k_proj\.weight holds 1 of"):
        load(define("pretrained", {"name": str(directory)}))


def test_random_weights_need_the_configuration_alone(define, directory):
    (directory / "model.safetensors").unlink()
    assert load(define("pretrained", {"name": str(directory)}, weights="random")).model is not None
    with pytest.raises(MeasurementError, match="holds no weights"):
        load(define("pretrained", {"name": str(directory)}))


def test_a_bin_is_read_without_running_it(define, directory):
    from safetensors.torch import load_file

    expected = load(define("pretrained", {"name": str(directory)})).model.state_dict()
    state = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    torch.save(state, directory / "pytorch_model.bin")
    read = load(define("pretrained", {"name": str(directory)})).model.state_dict()
    assert all(torch.equal(expected[key], read[key]) for key in expected)


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_a_pickle_is_not_run(define, directory, tmp_path):
    (directory / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Attack(str(tmp_path / "ran"))}, directory / "pytorch_model.bin")
    with pytest.raises(MeasurementError, match="could not be built"):
        load(define("pretrained", {"name": str(directory)}))
    assert not (tmp_path / "ran").exists()
    (directory / "pytorch_model.bin").rename(directory / "model.ckpt")
    with pytest.raises(MeasurementError, match=r"holds its weights as model\.ckpt, which is not read"):
        load(define("pretrained", {"name": str(directory)}))


def test_a_checkpoint_with_code_needs_two_words(define, directory):
    edit(directory, model_type="unheard-of", auto_map={"AutoConfig": "own.Own", "AutoModel": "own.OwnModel"})
    with pytest.raises(
        MeasurementError, match=r"needs code of its own .* trust_remote_code: true in the spec and --attn-trust-remote-code"
    ):
        load(define("pretrained", {"name": str(directory)}), trust_remote_code=True)
    with pytest.raises(MeasurementError, match="the command line must allow it too"):
        load(define("pretrained", {"name": str(directory), "trust_remote_code": True}))


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class Own(LlamaConfig):
    model_type = "unheard-of"

class OwnModel(LlamaForCausalLM):
    config_class = Own
"""


def test_a_checkpoint_with_code_runs_when_both_words_are_said(define, directory, tmp_path, monkeypatch):
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    edit(directory, model_type="unheard-of", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"})
    (directory / "own.py").write_text(OWN_CODE)
    definition = define("pretrained", {"name": str(directory), "trust_remote_code": True})
    assert type(load(definition, trust_remote_code=True).model).__name__ == "OwnModel"
    twin = load(definition.changed(weights="random"), trust_remote_code=True)
    assert type(twin.model).__name__ == "OwnModel"


@pytest.mark.parametrize(
    ("name", "message"),
    [("./nowhere", "there is no directory"), ("a/b/c", "there is no directory")],
)
def test_a_directory_that_is_not_there_is_unavailable(define, tmp_path, name, message):
    with pytest.raises(Unavailable, match=message):
        load(define("pretrained", {"name": name}), root=tmp_path)


def test_what_is_no_checkpoint_is_an_error(define, tmp_path, directory):
    (tmp_path / "empty").mkdir()
    with pytest.raises(MeasurementError, match=r"has no config\.json"):
        load(define("pretrained", {"name": "empty"}), root=tmp_path)
    with pytest.raises(MeasurementError, match="is a file"):
        load(define("pretrained", {"name": str(directory / "config.json")}))
    with pytest.raises(MeasurementError, match="neither a directory, nor package:NAME, nor a hub name"):
        load(define("pretrained", {"name": "two words"}))
    with pytest.raises(MeasurementError, match="revision 'main' goes with a hub name"):
        load(define("pretrained", {"name": str(directory), "revision": "main"}))


def test_a_hub_name_that_is_not_cached_says_how_to_get_it(define):
    with pytest.raises(Unavailable) as caught:
        load(define("pretrained", {"name": "someone/not-cached", "revision": "step143000"}))
    assert caught.value.remedy.endswith("hf download someone/not-cached --revision step143000")


def test_a_hub_that_does_not_answer_is_not_waited_for(define, monkeypatch):
    from huggingface_hub import constants

    released, waited = threading.Event(), []

    def never(*arguments, **options):
        if not released.wait(30):
            waited.append(True)
        raise OSError("nobody there")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "PATIENCE", 0.3)
    monkeypatch.setattr(hub.urllib.request, "urlopen", never)
    with pytest.raises(Unavailable, match="does not answer; with a network: hf download someone/not-cached"):
        load(define("pretrained", {"name": "someone/not-cached"}))
    assert not waited
    released.set()


def test_what_is_cached_is_used_offline(define, directory, tmp_path, monkeypatch):
    from huggingface_hub import constants, file_download

    folder = tmp_path / "hub" / "models--someone--cached"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    directory.rename(snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(file_download.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert type(load(define("pretrained", {"name": "someone/cached"})).model).__name__ == "LlamaForCausalLM"
    (snapshot / "model.safetensors").unlink()
    assert load(define("pretrained", {"name": "someone/cached"}, weights="random")).model is not None
    with pytest.raises(Unavailable, match="someone/cached is not in the cache"):
        load(define("pretrained", {"name": "someone/cached"}))


def test_a_sharded_checkpoint_is_complete_with_its_last_shard(tmp_path):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    assert not hub.complete(tmp_path)
    (tmp_path / "model-2.safetensors").touch()
    assert hub.complete(tmp_path)
