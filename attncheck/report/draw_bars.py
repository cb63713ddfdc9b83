"""Bars side by side for each place, the ratio written in, the bound drawn over each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncheck.report.style import BOUND, COLOURS, OFFENDER, SIGNS, dress, empty, level_bound, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attncheck.core.verdict import Picture, Series

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
MOST_TEXTS = 40


def bars(picture: Picture) -> Figure:
    """A group for each x. Offending bars are hatched in the offender's colour, so that they show without colour too."""
    names = list(dict.fromkeys(x for series in picture.series for x in series.x))
    groups = max(len(picture.series), 1)
    width = float(np.clip(0.21 * len(names) * groups + 2.5, 4.6, 12))
    figure = new_figure(width, 4.4)
    axes = figure.add_subplot()
    each = 0.8 / groups
    position = {name: i for i, name in enumerate(names)}
    for row, series in enumerate(picture.series):
        at = np.array([position[x] for x in series.x], dtype=float) + (row - (groups - 1) / 2) * each
        bad = np.array([(row, i) in set(picture.marked) for i in range(at.size)], dtype=bool)
        _series(axes, series, at, bad, each, crowded=len(names) > MOST_TEXTS)
        if len(names) <= MOST_TEXTS:
            _texts(axes, picture, series, at, upright=len(names) > 12)
    _bounds(axes, picture, [position[x] for x in picture.series[0].x] if picture.series else [], groups, each)
    if not any(np.isfinite(np.asarray(series.y, dtype=float)).any() for series in picture.series):
        empty(axes)
    every = max(1, -(-len(names) // 24))
    axes.set_xticks(range(0, len(names), every), [f"{name:g}" if isinstance(name, int | float) else str(name) for name in names[::every]])
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.14 if any(series.texts for series in picture.series) else 0.05)
    axes.axhline(0, color=BOUND, linewidth=0.8)
    axes.set_xlabel(plain(picture.x_label))
    axes.set_ylabel(plain(picture.y_label))
    if len(names) == 1:
        axes.set_xlim(-0.9, 0.9)
        axes.set_xticks([])
    dress(figure, picture, [axes], width)
    return figure


def _series(axes: Axes, series: Series, at: Floats, bad: Mask, each: float, *, crowded: bool) -> None:
    y = np.asarray(series.y, dtype=float)
    good, wrong = np.isfinite(y) & ~bad, np.isfinite(y) & bad
    if good.any():
        axes.bar(at[good], y[good], each * 0.94, color=COLOURS[series.role], label=series.label)
    if wrong.any():
        beyond = f"{series.label}, beyond the bound"
        axes.bar(at[wrong], y[wrong], each * 0.94, color=OFFENDER, hatch="////", edgecolor="white", linewidth=0, label=beyond)
        if crowded:
            axes.plot(at[wrong], y[wrong], linestyle="", marker="v", markersize=5, color=OFFENDER)


def _texts(axes: Axes, picture: Picture, series: Series, at: Floats, *, upright: bool) -> None:
    """A text above each bar, clear of the bound's dash over it."""
    for i, (left, height, text) in enumerate(zip(at, np.asarray(series.y, dtype=float), series.texts, strict=False)):
        if not text or not np.isfinite(height):
            continue
        dashes = [float(level[i]) for level in picture.bounds.values() if np.ndim(level) == 1 and len(level) > i]
        top = max([height, *(dash for dash in dashes if height <= dash < height * 1.08)]) if height >= 0 else height
        over: dict[str, Any] = {
            "xytext": (0, 3 if height >= 0 else -3),
            "textcoords": "offset points",
            "va": "bottom" if height >= 0 else "top",
        }
        axes.annotate(plain(text), (left, top), ha="center", fontsize=7.5, rotation=90 if upright else 0, zorder=7, **over)


def _bounds(axes: Axes, picture: Picture, at: list[int], groups: int, each: float) -> None:
    """A dash over the first bar of each group, at the height that it must reach or stay below; one line where all are equal."""
    for side, level in picture.bounds.items():
        values = np.atleast_1d(np.asarray(level, dtype=float))
        label = f"{SIGNS.get(side, side)} bound"
        if values.size == 1 or np.ptp(values) == 0:
            level_bound(axes, side, float(values[0]))
            continue
        left = np.array(at[: values.size], dtype=float) - (groups * each) / 2
        axes.hlines(values[: left.size], left, left + each, color=BOUND, linewidth=2, label=label, zorder=6)
