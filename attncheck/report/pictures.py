"""Pictures drawn from plain data with matplotlib's Figure (no pyplot, no global state left behind): PNG and SVG beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.errors import AttncheckError
from attncheck.core.verdict import Picture, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DECADES = 2
"""What a linear axis shows."""


def draw(picture: Picture, path: Path) -> Path:
    """Draw to `path` (a PNG) and beside it as SVG; the folder is made. Returns the PNG's path. Raises AttncheckError on an unknown kind."""
    import matplotlib

    from attncheck.report.style import RC

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(RC):
        made = figure(picture)
        # Laid out once, not once for each format: the layout is most of the time.
        layout = made.get_layout_engine()
        if layout is not None:
            layout.execute(made)
        made.set_layout_engine("none")
        for target in (path.with_suffix(".png"), path.with_suffix(".svg")):
            made.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
    return path.with_suffix(".png")


def figure(picture: Picture) -> Figure:
    """The figure itself. Raises AttncheckError on an unknown kind."""
    from attncheck.report import draw_bars, draw_grid, draw_lines, draw_scatter

    kinds = {
        "scatter": draw_scatter.scatter,
        "lines": draw_lines.lines,
        "panels": draw_lines.panels,
        "bars": draw_bars.bars,
        "heat_map": draw_grid.grid,
        "matrix": draw_grid.grid,
    }
    if picture.kind not in kinds:
        raise AttncheckError(f"unknown kind of picture {picture.kind!r}; known: {', '.join(kinds)}")
    return kinds[picture.kind](picture)


def with_context(picture: Picture, others: Mapping[str, Picture]) -> Picture:
    """The picture with what the same property's other cases measured, in grey: their own series, named by case.

    Only lines and panels compare; pictures of another kind come back as they are. Models of different depths are put on one axis,
    from their first layer to their last.
    """
    if picture.kind not in ("lines", "panels"):
        return picture
    compared = {name: other for name, other in others.items() if other.kind == picture.kind and other.x_label == picture.x_label}
    depths = {id(each): _last(each) for each in (picture, *compared.values())}
    scaled = picture.x_label == "layer" and len(set(depths.values())) > 1

    def at(series: Series, owner: Picture) -> Series:
        return replace(series, x=[x / (depths[id(owner)] or 1) for x in series.x]) if scaled else series

    grey = [
        replace(at(series, other), role="context", label=name, texts=())
        for name, other in compared.items()
        for series in other.series
        if series.role == "subject"
    ]
    own = [at(series, picture) for series in picture.series]
    return replace(
        picture,
        series=(*own, *grey),
        log_y=picture.log_y or _decades([value for series in (*own, *grey) for value in series.y]) > MOST_DECADES,
        x_label="relative depth: layer / last layer" if scaled else picture.x_label,
    )


def _decades(values: Sequence[float]) -> float:
    """From the smallest to the largest; 0 where any is not positive."""
    known = [value for value in values if math.isfinite(value)]
    return math.log10(max(known) / min(known)) if known and min(known) > 0 else 0.0


def _last(picture: Picture) -> float:
    return max((max(series.x) for series in picture.series if len(series.x)), default=0)
