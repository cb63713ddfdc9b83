"""`attncheck.observe`: the front door without a spec."""

from __future__ import annotations

from typing import Any

import naive
import numpy as np
import pytest
import torch
import zoo
from torch import Tensor
from torch.nn import functional as F

import attncheck
from attncheck.core.errors import AttncheckError, MeasurementError, NotObservable


def test_a_dataset_with_a_variable_for_each_observable() -> None:
    model, arguments = zoo.build("llama", "sdpa"), zoo.tokens(2, 9)
    found = attncheck.observe(model, arguments, ["attention.entropy", "attention.column_mass", {"attention.key_mass": {"keys": "0..3"}}])
    assert list(found.data_vars) == ["attention.entropy", "attention.column_mass", "attention.key_mass"]
    assert found["attention.entropy"].dims == ("sample", "layer", "head")
    assert found["attention.column_mass"].dims == ("sample", "layer", "head", "key")
    assert found["attention.entropy"].attrs["unit"] == "nats"
    assert found.coords["stack"].values.tolist() == ["self", "self"]
    assert found.coords["path"].values.tolist() == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    with torch.no_grad():
        weights = zoo.build("llama", "eager")(**arguments, output_attentions=True).attentions
    exact = torch.stack([naive.entropy(a.double()).mean(-1) for a in weights], 1)
    assert np.allclose(found["attention.entropy"], exact, atol=3e-6)


def test_a_tensor_stands_for_token_ids_or_pixels() -> None:
    import transformers as tf

    model = zoo.build("gpt2", "sdpa")
    ids = zoo.tokens(1, 7)["input_ids"]
    by_tensor, by_name = (attncheck.observe(model, given, ["attention.entropy"]) for given in (ids, {"input_ids": ids}))
    assert by_tensor.identical(by_name)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 32, "image_size": 8, "patch_size": 4}
    vit = tf.ViTModel(tf.ViTConfig(**sizes)).eval()
    found = attncheck.observe(vit, torch.randn(2, 3, 8, 8), ["attention.entropy"])
    assert found["attention.entropy"].shape == (2, 2, 6)


def test_the_attention_mask_says_what_is_padding() -> None:
    model, arguments = zoo.build("llama", "eager"), zoo.tokens(2, 12, pad="left")
    found = attncheck.observe(model, arguments, [{"attention.entropy": {"per": "query"}}, "attention.padding_mass"])
    present = ~np.isnan(found["attention.entropy"].values)
    assert np.array_equal(present[:, 0, 0], arguments["attention_mask"].bool().numpy())
    assert found["attention.padding_mass"].max() == 0


def test_the_same_name_twice_is_told_apart_by_its_arguments() -> None:
    found = attncheck.observe(
        zoo.build("llama", "sdpa"), zoo.tokens(1, 9), [{"attention.key_mass": {"keys": "0"}}, {"attention.key_mass": {"keys": "1.."}}]
    )
    assert len(found.data_vars) == 2
    assert np.allclose(sum(found.data_vars.values()), 1, atol=1e-6)


def test_intervals_come_under_names_of_their_own() -> None:
    found = attncheck.observe(zoo.build("llama", "sdpa"), zoo.tokens(1, 9), ["attention.spectral_norm", "attention.frobenius_estimate"])
    assert (found["attention.spectral_norm.lower"] <= found["attention.spectral_norm"]).all()
    assert (found["attention.spectral_norm"] <= found["attention.spectral_norm.upper"]).all()
    assert (found["attention.frobenius_estimate.stderr"] >= 0).all()


def test_an_operator() -> None:
    generator = torch.Generator().manual_seed(0)
    given = {name: torch.randn(1, 2, 8, 4, generator=generator) for name in ("query", "key", "value")}
    found = attncheck.observe(F.scaled_dot_product_attention, {**given, "is_causal": True}, ["attention.frobenius_norm", "kernel.error"])
    exact = naive.attention(given["query"], given["key"], causal=True).weights.square().sum((-1, -2)).sqrt()
    assert np.allclose(found["attention.frobenius_norm"][:, 0], exact, atol=1e-6)
    assert found.coords["path"].values.tolist() == ["scaled_dot_product_attention"]


def test_the_model_is_left_as_it_was() -> None:
    model = zoo.build("llama", "sdpa").train()
    modes = [module.training for module in model.modules()]
    attncheck.observe(model, zoo.tokens(1, 9), ["attention.entropy"])
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_notes_reach_the_caller() -> None:
    mask = torch.zeros(1, 1, 9, 9).masked_fill(torch.ones(9, 9).bool().triu(1), -1e9)
    mask[:, :, 0] = -1e9
    found = attncheck.observe(zoo.build("llama", "sdpa"), {**zoo.tokens(1, 9), "attention_mask": mask}, ["attention.entropy"])
    assert found.attrs["notes"] == ["1 query rows that see no key are left out of every reduction"]
    assert found["attention.entropy"].attrs["empty_rows"] == 1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("attention.entropy", "observables is a list of names such as"),
        ([], "observables is a list of names such as"),
        (["attention.entropi"], "unknown observable 'attention.entropi'; did you mean 'attention.entropy'"),
        ([{"attention.entropy": {"per": "head"}, "logits.max": {}}], "is not an observable"),
        ([3], "3 is not an observable"),
        ([{"attention.key_mass": {"key": "0"}}], r"key.*did you mean 'keys'"),
        (["attention.key_mass"], "keys: Field required"),
        ([{"attention.key_mass": {"keys": "4..2"}}], "ends before it starts"),
        (["attention.padding_mass"], "no padding"),
    ],
)
def test_what_cannot_be_asked_is_said(asked: Any, words: str) -> None:
    with pytest.raises(AttncheckError, match=words):
        attncheck.observe(zoo.build("llama", "sdpa"), zoo.tokens(1, 9), asked)


def test_what_cannot_be_fed_is_said() -> None:
    model = zoo.build("llama", "sdpa")
    with pytest.raises(MeasurementError, match="a tensor or a mapping of forward's arguments, not list"):
        attncheck.observe(model, [1, 2, 3], ["attention.entropy"])
    with pytest.raises(MeasurementError, match=r"the forward pass raised .*IndexError"):
        attncheck.observe(model, torch.tensor([[1, 10_000]]), ["attention.entropy"])
    with pytest.raises(MeasurementError, match="an operator needs query, key and value as tensors; missing: key, value"):
        attncheck.observe(F.scaled_dot_product_attention, {"query": torch.zeros(1, 1, 2, 2)}, ["attention.row_sum"])
    with pytest.raises(MeasurementError, match=r"an nn\.Module or an attention operator, not str"):
        attncheck.observe("gpt2", {"query": torch.zeros(1)}, ["attention.row_sum"])
    with pytest.raises(NotObservable, match="attention_layers says 3"):
        attncheck.observe(model, zoo.tokens(1, 5), ["attention.entropy"], attention_layers=3)


def test_an_encoder_decoder_keeps_its_stacks_apart() -> None:
    arguments: dict[str, Tensor] = {**zoo.tokens(2, 12, pad="right"), "decoder_input_ids": zoo.tokens(2, 7, seed=1)["input_ids"]}
    found = attncheck.observe(zoo.build("t5", "sdpa"), arguments, [{"attention.entropy": {"per": "query"}}, "attention.future_mass"])
    assert found.coords["stack"].values.tolist() == ["encoder", "encoder", "decoder", "cross", "decoder", "cross"]
    kept = found["attention.entropy"]
    assert kept.sizes["query"] == 12
    decoder = kept.isel(layer=2)
    assert bool(decoder.isel(query=slice(7, None)).isnull().all())
    assert not bool(decoder.isel(query=slice(0, 7)).isnull().any())
    future = found["attention.future_mass"].isel(layer=[2, 4])
    assert float(future.max()) == 0


def test_documentation_of_the_front_door() -> None:
    assert attncheck.observe.__doc__ is not None
    for word in ("nn.Module", "operator", "NaN", "Raises AttncheckError"):
        assert word in attncheck.observe.__doc__
