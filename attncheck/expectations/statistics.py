"""Agreement of two series x (expected) and y (observed), one number per row of [rows, keys]. Float64, no missing values."""

from __future__ import annotations

import numpy as np

from attncheck.expectations.field import Floats


def pearson(x: Floats, y: Floats) -> Floats:
    """Correlation coefficient in [-1, 1]; NaN where a row is constant."""
    a, b = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
    size = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    flat = _constant(x) | _constant(y)
    return np.where(flat, np.nan, np.clip((a * b).sum(axis=-1) / np.where(flat, 1.0, size), -1.0, 1.0))


def spearman(x: Floats, y: Floats) -> Floats:
    """Correlation of ranks, ties sharing their mean rank; NaN where a row is constant."""
    from scipy.stats import rankdata

    return pearson(rankdata(x, axis=-1), rankdata(y, axis=-1))


def slope(x: Floats, y: Floats) -> Floats:
    """Least-squares slope of y on x; NaN where x is constant."""
    a, b = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
    flat = _constant(x)
    return np.where(flat, np.nan, (a * b).sum(axis=-1) / np.where(flat, 1.0, (a * a).sum(axis=-1)))


def share_within(x: Floats, y: Floats, decades: float) -> Floats:
    """Share of keys whose y lies within `decades` powers of ten of x; x and y as they are, positive."""
    return np.asarray((np.abs(np.log10(y / x)) <= decades + 1e-12).mean(axis=-1))


def top_overlap(x: Floats, y: Floats, top: float) -> Floats:
    """Share of the keys in x's top share that are also in y's; ties go to the earlier key."""
    count = top_count(x.shape[-1], top)
    ours, theirs = _top(x, count), _top(y, count)
    return np.asarray((ours & theirs).sum(axis=-1) / count)


def mass_kept(x: Floats, y: Floats, top: float) -> Floats:
    """Share of y's sum that lies on the keys in x's top share; NaN where the sum is not positive."""
    total = y.sum(axis=-1)
    kept = np.where(_top(x, top_count(x.shape[-1], top)), y, 0.0).sum(axis=-1)
    return np.where(total > 0, kept / np.where(total > 0, total, 1.0), np.nan)


def top_count(keys: int, top: float) -> int:
    """How many keys a top share of them is: rounded half up, at least one."""
    return max(1, int(np.floor(top * keys + 0.5)))


def _top(x: Floats, count: int) -> np.ndarray:
    order = np.argsort(-x, axis=-1, kind="stable")[..., :count]
    chosen = np.zeros(x.shape, dtype=bool)
    np.put_along_axis(chosen, order, True, axis=-1)
    return chosen


def _constant(x: Floats) -> np.ndarray:
    return np.asarray(x.max(axis=-1) == x.min(axis=-1))
