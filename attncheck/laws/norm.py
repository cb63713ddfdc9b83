"""Query and key norms: their size is divided out."""

from __future__ import annotations

from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial


@law("size", family="norm", needs=claimed("qk_norm"))
def size(trial: Trial) -> None:
    """Queries and keys of four times the size give the same, each token by itself."""
    import torch

    trial = trial.but(magnitude=max(trial.example.magnitude, 5.0))
    factors = 4.0 ** (torch.arange(trial.key.shape[-2]) % 3)[:, None]
    found = trial.call(query=trial.query * 4, key=trial.key * factors.to(trial.key.dtype) * 16)
    # the norm's epsilon is up to a millionth of a mean square of 1, which keys may be below
    limit = 2 * trial.tolerance() + 1e-4 * float(trial.value.abs().max()) * trial.expected.sharpness.clamp(max=100)
    wanted = trial.call(key=trial.key * 16)
    trial.agree(found, wanted, limit, "output of queries four times as large, and of keys each by another factor")


@law("values", family="norm", needs=claimed("qk_norm", "linear_in_values"))
def values(trial: Trial) -> None:
    """Values are not normalised: twice the values give twice the output."""
    trial.agree(trial.call(value=2 * trial.value), 2 * trial.output, 4 * trial.tolerance(), "output of twice the values")
