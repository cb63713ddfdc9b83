"""Observed against expected: the cloud, the diagonal, the band around it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attncheck.report.style import BOUND, COLOURS, CYCLE, OFFENDER, dress, empty, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attncheck.core.verdict import Picture

WIDTH, HEIGHT = 5.6, 5.8


def scatter(picture: Picture) -> Figure:
    """Points outside the band are drawn in the offender's colour; what a log axis cannot show is counted in words."""
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.add_subplot()
    log = picture.log_x or picture.log_y
    shown, hidden = [], 0
    for number, series in enumerate(picture.series):
        x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
        keep = np.isfinite(x) & np.isfinite(y) & ((x > 0) & (y > 0) if log else True)
        hidden += int(keep.size - keep.sum())
        x, y = x[keep], y[keep]
        shown.append((x, y))
        if not x.size:
            continue
        colour = COLOURS[series.role] if series.role != "subject" or len(picture.series) == 1 else CYCLE[number % len(CYCLE)]
        outside = np.zeros(x.size, dtype=bool)
        if log and picture.band_decades is not None:
            outside = np.abs(np.log10(y / x)) > picture.band_decades
        size = float(np.clip(2500 / max(x.size, 1), 4, 22))
        alpha = 0.85 if x.size < 600 else 0.5
        axes.scatter(x[~outside], y[~outside], s=size, color=colour, alpha=alpha, linewidths=0, label=series.label)
        if outside.any():
            beyond = f"outside the band ({outside.mean():.0%})"
            axes.scatter(x[outside], y[outside], s=size, color=OFFENDER, alpha=alpha, linewidths=0, label=beyond)
    everything = np.concatenate([np.concatenate(pair) for pair in shown]) if shown else np.empty(0)
    if everything.size:
        _frame(axes, everything, log, picture.band_decades)
    else:
        empty(axes)
    axes.set_xlabel(plain(picture.x_label))
    axes.set_ylabel(plain(picture.y_label))
    notes = list(picture.notes)
    if notes:
        axes.text(
            0.03,
            0.97,
            "\n".join(notes),
            transform=axes.transAxes,
            va="top",
            fontsize=9,
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none"},
        )
    if hidden:
        axes.text(0.97, 0.03, f"{hidden} points at 0 or below not shown", transform=axes.transAxes, ha="right", fontsize=8, color="#555555")
    dress(figure, replace(picture, notes=()), [axes], WIDTH)
    return figure


def _frame(axes: Axes, values: np.ndarray, log: bool, band: float | None) -> None:
    """The same limits on both axes, the diagonal, and the band of `band` decades around it."""
    low, high = float(values.min()), float(values.max())
    if log:
        low, high = low / 1.6, high * 1.6
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        margin = 0.05 * (high - low) or 0.5
        low, high = low - margin, high + margin
    line = np.array([low, high])
    if log and band is not None:
        axes.fill_between(line, line * 10**-band, line * 10**band, color=BOUND, alpha=0.08, linewidth=0, label=f"± {band:g} decades")
    axes.plot(line, line, color=BOUND, linewidth=0.9, linestyle=(0, (5, 3)), label="equal")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal", adjustable="box")
