"""`operator: sdpa`: an attention operator alone, any callable with the signature of scaled_dot_product_attention."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck import variants
from attncheck.core.errors import MeasurementError, nearest, raised
from attncheck.core.evidence import LoadedSubject
from attncheck.core.registry import Complaint
from attncheck.subjects.kinds import subject_kind
from attncheck.subjects.loading import Loading
from attncheck.variants.fields import argument_schemas
from attncheck.variants.registry import VARIANTS, resolved

if TYPE_CHECKING:
    from torch import Tensor


def check(options: Mapping[str, Any]) -> list[Complaint]:
    """What is wrong with a named operator as far as no import tells. Needs no torch."""
    name, arguments = options["name"], dict(options.get("arguments") or {})
    if ":" in name or name in OPERATORS:
        return []
    if name not in VARIANTS:
        return [Complaint("name", f"operator: {unknown(name)}")]
    definition, bound = _divided(name, arguments)
    problems = variants.check({name: definition})
    if not problems:
        known = inspect.signature(resolved({name: definition}).variant.operator).parameters
        takes = [*VARIANTS[name].parameters, *(word for word in known if word not in ("query", "key", "value"))]
        for argument in bound:
            if argument not in known:
                hint = nearest(argument, takes)
                also = f"; did you mean {hint!r}?" if hint else ""
                problems.append(f"{name} takes no {argument!r}{also}; allowed: {', '.join(dict.fromkeys(takes))}")
    return [Complaint("arguments", f"operator: {problem}") for problem in problems]


def unknown(name: str) -> str:
    known = [*OPERATORS, *VARIANTS]
    hint = nearest(name, known)
    also = f"; did you mean {hint!r}?" if hint else ""
    return f"unknown operator {name!r}{also}; allowed: {', '.join(known)}, or package.module:function"


def _divided(name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a variant, and those that are bound to its operator's call."""
    own = VARIANTS[name].parameters
    return {k: v for k, v in arguments.items() if k in own}, {k: v for k, v in arguments.items() if k not in own}


def known() -> dict[str, Any]:
    """The variants' arguments as an editor completes them; those of a call may stand beside them."""
    return {name: {**schema, "additionalProperties": True} for name, schema in argument_schemas().items()}


def files(arguments: Mapping[str, Any], root: Path) -> list[Path] | None:
    """No file decides about an operator of our own; what a user's function reads nobody knows."""
    name = arguments["name"]
    ours = name in VARIANTS and VARIANTS[name].function.__module__.startswith("attncheck.")
    return [] if ours or name in OPERATORS else None


@subject_kind("operator", steps=False, check=check, known=known, files=files)
def operator(loading: Loading, *, name: str, arguments: dict[str, Any] | None = None) -> LoadedSubject:
    """An attention operator, fed with queries, keys and values of your choosing.

    `name` is sdpa (torch's own), an attention variant (softmax, the plain formula; polynomial, sigmoid, ...: `attncheck list variants`),
    or package.module:function for any callable with the signature of torch.nn.functional.scaled_dot_product_attention, found from the
    project root; an nn.Module is taken too. `arguments` are those of the variant and keyword arguments bound to the operator, or, where
    an importable callable takes no query, given to it as to a factory that returns the operator.
    """
    from attncheck.subjects.python import imported

    subject = loading.definition.name
    if loading.random:
        raise MeasurementError(f"{subject}: weights: random does not go with an operator, which has no weights")
    given = dict(arguments or {})
    if ":" in name:
        found = made(subject, name, imported(subject, name, loading.root), given)
    else:
        problems = check({"name": name, "arguments": given})
        if problems:
            raise MeasurementError(f"{subject}: " + "; ".join(problem.found for problem in problems))
        if name in OPERATORS:
            found = made(subject, name, OPERATORS[name], given)
        else:
            definition, bound = _divided(name, given)
            found = made(subject, name, variants.operator({name: definition}), bound)
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
    open_ended = not isinstance(function, type) and any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if "query" in parameters or _positional(parameters) >= 3 or open_ended:
        taken = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for argument in arguments:
            if argument not in parameters and not taken:
                hint = nearest(argument, parameters)
                raise MeasurementError(f"{subject}: {name} takes no {argument!r}" + (f"; did you mean {hint!r}?" if hint else ""))
        return functools.partial(function, **arguments) if arguments else function
    check_call(subject, name, function, arguments)
    try:
        result = function(**arguments)
    except Exception as error:
        raise MeasurementError(
            f"{subject}: {name} takes no query, so it was called for the operator that it returns, and raised {raised(error)}; "
            "an operator of your own begins with (query, key, value"
        ) from error
    if not callable(result):
        raise MeasurementError(f"{subject}: {name} takes no query and returned {type(result).__name__}; allowed: an attention operator")
    return result  # type: ignore[no-any-return]


def _positional(parameters: Any) -> int:
    return sum(1 for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty)


def sdpa(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, looked up at the call."""
    from torch.nn import functional

    return functional.scaled_dot_product_attention(query, key, value, **options)


OPERATORS: dict[str, Callable[..., Any]] = {"sdpa": sdpa}
"""Operators that are no variant."""
