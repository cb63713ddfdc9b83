"""Every way by which attention is seen, against whole float64 matrices, the kernel's own identity blocks and the models' own weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from observing import ROWS, Seen, check_rows, run
from torch import Tensor, nn

from attncheck.capture.observe import observe
from attncheck.core.evidence import AttentionCall
from attncheck.instruments.session import Fed

EVERYWHERE = [
    (name, implementation)
    for name in zoo.MAKERS
    for implementation in ("eager", "sdpa")
    if implementation == "eager" or name not in ("gemma2", "gpt_oss", "bloom", "mpt", "gpt_neo", "deberta-v2")
]
ENCODER_DECODER = ("bart", "t5")


def fed(name: str, batch: int, length: int, pad: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(arguments of forward, options of the session); decoders of encoder-decoder models are shorter by 4 and not padded."""
    arguments = zoo.tokens(batch, length, pad=pad)
    valid = arguments["attention_mask"].bool() if pad else None
    options: dict[str, Any] = {"valid": valid, "tokens": arguments["input_ids"]}
    if name in ENCODER_DECODER:
        arguments["decoder_input_ids"] = zoo.tokens(batch, max(length - 4, 1), seed=1)["input_ids"]
        options["decoder"] = Fed(None, arguments["decoder_input_ids"])
    return arguments, options


def check(seen: Seen, valid: Tensor | None, *, tolerance: float = 1e-6, atol: float = 3e-6, names: Sequence[str] = ROWS) -> None:
    """Rows against the twin; the twin against the kernel: its weights, and what it made of the real values."""
    decoder = seen.call.stack in ("cross", "decoder")
    check_rows(seen, names, None if decoder else valid, valid_keys=valid if seen.call.stack == "cross" else None, atol=atol)
    assert seen.twin is not None
    counts = seen.twin.visible.any(-1).any(1)
    if valid is not None and not decoder:
        counts &= valid
    group = seen.call.heads // seen.call.value.shape[1]
    product = seen.twin.weights @ seen.call.value.double().repeat_interleave(group, 1)[:, :, : seen.twin.weights.shape[-1]]
    apart = (product - seen.call.output.double()).abs().amax((1, 3))[counts].max()
    assert float(apart) <= tolerance * max(1.0, float(seen.call.output.abs().max()))
    if seen.through_kernel is not None:
        shown = (seen.through_kernel - seen.twin.weights).abs().amax((1, 3))[counts].max()
        assert float(shown) <= tolerance


@pytest.mark.parametrize(("name", "implementation"), EVERYWHERE)
@pytest.mark.parametrize("pad", ["left", "right"])
def test_every_architecture(name: str, implementation: str, pad: str) -> None:
    model = zoo.build(name, implementation)
    arguments, options = fed(name, 3, 13, pad)
    seen = run(model, arguments, **options)
    for one in seen.calls:
        check(one, options["valid"], tolerance=4e-6)
    assert not seen.observation.unseen


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 130])
def test_lengths_around_the_tile(length: int, implementation: str) -> None:
    names = ROWS if length > 1 else ROWS[:-1]
    for one in run(zoo.build("llama", implementation), zoo.tokens(1, length), names).calls:
        check(one, None, names=names)


def test_a_single_token_has_no_future() -> None:
    faults = run(zoo.build("llama", "sdpa"), zoo.tokens(1, 1), ["attention.future_mass"], faults=True).session.faults
    assert "no future" in str(next(iter(faults.values())))


@pytest.mark.parametrize("length", [65, 130])
@pytest.mark.parametrize("pad", ["left", "right"])
def test_windows_and_padding_past_a_tile(length: int, pad: str) -> None:
    arguments, options = fed("mistral", 2, length, pad)
    for one in run(zoo.build("mistral", "sdpa"), arguments, **options).calls:
        check(one, options["valid"])
        visible = one.twin.visible if one.twin is not None else torch.empty(0)
        assert int(visible.sum(-1).max()) == 6


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "bloom", "t5"])
def test_bfloat16_rows_are_those_of_the_captured_numbers(name: str) -> None:
    model = zoo.build(name, "eager", dtype=torch.bfloat16)
    arguments, options = fed(name, 2, 20, "left")
    seen = run(model, arguments, (*ROWS[:-2], "kernel.error"), kernel=False, **options)
    for one in seen.calls:
        decoder = one.call.stack in ("cross", "decoder")
        valid = None if decoder else options["valid"]
        check_rows(one, ROWS[:-2], valid, valid_keys=options["valid"] if one.call.stack == "cross" else None)
        assert 0 < one.values["kernel.error"].max() < 0.05


def test_gpt2_returns_what_we_read() -> None:
    """Weights that the model itself returns, from a route of their own."""
    model = zoo.build("gpt2", "eager")
    arguments, options = fed("gpt2", 3, 17, "right")
    with torch.no_grad():
        theirs = model(**arguments, output_attentions=True).attentions
    seen = run(model, arguments, ("attention.entropy",), **options)
    for one, weights in zip(seen.calls, theirs, strict=True):
        assert one.twin is not None
        counted = options["valid"][:, None, :, None]
        assert torch.allclose(one.twin.weights * counted, weights.double() * counted, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gemma2", "mistral", "deepseek_v3"))])
def test_flex_attention(name: str) -> None:
    torch._dynamo.reset()
    arguments, options = fed(name, 2, 20, "left")
    seen = run(zoo.build(name, "flex_attention"), arguments, kernel=False, **options)
    for one in seen.calls:
        assert one.call.implementation == "flex_attention"
        check(one, options["valid"])
    assert len(seen.observation.block_masks) <= 2


# Plain torch.


def plain(model: nn.Module, x: Tensor, route: str, *, names: Sequence[str] = ROWS, **arguments: Any) -> list[Seen]:
    with torch.no_grad():
        alone = model(x, **arguments)
    seen = run(_Named(model), {"x": x, **arguments}, names)
    output = seen.output[0] if isinstance(seen.output, tuple) else seen.output
    assert torch.equal(output, alone[0] if isinstance(alone, tuple) else alone)
    assert dict(seen.observation.routes) == {route: 1}
    return seen.calls


class _Named(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, **arguments: Any) -> Any:
        return self.inner(x, **arguments)


class _Itself(nn.Module):
    """Self-attention by nn.MultiheadAttention, which takes its input three times."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 6, batch_first=True)
        self.options = options
        with torch.no_grad():
            self.attention.in_proj_weight.mul_(3)

    def forward(self, x: Tensor, **arguments: Any) -> Any:
        return self.attention(x, x, x, **self.options, **arguments)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
def test_scaled_dot_product_attention_in_plain_torch(causal: bool, kv_heads: int) -> None:
    torch.manual_seed(0)
    model = zoo.Plain(kv_heads=kv_heads, causal=causal).eval()
    for one in plain(model, torch.randn(3, 65, 16), "operator"):
        check(one, None)


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_a_mask_by_head(kind: str) -> None:
    torch.manual_seed(0)
    mask = torch.rand(2, 6, 30, 30) > 0.5
    mask[..., 0] = True
    given = mask if kind == "bool" else torch.where(mask, torch.randn(2, 6, 30, 30), -torch.inf)
    for one in plain(zoo.Plain().eval(), torch.randn(2, 30, 16), "operator", mask=given):
        check(one, None)


def test_the_math_fallback_where_values_have_another_width() -> None:
    torch.manual_seed(0)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for one in plain(zoo.Plain(value_width=5, kv_heads=6).eval(), torch.randn(2, 20, 16), "softmax"):
            check(one, None)


@pytest.fixture(params=["native", "python"])
def native(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether nn.MultiheadAttention may take its fused path."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(request.param == "native")
    yield request.param == "native"
    torch.backends.mha.set_fastpath_enabled(was)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(need_weights: bool, padded: bool, inference: bool, native: bool) -> None:
    torch.manual_seed(0)
    model = _Itself(need_weights=need_weights).eval()
    x, hidden = torch.randn(3, 12, 24), torch.zeros(3, 12, dtype=torch.bool)
    hidden[1, 9:], hidden[2, 5:] = True, True
    with torch.inference_mode(inference), torch.no_grad():
        route = "operator" if native or not need_weights else "softmax"
        names = ROWS[:-2] if native else ROWS  # the fused path cannot be asked with other values
        arguments = {"key_padding_mask": hidden} if padded else {}
        calls = plain(model, x, route, names=names, **arguments)
        if need_weights:
            weights = model(x, average_attn_weights=False, **arguments)[1]
    for one in calls:
        check(one, None, tolerance=2e-6, names=names)
        if need_weights:
            assert one.twin is not None
            assert torch.allclose(one.twin.weights, weights.double(), atol=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "both"])
def test_the_fused_encoder_layer(mask: str, norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 6, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for inner in model.layers:
            inner.self_attn.in_proj_weight.mul_(3)
    hidden = torch.zeros(3, 12, dtype=torch.bool)
    hidden[1, 9:], hidden[2, 5:] = True, True
    arguments: dict[str, Any] = {"src_key_padding_mask": hidden} if mask in ("padding", "both") else {}
    if mask in ("causal", "both"):
        arguments["mask"] = torch.ones(12, 12, dtype=torch.bool).triu(1)
    x = torch.randn(3, 12, 24)
    names = [name for name in ROWS if name not in ("attention.row_sum", "attention.future_mass")]
    seen = run(_Named(model), {"x": x, **arguments}, names)
    assert [one.call.implementation for one in seen.calls] == ["encoder_layer"] * 2
    # The layers' own modules, unfused, say what was attended to.
    for number, one in enumerate(seen.calls):
        with torch.no_grad():
            inner = model.layers[number]
            given = inner.norm1(x) if norm_first else x
            _, weights = inner.self_attn(
                given, given, given, key_padding_mask=arguments.get("src_key_padding_mask"), attn_mask=arguments.get("mask"),
                average_attn_weights=False,
            )  # fmt: skip
            x = inner(x, src_mask=arguments.get("mask"), src_key_padding_mask=arguments.get("src_key_padding_mask"))
        assert one.twin is not None
        assert torch.allclose(one.twin.weights, weights.double(), atol=1e-6)
        check_rows(one, names)
    refused = run(_Named(model), {"x": seen.output, **arguments}, ["attention.row_sum"], faults=True).session.faults
    assert "weights, not values" in str(next(iter(refused.values())))


def test_a_mask_of_numbers_is_read_as_the_fused_layer_reads_it() -> None:
    """It turns every number but 0 into 'hidden', so a mask of small biases is not a bias there."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 6, 32, batch_first=True), 1, enable_nested_tensor=False).eval()
    mask = torch.zeros(10, 10)
    mask[:, 4] = -0.5
    seen = run(_Named(model), {"x": torch.randn(2, 10, 24), "mask": mask}, ["attention.entropy"])
    assert seen.calls[0].twin is not None
    assert float(seen.calls[0].twin.weights[..., 4].max()) == 0


class _Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cross_attention = nn.MultiheadAttention(24, 6, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor, need_weights: bool) -> Any:
        return self.cross_attention(x, memory, memory, need_weights=need_weights)[0]


@pytest.mark.parametrize("need_weights", [False, True])
def test_cross_attention_in_plain_torch(need_weights: bool) -> None:
    torch.manual_seed(0)
    for one in run(_Cross().eval(), {"x": torch.randn(2, 5, 24), "memory": torch.randn(2, 70, 24), "need_weights": need_weights}).calls:
        check_rows(one, ROWS)
        assert one.twin is not None
        assert one.twin.weights.shape == (2, 6, 5, 70)


class _Chunked(nn.Module):
    """The queries in two halves, as a chunked prefill runs them; causal by its masks."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (4, 6)).transpose(1, 2)
        seen = torch.ones(12, 12, dtype=torch.bool).tril()
        halves = [slice(0, 6), slice(6, 12)]
        return torch.cat([nn.functional.scaled_dot_product_attention(heads[:, :, h], heads, heads, attn_mask=seen[h]) for h in halves], 2)


@pytest.mark.parametrize("name", ["attention.future_mass", "attention.previous_token", ("attention.outside_window_mass", {"window": 4})])
def test_queries_whose_positions_nobody_tells_give_no_number_that_needs_them(name: Any) -> None:
    """Counted from 0, the second half would show 0.9 of its mass on a future that it never sees."""
    torch.manual_seed(0)
    found = run(_Chunked(), {"x": torch.randn(1, 12, 24)}, [name, "attention.entropy", "attention.row_sum"], faults=True)
    assert [str(fault) for fault in found.session.faults.values()] == [
        "_Chunked: the call has 6 queries and 12 keys, and nothing says at which positions its queries stand"
    ]
    for one in found.calls:
        assert one.values["attention.row_sum"] == pytest.approx(np.ones((1, 4)), abs=1e-6)
        check_rows(one, ["attention.entropy", "attention.row_sum"])


# Behind a cache.


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_queries_behind_a_cache_know_their_positions(cache: str, implementation: str) -> None:
    """Distances, the first key and the future as in one forward over everything."""
    import transformers

    model = zoo.build("llama", implementation)
    ids = zoo.tokens(1, 19)["input_ids"]
    whole = run(model, {"input_ids": ids}, [("attention.mean_distance", {"per": "query"}), ("attention.sink_mass", {"per": "query"})])
    kept = transformers.DynamicCache() if cache == "dynamic" else transformers.StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad():
        model(input_ids=ids[:, :12], past_key_values=kept)
    names = [("attention.mean_distance", {"per": "query"}), ("attention.sink_mass", {"per": "query"}), "attention.future_mass"]
    later = run(model, {"input_ids": ids[:, 12:], "past_key_values": kept}, names, kernel=False)
    for one, all_rows in zip(later.calls, whole.calls, strict=True):
        for name in ("attention.mean_distance", "attention.sink_mass"):
            assert np.allclose(one.values[name], all_rows.values[name][..., 12:], atol=2e-5)
        assert one.values["attention.future_mass"].max() == 0


def test_prefill_of_a_static_cache_is_cut_to_the_queries() -> None:
    import transformers

    model = zoo.build("llama", "sdpa")
    kept = transformers.StaticCache(config=model.config, max_cache_len=32)
    for one in run(model, {"input_ids": zoo.tokens(1, 9)["input_ids"], "past_key_values": kept}).calls:
        check(one, None)


def test_a_sliding_cache_has_dropped_its_oldest_keys() -> None:
    """Slot 0 is no longer token 0: nothing is on the first key, and distances are those of the whole forward."""
    import transformers

    model = zoo.build("mistral", "eager")
    ids = zoo.tokens(1, 19)["input_ids"]
    names = [("attention.mean_distance", {"per": "query"}), ("attention.sink_mass", {"per": "query"})]
    whole = run(model, {"input_ids": ids}, names)
    kept = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids[:, :14], past_key_values=kept)
    later = run(model, {"input_ids": ids[:, 14:], "past_key_values": kept}, names, kernel=False)
    for one, all_rows in zip(later.calls, whole.calls, strict=True):
        assert one.call.key.shape[2] < 19
        for name, _ in names:
            assert np.allclose(one.values[name], all_rows.values[name][..., 14:], atol=2e-5), name


def test_an_attention_function_called_by_keyword() -> None:
    """Some models name the arguments, the mask among them."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaAttention, eager_attention_forward

    class Named(LlamaAttention):
        def forward(self, hidden_states: Tensor, **others: Any) -> Any:
            shape = (*hidden_states.shape[:-1], -1, self.head_dim)
            query, key, value = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
            call = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
            out, weights = call(self, query=query, key=key, value=value, attention_mask=others["attention_mask"], scaling=0.7)
            return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), weights

    model = zoo.build("llama", "eager")
    for layer in model.model.layers:
        layer.self_attn.__class__ = Named
    for one in run(model, zoo.tokens(2, 9)).calls:
        check(one, None)
        assert one.call.scale == 0.7


@pytest.mark.parametrize(
    ("path", "stack"),
    [
        ("model.decoder.layers.0.self_attn", "decoder"),
        ("text_decoder.layers.0.self_attn", "decoder"),
        ("speech_encoder.layers.1.attn", "encoder"),
        ("text_decoder.layers.0.cross_attention", "cross"),
        ("decoders.0.attn", "self"),
        ("vision_encoder.layers.0.attn", "vision"),
    ],
)
def test_the_stack_by_its_path(path: str, stack: str) -> None:
    from attncheck.capture.state import stack_of

    assert stack_of(path) == stack


def test_a_call_says_what_it_is() -> None:
    calls: list[AttentionCall] = []
    observe(zoo.build("gpt_oss", "eager"), zoo.tokens(1, 9), calls.append)
    assert [(c.layer, c.stack, c.path) for c in calls] == [(0, "self", "model.layers.0.self_attn"), (1, "self", "model.layers.1.self_attn")]
    assert all(c.sinks is not None and c.sinks.shape == (6,) and (c.heads, c.kv_heads) == (6, 2) for c in calls)
    calls.clear()
    observe(zoo.build("bart", "sdpa"), fed("bart", 1, 9)[0], calls.append)
    assert [c.stack for c in calls] == ["encoder", "encoder", "decoder", "cross", "decoder", "cross"]
    assert [c.layer for c in calls] == [0, 1, 0, 0, 1, 1]
    calls.clear()
    observe(zoo.build("albert", "sdpa"), zoo.tokens(1, 9), calls.append)
    assert [c.path.partition("#")[2] for c in calls] == ["", "1", "2", "3"]
    assert [c.layer for c in calls] == [0, 1, 2, 3]
