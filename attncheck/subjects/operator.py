"""`operator: sdpa`: an attention operator alone, any callable with the signature of scaled_dot_product_attention."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import MeasurementError, nearest
from attncheck.core.evidence import LoadedSubject
from attncheck.subjects.kinds import subject_kind
from attncheck.subjects.loading import Loading

if TYPE_CHECKING:
    from torch import Tensor


@subject_kind("operator", steps=False)
def operator(loading: Loading, *, name: str, arguments: dict[str, Any] | None = None) -> LoadedSubject:
    """An attention operator, fed with queries, keys and values of your choosing.

    `name` is sdpa (torch's own), softmax (the plain formula), or package.module:function for any callable with the signature of
    torch.nn.functional.scaled_dot_product_attention, found from the project root; an nn.Module is taken too. `arguments` are
    keyword arguments bound to it, or, where the callable takes no query, given to it as to a factory that returns the operator.
    """
    from attncheck.subjects.python import imported

    subject = loading.definition.name
    if loading.random:
        raise MeasurementError(f"{subject}: weights: random does not go with an operator, which has no weights")
    given = dict(arguments or {})
    if ":" in name:
        found = made(subject, name, imported(subject, name, loading.root), given)
    elif name in OPERATORS:
        found = made(subject, name, OPERATORS[name], given)
    else:
        hint = nearest(name, OPERATORS)
        raise MeasurementError(
            f"{subject}: unknown operator {name!r}"
            + (f"; did you mean {hint!r}?" if hint else "")
            + f"; allowed: {', '.join(OPERATORS)}, or package.module:function"
        )
    if loading.attn_implementation is not None:
        raise MeasurementError(f"{subject}: attn_implementation does not go with an operator, which is one implementation itself")
    return LoadedSubject(loading.definition, operator=found, device=loading.device, dtype=loading.dtype)


def made(subject: str, name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
    """The operator itself: `function` with its arguments bound, or what it returns if it is a factory."""
    from attncheck.subjects.python import check_call

    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return functools.partial(function, **arguments) if arguments else function
    if "query" in parameters or _positional(parameters) >= 3:
        taken = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for argument in arguments:
            if argument not in parameters and not taken:
                hint = nearest(argument, parameters)
                raise MeasurementError(f"{subject}: {name} takes no {argument!r}" + (f"; did you mean {hint!r}?" if hint else ""))
        return functools.partial(function, **arguments) if arguments else function
    check_call(subject, name, function, arguments)
    result = function(**arguments)
    if not callable(result):
        raise MeasurementError(f"{subject}: {name} takes no query and returned {type(result).__name__}; allowed: an attention operator")
    return result  # type: ignore[no-any-return]


def _positional(parameters: Any) -> int:
    return sum(1 for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty)


def sdpa(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, looked up at the call."""
    from torch.nn import functional

    return functional.scaled_dot_product_attention(query, key, value, **options)


def softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale + mask) v, row by row as the formula has it; scale 1/√d, rows that see nothing give 0.

    query [batch, heads, N, d], key [batch, kv_heads, M, d], value [batch, kv_heads, M, d_v]; a causal mask is aligned top-left.
    """
    import math

    import torch

    if dropout_p:
        raise MeasurementError(f"the softmax operator has no dropout; found dropout_p={dropout_p}")
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    if is_causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(unseen, -math.inf)
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - largest.masked_fill(largest == -math.inf, 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    return (weights / total.masked_fill(total == 0, 1.0)) @ value


OPERATORS: dict[str, Callable[..., Any]] = {"sdpa": sdpa, "softmax": softmax}
