"""Every kind of picture is drawn from its data: what is asked is whether the data is in the axes, never how the pixels lie."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from attncheck.core.errors import AttncheckError
from attncheck.core.verdict import Picture, Series
from attncheck.report.pictures import draw, figure, with_context

NAN = float("nan")
RNG = np.random.default_rng(0)
PROFILE = RNG.uniform(0.1, 0.3, 30).tolist()

PICTURES = {
    "scatter": Picture(
        "scatter", "t", "x", "y", (Series("h", [1e-4, 1e-3, 1e-2], [2e-4, 1e-3, 9e-2]),), log_x=True, log_y=True, band_decades=0.5
    ),
    "scatter-zeros": Picture("scatter", "t", series=(Series("h", [0, 0], [1, 0]),), log_x=True, log_y=True, band_decades=0.5),
    "scatter-linear": Picture("scatter", "t", series=(Series("h", [1, 1], [1, 1]),)),
    "scatter-empty": Picture("scatter", "t"),
    "lines": Picture("lines", "t", "layer", "alpha", (Series("a", list(range(30)), PROFILE),), {"at_most": 0.25}, marked=((0, 3),)),
    "lines-one-point": Picture("lines", "t", "layer", "alpha", (Series("a", [0], [0.3]),), {"at_most": [0.25]}),
    "lines-nan": Picture("lines", "t", "layer", "alpha", (Series("a", [0, 1, 2], [NAN, NAN, NAN]),)),
    "lines-log-zero": Picture("lines", "t", "step", "loss", (Series("a", [0, 1, 2, 3], [0, 1, NAN, 1e6]),), log_y=True),
    "lines-empty": Picture("lines", "t"),
    "bars": Picture(
        "bars", "t", "layer", "norm", (Series("a", [0, 1], [1, 2], texts=["1.1", "1.2"]), Series("b", [0, 1], [1, 1], "context"))
    ),
    "bars-270": Picture("bars", "t", "head", "norm", (Series("a", list(range(270)), RNG.uniform(0, 1, 270).tolist()),), marked=((0, 7),)),
    "bars-negative": Picture("bars", "t", "", "difference", (Series("a", [0], [-0.3], texts=["-0.3"]),), {"at_least": -0.1}),
    "bars-nan": Picture("bars", "t", "layer", "norm", (Series("a", [0, 1], [NAN, NAN], texts=["", ""]),)),
    "heat-map": Picture(
        "heat_map", "t", "head", "layer", grid=RNG.uniform(0, 1, (30, 9)).tolist(), marked=((3, 4), (29, 8)), bounds={"at_most": 0.9}
    ),
    "heat-map-ragged": Picture("heat_map", "t", grid=[[1.0, NAN], [2.0, 3.0]], rows=("3", "7"), columns=("0", "1"), notes=("alpha",)),
    "heat-map-one": Picture("heat_map", "t", grid=[[0.0]]),
    "heat-map-nothing": Picture("heat_map", "t", grid=[[NAN]]),
    "heat-map-wide": Picture("heat_map", "t", grid=np.exp(RNG.normal(0, 4, (80, 64))).tolist(), bounds={"at_most": 10.0}),
    "matrix": Picture("matrix", "t", "key", "query", grid=np.tril(RNG.uniform(0, 1, (64, 64))).tolist(), marked=((3, 5),)),
    "panels": Picture(
        "panels", "t", "step", "norm", tuple(Series("s", [0, 1], [1, i + 1], panel=f"layer {i}") for i in range(5)), {"at_most": 3}
    ),
    "panels-empty": Picture("panels", "t"),
}


@pytest.mark.parametrize("name", list(PICTURES))
def test_every_kind_is_drawn_as_png_and_svg_without_a_warning(name: str, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = draw(PICTURES[name], tmp_path / "deep" / f"{name}.png")
    content = made.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert 300 < width < 2000
    assert 300 < height < 2000
    assert (made.with_suffix(".svg")).read_text().startswith("<?xml")
    assert dict(matplotlib.rcParams) == before


def axes_of(picture: Picture) -> Any:
    return figure(picture).axes[0]


def test_a_scatter_holds_its_points_the_diagonal_and_the_band() -> None:
    axes = axes_of(PICTURES["scatter"])
    points = np.concatenate([c.get_offsets() for c in axes.collections if len(c.get_offsets()) > 1 or c.get_label().startswith("outside")])
    shown = {tuple(point) for point in np.asarray(points).tolist()}
    assert {(1e-4, 2e-4), (1e-3, 1e-3), (1e-2, 9e-2)} <= shown
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_xlim() == axes.get_ylim()
    assert "outside the band (33%)" in axes.get_legend_handles_labels()[1]
    line = axes.lines[0]
    assert (line.get_xdata() == line.get_ydata()).all()


def test_points_that_a_log_axis_cannot_show_are_counted() -> None:
    assert any("2 points at 0 or below" in text.get_text() for text in axes_of(PICTURES["scatter-zeros"]).texts)


def test_lines_hold_the_profile_the_bound_and_the_marked_point() -> None:
    axes = axes_of(PICTURES["lines"])
    drawn = [np.asarray(line.get_ydata(), dtype=float).tolist() for line in axes.lines]
    assert PROFILE in drawn
    assert [PROFILE[3]] in drawn
    assert [0.25, 0.25] in drawn


def test_a_heat_map_holds_the_grid_with_row_0_on_top() -> None:
    axes = axes_of(PICTURES["heat-map"])
    assert np.asarray(axes.images[0].get_array()).tolist() == [list(row) for row in PICTURES["heat-map"].grid]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    boxes = [path.get_extents() for path in axes.collections[0].get_paths()]
    assert {(box.x0 + 0.5, box.y0 + 0.5) for box in boxes} == {(4, 3), (8, 29)}


def test_absent_cells_are_left_empty() -> None:
    image = np.ma.asarray(axes_of(PICTURES["heat-map-ragged"]).images[0].get_array())
    assert np.ma.getmaskarray(image).tolist() == [[False, True], [False, False]]


def test_bars_hold_both_sides_and_their_texts() -> None:
    axes = axes_of(PICTURES["bars"])
    assert sorted(patch.get_height() for patch in axes.patches) == [1, 1, 1, 2]
    assert [text.get_text() for text in axes.texts] == ["1.1", "1.2"]


def test_a_marked_bar_differs_without_colour() -> None:
    picture = Picture("bars", "t", series=(Series("a", [0, 1], [1, 2]),), marked=((0, 1),))
    assert [patch.get_hatch() for patch in axes_of(picture).patches] == [None, "////"]


def test_each_panel_has_its_layer_and_many_are_thinned_but_never_the_marked() -> None:
    few = figure(PICTURES["panels"])
    assert [axes.get_title(loc="left") for axes in few.axes if axes.get_visible()] == [f"layer {i}" for i in range(5)]
    many = Picture("panels", "t", series=tuple(Series("s", [0, 1], [1, 2], panel=f"layer {i}") for i in range(60)), marked=((41, 1),))
    shown = [axes.get_title(loc="left") for axes in figure(many).axes if axes.get_visible()]
    assert len(shown) == 24
    assert "layer 41" in shown


def test_a_huge_legend_is_cut() -> None:
    picture = Picture("lines", "t", series=tuple(Series(f"model {i}", [0, 1], [0, i], "context" if i else "subject") for i in range(40)))
    (legend,) = figure(picture).legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == 9
    assert texts[-1].endswith("and 31 more")


def test_a_long_title_is_wrapped_and_dollars_are_text() -> None:
    picture = Picture(
        "lines", "a very long title " * 40 + "$x$", "layer", "$y", (Series("$a_1$", [0, 1], [0, 1]), Series("b", [0, 1], [0, 1]))
    )
    made = figure(picture)
    assert made.get_suptitle().count("\n") == 2
    assert made.axes[0].get_ylabel() == r"\$y"


def test_the_subjects_already_measured_are_grey() -> None:
    own = PICTURES["lines"]
    deeper = Picture("lines", "t", x_label=own.x_label, series=(Series("x", [0, 5, 10], [1, 2, 3]),))
    other_axis = Picture("lines", "t", x_label="step", series=(Series("y", [0, 1], [1, 2]),))
    joined = with_context(own, {"gpt2": deeper, "training": other_axis, "bars": PICTURES["bars"]})
    assert [(series.label, series.role) for series in joined.series] == [("a", "subject"), ("gpt2", "context")]
    assert own.x_label == "layer"
    assert joined.x_label == "relative depth: layer / last layer"
    assert [list(series.x)[-1] for series in joined.series] == [1, 1]
    same = with_context(own, {"twin": own})
    assert same.x_label == "layer"
    assert list(same.series[0].x) == list(own.series[0].x)
    assert with_context(PICTURES["bars"], {"x": own}) is PICTURES["bars"]


def test_an_unknown_kind_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AttncheckError, match="unknown kind of picture 'pie'; known: scatter"):
        draw(Picture("pie", "t"), tmp_path / "x.png")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grid", "bound", "low", "high"),
    [
        ([[2.0, 3.0]], 3.5, 2.0, 3.5),
        ([[2.0, 3.0]], 1.0, 1.0, 3.0),
        ([[2.0, 3.0]], 50.0, 2.0, 3.0),
        ([[1.0, 1.0 + 1e-7]], 0.5, 0.5, 1.0 + 1e-7),
    ],
)
def test_the_colours_reach_the_bound_where_values_still_differ(grid: list[list[float]], bound: float, low: float, high: float) -> None:
    """Else rounding would be shown in all colours, or values that are all far off in none."""
    image = axes_of(Picture("heat_map", "t", grid=grid, bounds={"at_most": bound})).images[0]
    assert image.get_clim() == pytest.approx((low, high))


def test_what_is_compared_over_decades_is_drawn_on_a_log_axis() -> None:
    """Else a bounded quantity beside one that explodes is a line along the bottom."""
    from attncheck.report.draw_lines import panels
    from attncheck.report.pictures import with_context

    steps = [0, 1, 2, 4, 8, 16, 32, 64, 128]

    def course(top: float) -> Picture:
        series = Series("seed 0", steps, [1 + (top - 1) * step / 128 for step in steps], "subject", panel="layer 0")
        return Picture("panels", "p", "step", "norm", (series,))

    assert not with_context(course(3), {"twin": course(4)}).log_y
    beside = with_context(course(3), {"x": course(50_000)})
    assert beside.log_y
    axes = panels(beside).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("symlog", "log")
    even = Picture("panels", "p", "step", "norm", (Series("seed 0", [0, 32, 64, 96, 128], [1, 2, 3, 4, 5], "subject", panel="layer 0"),))
    assert panels(even).axes[0].get_xscale() == "linear"
