"""The judging behind `tracks`: pair the two sides, compute the statistics of every place, hold each against its bound."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attncheck.core.definitions import Request
from attncheck.core.errors import MeasurementError, Place, Undecided
from attncheck.core.fields import BoundArgument
from attncheck.core.verdict import Verdict
from attncheck.expectations import statistics
from attncheck.expectations.bound import Comparison, compare, number
from attncheck.expectations.claim import bound_words, claim, observable, written_under
from attncheck.expectations.field import Field, Floats, Mask, spell
from attncheck.expectations.outcome import beside, conclude, decide
from attncheck.expectations.picture import scatter_of
from attncheck.expectations.places import place_of
from attncheck.expectations.quantify import inverted
from attncheck.expectations.relate import join
from attncheck.expectations.sides import Context
from attncheck.expectations.tracks import ShareWithin, Top

STATISTICS = ("pearson", "spearman", "slope", "share_within", "top_overlap", "mass_kept")


def judge_tracks(context: Context, other: Request, scale: str, asked: Mapping[str, BoundArgument]) -> Verdict:
    """See `tracks`. `asked` is statistic -> its bound, in the order in which they are reported."""
    case, prop = context.case, context.case.property
    place = place_of(prop, "tracks")
    if not asked:
        raise MeasurementError(f"{place}: tracks names no statistic; allowed: {', '.join(STATISTICS)}")
    observed, expected = context.reduced(context.measured()), context.reduced(context.measured(other), own=False)
    names = (prop.request.name, other.name)
    over = "key" if "key" in observed.dims else "query"
    if over not in observed.dims or over not in expected.dims:
        raise MeasurementError(
            f"{place}: tracks needs values by key or query on both sides; left are {', '.join(observed.dims) or 'no dims'}"
        )
    if observed.lower is not None or expected.lower is not None:
        raise Undecided(f"{place}: tracks needs exact values, and these are estimates")
    observed, expected = join(observed, expected, names, place)
    pairs = Pairs(expected, observed, over)
    values = {}
    for name, argument in asked.items():
        at = place_of(prop, f"tracks.{name}")
        logs = scale == "log-log" and name in ("pearson", "spearman", "slope")
        if logs or name == "share_within":
            pairs.refuse_not_positive(name, names, at)
        values[name] = pairs.statistic(name, argument, logs)
        pairs.places.with_(value=values[name]).refuse_nan(f"{name} (a constant row, or nothing to keep)", at)
    fields = {name: pairs.places.with_(value=found) for name, found in values.items()}
    turned = inverted(prop.quantifier)
    compared = {
        name: compare(found, asked[name].bound, prop.tolerance, place_of(prop, f"tracks.{name}"), inverted=turned)
        for name, found in fields.items()
    }
    worst, both, order, which = together(fields, compared, turned)
    quantified = decide(worst, both, case)
    demand = " and ".join(f"{described(name, argument)} {bound_words(argument.bound)}" for name, argument in asked.items())
    there, tracked = worst.there(), observable(other, written_under(prop, "tracks"))
    return conclude(
        worst,
        both,
        quantified,
        case,
        claim=claim(case, f"tracks {tracked}{', log-log' if scale == 'log-log' else ''}: {demand}"),
        quantity=lambda index: list(asked)[int(which[index])],
        picture=scatter_of(context, pairs.expected, pairs.observed, over, values, order, quantified, other, scale, asked),
        note=lambda index: _each(index, values, compared, turned) if len(asked) > 1 else "",
        order=order,
        others=[_course(name, found[there]) for name, found in values.items()],
        numbers={f"{name}_median": float(np.median(found[there])) for name, found in values.items()},
    )


class Pairs:
    """Both sides with the keys last, and the places that are left without them."""

    def __init__(self, expected: Field, observed: Field, over: str) -> None:
        self.expected, self.observed, self.over = expected, observed, over
        self.places = observed.with_(present=observed.there() & expected.there()).without(over)
        axis = observed.axis(over)
        self.x, self.y = np.moveaxis(expected.value, axis, -1), np.moveaxis(observed.value, axis, -1)
        counts = expected.there() & observed.there()
        self.there: Mask | None = None if counts.all() else np.moveaxis(counts, axis, -1)

    def statistic(self, name: str, argument: BoundArgument, logs: bool) -> Floats:
        """One number for each place; 0 at places that do not exist."""
        x, y = self.x, self.y
        if self.there is None:
            return _statistic(name, argument, *((np.log10(x), np.log10(y)) if logs else (x, y)))
        found = np.zeros(x.shape[:-1])
        for index in np.argwhere(self.there.any(axis=-1)):
            at = tuple(index)
            a, b = x[at][self.there[at]], y[at][self.there[at]]
            found[at] = _statistic(name, argument, *((np.log10(a), np.log10(b)) if logs else (a, b)))
        return found

    def refuse_not_positive(self, name: str, names: tuple[str, str], place: Place) -> None:
        """Raises MeasurementError where a logarithm would be taken of 0 or less."""
        for side, values in ((names[0], self.y), (names[1], self.x)):
            bad = values <= 0 if self.there is None else (values <= 0) & self.there
            if bad.any():
                index = [int(i) for i in np.argwhere(bad)[0]]
                key = self.observed.labels[self.over][index[-1]]
                where = spell({**self.places.where(index[:-1]), self.over: key})
                count = int(bad.any(axis=-1).sum())
                raise MeasurementError(
                    f"{place}: {name} takes logarithms, and {side} is {number(float(values[tuple(index)]))} at {where} "
                    f"({count} of {bad[..., 0].size} places have such keys); leave them out with `where`, or the keys with `keys:`"
                )


def together(fields: Mapping[str, Field], compared: Mapping[str, Comparison], turned: bool) -> tuple[Field, Comparison, Floats, np.ndarray]:
    """All statistics as one comparison: a place holds when each does, and shows the one that is furthest beyond its limit.

    Returns the field of the shown values, the comparison, the order of offenders (excess relative to the limit: the statistics have no
    common unit) and which statistic each place shows.
    """
    names = list(fields)
    relative = np.stack([_relative(compared[name], fields[name]) for name in names])
    # Where the claim must not hold, a place is at fault only when every statistic holds: the nearest to its limit decides.
    which = relative.argmin(axis=0) if turned else relative.argmax(axis=0)

    def pick(arrays: list[Floats]) -> Floats:
        return np.asarray(np.take_along_axis(np.stack(arrays), which[None], axis=0)[0])

    first = fields[names[0]]
    shown = first.with_(value=pick([fields[name].value for name in names]))
    comparison = Comparison(
        surely=np.all([compared[name].surely for name in names], axis=0),
        possibly=np.all([compared[name].possibly for name in names], axis=0),
        excess=pick([compared[name].excess for name in names]),
        rounded=np.any([compared[name].rounded for name in names], axis=0),
        limit=lambda index: compared[names[int(which[index])]].limit(index),
        limits={f"{name}.{side}": limit for name in names for side, limit in compared[name].limits.items()}
        if len(names) > 1
        else compared[names[0]].limits,
    )
    return shown, comparison, pick(list(relative)), which


def described(name: str, argument: BoundArgument) -> str:
    """'share within 0.5 decades', 'mass kept by the top 50%', 'pearson'."""
    if isinstance(argument, ShareWithin):
        return f"share within {argument.decades:g} decades"
    if isinstance(argument, Top):
        top = f"{100 * argument.top:.4g}%"
        return f"mass kept by the top {top}" if name == "mass_kept" else f"overlap of the top {top}"
    return name


def _statistic(name: str, argument: BoundArgument, x: Floats, y: Floats) -> Floats:
    if isinstance(argument, ShareWithin):
        return statistics.share_within(x, y, argument.decades)
    if isinstance(argument, Top):
        return (statistics.mass_kept if name == "mass_kept" else statistics.top_overlap)(x, y, argument.top)
    return {"pearson": statistics.pearson, "spearman": statistics.spearman, "slope": statistics.slope}[name](x, y)


def _relative(comparison: Comparison, found: Field) -> Floats:
    size = np.maximum.reduce([np.broadcast_to(np.abs(limit), found.shape) for limit in comparison.limits.values()])
    return np.asarray(comparison.excess / np.maximum(size, 1e-9))


def _each(index: tuple[int, ...], values: Mapping[str, Floats], compared: Mapping[str, Comparison], turned: bool) -> str:
    """'pearson 0.61 (not >= 0.75), slope 1.02': every statistic of one place, those that break their bound marked."""
    said = []
    for name, found in values.items():
        limit = compared[name].limit(index)
        broken = compared[name].surely[index] == turned
        said.append(f"{name} {beside(float(found[index]), limit)}" + (f" (not {limit})" if broken and not turned else ""))
    return ", ".join(said)


def _course(name: str, values: Floats) -> str:
    if values.size == 1:
        return f"{name} {number(float(values[0]))}"
    return (
        f"{name} {number(float(values.min()))} to {number(float(values.max()))}, median {number(float(np.median(values)))} "
        f"over {values.size} places"
    )
