"""torch.compile gives the same: a C++ compile for each shape, so these laws are tried in a thorough search only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from attncheck.laws.registry import LawViolation, law
from attncheck.laws.trial import Trial, skip


@functools.lru_cache(maxsize=4)
def _compiled(operator: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    made: Callable[..., Any] = torch.compile(operator, dynamic=False)
    return made


@law("agrees", family="compiled", sweeps=True, thorough=True)
def agrees(trial: Trial) -> None:
    """The operator under torch.compile gives what it gives without, also with a scale of its own."""
    import torch

    operator = trial.operator
    if isinstance(operator, torch.nn.Module) or hasattr(operator, "_torchdynamo_orig_callable"):
        raise skip("it is compiled already, or a module, which its laws call as it is")
    for scale in (trial.example.scale, 0.37):
        tried = trial if scale == trial.example.scale else trial.but(scale=scale)
        if scale is not None and tried.example.scale is None:
            continue
        torch._dynamo.reset()
        try:
            with torch.no_grad():
                found = _compiled(operator)(tried.query, tried.key, tried.value, **tried.options)
        except Exception as problem:
            text = (str(problem).splitlines() or [""])[0][:200]
            raise LawViolation(f"under torch.compile the operator raised {type(problem).__name__}: {text}", _THEN) from problem
        found = found[0] if isinstance(found, tuple) else found
        tried.agree(found, tried.output, 2 * tried.tolerance(), "output under torch.compile, against without", then=_THEN)


_THEN = "print((torch.compile(operator, dynamic=False)(q, k, v, **options) - out).abs().max())"
