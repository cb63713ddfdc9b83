"""Observing changes nothing: not a bit of the output, the gradients or the random state, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from observing import ROWS, run, wanted
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers.modeling_utils import AttentionInterface

from attncheck.capture.observe import observe, watching
from attncheck.capture.state import Observation
from attncheck.core.errors import AttncheckError, MeasurementError
from attncheck.core.evidence import AttentionCall
from attncheck.instruments.session import Session

MODELS = [
    *((name, kind) for name in ("llama", "mistral", "qwen3", "phi", "gpt_neox", "gpt2", "deepseek_v3", "albert", "bart", "t5")
      for kind in ("eager", "sdpa")),
    *((name, "eager") for name in ("gemma2", "gpt_oss", "bloom")),
]  # fmt: skip
EVERYTHING = (
    *ROWS,
    "kernel.error",
    "attention.spectral_norm",
    "attention.stable_rank",
    "attention.column_mass",
    "attention.frobenius_estimate",
)


def arguments_of(name: str, *, pad: str = "left") -> dict[str, Tensor]:
    arguments = zoo.tokens(2, 12, pad=pad)
    if name in ("bart", "t5"):
        arguments["decoder_input_ids"] = zoo.tokens(2, 9, seed=1)["input_ids"]
    return arguments


def main_output(output: Any) -> Tensor:
    found = output.logits if hasattr(output, "logits") else output.last_hidden_state
    assert isinstance(found, Tensor)
    return found


def traces() -> tuple[Any, ...]:
    """What observing touches for its time."""
    return (
        AttentionInterface.get_interface,
        len(torch_module._global_forward_hooks),
        len(torch_module._global_forward_pre_hooks),
        torch.utils._python_dispatch._get_current_dispatch_mode(),
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
    )


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize(("name", "implementation"), MODELS)
def test_output_random_state_and_weights_are_untouched(name: str, implementation: str) -> None:
    model, arguments = zoo.build(name, implementation), arguments_of(name)
    weights = {path: parameter.clone() for path, parameter in model.state_dict().items()}
    with torch.no_grad():
        before = main_output(model(**arguments))
    left, state, attached = traces(), torch.get_rng_state(), hooks(model)
    observed = run(model, arguments, EVERYTHING, kernel=False, valid=arguments["attention_mask"].bool())
    assert torch.equal(main_output(observed.output), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert traces() == left
    assert hooks(model) == attached
    assert all(torch.equal(parameter, weights[path]) for path, parameter in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not main_output(observed.output).requires_grad


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa"])
def test_sparse_models_stay_sparse(name: str) -> None:
    """They branch on the implementation's name, which is why nothing is registered under a name of ours."""
    import transformers as tf

    config = getattr(tf, {"deepseek_v32": "DeepseekV32Config", "glm_moe_dsa": "GlmMoeDsaConfig"}[name])
    kind = getattr(tf, config.__name__.replace("Config", "ForCausalLM"))
    sizes = {**zoo.LLAMA, "num_key_value_heads": 6, **zoo.MLA, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4}
    sizes |= {"mlp_layer_types": ["dense", "dense"]} if name == "glm_moe_dsa" else {}
    torch.manual_seed(0)
    model = kind._from_config(config(**sizes), attn_implementation="eager").eval()
    ids = zoo.tokens(1, 14)
    with torch.no_grad():
        before = model(**ids).logits
    calls: list[AttentionCall] = []
    output, _ = observe(model, ids, calls.append)
    assert torch.equal(output.logits, before)
    assert len(calls) == 2
    from observing import twin_of

    twin = twin_of(calls[0])
    assert twin is not None
    assert int(twin.visible.sum(-1).max()) == 4, "the indexer's choice of 4 keys is in the mask that we read"


@pytest.mark.slow
def test_flex_attention_stays_compiled() -> None:
    torch._dynamo.reset()
    model, arguments = zoo.build("llama", "flex_attention"), arguments_of("llama")
    with torch.no_grad():
        before = model(**arguments).logits
    observed = run(model, arguments, EVERYTHING, kernel=False, valid=arguments["attention_mask"].bool())
    assert torch.equal(observed.output.logits, before)
    with torch.no_grad():
        assert torch.equal(model(**arguments).logits, before)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_whatever_the_caller_has_set(context: Any) -> None:
    model, arguments = zoo.build("llama", "sdpa"), arguments_of("llama")
    with context():
        before = model(**arguments).logits
        observed = run(model, arguments, EVERYTHING, kernel=False, valid=arguments["attention_mask"].bool())
    assert torch.equal(observed.output.logits, before)


def test_autocast_and_a_lower_matmul_precision_reach_the_model_and_not_the_rows() -> None:
    model, arguments = zoo.build("llama", "eager"), zoo.tokens(2, 12)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            before = model(**arguments).logits
            observed = run(model, arguments, ROWS, kernel=False)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(observed.output.logits, before)
    from observing import check_rows

    for one in observed.calls:
        check_rows(one, ROWS[:-2])


def test_a_forward_that_raises_leaves_nothing_behind() -> None:
    model = zoo.build("llama", "eager")
    left, attached = traces(), hooks(model)

    def broken(*_: Any) -> None:
        raise ValueError("no")

    handle = model.model.layers[1].mlp.register_forward_pre_hook(broken)
    with pytest.raises(MeasurementError, match=r"ValueError in model\.layers\.1.*: no"):
        observe(model, zoo.tokens(1, 5), lambda call: None)
    handle.remove()
    assert traces() == left
    assert hooks(model) == attached


def test_a_callback_that_draws_random_numbers_moves_nothing() -> None:
    """Dropout after it must draw what it would have drawn."""
    model = zoo.build("llama", "sdpa", attention_dropout=0.5).train()
    torch.manual_seed(0)
    with torch.no_grad():
        before = model(**zoo.tokens(1, 9)).logits
    state = torch.get_rng_state()
    drawn: list[Tensor] = []
    torch.manual_seed(0)
    output, _ = observe(model, zoo.tokens(1, 9), lambda call: drawn.append(torch.rand(3)))
    assert torch.equal(output.logits, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(drawn) == 2


def test_a_callback_that_raises_leaves_nothing_behind() -> None:
    model = zoo.build("llama", "sdpa")
    left = traces()

    def refuse(call: AttentionCall) -> None:
        raise AttncheckError("refused")

    with pytest.raises(AttncheckError, match="refused"):
        observe(model, zoo.tokens(1, 5), refuse)
    assert traces() == left


# Training.


class Trainee(nn.Module):
    """Two layers of attention with dropout, in plain torch."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(24, 6, dropout=0.3, batch_first=True) for _ in range(2))
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=self.need_weights)[0]
        return x


def step(model: nn.Module, arguments: dict[str, Tensor], observation: list[Observation] | None, session: Session | None) -> Any:
    """Output, gradients and the random state after a training step from one seed."""
    model.zero_grad()
    torch.manual_seed(3)

    def work() -> Tensor:
        output = model(**arguments)
        out = output if isinstance(output, Tensor) else main_output(output)
        out.square().mean().backward()
        return out.detach()

    if session is None or observation is None:
        out = work()
    else:
        with watching(model, session.on_call, batch=2) as record:
            out = work()
        observation.append(record)
    return out, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None], torch.get_rng_state()


def same(a: Any, b: Any) -> bool:
    return torch.equal(a[0], b[0]) and len(a[1]) == len(b[1]) and all(map(torch.equal, a[1], b[1])) and torch.equal(a[2], b[2])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("checkpointing", ["", "reentrant", "not reentrant"])
def test_a_training_step_is_bitwise_the_same(name: str, implementation: str, checkpointing: str) -> None:
    dropout = {"gpt2": {"attn_pdrop": 0.3}, "llama": {"attention_dropout": 0.3}, "bert": {"attention_probs_dropout_prob": 0.3}}[name]
    model = zoo.build(name, implementation, **dropout).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
    arguments: dict[str, Any] = dict(zoo.tokens(2, 12))
    if name != "bert":
        arguments["use_cache"] = False
    plain = step(model, arguments, None, None)
    record: list[Observation] = []
    session = Session(wanted("attention.entropy", "attention.frobenius_norm", "attention.row_sum", "attention.future_mass"))
    assert same(step(model, arguments, record, session), plain)
    assert not session.faults
    assert len(record[0].calls) == 2, "a recomputation in the backward pass is not another call"
    assert all(layer.values["attention.entropy" + '{"per":"head"}'].value.min() > 0 for layer in session.layers)
    assert same(step(model, arguments, None, None), plain)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_training_step_in_plain_torch(need_weights: bool) -> None:
    torch.manual_seed(0)
    model = Trainee(need_weights).train()
    arguments = {"x": torch.randn(2, 12, 24)}
    plain = step(model, arguments, None, None)
    record: list[Observation] = []
    session = Session(wanted("attention.entropy", "attention.row_sum"))
    assert same(step(model, arguments, record, session), plain)
    assert not session.faults
    assert dict(record[0].routes) == {"softmax": 2}
    assert not record[0].unseen


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_rerun_draws_the_dropout_of_the_call_again(implementation: str) -> None:
    model = zoo.build("llama", implementation, attention_dropout=0.4).train()
    differences: list[float] = []

    def on_call(call: AttentionCall) -> None:
        assert call.dropout == 0.4
        differences.append(float((call.rerun(call.value) - call.output).abs().max()))

    torch.manual_seed(0)
    observe(model, zoo.tokens(2, 12), on_call)
    assert differences == [0.0, 0.0]


def test_rows_in_training_are_those_before_dropout() -> None:
    quiet, loud = zoo.build("llama", "eager"), zoo.build("llama", "eager", attention_dropout=0.4).train()
    ids = zoo.tokens(2, 12)
    for expected, found in zip(
        run(quiet, ids, ROWS[:9], kernel=False).calls[:1], run(loud, ids, ROWS[:9], kernel=False).calls[:1], strict=True
    ):
        for name in ROWS[:9]:
            assert torch.allclose(torch.from_numpy(found.values[name]), torch.from_numpy(expected.values[name]), atol=1e-5)


def test_dropout_is_told_and_leaves_no_kernel_error() -> None:
    from attncheck import observe as measured
    from attncheck.core.errors import MeasurementError

    loud, ids = zoo.build("llama", "eager", attention_dropout=0.4).train(), zoo.tokens(2, 12)
    found = measured(loud, ids, ["attention.entropy"])
    assert found["attention.entropy"].attrs["notes"] == [
        "dropout ran in model.layers.0.self_attn and 1 more: these are the weights before it"
    ]
    with pytest.raises(MeasurementError, match=r"layers\.0\.self_attn: dropout of 0\.4 ran, so that its kernel applies other weights"):
        measured(loud, ids, ["kernel.error"])


def test_a_mode_that_the_model_puts_on_itself_survives() -> None:
    """Selective checkpointing runs the forward under a dispatch mode of its own, above ours."""
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    class Selective(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = zoo.build("bert", "sdpa")

        def forward(self, input_ids: Tensor) -> Any:
            def context() -> Any:
                return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE)

            return checkpoint(lambda ids: self.model(input_ids=ids).last_hidden_state, input_ids, use_reentrant=False, context_fn=context)

    model = Selective()
    ids = {"input_ids": zoo.tokens(2, 12)["input_ids"]}
    plain = step(model, ids, None, None)
    record: list[Observation] = []
    session = Session(wanted("attention.entropy", "attention.row_sum"))
    assert same(step(model, ids, record, session), plain)
    assert len(record[0].calls) == 2
