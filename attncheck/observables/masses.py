"""How much attention goes where. Claims that a mass is zero are decided by the model's own kernel, never by the declared mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncheck.core.errors import MeasurementError
from attncheck.core.fields import Spans, parse_span
from attncheck.core.observable import observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.probes import Probe
    from attncheck.instruments.rows import Tile

PLACE = ("sample", "layer", "head")


@observable("attention.row_sum", reads="probe", dims=PLACE, over_queries="mean")
def row_sum(probe: Probe) -> Tensor:
    """Sum of each attention row as the kernel applies it: its output for values of 1, mean over queries.

    1 for a softmax; below 1 where a sink takes mass. `per: query` shows every row, where a kernel that drops mass shows most clearly.
    """
    return probe.row_sum


@observable("attention.sink_mass", reads="rows", dims=PLACE, source="arXiv:2309.17453, arXiv:2410.10781", over_queries="mean")
def sink_mass(tile: Tile) -> Tensor:
    """Mass on the first key that is no padding, mean over queries: the attention sink."""
    return tile.column("first")


@observable("attention.first_four_mass", reads="rows", dims=PLACE, source="arXiv:2309.17453", over_queries="mean")
def first_four_mass(tile: Tile) -> Tensor:
    """Mass on the first four keys that are no padding, mean over queries."""
    return tile.column("first_four")


@observable("attention.key_mass", reads="rows", dims=PLACE, over_queries="mean")
def key_mass(tile: Tile, *, keys: Spans) -> Tensor:
    """Mass on the keys at the given positions, mean over queries.

    `keys` is a range ('0..3', '512..', '7') or a list of ranges, such as the patches of a region of an image; a key in two of them
    counts once. `per: query` with `where: {query: 0}` asks one query, such as a class token. Raises MeasurementError for a range in which
    no sequence of the input has a key.
    """
    chosen = None
    last = tile.context.last_key
    for span in keys:
        start, stop = parse_span(span)
        if start > last:
            raise MeasurementError(f"keys {span}: the input's keys are 0 to {last}, so a claim about them says nothing")
        inside = tile.key_positions >= start
        if stop is not None:
            inside = inside & (tile.key_positions <= stop)
        chosen = inside if chosen is None else chosen | inside
    if chosen is None:
        raise MeasurementError("no keys are named")
    return tile.mass_where(chosen)


@observable("attention.future_mass", reads="probe", dims=PLACE, over_queries="mean", packs=lambda cuts: {"future": cuts})
def future_mass(probe: Probe, *, cuts: Literal["staggered", "all"] = "staggered") -> Tensor:
    """Mass on keys after the query, mean over queries; exactly 0 in a causal kernel.

    The larger of what the rows say and what the kernel showed for threshold columns 1[position > t] in rows at or before t, which is
    0 unless the kernel reads the future. Thresholds are staggered over layers, heads and samples; `cuts: all` asks every head for
    every threshold, at N / d_v kernel calls a layer.
    """
    if cuts not in probe.future:
        raise MeasurementError(probe.context.unplaced or "a single key has no future")
    return probe.with_rows("future", probe.future[cuts])


@observable("attention.padding_mass", reads="probe", dims=PLACE, over_queries="mean", packs=dict)
def padding_mass(probe: Probe) -> Tensor:
    """Mass on padding keys by queries that are no padding, as the kernel applies it, mean over queries; 0 unless padding leaks.

    Raises MeasurementError where the input has no padding: the claim would be empty.
    """
    if probe.padding is None:
        raise MeasurementError("the input has no padding, so a claim about padding says nothing; give the input `padding: {side, amount}`")
    return probe.padding.abs()


@observable(
    "attention.outside_window_mass",
    reads="probe",
    dims=PLACE,
    over_queries="mean",
    packs=lambda window, cuts: {"outside_window": window, "window_cuts": cuts},
)
def outside_window_mass(probe: Probe, *, window: int, cuts: Literal["staggered", "all"] = "staggered") -> Tensor:
    """Mass on keys outside a sliding window, mean over queries; exactly 0 where the window is kept.

    `window` is the number of visible keys, the query's own included: keys at or before position i - window lie outside. The larger of
    what the rows say and what the kernel showed for threshold columns, which are staggered as for `attention.future_mass`. Raises
    MeasurementError for a window that leaves no key outside.
    """
    outside = probe.outside(window, cuts)
    if outside is None:
        raise MeasurementError(probe.context.unplaced or "a single key has no window")
    keys = probe.context.keys
    if not 1 <= window < keys:
        empty = "none lies outside of it, so the claim says nothing" if window > 0 else "a window of at least 1 key is needed"
        raise MeasurementError(f"window {window} at {keys} keys: {empty}; allowed: 1 to {keys - 1}")
    return outside
