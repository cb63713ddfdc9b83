"""What the author of an attention operator says of it. The laws follow from it; a field left out is not tested."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from attncheck.core.errors import AttncheckError, nearest

ALLOWED: dict[str, tuple[Any, ...]] = {
    "causal": (True, False, "flag"),
    "alignment": ("top_left", "bottom_right"),
    "mask_polarity": ("keep", "drop"),
    "mask_with_causal": ("allowed", "error"),
    "gqa": (True, False),
    "normalised": (True, False),
    "nonnegative": (True, False),
    "positional": ("none", "relative", "absolute"),
    "position_bias": ("argument", "alibi"),
    "sinks": ("argument",),
    "empty_rows": ("zero", "nan", "uniform", "unspecified"),
    "nan_safe": (True, False),
    "signed_scale": (True, False),
    "reference": ("softmax",),
    "linear_in_values": (True, False),
    "differentiable": (True, False),
    "dropout": ("none", "weights_rescaled"),
    "returns": ("output", "output+lse", "output+weights"),
    "lse": ("natural", "base2"),
    "segments": ("argument",),
    "blocks": ("argument",),
    "decay": ("argument",),
    "rotary": ("half", "interleaved"),
    "qk_norm": ("head", "width"),
    "shards": ("even", "any"),
    "budget": ("argument",),
    "evicts": ("least_weight",),
}
"""Field -> what it may be, besides None: not claimed. The fields that are not here check themselves below."""

MASKS = ("bool", "additive")
REPEATS = ("forward", "backward", "batch")
DTYPES = ("float64", "float32", "float16", "bfloat16")
EIGHT_BITS = ("int8", "float8_e4m3fn", "float8_e5m2")


class ClaimError(AttncheckError):
    """A claim that is unknown, of the wrong kind, or that contradicts another one."""


@dataclass(frozen=True, kw_only=True)
class OperatorClaims:
    """Claims about softmax(cap(q kᵀ · scale) + bias + mask, sinks) v, or whatever stands in the softmax's place. None: not claimed.

    causal: always (True), never (False), or as the argument `is_causal` says ("flag"). alignment: which corner the causal triangle
    and the window are anchored in where N ≠ M. mask: forms of `attn_mask` that are taken; mask_polarity: what True means;
    mask_with_causal: whether both may be given. window: number of keys seen, itself included, if causal, |i−j| < window otherwise, or
    "argument". gqa: fewer key heads than query heads, query head h reads key head h // group. normalised: rows sum to 1 (to less with
    sinks). scale: an expression of d, such as "1/sqrt(d)"; signed_scale: one that is given may be 0 or negative. softcap: a number, or
    "argument". sinks: a logit per head, given as an argument. position_bias: added to the scores, given as an argument [heads, N, M],
    or "alibi". nan_safe: NaN in unread slots does not leak. deterministic: which of forward, backward and batch (batch size changes no
    bit) repeat bit by bit. returns: the output alone, or a pair with the log-sum-exp [batch, heads, N] or the weights. dtypes: what the
    operator computes in, float32 if left out.

    Of operators that do more, each by one keyword. Those with N = M only: segments: `segment_ids` [batch, N], tokens see none of
    another segment. blocks: `block_ids` [batch, N], tokens of the same block other than 0 see each other whatever causality says, as
    those of an image do. decay: `decay` [batch, heads, N], added to the score of every key before that token, or where there is no
    softmax the logarithm of a factor of its weight; tokens that a mask of padding hides do not decay. rotary: query and key are rotated
    inside, with base 10000, channel i with i + d/2 ("half") or 2i with 2i + 1 ("interleaved"), at `position_ids` [batch, N], which
    count from 0 if they are not given; with rotary_axes above 1 they are [batch, N, axes], and d is split into parts of 2·⌊d/(2·axes)⌋
    channels, the first of which has what is left over. qk_norm: query and key are divided by the root of their mean square, over each
    head or over the width of all, by torch's rms_norm. shards: `ranks` computes the same on so many ranks, a number that divides the
    query heads and divides the key heads or is a multiple of them ("even"), or any up to the query heads. budget: `ratio`, the share of
    keys that is evicted, or a tuple of shares, one step after the other; the operator then returns its output, of what is left, and the
    kept keys [batch, kv_heads, M] as booleans. evicts: which ones go; "least_weight" is the weight summed over the queries that read
    the key. quantised: dtypes in which key and value may be, with factors `k_descale` and `v_descale` [batch, kv_heads]. layouts: names
    to which `operator.convert(query, key, value, layout)` brings the three, for a call with the keyword `layout`.
    """

    causal: bool | str | None = None
    alignment: str | None = None
    mask: tuple[str, ...] | None = None
    mask_polarity: str = "keep"
    mask_with_causal: str | None = None
    window: int | str | None = None
    gqa: bool | None = None
    normalised: bool | None = None
    nonnegative: bool | None = None
    positional: str | None = None
    position_bias: str | None = None
    scale: str | None = None
    signed_scale: bool | None = None
    softcap: float | str | None = None
    sinks: str | None = None
    empty_rows: str | None = None
    nan_safe: bool | None = None
    reference: str | None = None
    linear_in_values: bool | None = None
    deterministic: tuple[str, ...] | None = None
    differentiable: bool | None = None
    dropout: str | None = None
    returns: str = "output"
    lse: str | None = None
    dtypes: tuple[str, ...] | None = None
    segments: str | None = None
    blocks: str | None = None
    decay: str | None = None
    rotary: str | None = None
    rotary_axes: int | None = None
    qk_norm: str | None = None
    shards: str | None = None
    budget: str | None = None
    evicts: str | None = None
    quantised: tuple[str, ...] | None = None
    layouts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _several(self, "mask", MASKS)
        _several(self, "deterministic", REPEATS)
        _several(self, "dtypes", DTYPES)
        _several(self, "quantised", EIGHT_BITS)
        _several(self, "layouts", None)
        for name, allowed in ALLOWED.items():
            given = getattr(self, name)
            # True == 1, so the type is compared too
            if given is not None and not any(given == value and type(given) is type(value) for value in allowed):
                raise ClaimError(f"{name}: {given!r}; allowed: {_listed(allowed)}")
        _number(self, "window", whole=True)
        _number(self, "softcap", whole=False)
        _number(self, "rotary_axes", whole=True)
        if self.scale is not None:
            self.scale_for(4)
        self._consistent()

    def _consistent(self) -> None:
        def contradict(what: str, allowed: str) -> None:
            raise ClaimError(f"{what}; allowed: {allowed}")

        if self.nonnegative is False and self.reference == "softmax":
            contradict("nonnegative: false with reference: softmax, whose weights are never negative", "leave one of them out")
        if self.normalised is False and self.reference == "softmax" and not self.sinks:
            contradict("normalised: false with reference: softmax, whose rows sum to 1", "leave one of them out, or claim sinks")
        if self.linear_in_values is False and self.reference == "softmax":
            contradict("linear_in_values: false with reference: softmax, which is linear in them", "leave one of them out")
        if self.lse and self.returns != "output+lse":
            contradict(f"lse: {self.lse} with returns: {self.returns}", "returns: output+lse")
        if self.positional == "none" and (self.position_bias or self.window):
            contradict("positional: none with a position bias or a window, which are positions", "relative, or leave it out")
        if self.mask_with_causal and not (self.mask and self.causal):
            contradict("mask_with_causal without mask or without causal", "claim both, or leave it out")
        if self.mask_polarity == "drop" and not self.mask:
            contradict("mask_polarity: drop without mask", "claim mask, or leave it out")
        if self.positional == "none" and (self.rotary or self.decay):
            contradict("positional: none with rotary or decay, which are positions", "relative, or leave it out")
        if self.rotary_axes and not self.rotary:
            contradict("rotary_axes without rotary", "claim rotary, or leave it out")
        if self.blocks and (not self.causal or self.window):
            contradict("blocks without causal, or with a window", "claim causal, and no window")
        if self.decay and (self.causal is not True or self.blocks):
            contradict("decay without causal: true, or with blocks", "claim causal: true, and no blocks")
        if self.evicts and not self.budget:
            contradict("evicts without budget", "claim budget, or leave it out")
        if self.dropout == "weights_rescaled" and self.linear_in_values is False:
            contradict("dropout: weights_rescaled with linear_in_values: false", "leave one of them out")

    @classmethod
    def of(cls, claims: Self | Mapping[str, Any]) -> Self:
        """Claims from a mapping, as a spec or a test has them. Raises ClaimError with what is allowed."""
        if isinstance(claims, cls):
            return claims
        if not isinstance(claims, Mapping):
            raise ClaimError(f"claims: found {type(claims).__name__}; allowed: OperatorClaims or a mapping")
        names = [field.name for field in dataclasses.fields(cls)]
        for name in claims:
            if name not in names:
                hint = nearest(str(name), names)
                raise ClaimError(
                    f"unknown claim {name!r}" + (f"; did you mean {hint!r}?" if hint else "") + f"; allowed: {', '.join(names)}"
                )
        return cls(**claims)

    def as_json(self) -> dict[str, Any]:
        """What was claimed, in types that JSON has; `of` reads it back."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None}

    def scale_for(self, width: int) -> float:
        """The scale where none is given, for heads of `width`; 1/√d if it is not claimed."""
        from attncheck.core.bounds import parse_expression

        try:
            return float(parse_expression(self.scale or "1/sqrt(d)", ("d",)).evaluate({"d": float(width)}))
        except (ValueError, KeyError) as problem:
            raise ClaimError(f"scale: {self.scale!r}: {problem}; allowed: an expression of d, such as '1/sqrt(d)'") from problem


def _several(claims: OperatorClaims, name: str, allowed: tuple[str, ...] | None) -> None:
    given = getattr(claims, name)
    if given is None:
        return
    if given is True and name == "deterministic":
        given = ("forward",)
    if given is False and name == "deterministic":
        given = ()
    parts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else (given,)
    for part in parts:
        if not isinstance(part, str) or (allowed is not None and part not in allowed):
            raise ClaimError(f"{name}: {part!r}; allowed: {'names' if allowed is None else f'some of {_listed(allowed)}'}")
    object.__setattr__(claims, name, parts)


def _number(claims: OperatorClaims, name: str, *, whole: bool) -> None:
    given = getattr(claims, name)
    if given is None or (given == "argument" and name != "rotary_axes"):
        return
    right = isinstance(given, int if whole else int | float) and not isinstance(given, bool) and given > 0
    if not right:
        raise ClaimError(
            f"{name}: {given!r}; allowed: a {'whole ' if whole else ''}number above 0"
            + ("" if name == "rotary_axes" else ", or 'argument'")
        )


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(repr(value) for value in values)
