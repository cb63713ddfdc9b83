"""A heat map of layers and heads, or a matrix of queries and keys, with offending cells outlined."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncheck.report.style import BOUND, OFFENDER, SIGNS, dress, empty, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attncheck.core.verdict import Picture

MOST_OUTLINES = 4000


def grid(picture: Picture) -> Figure:
    """Row 0 on top. NaN is left grey. The bound is drawn on the colour bar where it is one number."""
    values = np.asarray(picture.grid, dtype=float)
    values = values.reshape(values.shape[0], -1) if values.ndim == 2 and values.size else np.full((1, 1), np.nan)
    rows, columns = values.shape
    width = float(np.clip(0.24 * columns + 2.6, 4.8, 11))
    height = float(np.clip(0.2 * rows + 1.7, 2.9, 10))
    if picture.kind == "matrix":
        width, height = 6.6, 5.8
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    _image(figure, axes, picture, values)
    axes.set_xlabel(plain(picture.x_label))
    axes.set_ylabel(plain(picture.y_label))
    _ticks(axes, picture, rows, columns)
    axes.spines[:].set_visible(False)
    notes = list(picture.notes[1:]) if picture.notes else []
    marked = [(r, c) for r, c in picture.marked if r < rows and c < columns]
    if marked:
        _outline(axes, marked)
        notes.insert(0, f"outlined: {len(marked)} of {int(np.isfinite(values).sum())} {picture.marked_are}")
    dress(figure, replace(picture, notes=tuple(notes)), [axes], width)
    return figure


def _image(figure: Figure, axes: Axes, picture: Picture, values: np.ndarray) -> None:
    import matplotlib
    from matplotlib.colors import LogNorm, Normalize

    finite = values[np.isfinite(values)]
    if not finite.size:
        empty(axes)
        axes.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(values.shape[0] - 0.5, -0.5))
        return
    colours = matplotlib.colormaps["cividis"].with_extremes(bad="#D9D9D9")
    low, high = _with_bounds(float(finite.min()), float(finite.max()), picture)
    if low == high:
        low, high = low - (abs(low) * 0.01 or 0.5), high + (abs(high) * 0.01 or 0.5)
    wide = low > 0 and high / low > 300
    norm = LogNorm(low, high) if wide else Normalize(low, high)
    shown = np.ma.masked_invalid(values)
    image = axes.imshow(shown, cmap=colours, norm=norm, aspect="equal" if picture.kind == "matrix" else "auto", interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(plain(picture.notes[0]) if picture.notes else "")
    for side, level in picture.bounds.items():
        if np.ndim(level) == 0 and low <= float(level) <= high:
            bar.ax.axhline(float(level), color="white", linewidth=3)
            bar.ax.axhline(float(level), color=BOUND, linewidth=1.4)
            label = f"{SIGNS.get(side, side)} {float(level):.4g}"
            white = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (-3, 0), "textcoords": "offset points"}
            bar.ax.annotate(label, (0, float(level)), ha="right", va="center", fontsize=7, bbox=white, **place)


def _with_bounds(low: float, high: float, picture: Picture) -> tuple[float, float]:
    """The range of colours, as far as the bounds, unless values that do differ would be left without colours to differ by."""
    levels = [float(level) for level in picture.bounds.values() if np.ndim(level) == 0 and np.isfinite(level)]
    wide_low, wide_high = min([low, *levels]), max([high, *levels])
    noise = high - low <= 1e-4 * max(abs(low), abs(high))
    return (wide_low, wide_high) if noise or high - low >= 0.1 * (wide_high - wide_low) else (low, high)


def _outline(axes: Axes, marked: list[tuple[int, int]]) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    boxes = [Rectangle((c - 0.5, r - 0.5), 1, 1) for r, c in marked[:MOST_OUTLINES]]
    axes.add_collection(PatchCollection(boxes, facecolor="none", edgecolor=OFFENDER, linewidth=1.6 if len(boxes) < 400 else 0.8))


def _ticks(axes: Axes, picture: Picture, rows: int, columns: int) -> None:
    for set_ticks, labels, count, most in ((axes.set_yticks, picture.rows, rows, 20), (axes.set_xticks, picture.columns, columns, 24)):
        every = max(1, -(-count // most))
        named = labels if len(labels) == count else [str(i) for i in range(count)]
        set_ticks(range(0, count, every), [str(label) for label in named[::every]])
    axes.tick_params(length=0)
