"""Variants inside a model, seen while it runs: the numbers of observables against float64, the count of calls, and not a bit changed."""

from __future__ import annotations

import threading
from typing import Any

import kernels
import numpy as np
import pytest
import torch
from observing import wanted
from torch import Tensor, nn

import attncheck
from attncheck import variants
from attncheck.capture.observe import observe, watching
from attncheck.core.errors import MeasurementError, NotObservable
from attncheck.instruments.session import Session
from attncheck.variants import attend

WIDTH, HEADS, TOKENS = 48, 4, 21
DEFINITIONS: list[Any] = [
    "mha",
    "mqa",
    {"gqa": {"kv_heads": 2}},
    {"mla": {"rank": 20}},
    {"lrkv": {"rank": 5}},
    {"sliding_window": {"window": 4}},
    "sinks",
    {"softcap": {"cap": 0.5}},
    "qk_norm",
    {"polynomial": {"power": 3, "factor": 1}},
    "polynomial",
    {"polynomial": {"power": 2, "factor": "learned"}},
    "sigmoid",
    "linear",
]
SOFTMAX = {"softmax", "mqa", "gqa", "mla", "lrkv", "sliding_window", "sinks", "softcap", "qk_norm"}
ANNOUNCED = {"mla", "sinks", "softcap", "polynomial", "sigmoid", "linear"}
names = pytest.mark.parametrize("definition", DEFINITIONS, ids=str)


class Model(nn.Module):
    """Two layers of one variant in a pre-norm residual stream."""

    def __init__(self, definition: Any, *, causal: bool = True, **more: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            variants.module(definition, width=WIDTH, heads=HEADS, tokens=TOKENS, causal=causal, rotary=True, **more) for _ in range(2)
        )
        with torch.no_grad():
            for layer in self.layers:
                layer.q_proj.weight.mul_(4)  # scores away from 0

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = hidden + layer(nn.functional.layer_norm(hidden, (WIDTH,)))
        return hidden


def hidden(tokens: int = TOKENS) -> Tensor:
    return torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(4))


def weights_of(model: nn.Module, x: Tensor) -> list[Tensor]:
    """[B, H, N, M] of each layer in float64: the model run in double, its values replaced by blocks of the identity, by hand."""
    model = model.double()
    found = []
    with torch.no_grad():
        stream = x.double()
        for layer in model.layers:  # type: ignore[union-attr]
            normed = nn.functional.layer_norm(stream, (WIDTH,))
            places = torch.arange(x.shape[1])
            query = layer.finished(layer.split(layer.q_proj(normed), HEADS), places, layer.gain("q"))
            key, _ = layer.keys.expand(layer, layer.keys.state(layer, normed, places), places)
            eye = torch.eye(x.shape[1], dtype=torch.float64).expand(2, key.shape[1], -1, -1)
            found.append(layer.attended(query, key, eye, places, places))
            stream = stream + layer(normed)
    model.float()
    return found


@pytest.mark.parametrize("causal", [True, False])
@names
def test_observables_of_a_model_of_any_variant(definition: Any, causal: bool) -> None:
    model, x = Model(definition, causal=causal), hidden()
    asked = [
        "attention.frobenius_norm",
        {"attention.row_sum": {"per": "query"}},
        "attention.sink_mass",
        "attention.largest_weight",
        {"attention.column_mass": {}},
        "attention.future_mass",
    ]
    found = attncheck.observe(model, {"hidden": x}, asked)
    exact = weights_of(model, x)
    for layer, weights in enumerate(exact):
        for name, expected in (
            ("attention.frobenius_norm", weights.square().sum((-1, -2)).sqrt()),
            ("attention.row_sum", weights.sum(-1)),
            ("attention.sink_mass", weights[..., 0].mean(-1)),
            ("attention.largest_weight", weights.amax(-1).mean(-1)),
            ("attention.column_mass", weights.mean(-2)),
            ("attention.future_mass", weights.triu(1).sum(-1).mean(-1)),
        ):
            if name == "attention.future_mass" and float(weights.min()) < 0 and not causal:
                continue  # it is the larger of all that thresholds show, which for weights of either sign is no sum
            got = next(found[key] for key in found.data_vars if str(key).startswith(name)).sel(layer=layer)
            size = max(1.0, float(expected.abs().max()))
            np.testing.assert_allclose(got.transpose("sample", "head", ...).values, expected.numpy(), atol=2e-5 * size, err_msg=name)
    if causal:
        assert float(np.abs(found["attention.future_mass"]).max()) == 0


@names
def test_observing_changes_no_bit_and_counts_every_call(definition: Any) -> None:
    model, x = Model(definition), hidden()
    with torch.no_grad():
        before = model(x)
    session = Session(wanted("attention.frobenius_norm", "kernel.error"))
    after, record = observe(model, {"hidden": x}, session.on_call, batch=2)
    assert torch.equal(before, after)
    announced = next(iter(record.routes)) == "attend"
    assert announced == (model.layers[0].definition.name in ANNOUNCED)
    assert sum(record.routes.values()) == 2
    assert record.calls == ["layers.0", "layers.1"]
    if model.layers[0].definition.name in SOFTMAX:
        assert float(kernels.values(session, "kernel.error").max()) < 1e-5


@pytest.mark.parametrize("definition", ["polynomial", "sinks", "sigmoid"])
def test_gradients_are_the_same_to_the_bit(definition: str) -> None:
    model, x = Model(definition), hidden()

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    before = gradients()
    seen: list[str] = []
    with watching(model, lambda call: seen.append(call.path), batch=2):
        during = gradients()
    assert seen == ["layers.0", "layers.1"]
    assert all(torch.equal(a, b) for a, b in zip(before, during, strict=True))


def test_logits_where_the_formula_is_known_and_only_there() -> None:
    x = hidden()
    capped, cubic = Model({"softcap": {"cap": 0.5}}), Model("polynomial")
    found = attncheck.observe(capped, {"hidden": x}, ["logits.max"])["logits.max"]
    assert 0.3 < float(found.min()) <= float(found.max()) <= 0.5
    with pytest.raises(MeasurementError, match=r"layers\.0: logits cannot be seen"):
        attncheck.observe(cubic, {"hidden": x}, ["logits.max"])


@pytest.mark.parametrize("definition", ["mha", "qk_norm", {"mla": {"rank": 20}}, {"lrkv": {"rank": 5}}, "softcap"], ids=str)
def test_queries_and_keys_are_seen_and_turned_back(definition: Any) -> None:
    """Norms of what the operator was given; expected scores need the module's own rotation."""
    model, x = Model(definition), hidden(40)
    expected = {"attention.expected_scores": {"statistics": "0..19", "future": "20..39", "keys": "4..19"}}
    found = attncheck.observe(model, {"hidden": x}, ["keys.frobenius_norm", expected])
    norms, scores = (found[name] for name in found.data_vars)
    assert float(scores.sel(key=slice(4, 19)).min()) > 0
    layer = model.layers[0]
    with torch.no_grad():
        normed, places = nn.functional.layer_norm(x, (WIDTH,)), torch.arange(40)
        key, _ = layer.keys.expand(layer, layer.keys.state(layer, normed, places), places)
    exact = key.double().square().sum((-1, -2)).sqrt()
    np.testing.assert_allclose(norms.sel(layer=0).transpose("sample", "head").values, exact.numpy(), rtol=1e-6)


def test_parts_of_lrkv_are_seen() -> None:
    model = Model({"lrkv": {"rank": 5}})
    asked = [{"weights.norm": {"matrix": "k", "part": part}} for part in ("shared", "residual")]
    found = attncheck.observe(
        model, {"hidden": hidden()}, [*asked, {"weights.part_cosine": {"matrix": "v"}}, {"weights.norm": {"matrix": "k"}}]
    )
    shared, residual, cosine, total = (found[name].values for name in found.data_vars)
    for number, layer in enumerate(model.layers):
        up, down = layer.k_up.detach().double().view(4, 12, 5), layer.k_down.weight.detach().double().view(4, 5, 48)
        base = layer.k_shared.weight.detach().double()
        np.testing.assert_allclose(shared[number], [float(base.norm())] * 4, rtol=1e-6)
        np.testing.assert_allclose(residual[number], (up @ down).norm(dim=(1, 2)).numpy(), rtol=1e-6)
        np.testing.assert_allclose(total[number], (base + up @ down).norm(dim=(1, 2)).numpy(), rtol=1e-6)
        value, rest = (
            layer.v_shared.weight.detach().double(),
            (layer.v_up.detach().double().view(4, 12, 5) @ layer.v_down.weight.detach().double().view(4, 5, 48)),
        )
        expected = [float((value * part).sum() / value.norm() / part.norm()) for part in rest]
        np.testing.assert_allclose(cosine[number], expected, atol=1e-6)


class Third(nn.Module):
    """Somebody's own attention that is no softmax. `how`: through `attend`, or not."""

    def __init__(self, how: str = "attend") -> None:
        super().__init__()
        self.how = how
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (p(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.how == "attend":
            return attend(self, squared, query, key, value, boost=2.0).transpose(1, 2).flatten(-2)  # type: ignore[no-any-return]
        if self.how == "other formula":
            return attend(self, squared, query, key, value, rows="formula").transpose(1, 2).flatten(-2)  # type: ignore[no-any-return]
        return squared(query, key, value).transpose(1, 2).flatten(-2)


def squared(query: Tensor, key: Tensor, value: Tensor, boost: float = 1.0) -> Tensor:
    return boost * (query @ key.mT).square() @ value


def test_a_module_of_somebody_elses() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Third(), nn.Linear(WIDTH, WIDTH), Third()), hidden()
    found = attncheck.observe(model, {"input": x}, ["attention.frobenius_norm"])["attention.frobenius_norm"]
    with torch.no_grad():
        query, key = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).double() for p in (model[0].q_proj, model[0].k_proj))
        expected = 2 * (query @ key.mT).square().square().sum((-1, -2)).sqrt()
    np.testing.assert_allclose(found.sel(layer=0).transpose("sample", "head").values, expected.numpy(), rtol=1e-5)
    assert found.sizes["layer"] == 2


def test_without_attend_it_is_an_error_and_never_a_pass() -> None:
    with pytest.raises(NotObservable, match="no attention call was seen"):
        attncheck.observe(Third("plain"), {"hidden": hidden()}, ["attention.frobenius_norm"])
    with pytest.raises(NotObservable, match=r"attention ran that no route saw \(1 other call was\): 1"):
        attncheck.observe(nn.Sequential(Third(), Third("plain")), {"input": hidden()}, ["attention.frobenius_norm"])


def test_a_formula_that_is_not_the_operators_is_found_out() -> None:
    with pytest.raises(MeasurementError, match="does not apply the attention that its query, key and mask define"):
        attncheck.observe(Third("other formula"), {"hidden": hidden()}, ["attention.frobenius_norm"])


def test_a_long_input_to_an_operator_of_its_own_says_so() -> None:
    model = Model("polynomial")
    with pytest.raises(
        MeasurementError, match=r"layers\.0: the weights of polynomial_attention are read off itself.*up to 512 keys; the input has 513"
    ):
        attncheck.observe(model, {"hidden": hidden(513)}, ["attention.frobenius_norm"])
    assert attncheck.observe(model, {"hidden": hidden(513)}, ["attention.row_sum"])["attention.row_sum"].notnull().all()


def test_an_operator_of_another_shape_is_named() -> None:
    class Wrong(Third):
        def forward(self, hidden: Tensor) -> Tensor:
            return attend(self, lambda q, k, v: q.transpose(1, 2), hidden[:, None], hidden[:, None], hidden[:, None])  # type: ignore[no-any-return]

    with pytest.raises(MeasurementError, match=r"Wrong: an operator called through attend returned shape \(2, 21, 1, 48\); expected"):
        attncheck.observe(Wrong(), {"hidden": hidden()}, ["attention.row_sum"])
    with pytest.raises(MeasurementError, match=r"attend: rows: 'other'; allowed: 'kernel', 'formula'"):
        attend(nn.Identity(), squared, hidden(), hidden(), hidden(), rows="other")  # type: ignore[arg-type]


def test_a_module_that_is_no_part_of_the_model_is_not_measured() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mine = Third()
            self.others = [Third()]

        def forward(self, hidden: Tensor) -> Tensor:
            return self.mine(hidden) + self.others[0](hidden)  # type: ignore[no-any-return]

    model, x = Beside(), hidden()
    with pytest.raises(NotObservable, match="attention ran in Third, which the model runs but which is no part of it"):
        observe(model, {"hidden": x}, lambda call: None, batch=2)
    paths: list[str] = []
    _, record = observe(model, {"hidden": x}, lambda call: paths.append(call.path), batch=2, attention_layers=1)
    assert paths == ["mine"]
    assert record.notes == ["Third ran inside the model but is no part of it: attention in it was not measured"]


def test_nobody_listens_afterwards_or_in_another_thread() -> None:
    model, x, paths = Third(), hidden(), []
    with torch.no_grad(), watching(model, lambda call: paths.append(call.path)) as record:
        thread = threading.Thread(target=lambda: torch.no_grad()(model)(x))
        thread.start()
        thread.join()
    assert paths == []
    assert record.unseen == ["Third ran in another thread, where nothing can be watched"]
    model(x)
    assert paths == []


def test_dropout_inside_an_operator_draws_the_same_again() -> None:
    class Dropping(Third):
        def forward(self, hidden: Tensor) -> Tensor:
            query, key, value = (p(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
            return attend(self, variants.operator("sigmoid"), query, key, value, dropout_p=0.3).transpose(1, 2).flatten(-2)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x, apart = Dropping(), hidden(), []
    torch.manual_seed(1)
    plain = model(x)
    torch.manual_seed(1)
    with watching(model, lambda call: apart.append(float((call.rerun(call.value) - call.output).abs().max()))):
        watched = model(x)
    assert apart == [0.0]
    assert torch.equal(plain, watched)


@pytest.mark.parametrize("definition", ["mha", "polynomial", "softcap"])
def test_a_compiled_module_has_no_graph_breaks_and_is_seen(definition: str) -> None:
    model, x = Model(definition), hidden()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    plain, seen = (attncheck.observe(m, {"hidden": x}, ["attention.frobenius_norm"])["attention.frobenius_norm"] for m in (model, compiled))
    np.testing.assert_array_equal(plain.values, seen.values)
    torch._dynamo.reset()
