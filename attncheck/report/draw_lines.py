"""Lines over layers, steps or positions; and a panel for each layer over the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncheck.report.style import (
    COLOURS,
    CYCLE,
    DASHES,
    OFFENDER,
    dress,
    empty,
    horizontal_bounds,
    logarithmic,
    new_figure,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attncheck.core.verdict import Picture, Series

MOST_PANELS = 24
MOST_RINGS = 8
GREY_MARKERS = ("s", "^", "D", "v", "x", "P")
"""Grey lines are told apart by their markers."""
BEYOND = "beyond the bound"


def lines(picture: Picture) -> Figure:
    """One axes, a line for each series: the subject strong, context grey, marked points ringed, the bound dashed."""
    width = 7.2
    figure = new_figure(width, 4.6)
    axes = figure.add_subplot()
    _lines(axes, picture, list(enumerate(picture.series)))
    _scales(axes, picture, picture.series)
    axes.set_xlabel(plain(picture.x_label))
    axes.set_ylabel(plain(picture.y_label))
    horizontal_bounds(axes, dict(picture.bounds), picture.series[0].x if picture.series else [])
    dress(figure, picture, [axes], width)
    return figure


def panels(picture: Picture) -> Figure:
    """A small axes for each panel, on shared scales; those with marked points first where there are too many to show."""
    names = list(dict.fromkeys(series.panel for series in picture.series))
    marked = {picture.series[row].panel for row, _ in picture.marked if row < len(picture.series)}
    shown = names
    if len(names) > MOST_PANELS:
        first = [name for name in names if name in marked][:MOST_PANELS]
        rest = [name for name in names if name not in first]
        every = max(1, len(rest) // max(MOST_PANELS - len(first), 1))
        chosen = {*first, *rest[::every][: MOST_PANELS - len(first)]}
        shown = [name for name in names if name in chosen]
    columns = min(4, max(1, int(np.ceil(np.sqrt(len(shown))))))
    rows = max(1, -(-len(shown) // columns))
    width = 2.2 * columns + 1.2
    figure = new_figure(width, 1.75 * rows + 1.6)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(shown):
            axes.set_visible(False)
            continue
        name = shown[number]
        members = [(i, series) for i, series in enumerate(picture.series) if series.panel == name]
        _lines(axes, picture, members)
        _scales(axes, picture, [series for series in picture.series if series.panel in shown])
        axes.minorticks_off()
        horizontal_bounds(axes, dict(picture.bounds), members[0][1].x if members else [], name)
        axes.set_title(name, fontsize=9, color=OFFENDER if name in marked else "#222222", loc="left")
    if not shown:
        empty(grid.flat[0])
    figure.supylabel(plain(picture.y_label), fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel(plain(picture.x_label))
    if len(shown) < len(names):
        picture = replace(picture, notes=(*picture.notes, f"{len(shown)} of {len(names)} panels"))
    dress(figure, picture, [axes for axes in grid.flat if axes.get_visible()], width)
    return figure


def _lines(axes: Axes, picture: Picture, members: list[tuple[int, Series]]) -> None:
    strong = [i for i, series in members if series.role == "subject"]
    grey = [i for i, series in members if series.role not in ("subject", "offender")]
    drawn = False
    for i, series in members:
        x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
        drawn = drawn or bool(np.isfinite(y).any())
        if series.role == "offender":
            axes.plot(x, y, linestyle="", marker="o", markersize=5, color=OFFENDER, label=series.label, zorder=5)
            continue
        place = strong.index(i) if i in strong else 0
        main = series.role == "subject"
        axes.plot(
            x,
            y,
            color=CYCLE[place % len(CYCLE)] if main else COLOURS[series.role],
            linestyle=DASHES[(place // len(CYCLE)) % len(DASHES)],
            linewidth=1.7 if main else 1.1,
            marker=("o" if main else GREY_MARKERS[grey.index(i) % len(GREY_MARKERS)]) if np.isfinite(y).sum() <= 40 else None,
            markersize=3.2 if main else 3.6,
            alpha=1.0 if main else 0.8,
            label=series.label,
            zorder=3 if main else 2,
        )
        bad = [column for row, column in picture.marked if row == i and column < y.size]
        if len(bad) > MOST_RINGS:
            axes.plot(x, np.where(np.isin(np.arange(y.size), bad), y, np.nan), color=OFFENDER, linewidth=2.4, label=BEYOND, zorder=6)
        elif bad:
            ring: dict[str, Any] = {"markersize": 7, "markerfacecolor": "none", "markeredgecolor": OFFENDER, "markeredgewidth": 1.6}
            axes.plot(x[bad], y[bad], linestyle="", marker="o", label=BEYOND, zorder=6, **ring)
    if not drawn:
        empty(axes)


def _scales(axes: Axes, picture: Picture, members: Any) -> None:
    if picture.log_y:
        logarithmic(axes, "y", np.concatenate([np.asarray(series.y, dtype=float) for series in members] or [np.empty(0)]))
    if picture.log_x:
        logarithmic(axes, "x", np.concatenate([np.asarray(series.x, dtype=float) for series in members] or [np.empty(0)]))
    elif picture.x_label == "step" and _geometric([x for series in members for x in series.x]):
        axes.set_xscale("symlog", linthresh=1, linscale=0.4)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.minorticks_off()
    elif picture.x_label in ("layer", "step", "head", "query", "key"):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(nbins=8 if picture.kind == "lines" else 4, integer=True))


def _geometric(steps: list[float]) -> bool:
    """Whether checkpoints lie as 0, 1, 2, 4, 8, ...: a linear axis would show the last two of them."""
    kept = sorted(set(steps))
    positive = [step for step in kept if step > 0]
    return len(positive) > 3 and positive[-1] > 16 * positive[0] and positive[len(positive) // 2] < positive[-1] / 4
