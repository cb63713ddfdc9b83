"""`for`: how many places must hold. A chain of quotas is applied from the inside out over the dims that are left.

A head is a (layer, head) pair, unless a later link names layers. At each link the dims that are finer than its unit, and seed, step
and sample, must all hold unless a later link names them; what no link names must all hold at the end. For `no` it is the other way
about with seed, step and sample: a head that holds in any of them counts. Places that do not exist are never counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attncheck.core.errors import MeasurementError, Place
from attncheck.core.measurement import DIMS
from attncheck.expectations.bound import against
from attncheck.expectations.field import Field, Mask
from attncheck.spec.model import Quota

PLURAL = {"query": "queries", None: "places"}
_REPEATED = ("seed", "step", "sample")


@dataclass(frozen=True)
class Level:
    """How one link came out, over the dims that were left after it."""

    quota: Quota
    unit: str
    """As a noun in the singular: head, layer, seed, place."""
    before: Mask
    """Whether each unit holds, before this link counted them; over dims `dims`."""
    there: Mask
    dims: tuple[str, ...]
    after: Mask
    """Whether the link's demand is met; over `dims` without the unit's."""
    exists: Mask
    left: tuple[str, ...]


@dataclass(frozen=True)
class Quantified:
    passed: bool
    blamed: Mask
    """Places that count against the claim, over the whole field; all False where it passed."""
    levels: tuple[Level, ...]
    checked: int
    summary: str


def unit_dims(unit: str | None, dims: Sequence[str], later: set[str], place: Place | str, text: str) -> tuple[str, ...]:
    """The dims over which a link counts. Raises MeasurementError where its unit is not among the dims left."""
    if unit is None:
        return tuple(dim for dim in dims if dim not in later)
    if unit not in dims:
        left = ", ".join(dims) or "none"
        raise MeasurementError(f"{place}: `for: {text}` counts {plural(unit)}, but the dims left to count are {left}")
    if unit == "head":
        return tuple(dim for dim in dims if dim == "head" or (dim == "layer" and "layer" not in later))
    return (unit,)


def inverted(quotas: Sequence[Quota]) -> bool:
    """Whether a place that holds counts *against* the claim (an odd number of `no`)."""
    return sum(quota.kind == "no" for quota in quotas) % 2 == 1


def quantify(holds: Mask, found: Field, quotas: Sequence[Quota], text: str, place: Place | str = "for") -> Quantified:
    """Whether the quota chain is met by `holds` (over the field's dims), who is to blame, and a sentence that says how it came out."""
    there = found.there()
    checked = int(there.sum())
    if checked == 0:
        raise MeasurementError(f"{place}: nothing was measured that the claim could be checked on")
    holds, dims = holds & there, found.dims
    finest = holds
    levels: list[Level] = []
    for number, quota in enumerate(quotas):
        later = {dim for rest in quotas[number + 1 :] for dim in _named(rest)}
        counted = unit_dims(quota.unit, dims, later, place, text)
        aside = tuple(d for d in dims if d not in counted and d not in later and (d in _REPEATED or _finer(d, counted)))
        repeated = tuple(d for d in aside if d in _REPEATED) if quota.kind == "no" else ()
        holds, there, dims = _fold(holds, there, dims, tuple(d for d in aside if d not in repeated), every=True)
        holds, there, dims = _fold(holds, there, dims, repeated, every=False)
        axes = tuple(dims.index(d) for d in counted)
        total, good = there.sum(axis=axes), (holds & there).sum(axis=axes)
        exists = np.asarray(total > 0)
        met = np.asarray(_met(quota, good, total, exists, place, text)) & exists
        left = tuple(d for d in dims if d not in counted)
        levels.append(Level(quota, _noun(quota.unit, counted), holds, there, dims, met, exists, left))
        holds, there, dims = met, exists, left
    passed = bool((holds | ~there).all())
    return Quantified(
        passed=passed,
        blamed=np.zeros(found.shape, dtype=bool) if passed else _blame(levels, finest, found),
        levels=tuple(levels),
        checked=checked,
        summary=_summary(levels, checked),
    )


def plural(unit: str | None, count: int = 2) -> str:
    if count == 1:
        return unit or "place"
    return PLURAL.get(unit, f"{unit}s")


def _met(quota: Quota, good: Mask, total: Mask, exists: Mask, place: Place | str, text: str) -> Mask:
    amount = quota.amount or 0.0
    match quota.kind:
        case "all":
            return np.asarray(good == total)
        case "any":
            return np.asarray(good > 0)
        case "no":
            return np.asarray(good == 0)
        case "share":
            # Not `good / total >= amount`: 0.1 * 30 is 3.0000000000000004.
            return np.asarray(good >= amount * total - 1e-9)
        case "all_but":
            if (total[exists] <= amount).any():
                found = int(np.min(total[exists]))
                raise MeasurementError(f"{place}: `for: {text}` demands nothing of {found} {plural(quota.unit, found)}")
            return np.asarray(total - good <= amount)
        case "count":
            wrong = total[exists] != quota.total if quota.total is not None else total[exists] < amount
            if np.any(wrong):
                found = int(total[exists][wrong][0])
                raise MeasurementError(f"{place}: `for: {text}`, but {found} {plural(quota.unit, found)} were measured")
            return np.asarray(good >= amount)
    raise MeasurementError(f"{place}: unknown quantifier {quota.kind!r}")


def _named(quota: Quota) -> tuple[str, ...]:
    return () if quota.unit is None else (quota.unit,)


def _finer(dim: str, counted: Sequence[str]) -> bool:
    """Whether a dim lies inside the unit."""
    if dim not in DIMS:
        return False
    return bool(counted) and DIMS.index(dim) > max(DIMS.index(d) for d in counted if d in DIMS)


def _fold(holds: Mask, there: Mask, dims: tuple[str, ...], over: tuple[str, ...], *, every: bool) -> tuple[Mask, Mask, tuple[str, ...]]:
    if not over:
        return holds, there, dims
    axes = tuple(dims.index(d) for d in over)
    folded = (holds | ~there).all(axis=axes) if every else (holds & there).any(axis=axes)
    exists = np.asarray(there.any(axis=axes))
    return np.asarray(folded) & exists, exists, tuple(d for d in dims if d not in over)


def _blame(levels: Sequence[Level], finest: Mask, found: Field) -> Mask:
    """From the outermost link inwards: the units that came out other than wanted, and within them the places that made it so."""
    blamed = np.ones(found.shape, dtype=bool)
    wanted = True
    for level in reversed(levels):
        blamed &= _spread(level.exists & (level.after != wanted), level.left, found)
        if level.quota.kind == "no":
            wanted = not wanted
        blamed &= _spread(level.there & (level.before != wanted), level.dims, found)
    return np.asarray(blamed & found.there() & (finest != wanted))


def _spread(mask: Mask, dims: Sequence[str], found: Field) -> Mask:
    shape = [found.shape[i] if d in dims else 1 for i, d in enumerate(found.dims)]
    return np.broadcast_to(mask.reshape(shape), found.shape)


def _noun(unit: str | None, counted: Sequence[str]) -> str:
    if unit is not None:
        return unit
    if set(counted) <= {"layer", "head"} and counted:
        return "head" if "head" in counted else "layer"
    return counted[0] if len(counted) == 1 else "place"


def _summary(levels: Sequence[Level], checked: int) -> str:
    """'1 of 3 seeds holds', or for a quota inside others, its groups first: 'in 2 of 30 layers too few heads hold'."""
    outer = levels[-1]
    if checked == 1:
        return "it holds" if bool(outer.before.all()) else "it does not hold"
    said = []
    for level in reversed(levels):
        if level is not outer and level.left:
            continue
        total, good = int(level.there.sum()), int((level.before & level.there).sum())
        if level.left:
            bad, groups = int((level.exists & ~level.after).sum()), int(level.exists.sum())
            noun = " and ".join(level.left)
            said.append(f"{bad} of {groups} {noun} groups fall short" if bad else f"every one of {groups} {noun} groups holds")
        noun, verb = plural(level.unit, total), "holds" if good == 1 else "hold"
        said.append(f"{good} of {total} {noun} {verb}{_needed(level, good, total)}")
    return "; ".join(said)


def _needed(level: Level, good: int, total: int) -> str:
    quota = level.quota
    match quota.kind:
        case "share":
            needed = 100 * (quota.amount or 0)
            return f", {against(100 * good / total, needed)}% where {needed:.4g}% is needed"
        case "no":
            return ", none may"
        case "any":
            return ", one must"
        case "all_but":
            return f", all but {quota.amount or 0:g} must"
        case "count":
            return f", {quota.amount or 0:g} must"
    return ""
