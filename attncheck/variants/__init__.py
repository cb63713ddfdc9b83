"""Attention variants, each one file: as a module in a model, and as an operator with the signature of torch's own.

variants.module({"lrkv": {"rank": 10}}, width=96, heads=4, causal=True, rotary=True)
variants.operator({"polynomial": {"power": 3, "factor": "1/sqrt(N)"}})
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attncheck.variants import catalogue  # noqa: F401  (registers the variants)
from attncheck.variants.registry import VARIANTS, Definition, Shape, Variant, VariantError, examined, misfits, resolved, variant
from attncheck.variants.route import attend

if TYPE_CHECKING:
    from attncheck.variants.layer import Attention

__all__ = ["VARIANTS", "Variant", "VariantError", "attend", "check", "module", "operator", "variant"]


def module(
    definition: str | Mapping[str, Any],
    *,
    width: int,
    heads: int,
    tokens: int | None = None,
    causal: bool,
    rotary: bool = False,
    qk_norm: bool = False,
) -> Attention:
    """A variant as a module of fresh weights: `forward(hidden [batch, N, width], cache=None, positions=None)` -> [batch, N, width].

    definition: 'mha', or one name with its arguments, {'lrkv': {'rank': 10}}. tokens: length of the sequences, for variants whose
    factor names N; without it N is the keys of each call. rotary: rotary embeddings of base 10000, half-split; qk_norm: queries and keys
    over their root mean square, without gain. `module.cache()` makes a cache for decoding. Raises VariantError with every problem.
    """
    found = resolved(definition)
    shape = Shape(width, heads, tokens, rotary, qk_norm)
    problems = misfits(found.variant, shape)
    if problems:
        raise VariantError("; ".join(problems))
    from attncheck.variants.layer import Attention

    return Attention(found, shape, causal=causal)


def operator(definition: str | Mapping[str, Any]) -> Callable[..., Any]:
    """A variant as an attention operator: the signature of torch's scaled_dot_product_attention, and the extras that it declares.

    Raises VariantError with every problem.
    """
    found = resolved(definition)
    made: Any = functools.partial(found.variant.operator)
    # No name that could be imported: reports print how it was made.
    made.__qualname__ = f"attncheck.variants.operator({found.plain!r})"
    return made  # type: ignore[no-any-return]


def check(
    definition: str | Mapping[str, Any],
    *,
    width: int | None = None,
    heads: int | None = None,
    tokens: int | None = None,
    rotary: bool = False,
    qk_norm: bool = False,
) -> list[str]:
    """Everything that is wrong with a definition, empty where nothing is: unknown names with the nearest known one, arguments that are
    missing, unknown or out of range and, where width and heads are given, what does not fit them. Needs no torch."""
    found = examined(definition)
    if not isinstance(found, Definition):
        return found
    if width is None or heads is None:
        return []
    return misfits(found.variant, Shape(width, heads, tokens, rotary, qk_norm))
