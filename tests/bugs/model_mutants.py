"""Reported bugs of whole models, each as one changed step of a correct tiny model of transformers.

A mutant is an attention function of the model's own, or a subclass whose forward changes what it is called with. Each stays faithful
to the row's condition: where the row says that ordinary calls hide it, ordinary calls pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as tf
import zoo
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, create_bidirectional_mask

BASE = {
    "causal": True,
    "padding": ["left", "right"],
    "batch": True,
    "cache": ["dynamic", "static"],
    "positional": "relative",
    "rotary": True,
    "deterministic": ["forward", "backward"],
    "dropout": "none",
    "returns": ["hidden_states"],
}


@dataclass(frozen=True)
class ModelMutant:
    """A row of the list, what is changed, and what its author would claim."""

    row: str
    what: str
    make: Callable[[], Any]
    claims: dict[str, Any] = field(default_factory=lambda: dict(BASE))
    right: Callable[[], Any] | None = None
    """The right model, where it is not the tiny one of its kind."""


MODEL_MUTANTS: list[ModelMutant] = []


def mutant(
    row: str, what: str, *, right: Callable[[], Any] | None = None, **claims: Any
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        MODEL_MUTANTS.append(ModelMutant(row, what, make, {**BASE, **claims}, right))
        return make

    return register


# --- mutants of the attention function -------------------------------------------------------------------------------------------


class Attend:
    """A correct attention function, one step of which subclasses change. Masks are additive, as eager's."""

    def mask(self, mask: Tensor | None, query: Tensor, key: Tensor, module: Any) -> Tensor | None:
        return None if mask is None else mask[..., : key.shape[-2]]

    def scale(self, scaling: float | None, width: int) -> float:
        return width**-0.5 if scaling is None else scaling

    def keys(self, states: Tensor, groups: int, module: Any) -> Tensor:
        return states.repeat_interleave(groups, 1)

    def scores(self, scores: Tensor, softcap: float | None) -> Tensor:
        return scores if softcap is None else softcap * torch.tanh(scores / softcap)

    def weights(self, scores: Tensor, module: Any, sinks: Tensor | None) -> Tensor:
        if sinks is None:
            return scores.softmax(-1)
        column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        return torch.cat((scores, column), -1).softmax(-1)[..., :-1]

    def output(self, output: Tensor) -> Tensor:
        return output.transpose(1, 2).contiguous()

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **rest: Any,
    ) -> tuple[Tensor, Tensor]:
        groups = query.shape[1] // key.shape[1]
        mask = self.mask(attention_mask, query, key, module)
        key, value = self.keys(key, groups, module), self.keys(value, groups, module)
        scores = self.scores(query @ key.transpose(-1, -2) * self.scale(scaling, query.shape[-1]), rest.get("softcap"))
        if mask is not None:
            scores = scores + mask
        weights = self.weights(scores, module, rest.get("s_aux")).to(value.dtype)
        return self.output(weights @ value), weights


def using(attend: Attend, architecture: str = "llama", **changes: Any) -> Any:
    """A tiny model that attends so. The function's name is its class's."""
    name = f"mutant_{type(attend).__name__.lower()}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    return zoo.build(architecture, name, **changes)


def named(attend: type[Attend]) -> str:
    """Registers it, for claims that name it beside eager."""
    name = f"mutant_{attend.__name__.lower()}"
    AttentionInterface.register(name, attend())
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    return name


class Correct(Attend):
    pass


class OwnScale(Attend):
    def scale(self, scaling, width):
        return width**-0.5


class NoCap(Attend):
    def scores(self, scores, softcap):
        return scores


class Inverted(Attend):
    def mask(self, mask, query, key, module):
        mask = super().mask(mask, query, key, module)
        return None if mask is None else torch.where(mask == 0, torch.finfo(mask.dtype).min, 0.0).to(mask.dtype)


class TopLeft(Attend):
    def mask(self, mask, query, key, module):
        N, M = query.shape[-2], key.shape[-2]
        if N == M:
            return super().mask(mask, query, key, module)
        return torch.full((N, M), torch.finfo(query.dtype).min, dtype=query.dtype).triu(1)


class OverBuffer(Attend):
    def mask(self, mask, query, key, module):
        N, M = query.shape[-2], key.shape[-2]
        if N == M:
            return super().mask(mask, query, key, module)
        return torch.full((N, M), torch.finfo(query.dtype).min, dtype=query.dtype).triu(M - N + 1)


class FirstKeyOnly(Attend):
    def mask(self, mask, query, key, module):
        mask = super().mask(mask, query, key, module)
        if query.shape[-2] > 1 or mask is None or key.shape[-2] == 1:
            return mask
        return mask + torch.full((1, key.shape[-2]), torch.finfo(mask.dtype).min / 2, dtype=mask.dtype).triu(1)


class UnwrittenSeen(Attend):
    def mask(self, mask, query, key, module):
        return None if query.shape[-2] == 1 else super().mask(mask, query, key, module)


class EmptyRows(Attend):
    def mask(self, mask, query, key, module):
        mask = super().mask(mask, query, key, module)
        return None if mask is None else mask.masked_fill(mask < -1e30, -torch.inf)


class Tiled(Attend):
    def keys(self, states, groups, module):
        return states.repeat(1, groups, 1, 1)


class NoTranspose(Attend):
    def output(self, output):
        batch, heads, length, width = output.shape
        return output.contiguous().reshape(batch, length, heads, width)


class PostMask(Attend):
    def __call__(self, module, query, key, value, attention_mask, scaling=None, **rest):
        groups = query.shape[1] // key.shape[1]
        mask = self.mask(attention_mask, query, key, module)
        weights = (query @ self.keys(key, groups, module).transpose(-1, -2) * self.scale(scaling, query.shape[-1])).softmax(-1)
        weights = weights if mask is None else weights * (mask == 0)
        return self.output(weights @ self.keys(value, groups, module)), weights


class Dropping(Attend):
    def weights(self, scores, module, sinks):
        return torch.nn.functional.dropout(super().weights(scores, module, sinks), 0.1, True)


class SinksInDecode(Attend):
    def weights(self, scores, module, sinks):
        return super().weights(scores, module, sinks if scores.shape[-2] == 1 else None)


class Detached(Attend):
    def keys(self, states, groups, module):
        return super().keys(states.detach() if module.layer_idx == 1 else states, groups, module)


class OverQueries(Attend):
    def weights(self, scores, module, sinks):
        return scores.softmax(-2)


for row_, what_, kind_ in (
    ("cm-04", "a mask is inverted", Inverted),
    ("al-01", "the triangle is anchored top left where there are fewer queries than keys", TopLeft),
    ("al-02", "a static cache's whole buffer is taken for the past", OverBuffer),
    ("al-03", "a step of decoding sees key 0 only", FirstKeyOnly),
    ("kv-03", "slots of a static cache that nothing has filled are seen in decoding", UnwrittenSeen),
    ("em-01", "a row without a key is not a number", EmptyRows),
    ("hd-02", "heads are joined by a view without a transpose", NoTranspose),
    ("sm-03", "softmax over queries", OverQueries),
    ("dr-01", "dropout in eval mode", Dropping),
    ("gr-01", "keys and values that a later layer reuses are detached", Detached),
):
    mutant(row_, what_)(lambda kind=kind_: using(kind()))

mutant("cs-03", "sinks act in decoding and not in the prompt", rotary=None)(lambda: using(SinksInDecode(), "gpt_oss"))
mutant("hd-01", "query head h reads key head h mod H_kv", implementations=["eager", named(Tiled)])(lambda: zoo.build("llama", "eager"))
mutant("sc-01", "one backend keeps 1/sqrt(d) whatever the configuration says", implementations=["eager", named(OwnScale)])(
    lambda: zoo.build("gemma2", "eager", query_pre_attn_scalar=8)
)
mutant("cs-01", "one backend ignores the softcap, and scores stay far below it", implementations=["eager", named(NoCap)])(
    lambda: zoo.build("gemma2", "eager", attn_logit_softcapping=1e6)
)
mutant("sw-01", "a window has one key too many", window=6)(lambda: zoo.build("mistral", sliding_window=7))
mutant("sm-05", "weights are multiplied by the mask after the softmax", implementations=["eager", named(PostMask)])(
    lambda: zoo.build("llama", "eager")
)


# --- mutants of the model's forward ----------------------------------------------------------------------------------------------


def becoming(model: Any, kind: type) -> Any:
    """The same weights as an instance of a subclass."""
    model.__class__ = kind
    return model


def past(cache: Any) -> int:
    return 0 if cache is None else int(cache.get_seq_length())


class Llama(tf.LlamaForCausalLM):
    """Tokens, mask, positions and cache pass through `changed`."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, cache=None, inputs_embeds=None, use_cache=None, **rest):
        given = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "cache": cache,
            "inputs_embeds": inputs_embeds,
            "use_cache": use_cache,
        }
        return super().forward(**self.changed(**given), **rest)

    def changed(self, **given):
        return given


def length(given: dict[str, Any]) -> int:
    return (given["input_ids"] if given["input_ids"] is not None else given["inputs_embeds"]).shape[1]


def rows(given: dict[str, Any]) -> int:
    return (given["input_ids"] if given["input_ids"] is not None else given["inputs_embeds"]).shape[0]


def llama(row: str, what: str, architecture: str = "llama", **claims: Any) -> Callable[[type], type]:
    def register(kind: type) -> type:
        mutant(row, what, **claims)(lambda: becoming(zoo.build(architecture), kind))
        return kind

    return register


def padding_only(mask: Tensor, dtype: torch.dtype, N: int, M: int) -> Tensor:
    keep = mask[:, None, None, :].bool().expand(-1, 1, N, M)
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)


@llama("cm-06", "a padding mask switches causality off")
class PaddingNotCausal(Llama):
    def changed(self, **given):
        mask = given["attention_mask"]
        if mask is not None and mask.ndim == 2 and not bool(mask.all()):
            given["attention_mask"] = padding_only(mask, self.dtype, length(given), mask.shape[1])
        return given


@llama("cm-07", "causal only if a mask is given")
class CausalOnlyMasked(Llama):
    def changed(self, **given):
        if given["attention_mask"] is None and given["cache"] is None:
            N = length(given)
            given["attention_mask"] = torch.zeros(rows(given), 1, N, N, dtype=self.dtype)
        return given


@llama("cm-03", "asking for hidden states takes a path without a mask")
class AskedNotCausal(Llama):
    def forward(self, *args, output_hidden_states=None, attention_mask=None, input_ids=None, **rest):
        if output_hidden_states:
            N = input_ids.shape[1]
            attention_mask = torch.zeros(len(input_ids), 1, N, N, dtype=self.dtype)
        return tf.LlamaForCausalLM.forward(
            self, *args, input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=output_hidden_states, **rest
        )


@llama("pd-03", "the mask is taken and never used")
class Unmasked(Llama):
    def changed(self, **given):
        given["attention_mask"] = None
        return given


@llama("rp-08", "the rotary table is cut by length, positions are not read")
class PositionsUnread(Llama):
    def changed(self, **given):
        given["position_ids"] = None
        return given


@llama("rp-11", "angles of row 0 for every row")
class FirstRowsPositions(Llama):
    def changed(self, **given):
        if given["position_ids"] is not None:
            given["position_ids"] = given["position_ids"][:1].expand_as(given["position_ids"])
        return given


@llama("rp-09", "rows after the first are rotated wrongly where one token is given")
class OneTokenRows(Llama):
    def changed(self, **given):
        if length(given) == 1 and rows(given) > 1:
            places = torch.full((rows(given), 1), past(given["cache"]))
            places[1:] += 3
            given["position_ids"] = places
        return given


@llama("rp-13", "a cache's offset is moved on before the new tokens are rotated")
class OffsetEarly(Llama):
    def changed(self, **given):
        begin = past(given["cache"])
        if begin:
            given["position_ids"] = torch.arange(begin, begin + length(given))[None].expand(rows(given), -1) + length(given)
        return given


@llama("sw-13", "positions of decoding stop at the window", "llama")
class PositionsCapped(Llama):
    def changed(self, **given):
        begin = past(given["cache"])
        if begin:
            given["position_ids"] = torch.arange(begin, begin + length(given)).clamp(max=8)[None].expand(rows(given), -1)
        return given


@llama("kv-04", "without a cache a layer uses projections of its own instead of the shared ones")
class OwnWithoutCache(Llama):
    def forward(self, *args, use_cache=None, **rest):
        projection = self.model.layers[1].self_attn.k_proj
        kept = projection.weight
        if use_cache is False:
            projection.weight = torch.nn.Parameter(kept.detach().flip(0))
        try:
            return tf.LlamaForCausalLM.forward(self, *args, use_cache=use_cache, **rest)
        finally:
            projection.weight = kept


@llama("kv-06", "beams are not permuted in the cache")
class BeamsStay(Llama):
    def forward(self, *args, **rest):
        result = super().forward(*args, **rest)
        if result.past_key_values is not None:
            result.past_key_values.reorder_cache = lambda rows: None
        return result


@llama("sw-09", "the cache rolls one step early")
class RollsEarly(Llama):
    def forward(self, *args, cache=None, **rest):
        if past(cache) == 8:
            for layer in cache.layers:
                layer.keys[:, :, 0], layer.values[:, :, 0] = layer.keys[:, :, 1].clone(), layer.values[:, :, 1].clone()
        return super().forward(*args, cache=cache, **rest)


@llama("kv-01", "the last slot of a full cache is not read")
class LastSlot(Llama):
    def forward(self, *args, cache=None, **rest):
        room = getattr(cache.layers[0], "max_cache_len", None) if cache is not None and cache.layers else None
        if room is not None and past(cache) == room - 1:
            for layer in cache.layers:
                layer.keys[:, :, -2] = 0
        return super().forward(*args, cache=cache, **rest)


@llama("pk-04", "positions begin anew in packed documents, and no mask tells them apart", packing=True, cache=None,
       exceptions={"model-packing-default": "known of transformers", "model-packing-ones": "known of transformers"})  # fmt: skip
class PackedOpen(Llama):
    def changed(self, **given):
        if given["attention_mask"] is None and given["cache"] is None:
            given["attention_mask"] = torch.ones(rows(given), length(given), dtype=torch.long)
        return given


@llama("pk-05", "packed documents are told apart in a batch of one only", packing=True, cache=None,
       exceptions={"model-packing-default": "known of transformers", "model-packing-ones": "known of transformers"})  # fmt: skip
class PackedAlone(PackedOpen):
    def changed(self, **given):
        return super().changed(**given) if rows(given) > 1 else given


@mutant("pk-01", "a mask of ones switches off what tells packed documents apart", packing=True, cache=None,
        exceptions={"model-packing-default": "known of transformers"})  # fmt: skip
def packed_ones() -> Any:
    return zoo.build("llama")


@mutant("pd-02", "positions are the column, whatever is padded", positional="absolute", rotary=None)
def column_positions() -> Any:
    model = zoo.build("gpt2")

    class Columns(tf.GPT2Model):
        def forward(self, *args, position_ids=None, **rest):
            return super().forward(*args, **rest)

    model.transformer.__class__ = Columns
    return model


@mutant("cm-10", "an encoder turns causal", causal=False, cache=None, positional="absolute", rotary=None)
def causal_encoder() -> Any:
    class Causal(tf.BertModel):
        def forward(self, input_ids=None, attention_mask=None, **rest):
            ids = rest.get("inputs_embeds") if input_ids is None else input_ids
            N = ids.shape[1]
            mask = torch.full((len(ids), 1, N, N), torch.finfo(self.dtype).min, dtype=self.dtype).triu(1)
            if attention_mask is not None:
                mask = mask.minimum(padding_only(attention_mask, self.dtype, N, N))
            return super().forward(input_ids=input_ids, attention_mask=mask, **rest)

    return becoming(zoo.build("bert", "eager"), Causal)


@mutant("sw-03", "the window's test is never true", window=6)
def no_window() -> Any:
    return zoo.build("mistral", sliding_window=None)


@mutant(
    "sw-04",
    "a window is applied though the configuration switches it off",
    window=[None, None],
    right=lambda: zoo.build("mistral", sliding_window=None),
)
def window_anyway() -> Any:
    return zoo.build("mistral", sliding_window=5)


@mutant("sw-05", "all layers inherit the window of one", window=[5, None], rotary=None)
def one_window() -> Any:
    return zoo.build("gemma2", layer_types=["sliding_attention", "sliding_attention"])


def rotary(change: Callable[[Any], None], **changes: Any) -> Any:
    model = zoo.build("llama", **changes)
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            change(module)
    return model


@mutant("rp-01", "inverse frequencies are kept in half precision")
def half_frequencies() -> Any:
    return rotary(lambda module: setattr(module, "inv_freq", module.inv_freq.half().float()))


def far_base() -> Any:
    return zoo.build("llama", rope_parameters={"rope_type": "default", "rope_theta": 500000.0})


@mutant("rp-04", "the base falls back to 10000", right=far_base)
def base() -> Any:
    model = far_base()
    right = zoo.build("llama")
    for module, other in zip(model.modules(), right.modules(), strict=True):
        if hasattr(module, "inv_freq"):
            module.inv_freq = other.inv_freq.clone()
    return model


class Longest(torch.nn.Module):
    """Keeps the table that the longest input made."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.most = inner, 0
        self.register_buffer("inv_freq", inner.inv_freq.clone(), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        self.most = max(self.most, int(position_ids.max()) + 1)
        return self.inner(x, position_ids / max(1.0, self.most / 24))


@mutant("rp-02", "a dynamic base is never scaled back after a long call", cache=None, positional=None, rotary=None)
def longest() -> Any:
    model = zoo.build("llama")
    model.model.rotary_emb = Longest(model.model.rotary_emb)
    return model


@mutant("rb-07", "a buffer that is not saved is not filled again", exceptions={"model-positions-rotary_table": "shown by loading as well"})
def unfilled() -> Any:
    return rotary(lambda module: setattr(module, "inv_freq", module.inv_freq * torch.linspace(1, 2, len(module.inv_freq))))


@mutant("rb-05", "a relative bias is computed at offset 0 in decoding", cache=["dynamic"], rotary=None)
def bias_offset() -> Any:
    model = zoo.build("t5")
    from transformers.models.t5.modeling_t5 import T5Attention

    class Offset(T5Attention):
        def compute_bias(self, query_length, key_length, device=None, past_seen_tokens=0):
            return super().compute_bias(query_length, key_length, device=device, past_seen_tokens=0)

    for module in model.decoder.modules():
        if type(module) is T5Attention:
            module.__class__ = Offset
    return model


@mutant("kv-10", "encoder keys are cut to the decoder's window", padding=["right"], cache=["dynamic"], positional="absolute", rotary=None)
def cut_encoder() -> Any:
    class Cut(tf.BartForConditionalGeneration):
        def forward(self, input_ids=None, attention_mask=None, encoder_outputs=None, **rest):
            if encoder_outputs is None:
                encoder_outputs = (self.get_encoder()(input_ids=input_ids, attention_mask=attention_mask)[0],)
            states = encoder_outputs[0][:, -8:]
            mask = None if attention_mask is None else attention_mask[:, -8:]
            return super().forward(input_ids=None, attention_mask=mask, encoder_outputs=(states,), **rest)

    return becoming(zoo.build("bart"), Cut)


def latent(kind: type) -> Any:
    return becoming(zoo.build("deepseek_v3"), kind)


class Scaled(tf.DeepseekV3ForCausalLM):
    """Every layer's scale passes through `scale`, in models that are built from its configuration as well."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.scaling = self.scale(layer.self_attn, config.rope_parameters)

    def scale(self, attention, rope):
        return attention.scaling


class NoYarnFactor(Scaled):
    def scale(self, attention, rope):
        return attention.qk_head_dim**-0.5


class OtherField(Scaled):
    def scale(self, attention, rope):
        if not rope.get("mscale"):
            return attention.scaling
        return attention.qk_head_dim**-0.5 * (0.1 * rope["mscale"] * math.log(rope["factor"]) + 1) ** 2


mutant("sc-04", "the factor of yarn is missing in the scale of latent attention", scale=True)(lambda: latent(NoYarnFactor))
mutant("sc-05", "the scale of latent attention reads mscale, not mscale_all_dim, which are mostly the same", scale=True)(
    lambda: latent(OtherField)
)


def modern(**changes: Any) -> Any:
    return zoo.build("modernbert", **changes)


@mutant("sw-11", "layers with a window of 17 reach as far as the others, which shows in longer inputs only", causal=False, cache=None,
        positional=None, rotary=None, window=[None, 17], right=modern)  # fmt: skip
def whole_segments() -> Any:
    class Whole(tf.ModernBertModel):
        def forward(self, input_ids=None, attention_mask=None, **rest):
            states = self.embeddings(input_ids=input_ids, inputs_embeds=rest.get("inputs_embeds"))
            mask = create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=attention_mask)
            both = dict.fromkeys(("full_attention", "sliding_attention"), mask)
            return super().forward(input_ids=input_ids, attention_mask=both, **rest)

    return becoming(modern(), Whole)


@mutant("ob-03", "attentions are asked for and none come", returns=["attentions"])
def no_attentions() -> Any:
    return zoo.build("llama", "sdpa")


@mutant("cm-02", "a layer's own mask is added where None meant causal")
def none_means_causal() -> Any:
    class Own(Correct):
        def mask(self, mask, query, key, module):
            return None if query.shape[-2] == key.shape[-2] and mask is not None and bool((mask[..., -1, :] == 0).all()) else mask

    return using(Own())
