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
from typing import TYPE_CHECKING, Any

import torch

from attncheck.instruments.visibility import visible_rows

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from attncheck.instruments.probes import Probe

COLUMNS_NEEDED = 60
ROWS = 64
"""Rows of the mask that are read at a time."""


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


def residual_squares(probe: Probe) -> tuple[Tensor, Tensor, Tensor]:
    """sum_i (R z)_i^2 for every sign column z as [B, H, m]; D and the ceiling as [B, H]; over the rows that count, in float64.

    The mask is read 64 rows at a time; heads that share it are done together.
    """
    if probe.signs is None or probe.sign_columns is None:
        raise ValueError("the probe carried no sign columns")
    context, call = probe.context, probe.context.call
    group = call.heads // call.kv_heads
    count = probe.signs.shape[-1]
    shape = (context.batch, call.heads)
    squares = torch.zeros(*shape, count, dtype=torch.float64, device=probe.signs.device)
    floor, ceiling = torch.zeros_like(squares[..., 0]), torch.zeros_like(squares[..., 0])
    by_head = call.mask is not None and call.mask.dim() == 4 and call.mask.shape[1] > 1
    for b in range(context.batch):
        # Sums of signs are whole numbers, which float32 holds exactly.
        signs = probe.sign_columns[b].float()
        slot = int(context.first_slot[b])
        for h in range(call.heads) if by_head else (slice(0, call.heads),):
            kv = slice(h // group, h // group + 1) if isinstance(h, int) else slice(0, call.kv_heads)
            heads = slice(h, h + 1) if isinstance(h, int) else h
            columns = signs[kv].transpose(0, 1).flatten(1)
            repeat = 1 if isinstance(h, int) else group
            for start in range(0, context.queries, ROWS):
                rows = slice(start, min(start + ROWS, context.queries))
                rest = visible_rows(call, b, heads.start, rows)
                sees_first = rest[:, slot].clone()
                rest[:, slot] = False
                others = rest.sum(-1).double()
                summed = (rest.float() @ columns).double().view(len(rest), -1, count).transpose(0, 1).repeat_interleave(repeat, 0)
                first = probe.first[b, heads, rows].double() * sees_first
                left = probe.row_sum[b, heads, rows].double() - first
                counted = context.counts[b, rows].double()
                change = probe.signs[b, heads, rows].double()
                change = change - (signs[kv, slot].double().repeat_interleave(repeat, 0)[:, None] * first[..., None])
                change = change - summed * (left / others.clamp(min=1))[..., None]
                squares[b, heads] += (change.square() * counted[:, None]).sum(1)
                floor[b, heads] += ((first.square() + left.square() / others.clamp(min=1)) * counted).sum(-1)
                ceiling[b, heads] += ((first.square() + left.square()) * counted).sum(-1)
    return squares, floor, ceiling


def frobenius_estimate(probe: Probe, alpha: float = 1e-4, columns: int | None = None) -> NormEstimate:
    """|A|_F^2 of every head from the first `columns` signs (all), with an interval that errs with probability at most about alpha."""
    import numpy as np

    squares, floor, ceiling = residual_squares(probe)
    sums = squares.cpu().numpy()[..., :columns]
    fixed, top = floor.cpu().numpy(), ceiling.cpu().numpy()
    count = sums.shape[-1]
    stderr, lower, upper = np.empty_like(fixed), fixed.copy(), np.maximum(top, fixed)
    if count < 2:
        return NormEstimate(fixed + sums.mean(-1), np.full_like(fixed, np.inf), lower, upper, fixed, top)
    mean, variance = sums.mean(-1), sums.var(-1, ddof=1)
    stderr = np.sqrt(variance / count)
    if count >= COLUMNS_NEEDED:
        low, high = interval(mean, variance, count, alpha)
        decided = (variance > 0) | np.isnan(variance)
        lower = np.where(decided, np.maximum(fixed + low, fixed), lower)
        upper = np.where(decided, np.minimum(fixed + high, upper), upper)
    return NormEstimate(square=fixed + mean, stderr=stderr, lower=lower, upper=upper, floor=fixed, ceiling=top)


def interval(mean: Any, variance: Any, count: int, alpha: float) -> tuple[Any, Any]:
    """Interval of the expectation of `count` sums with this mean and variance (ddof 1); either side errs with probability alpha / 2."""
    import numpy as np
    from scipy.stats import chi2

    spread = variance * (count - 1) / chi2.ppf(0.01, count - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        nu = np.maximum(count, np.where(spread > 0, 2 * count * mean**2 / spread, count))
    return mean * nu / chi2.ppf(1 - alpha / 2, nu), mean * nu / chi2.ppf(alpha / 2, nu)
