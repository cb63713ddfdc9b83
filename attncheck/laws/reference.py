"""Equal to the definition in float64."""

from __future__ import annotations

from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial, skip


@law("dense_float64", family="reference", needs=claimed("reference"))
def dense_float64(trial: Trial) -> None:
    """The output equals the claimed formula, computed in float64 and in full, within rounding."""
    trial.agree(trial.output, trial.expected.output, trial.tolerance(), "output against the formula in float64")


@law("constant_values", family="reference", needs=claimed("normalised"))
def constant_values(trial: Trial) -> None:
    """Where all values are the same, a normalised attention gives that value back, in every row that sees a key."""
    import torch

    if trial.options.get("sinks") is not None:
        raise skip("with sinks rows sum to less than 1")
    value = torch.full_like(trial.value, 3.0, memory_format=torch.contiguous_format)
    found = trial.call(value=value)
    wanted = torch.full_like(found, 3.0)
    trial.agree(found, wanted, trial.tolerance(0.0, value), "output where every value is 3")
