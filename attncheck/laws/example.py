"""Examples: what an operator is called with, as a few small numbers and words. Tensors are built from them, never stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attncheck.core.claims import OperatorClaims

INPUTS = ("gaussian", "outliers", "repeated", "shifted")
"""Gaussian; a few huge channels and keys; few distinct keys; all keys share a large part, which moves whole rows of scores."""
LAYOUTS = ("contiguous", "transposed", "expanded", "sliced", "flipped_stride")
MASKS = ("none", "bool", "additive")
PATTERNS = ("random", "left", "right", "ones", "empty")
MASK_SHAPES = ("full", "padding", "heads", "shared", "plain")


@dataclass(frozen=True)
class Example:
    """One call. query [batch, heads, queries, width], key and value [batch, kv_heads, keys, width or value_width]."""

    batch: int = 2
    heads: int = 3
    kv_heads: int = 3
    queries: int = 7
    keys: int = 7
    width: int = 8
    value_width: int = 8
    causal: bool = False
    mask: str = "none"
    pattern: str = "random"
    mask_shape: str = "full"
    inputs: str = "gaussian"
    magnitude: float = 1.0
    layout: str = "contiguous"
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    bias: bool = False
    segments: bool = False
    blocks: bool = False
    decay: bool = False
    places: bool = False
    """Whether rotary positions are given."""
    scale: float | None = None
    dtype: str = "float32"
    seed: int = 0

    def but(self, **changes: Any) -> Example:
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        """Only what differs from the defaults, and the shape."""
        shape = f"q[{self.batch},{self.heads},{self.queries},{self.width}] k[{self.batch},{self.kv_heads},{self.keys},{self.width}]"
        shown = {"batch", "heads", "kv_heads", "queries", "keys", "width", "value_width"}
        rest = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if field.name not in shown and getattr(self, field.name) != field.default
        ]
        return " ".join([f"{shape} v[...,{self.value_width}]", *rest])

    @property
    def size(self) -> int:
        return self.batch * self.heads * (self.queries + self.keys) * (self.width + self.value_width)


PLAIN = Example()
GROUPED = PLAIN.but(heads=6, kv_heads=3, value_width=5)
ADVERSARIAL: tuple[Example, ...] = (
    PLAIN,
    GROUPED.but(causal=True, places=True, decay=True),
    GROUPED.but(heads=6, kv_heads=2, queries=9, keys=9, mask="bool", sinks=True, softcap=2.0, places=True, segments=True),
    PLAIN.but(queries=6, keys=17, causal=True, mask="additive", bias=True, window=4, heads=5, kv_heads=5),
    PLAIN.but(queries=1, keys=33, batch=3, causal=True, value_width=16, sinks=True),
    PLAIN.but(queries=13, keys=5, causal=True, heads=7, kv_heads=7),
    PLAIN.but(
        queries=65, keys=65, causal=True, width=16, value_width=16, heads=2, kv_heads=1, sinks=True, softcap=1.0, blocks=True, places=True
    ),
    PLAIN.but(queries=64, keys=63, width=5, value_width=7, mask="bool", pattern="left", mask_shape="padding"),
    PLAIN.but(queries=20, keys=33, layout="expanded", scale=0.7, inputs="repeated"),
    GROUPED.but(
        queries=18, keys=18, layout="transposed", causal=True, mask="bool", pattern="right", mask_shape="padding", window=3, segments=True
    ),
    PLAIN.but(queries=16, keys=33, layout="sliced", mask="additive", mask_shape="heads", scale=1.0),
    PLAIN.but(
        queries=12, keys=12, layout="flipped_stride", causal=True, inputs="outliers", scale=0.05, bias=True, segments=True, places=True
    ),
    GROUPED.but(queries=15, keys=31, magnitude=1e3, causal=True, mask="bool", mask_shape="plain", softcap=5.0),
    PLAIN.but(queries=10, keys=10, magnitude=1e5, mask="additive", mask_shape="shared", causal=True),
    PLAIN.but(queries=10, keys=10, magnitude=1e-3, causal=True, sinks=True, window=1),
    PLAIN.but(queries=10, keys=10, inputs="shifted", causal=True, mask="bool", scale=1.0),
    PLAIN.but(queries=1, keys=1, batch=1, heads=1, kv_heads=1, width=1, value_width=1, causal=True),
    PLAIN.but(queries=2, keys=2, batch=1, width=80, value_width=80, mask="bool", pattern="ones", causal=True, window=2),
    PLAIN.but(queries=9, keys=9, mask="additive", pattern="ones", causal=True, layout="transposed", segments=True, blocks=True),
    PLAIN.but(queries=8, keys=8, mask="bool", pattern="empty", heads=4, kv_heads=2),
    PLAIN.but(queries=8, keys=8, mask="additive", pattern="empty", inputs="outliers"),
    PLAIN.but(queries=3, keys=130, batch=2, heads=4, kv_heads=2, causal=True, inputs="outliers", value_width=16, width=64, window=65),
)
"""Tried first, always: lengths, layouts, magnitudes, mask forms, head counts, each beside others, as the reported bugs have them."""


def fitted(example: Example, claims: OperatorClaims) -> Example:
    """The nearest example that the claims allow: what they do not mention is not used."""
    changes: dict[str, Any] = {}
    if claims.causal != "flag":
        changes["causal"] = claims.causal is True
    causal = changes.get("causal", example.causal)
    if not claims.gqa:
        changes["kv_heads"] = example.heads
    if example.mask != "none" and (
        not claims.mask or (causal and claims.mask_with_causal != "allowed") or (example.causal and not claims.causal and not claims.mask)
    ):
        # a flag can be lifted in the mask's favour, a mask cannot be taken by who has none
        if claims.mask and claims.causal == "flag":
            changes["causal"] = False
        else:
            changes["mask"] = "none"
    if changes.get("mask", example.mask) not in ("none", *(claims.mask or ())):
        changes["mask"] = (claims.mask or ("none",))[0]
    causal = changes.get("causal", example.causal)
    if example.queries != example.keys and (causal or claims.window or claims.position_bias == "alibi") and not claims.alignment:
        changes["queries"] = example.keys
    if claims.window != "argument":
        changes["window"] = None
    if claims.softcap != "argument":
        changes["softcap"] = None
    if not claims.sinks:
        changes["sinks"] = False
    if claims.position_bias != "argument":
        changes["bias"] = False
    paired = claims.rotary or any(getattr(claims, name) and getattr(example, name) for name in ("segments", "blocks", "decay"))
    if paired:
        changes["queries"] = example.keys
    for name in ("segments", "blocks", "decay"):
        if not getattr(claims, name) or (name == "blocks" and not causal):
            changes[name] = False
    if claims.rotary:
        least = 2 * (claims.rotary_axes or 1)
        changes["width"] = max(least, example.width + example.width % 2)
    else:
        changes["places"] = False
    if claims.qk_norm:
        # below, the norm's epsilon would be seen, and a norm of one channel is a sign
        changes["magnitude"] = max(example.magnitude, 1.0)
        changes["width"] = max(changes.get("width", example.width), 4)
    if example.decay and claims.decay and changes.get("mask", example.mask) != "none":
        # only of padding it is clear which steps do not decay
        changes["mask_shape"], changes["mask"] = "padding", "bool" if "bool" in (claims.mask or ()) else "none"
        changes["pattern"] = "random" if example.pattern == "empty" else example.pattern
    if claims.dtypes and example.dtype not in claims.dtypes:
        changes["dtype"] = claims.dtypes[0]
    return example.but(**changes)


def adversarial(claims: OperatorClaims, seed: int) -> Iterator[Example]:
    """The list above under these claims, without repetitions."""
    seen = set()
    for example in ADVERSARIAL:
        wanted = fitted(example.but(seed=seed), claims)
        if wanted not in seen:
            seen.add(wanted)
            yield wanted
