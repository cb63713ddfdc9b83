"""`tracks`: one observable follows another, key by key. Each statistic takes an ordinary bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveFloat

from attncheck.core.definitions import PassKey, Request
from attncheck.core.expectation import expectation
from attncheck.core.fields import BoundArgument, RequestArgument, Share
from attncheck.core.verdict import Verdict
from attncheck.expectations.sides import Context, passes

if TYPE_CHECKING:
    from attncheck.spec.model import Case


class ShareWithin(BoundArgument):
    """Share of the keys whose observed value lies within so many powers of ten of the expected one."""

    decades: PositiveFloat


class Top(BoundArgument):
    """A statistic of the keys that the expectation ranks highest."""

    top: Share


def _requires(case: Case, arguments: Mapping[str, Any]) -> list[tuple[PassKey, Request]]:
    return [(key, arguments["observable"]) for key in passes(case).values()]


@expectation("tracks", requires=_requires, consumes=("key",))
def tracks(
    context: Context,
    *,
    observable: RequestArgument,
    scale: Literal["linear", "log-log"] = "linear",
    pearson: BoundArgument | None = None,
    spearman: BoundArgument | None = None,
    slope: BoundArgument | None = None,
    share_within: ShareWithin | None = None,
    top_overlap: Top | None = None,
    mass_kept: Top | None = None,
) -> Verdict:
    """The observed quantity tracks the one named by `observable`, over the keys of every (sample, layer, head).

    pearson and spearman correlate the two; slope is that of the least-squares line with the observed quantity on the vertical axis;
    all three are taken of the logarithms where `scale` is log-log. share_within is the share of keys whose observed value lies within
    `decades` powers of ten of the expected one. top_overlap is the share of keys that belong to the top share of both; mass_kept the
    share of the observed sum that lies on the expected top share of keys. A place holds when every statistic that is asked for does.

    Raises MeasurementError where a statistic does not exist: a constant row, a value of 0 or less where logarithms are needed.
    """
    from attncheck.expectations.tracking import judge_tracks

    given = {
        "pearson": pearson,
        "spearman": spearman,
        "slope": slope,
        "share_within": share_within,
        "top_overlap": top_overlap,
        "mass_kept": mass_kept,
    }
    return judge_tracks(context, observable, scale, {name: value for name, value in given.items() if value is not None})
