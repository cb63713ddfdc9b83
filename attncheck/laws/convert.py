"""Weights in another order of rows: what is computed from them stays the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attncheck.laws.registry import LawViolation, NotApplicable, claimed, law
from attncheck.laws.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor

HEADS = ((6, 2), (8, 2), (3, 3), (5, 1), (4, 2), (12, 3))
"""Grouped and not; where the query heads are the square of the key heads many wrong counts are right, so few are."""


def _converted(trial: Trial, layout: str) -> Tensor:
    convert: Callable[..., Any] | None = getattr(trial.operator, "convert", None)
    if convert is None:
        raise LawViolation("claims.layouts names layouts, and the operator has no `convert`")
    try:
        inputs = convert(trial.query, trial.key, trial.value, layout)
    except (LawViolation, NotApplicable, MemoryError):
        raise
    except Exception as problem:
        raise LawViolation(f"convert raised {type(problem).__name__}: {str(problem)[:200]}") from problem
    found = trial.returned(*inputs, layout=layout, **trial.options)
    output: Tensor = found[0] if isinstance(found, tuple) else found
    return output


MOST = 30.0


@law("same_output", family="convert", needs=claimed("layouts"), sweeps=True)
def same_output(trial: Trial) -> None:
    """Query, key and value converted to another layout, and read in it, give what they give in their own, at any head counts and dtypes."""
    for dtype in trial.claims.dtypes or ("float32",):
        for heads, kv_heads in HEADS:
            # one tensor of all three needs them of one length and width
            same = {"queries": trial.example.keys, "value_width": trial.query.shape[-1], "dtype": dtype}
            if dtype == "float16" and trial.example.magnitude > MOST:
                same["magnitude"] = MOST  # beyond it scores overflow, and what is no number cannot be compared
            changed = trial.but(heads=heads, kv_heads=kv_heads if trial.claims.gqa else heads, **same)
            for layout in trial.claims.layouts or ():
                changed.agree(
                    _converted(changed, layout),
                    changed.output,
                    2 * changed.tolerance(),
                    f"output of {heads} query and {changed.example.kv_heads} key heads in layout {layout!r} and {dtype}, against their own",
                    then=f"print((operator(*operator.convert(q, k, v, {layout!r}), layout={layout!r}, **options) - out).abs().max())",
                )
