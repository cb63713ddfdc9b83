"""Nothing passes vacuously: attention that no route sees is an error that names it, and what is no attention raises no alarm."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
import torch
import zoo
from observing import run
from torch import Tensor, nn

from attncheck.capture.observe import observe
from attncheck.core.errors import MeasurementError, NotObservable


def by_einsum(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax written out: no operator of ours runs."""
    scores = torch.einsum("bhnd,bhmd->bhnm", query, key) * query.shape[-1] ** -0.5
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhnm,bhmd->bhnd", weights, value)


def by_hand(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A softmax that meets its values element by element."""
    weights = torch.softmax(query @ key.transpose(-1, -2), -1)
    return (weights[..., None] * value[:, :, None]).sum(-2)


def by_sigmoid(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.sigmoid(query @ key.transpose(-1, -2)) @ value


def by_softmax(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.transpose(-1, -2), -1) @ value


def by_softmax_flat(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (t.flatten(0, 1) for t in (query, key, value))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v).view_as(value)


def by_softmax_flat_by_hand(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (t.flatten(0, 1) for t in (query, key, value))
    return (torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1)[..., None] * v[:, None]).sum(-2).view_as(value)


def by_columns(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B, H, M, N], normalised over the last dim but one."""
    return torch.softmax(key @ query.transpose(-1, -2), -2).transpose(-1, -2) @ value


def transposed(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The softmax's result is transposed before the product: its rows are not what is applied."""
    return torch.softmax(query @ key.transpose(-1, -2), -1).transpose(-1, -2) @ value


def masked_after(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Weights changed after the softmax: what is applied is seen, the scores do not say it."""
    return (torch.softmax(query @ key.transpose(-1, -2), -1) * attention.kept[:, None, None]) @ value


def by_log_softmax(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.log_softmax(query @ key.transpose(-1, -2), -1).exp() @ value


def by_log_sum_exp(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-1, -2)
    return (scores - scores.logsumexp(-1, keepdim=True)).exp_() @ value


def divided_after(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As blockwise kernels do: the sum divides the output."""
    weights = torch.exp2(query @ key.transpose(-1, -2))
    return (weights @ value) / weights.sum(-1, keepdim=True)


def off_by_one(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = torch.exp(query @ key.transpose(-1, -2))
    return (weights / (1 + weights.sum(-1, keepdim=True))) @ value


class Mamba(nn.Module):
    """Decays between positions, as a state-space layer written in matrices has them."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (4, 6)).transpose(1, 2)
        steps = heads.abs().sum(-1).cumsum(-1)
        return x + (
            torch.exp(steps[..., None, :] - steps[..., None]).tril() @ heads + torch.exp(-heads @ heads.mT.abs()) @ heads
        ).transpose(1, 2).flatten(2)


def test_the_decays_of_a_mixer_that_says_it_is_none_raise_no_alarm() -> None:
    assert run(*stack(Mixer(by_softmax), Mamba())).observation.calls == ["layers.0"]


class Mixer(nn.Module):
    """Attention under a name that says nothing."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.qkv = nn.Linear(24, 72)
        self.how = how
        self.register_buffer("kept", torch.tensor([1.0, 0.5, 0.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4)
        return x + self.how(self, query, key, value).transpose(1, 2).flatten(2)


class Attention(Mixer):
    """The same under a name that says what it is."""


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def stack(*layers: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Stack(*layers).eval(), {"x": torch.randn(2, 9, 24)}


def test_a_state_space_is_known_by_its_decay() -> None:
    plain = type("Recurrence", (nn.Module,), {"forward": Mamba.forward})
    with pytest.raises(NotObservable, match="applied to values as a softmax's would be"):
        run(*stack(Mixer(by_softmax), plain()))
    decaying = plain()
    decaying.A_log = nn.Parameter(torch.zeros(4))
    assert run(*stack(Mixer(by_softmax), decaying)).observation.calls == ["layers.0"]


class Skipping(Stack):
    """Runs some of its layers, in an order of its own."""

    def __init__(self, *order: int) -> None:
        super().__init__(*(Attention(by_softmax) for _ in range(3)))
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        for number in self.order:
            x = self.layers[number](x)
        return x


@pytest.mark.parametrize("order", [(1, 2), (0, 1, 1)])
def test_a_layer_that_is_skipped_while_its_neighbours_run_is_named(order: tuple[int, ...]) -> None:
    missing = ({0, 1, 2} - set(order)).pop()
    with pytest.raises(NotObservable, match=rf"layers\.{missing} never ran\. If that is meant, .*`attention_layers: {len(order)}`"):
        run(*stack(Skipping(*order)))
    assert len(run(*stack(Skipping(*order)), attention_layers=len(order)).observation.calls) == len(order)
    assert len(run(*stack(Skipping(2, 1, 0, 0))).observation.calls) == 4


class Replacing(nn.Module):
    """Puts another attention in the place of its own in the first forward, as BigBird does on short inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(by_einsum)

    def forward(self, x: Tensor) -> Tensor:
        if self.attention.how is by_einsum:
            self.attention = Attention(by_softmax)
        found: Tensor = self.attention(x)
        return found


def test_a_part_that_a_model_replaces_while_it_runs_is_its_own() -> None:
    assert run(*stack(Replacing())).observation.calls == ["layers.0.attention"]


def by_sdpa(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return nn.functional.scaled_dot_product_attention(query, key, value)


def test_the_math_fallback_in_half_precision() -> None:
    """torch makes a second copy of the weights, in bfloat16, to return; the one that is applied is float32."""
    model, given = stack(Attention(by_sdpa))
    found = run(model.to(torch.bfloat16), {"x": given["x"].to(torch.bfloat16)})
    assert found.observation.calls == ["layers.0"]


@pytest.mark.parametrize("kind", [Attention, Mixer])
@pytest.mark.parametrize(
    "how",
    [
        by_einsum,
        by_hand,
        by_softmax_flat_by_hand,
        by_columns,
        transposed,
        by_log_softmax,
        by_log_sum_exp,
        divided_after,
        off_by_one,
    ],
)
def test_a_layer_that_bypasses_every_route_is_named(how: Any, kind: type[Mixer]) -> None:
    with pytest.raises(NotObservable, match=r"layers\.1"):
        observe(*stack(Attention(by_softmax), kind(how)), lambda call: None, batch=2)


def test_a_layer_without_a_softmax_is_known_by_its_name() -> None:
    with pytest.raises(NotObservable, match=r"no route saw \(1 other call was\): layers\.1.*attention_layers: 1"):
        observe(*stack(Attention(by_softmax), Attention(by_sigmoid)), lambda call: None, batch=2)
    observe(*stack(Attention(by_softmax), Attention(by_sigmoid)), lambda call: None, batch=2, attention_layers=1)
    with pytest.raises(NotObservable, match=r"layers\.0, layers\.1"):
        observe(*stack(Attention(by_sigmoid), Attention(by_sigmoid)), lambda call: None, batch=2)


def test_what_is_declared_no_attention_is_noted() -> None:
    _, observation = observe(*stack(Attention(by_softmax), Attention(by_sigmoid)), lambda call: None, batch=2, attention_layers=1)
    assert observation.notes == ["by `attention_layers` this is no attention, or none to be measured: layers.1"]


@pytest.mark.parametrize("projection", ["qkv", "Wqkv", "to_qkv", "c_attn", "wqkv"])
def test_a_layer_without_a_softmax_is_known_by_its_fused_projection(projection: str) -> None:
    """Under any name of the class; that of a softmax layer beside it does no harm."""
    model, arguments = stack(Mixer(by_softmax), Mixer(by_sigmoid))
    for layer in model.layers:  # type: ignore[union-attr]
        layer.register_module(projection, layer.qkv)
        if projection != "qkv":
            layer.__class__ = type("Layer", (Mixer,), {"qkv": property(lambda self: getattr(self, projection))})
            del layer._modules["qkv"]
    with pytest.raises(NotObservable, match=r"no route saw \(1 other call was\): layers\.1\. If it is attention, .*variants\.attend"):
        observe(model, arguments, lambda call: None, batch=2)


class SigmoidAttention(nn.Module):
    """Named just so, with a projection whose name says nothing."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.c, self.how = nn.Linear(24, 72), how

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.c(x).unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4)
        return x + self.how(self, query, key, value).transpose(1, 2).flatten(2)


class AttentionOutput(nn.Module):
    """What follows attention is none."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dense(x)  # type: ignore[no-any-return]


def test_a_class_that_is_named_just_so_is_attention_whatever_its_projection_is_called() -> None:
    with pytest.raises(NotObservable, match=r"no route saw \(1 other call was\): layers\.1"):
        observe(*stack(SigmoidAttention(by_softmax), SigmoidAttention(by_sigmoid)), lambda call: None, batch=2)
    assert run(*stack(SigmoidAttention(by_softmax), AttentionOutput())).observation.calls == ["layers.0"]


class Gathering(nn.Module):
    """Named like nothing, with the three projections of attention."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.how = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24), how

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part(x).unflatten(-1, (4, 6)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        return x + self.how(self, query, key, value).transpose(1, 2).flatten(2)


def test_a_layer_without_a_softmax_is_known_by_its_three_projections() -> None:
    with pytest.raises(NotObservable, match=r"no route saw \(1 other call was\): layers\.1.*attention_layers: 1"):
        observe(*stack(Gathering(by_softmax), Gathering(by_sigmoid)), lambda call: None, batch=2)
    assert run(*stack(Gathering(by_softmax), Gathering(by_softmax))).observation.calls == ["layers.0", "layers.1"]


class Projections(nn.Module):
    """Query, key and value from a module of their own; the module around it attends."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [part(x).unflatten(-1, (4, 6)).transpose(1, 2) for part in (self.query, self.key, self.value)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projected = Projections()

    def forward(self, x: Tensor) -> Tensor:
        return x + by_softmax(self, *self.projected(x)).transpose(1, 2).flatten(2)


def test_mere_projections_raise_no_alarm() -> None:
    assert run(*stack(Block(), Block())).observation.calls == ["layers.0", "layers.1"]


class Aside(nn.Module):
    """Runs its layer in a thread of its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found: list[Tensor] = []
        thread = Thread(target=lambda: found.append(self.layer(x).detach()))
        thread.start()
        thread.join()
        return found[0]


def test_a_layer_in_another_thread_is_named() -> None:
    with pytest.raises(NotObservable, match=r"layers\.1\.layer ran in another thread"):
        observe(*stack(Mixer(by_softmax), Aside(Mixer(by_softmax))), lambda call: None, batch=2)


def test_another_model_in_another_thread_takes_nothing_away() -> None:
    model, arguments = stack(Mixer(by_softmax))
    beside, given = stack(Mixer(by_softmax))

    class Waits(Mixer):
        """While its own attention runs, a stranger is in the middle of its forward in another thread."""

        def forward(self, x: Tensor) -> Tensor:
            entered, leave = Event(), Event()
            handle = beside.layers[0].register_forward_pre_hook(lambda *_: (entered.set(), leave.wait(10), None)[2])  # type: ignore[union-attr, operator]
            thread = Thread(target=lambda: beside(**given))
            thread.start()
            entered.wait(10)
            try:
                return super().forward(x)
            finally:
                leave.set()
                thread.join()
                handle.remove()

    model.layers[0].__class__ = Waits  # type: ignore[union-attr]
    observation = run(model, arguments).observation
    assert (observation.calls, observation.notes) == (["layers.0"], [])


def test_a_forward_that_leaves_the_process_is_an_error() -> None:
    def leaving(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise SystemExit("enough")

    with pytest.raises(MeasurementError, match=r"the forward pass raised SystemExit in layers\.0: enough"):
        observe(*stack(Mixer(leaving)), lambda call: None, batch=2)


def test_a_softmax_that_is_declared_no_attention() -> None:
    """Hyper-connections and the like: the number of layers settles it, and the verdict says what was left out."""
    model, arguments = stack(Attention(by_softmax), Mixer(by_hand))
    with pytest.raises(NotObservable, match=r"layers\.1"):
        observe(model, arguments, lambda call: None, batch=2, attention_layers=2)
    _, observation = observe(model, arguments, lambda call: None, batch=2, attention_layers=1)
    assert len(observation.notes) == 1
    assert observation.notes[0].startswith("by `attention_layers` this is no attention: layers.1: a softmax of shape [2, 4, 9, 9]")


def hidden_set_to_zero(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Set once more to what they are already: the scores still say it all."""
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    weights = torch.softmax((query @ key.transpose(-1, -2)).masked_fill(hidden, -torch.inf), -1)
    return weights.masked_fill(hidden, 0.0) @ value


def test_weights_set_to_what_they_are_keep_their_scores() -> None:
    model, arguments = stack(Attention(hidden_set_to_zero))
    assert not run(model, arguments).session.faults


@pytest.mark.parametrize("how", [by_softmax, by_softmax_flat])
def test_a_softmax_applied_to_values_is_attention(how: Any) -> None:
    model, arguments = stack(Attention(how), Mixer(how))
    seen = run(model, arguments)
    assert dict(seen.observation.routes) == {"softmax": 2}
    assert all(one.call.output.shape == (2, 4, 9, 6) for one in seen.calls)


def test_weights_changed_after_the_softmax_are_measured_as_applied() -> None:
    model, arguments = stack(Attention(masked_after))
    names = ["attention.row_sum", "attention.frobenius_norm", "attention.largest_weight"]
    seen = run(model, arguments, names).calls[0]
    assert seen.values["attention.row_sum"][0] == pytest.approx([1, 0.5, 0, 1], abs=1e-6)
    assert seen.values["attention.frobenius_norm"][0, 2] == 0
    refused = run(model, arguments, ["logits.max"], faults=True).session.faults
    assert "logits cannot be seen" in str(next(iter(refused.values())))


class Router(nn.Module):
    """A mixture of experts: softmax over experts, [tokens, experts] or [batch, tokens, experts]."""

    def __init__(self, flat: bool, experts: int = 3) -> None:
        super().__init__()
        self.gate, self.experts, self.flat = nn.Linear(24, experts), nn.Linear(24, 24 * experts), flat

    def forward(self, x: Tensor) -> Tensor:
        given = x.flatten(0, 1) if self.flat else x
        chosen = torch.softmax(self.gate(given), -1)
        best = chosen.topk(2, -1)
        kept = torch.zeros_like(chosen).scatter(-1, best.indices, best.values)
        made = self.experts(given).unflatten(-1, (-1, 24))
        return (kept[..., None] * made).sum(-2).view_as(x)


@pytest.mark.parametrize("experts", [3, 9])
@pytest.mark.parametrize("flat", [True, False])
def test_a_router_is_no_attention(flat: bool, experts: int) -> None:
    model, arguments = stack(Attention(by_softmax), Router(flat, experts))
    assert run(model, arguments).observation.calls == ["layers.0"]


def test_a_mixture_of_experts_of_transformers() -> None:
    assert len(run(zoo.build("mixtral", "sdpa"), zoo.tokens(2, 9)).calls) == 2


class Decay(nn.Module):
    """exp and division as state-space layers use them: nothing is normalised by its own sum."""

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.exp(-torch.cumsum(x.abs(), 1))
        other = torch.exp(x)
        return (decay / (other.sum(-1, keepdim=True) + 1)) @ torch.eye(24)


def test_exponentials_that_are_no_softmax_raise_no_alarm() -> None:
    model, arguments = stack(Attention(by_softmax), Decay())
    assert run(model, arguments).observation.calls == ["layers.0"]


def test_a_model_without_attention() -> None:
    with pytest.raises(NotObservable, match=r"no attention call was seen in Stack.*operator"):
        observe(*stack(nn.Linear(24, 24)), lambda call: None)


def test_the_number_of_layers_that_is_declared_must_be_met() -> None:
    model, ids = zoo.build("llama", "sdpa"), zoo.tokens(1, 5)
    observe(model, ids, lambda call: None, attention_layers=2)
    for wrong in (1, 3):
        with pytest.raises(NotObservable, match=rf"2 attention calls were seen where attention_layers says {wrong}: model\.layers\.0"):
            observe(model, ids, lambda call: None, attention_layers=wrong)


def test_a_layer_missing_by_the_config_is_named() -> None:
    model = zoo.build("llama", "sdpa")

    class Bypass(type(model.model.layers[1].self_attn)):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, **others: Any) -> Any:
            return self.o_proj(self.q_proj(hidden_states)), None

    model.model.layers[1].self_attn.__class__ = Bypass
    with pytest.raises(
        NotObservable, match=r"config says 2: model\.layers\.0\.self_attn; these ran and were not: model\.layers\.1\.self_attn"
    ):
        observe(model, zoo.tokens(1, 5), lambda call: None)


def test_one_module_called_many_times() -> None:
    model, ids = zoo.build("albert", "sdpa", num_hidden_layers=12), zoo.tokens(1, 6)
    seen = run(model, ids)
    assert len({path.partition("#")[0] for path in seen.observation.calls}) == 1
    assert [one.call.layer for one in seen.calls] == list(range(12))
    for accepted in (12, 1):
        observe(model, ids, lambda call: None, attention_layers=accepted)
    own = model.encoder.albert_layer_groups[0].albert_layers[0].attention
    forward, times = own.forward, []

    def every_other(*given: Any, **named: Any) -> Any:
        times.append(1)
        return (given[0], None) if len(times) % 2 else forward(*given, **named)

    own.forward = every_other
    with pytest.raises(NotObservable, match="6 attention calls were seen where the model's config says 12"):
        observe(model, ids, lambda call: None)


def test_a_second_model_inside_is_not_counted() -> None:
    """A teacher that is no part of the model runs beside it."""
    model, teacher, ids = zoo.build("llama", "sdpa"), zoo.build("llama", "sdpa", seed=1), zoo.tokens(1, 7)
    found: list[Tensor] = []
    model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: found.append(teacher(**ids).logits))
    seen = run(model, ids)
    assert seen.observation.calls == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert seen.observation.notes == ["LlamaForCausalLM ran inside the model but is no part of it: attention in it was not measured"]
    assert len(found) == 1
    with torch.no_grad():
        assert torch.equal(found[0], teacher(**ids).logits)


def test_a_second_plain_model_inside_is_not_counted() -> None:
    model, arguments = stack(Attention(by_softmax))
    teacher, given = stack(Attention(by_softmax), Mixer(by_softmax))
    found: list[Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda *_: found.append(teacher(**given)))  # type: ignore[union-attr, operator]
    with pytest.raises(NotObservable, match=r"ran in Stack, which the model runs but which is no part of it .*attention_layers: 1"):
        observe(model, arguments, lambda call: None)
    _, observation = observe(model, arguments, lambda call: None, attention_layers=1)
    assert observation.calls == ["layers.0"]
    assert observation.notes == ["Stack ran inside the model but is no part of it: attention in it was not measured"]


@pytest.mark.parametrize("mixing", [Mixer, Attention, lambda by: nn.TransformerEncoderLayer(24, 4, 32, batch_first=True, dropout=0.0)])
@pytest.mark.parametrize("registered", [0, 1])
def test_layers_in_a_plain_list_are_missed(mixing: Callable[[Any], nn.Module], registered: int) -> None:
    """A model that keeps its layers in a list runs them, and has none of them."""
    hidden = [mixing(by_softmax), mixing(by_softmax)]
    model, arguments = stack(*[Attention(by_softmax)] * registered, nn.Linear(24, 24))
    model.layers[-1].register_forward_pre_hook(lambda _, given: hidden[1](hidden[0](given[0])))  # type: ignore[union-attr, operator]
    with pytest.raises(
        NotObservable, match=rf"part of it \({registered} other calls? w\w+ seen\): modules in a plain list or dict are not"
    ):
        observe(model, arguments, lambda call: None)


def test_a_module_made_on_the_way_is_part_of_the_model() -> None:
    def by_new_softmax(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return nn.Softmax(-1)(query @ key.transpose(-1, -2)) @ value

    model, arguments = stack(Attention(by_new_softmax))
    assert run(model, arguments).observation.calls == ["layers.0"]


@pytest.mark.parametrize("how", ["method", "wrapper"])
def test_a_compiled_model_is_measured_uncompiled_and_says_so(how: str) -> None:
    torch._dynamo.reset()
    plain = zoo.build("llama", "sdpa")
    ids = {**zoo.tokens(1, 8), "use_cache": False}
    with torch.no_grad():
        expected = plain(**ids).logits
    model = plain
    if how == "method":
        model.compile(backend="eager")
    else:
        model = torch.compile(plain, backend="eager")
    with torch.no_grad():
        model(**ids)
    seen = run(model, ids)
    assert len(seen.calls) == 2
    assert seen.observation.notes == ["the compiled model was measured uncompiled"]
    assert torch.equal(seen.output.logits, expected)
    torch._dynamo.reset()
