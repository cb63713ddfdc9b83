"""What all pictures share: dark on white, the Okabe-Ito palette (safe for colour-blind readers), titles, bounds, legends."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attncheck.core.verdict import Picture

SUBJECT = "#0072B2"
OFFENDER = "#D55E00"
CONTEXT = "#9A9A9A"
NULL = "#009E73"
BOUND = "#1A1A1A"
INK = "#222222"
CYCLE = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#332288")
DASHES = ("-", "--", "-.", ":")
COLOURS = {"subject": SUBJECT, "context": CONTEXT, "offender": OFFENDER, "null": NULL}

DASHED = (0, (5, 3))

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.formatter.useoffset": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.bbox": None,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.color": INK,
    "text.usetex": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "attncheck",
}

MOST_LEGEND = 9


DPI = 130


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(made)
    return made


def wrapped(text: str, width: float, lines: int = 3) -> str:
    """`text` broken for a figure of `width` inches, at most `lines` lines, the rest an ellipsis."""
    return plain("\n".join(textwrap.wrap(text, max(int(width * 11.5), 20), max_lines=lines, placeholder=" ...")))


def plain(text: str) -> str:
    """Text that matplotlib must not read as mathematics: names and tokens may hold dollar signs."""
    return text.replace("$", r"\$")


def dress(figure: Figure, picture: Picture, several: Sequence[Axes], width: float) -> None:
    """Title above everything; legend and notes below the axes, so that they never cover data. Of many entries the first few."""
    if picture.title:
        figure.suptitle(wrapped(picture.title, width), fontsize=10, x=0.01, ha="left", fontweight="bold")
    notes = wrapped("; ".join(picture.notes), width * 1.2)
    first: dict[str, Any] = {}
    for axes in several:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            first.setdefault(label, handle)
    if len(first) < 2:
        if notes:
            figure.supxlabel(notes, fontsize=8, x=0.01, ha="left", color="#555555")
        return
    names = list(first)
    shown = names[:MOST_LEGEND]
    texts = [plain(textwrap.shorten(name, 44, placeholder="...")) for name in shown]
    if len(names) > len(shown):
        texts[-1] = f"{texts[-1]} and {len(names) - len(shown)} more"
    per_row = max(1, min(len(texts), int(width * 12 / (max(map(len, texts)) + 7))))
    made = figure.legend(
        [first[name] for name in shown], texts, loc="outside lower left", ncols=per_row, title=notes or None, alignment="left"
    )
    made.get_title().set(fontsize=8, color="#555555")


SIGNS = {"at_least": ">=", "at_most": "<=", "equals": "="}


def horizontal_bounds(axes: Axes, bounds: dict[str, Any], x: Sequence[float], panel: str = "") -> None:
    """Every side of the bound as a dashed line: level where it is one number, following x where it varies."""
    for side, given in bounds.items():
        level = given.get(panel) if isinstance(given, dict) else given
        if level is None:
            continue
        values = np.atleast_1d(np.asarray(level, dtype=float))
        if values.size == 1 or np.ptp(values) == 0:
            level_bound(axes, side, float(values[0]))
        else:
            axes.plot(list(x)[: values.size], values, color=BOUND, linestyle=DASHED, linewidth=1.1, label=f"{SIGNS.get(side, side)} bound")


def level_bound(axes: Axes, side: str, level: float) -> None:
    """One side of the bound where it is one number."""
    axes.axhline(level, color=BOUND, linestyle=DASHED, linewidth=1.1, label=f"{SIGNS.get(side, side)} {level:.4g}")


def logarithmic(axes: Axes, which: str, values: np.ndarray) -> None:
    """A log axis; symmetric around 0 where some values are 0 or less."""
    finite = values[np.isfinite(values)]
    set_scale = axes.set_xscale if which == "x" else axes.set_yscale
    positive = finite[finite > 0]
    if not positive.size:
        return
    if (finite <= 0).any():
        set_scale("symlog", linthresh=float(positive.min()))
    else:
        set_scale("log")


def empty(axes: Axes) -> None:
    """Says that there is nothing to see, where there is nothing."""
    axes.text(0.5, 0.5, "nothing was measured here", ha="center", va="center", transform=axes.transAxes, color="#777777")
