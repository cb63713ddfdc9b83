"""The Frobenius norm from random signs through the kernel, centred, with a calibrated interval.

With a_i the mass on the first key, r_i the row sum, n_i the other visible keys, and R the matrix A minus the first key's column minus
the remaining mass spread evenly over the other visible keys:

    |A|_F^2 = D + |R|_F^2,   D = sum_i [a_i^2 + (r_i - a_i)^2 / n_i],   (R z)_i = (A z)_i - z_1 a_i - (r_i - a_i) mean of z over those keys

for any A supported on the mask. Only |R|_F^2 is random: E (Rz)_i^2 = sum_j R_ij^2 for independent signs z. The interval treats the m
column sums S_c as scaled chi-squared: nu = max(m, 2 m S^2 / s_+^2), s_+^2 = s^2 (m-1) / chi2_{m-1}(0.01); S nu / chi2_nu(1 - a/2) to
S nu / chi2_nu(a/2). Fewer than 60 columns, or no spread at all, decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from attncheck.instruments.probes import Probe

COLUMNS_NEEDED = 60


@dataclass
class NormEstimate:
    """[B, H] each: estimate of |A|_F^2, its standard error, and the interval at `alpha`."""

    square: np.ndarray
    stderr: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    floor: np.ndarray
    """D: |A|_F^2 is never below it, without chance."""
    ceiling: np.ndarray
    """sum_i [a_i^2 + (r_i - a_i)^2]: never above it for non-negative rows, without chance."""


def residual(probe: Probe) -> tuple[Tensor, Tensor, Tensor]:
    """(R z) as [B, H, N, m], D and the ceiling as [B, H], over the rows that count, in float64."""
    if probe.signs is None or probe.sign_columns is None:
        raise ValueError("the probe carried no sign columns")
    context = probe.context
    group = context.call.heads // context.call.kv_heads
    signs = probe.sign_columns.double().repeat_interleave(group, 1)
    visible = _visible_keys(probe)
    first_key = (context.key_positions == 0)[:, None, None, :] & visible
    rest = visible & ~first_key
    others = rest.sum(-1).double()
    sees_first = first_key.any(-1)
    mean_sign = torch.einsum("bhnm,bhmc->bhnc", rest.double().expand(-1, signs.shape[1], -1, -1), signs) / others.clamp(min=1)[..., None]
    first_sign = torch.einsum("bhnm,bhmc->bhnc", first_key.double().expand(-1, signs.shape[1], -1, -1), signs)
    first = probe.first.double() * sees_first
    left = probe.row_sum.double() - first
    counts = context.counts[:, None, :]
    change = probe.signs.double() - first_sign * first[..., None] - mean_sign * left[..., None]
    floor = torch.where(counts, first**2 + left**2 / others.clamp(min=1), 0.0).sum(-1)
    ceiling = torch.where(counts, first**2 + left**2, 0.0).sum(-1)
    return change * counts[..., None], floor, ceiling


def _visible_keys(probe: Probe) -> Tensor:
    """bool [B, 1 or H, N, M]; dense, so estimates are for inputs whose mask fits in memory."""
    from attncheck.instruments.visibility import hidden_in

    call = probe.context.call
    queries, keys = probe.context.queries, probe.context.keys
    seen = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=call.query.device)
    if call.mask is not None:
        seen = seen & ~hidden_in(call.mask[..., :keys])
    if call.is_causal:
        seen = seen.tril()
    return seen.expand(probe.context.batch, -1, -1, -1)


def frobenius_estimate(probe: Probe, alpha: float = 1e-4) -> NormEstimate:
    """|A|_F^2 of every head with an interval that errs with probability at most about alpha (arXiv-free; derivation above)."""
    import numpy as np
    from scipy.stats import chi2

    change, floor, ceiling = residual(probe)
    columns = (change**2).sum(2).cpu().numpy()
    fixed, top = floor.cpu().numpy(), ceiling.cpu().numpy()
    count = columns.shape[-1]
    mean, variance = columns.mean(-1), columns.var(-1, ddof=1) if count > 1 else np.zeros(columns.shape[:-1])
    stderr = np.sqrt(variance / count)
    spread = variance * (count - 1) / chi2.ppf(0.01, max(count - 1, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        nu = np.maximum(count, np.where(spread > 0, 2 * count * mean**2 / spread, count))
    lower = fixed + mean * nu / chi2.ppf(1 - alpha / 2, nu)
    upper = fixed + mean * nu / chi2.ppf(alpha / 2, nu)
    undecided = (count < COLUMNS_NEEDED) | (variance <= 0)
    return NormEstimate(
        square=fixed + mean,
        stderr=stderr,
        lower=np.where(undecided, fixed, np.maximum(lower, fixed)),
        upper=np.where(undecided, top, np.minimum(upper, np.maximum(top, fixed))),
        floor=fixed,
        ceiling=top,
    )
