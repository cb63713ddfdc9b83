"""Truth tables of `for`, and the quota chain against a recursion over plain Python dicts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging_toolkit import bound, case, data, fetching

from attncheck.core.errors import MeasurementError
from attncheck.core.measurement import DIMS
from attncheck.expectations import judge
from attncheck.expectations.field import Field
from attncheck.expectations.quantify import quantify
from attncheck.spec.model import Quota

Places = Mapping[tuple[int, ...], bool]
Chain = tuple[tuple[str, ...], tuple[int, ...], list[Quota]]


def naive(places: Places, dims: tuple[str, ...], quotas: Sequence[Quota]) -> bool:
    """The same rule, place by place: folds a dict of truths, one link at a time."""
    truths, left = dict(places), dims
    for i, quota in enumerate(quotas):
        later = {rest.unit for rest in quotas[i + 1 :]}
        if quota.unit is None:
            counted = [d for d in left if d not in later]
        elif quota.unit == "head":
            counted = [d for d in left if d == "head" or (d == "layer" and "layer" not in later)]
        else:
            counted = [quota.unit]
        deepest = max((DIMS.index(d) for d in counted), default=99)
        finer = [d for d in left if d not in counted and d not in later and DIMS.index(d) > deepest]
        repeated = [d for d in left if d not in counted and d not in later and d in ("seed", "step", "sample") and d not in finer]
        if quota.kind == "no":
            repeated += [d for d in finer if d in ("seed", "step", "sample")]
            finer = [d for d in finer if d not in repeated]
        truths, left = fold(truths, left, finer, all)
        truths, left = fold(truths, left, repeated, any if quota.kind == "no" else all)
        truths, left = fold(truths, left, counted, lambda values, q=quota: met(q, list(values)))
    return all(truths.values())


def fold(truths: Places, dims: tuple[str, ...], over: Sequence[str], how) -> tuple[dict[tuple[int, ...], bool], tuple[str, ...]]:  # type: ignore[no-untyped-def]
    kept = [i for i, d in enumerate(dims) if d not in over]
    groups: dict[tuple[int, ...], list[bool]] = {}
    for place, truth in truths.items():
        groups.setdefault(tuple(place[i] for i in kept), []).append(truth)
    return {group: how(values) for group, values in groups.items()}, tuple(dims[i] for i in kept)


def met(quota: Quota, values: list[bool]) -> bool:
    good, total = sum(values), len(values)
    amount = quota.amount or 0
    return {
        "all": good == total,
        "any": good > 0,
        "no": good == 0,
        "share": good * 1000 >= round(amount * 1000) * total,
        "all_but": total - good <= amount,
        "count": good >= amount,
    }[quota.kind]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    dims = tuple(d for d in DIMS if draw(st.booleans()))
    shape = tuple(draw(st.integers(1, 3)) for _ in dims)
    units: list[str | None] = list(draw(st.permutations(list(dims))))[: draw(st.integers(0, 2))]
    if not units:
        units = [None]
    if units[:1] == ["layer"] and len(units) > 1 and units[1] == "head":
        units = units[::-1]
    quotas = []
    for unit in units:
        kind = draw(st.sampled_from(["all", "any", "no", "share"]))
        quotas.append(Quota(kind, draw(st.sampled_from([0.1, 0.5, 0.8, 1.0])) if kind == "share" else None, unit=unit))  # type: ignore[arg-type]
    return dims, shape, quotas


@settings(max_examples=400, deadline=None)
@given(chains(), st.integers(0, 2**31), st.sampled_from([0.2, 0.5, 0.9, 1.0]), st.sampled_from([0.5, 0.8, 1.0]))
def test_the_chain_equals_the_naive_recursion(chain: Chain, seed: int, good: float, exists: float) -> None:
    dims, shape, quotas = chain
    rng = np.random.default_rng(seed)
    holds, present = np.asarray(rng.uniform(size=shape) < good), np.asarray(rng.uniform(size=shape) < exists)
    if not present.any():
        present = np.ones(shape, dtype=bool)
    found = Field.of(data(np.zeros(shape), dims, present=present))
    places = {index: bool(holds[index]) for index in np.ndindex(*shape) if present[index]}
    made = quantify(holds, found, quotas, "drawn")
    assert made.passed == naive(places, dims, quotas)
    assert made.checked == len(places)
    assert not (made.blamed & ~found.there()).any()
    if made.passed:
        assert not made.blamed.any()


@settings(max_examples=200, deadline=None)
@given(chains(), st.integers(0, 2**31))
def test_turning_the_blamed_places_round_makes_the_claim_hold(chain: Chain, seed: int) -> None:
    dims, shape, quotas = chain
    quotas = [quota for quota in quotas if quota.kind != "any"] or [Quota("all")]
    holds = np.asarray(np.random.default_rng(seed).uniform(size=shape) < 0.5)
    found = Field.of(data(np.zeros(shape), dims))
    made = quantify(holds, found, quotas, "drawn")
    if not made.passed and sum(quota.kind == "no" for quota in quotas) <= 1:
        assert made.blamed.any()
        assert quantify(np.where(made.blamed, ~holds, holds), found, quotas, "drawn").passed


HEADS = Field.of(data(np.zeros((2, 5)), ("layer", "head")))


@pytest.mark.parametrize(
    ("quotas", "good", "passed"),
    [
        ([Quota("all")], 10, True),
        ([Quota("all")], 9, False),
        ([Quota("any")], 1, True),
        ([Quota("any")], 0, False),
        ([Quota("no")], 0, True),
        ([Quota("no")], 1, False),
        ([Quota("share", 0.8, unit="head")], 8, True),
        ([Quota("share", 0.8, unit="head")], 7, False),
        ([Quota("all_but", 2, unit="head")], 8, True),
        ([Quota("all_but", 2, unit="head")], 7, False),
        ([Quota("count", 3, 10, "head")], 3, True),
        ([Quota("count", 3, 10, "head")], 2, False),
    ],
)
def test_truth_table(quotas: list[Quota], good: int, passed: bool) -> None:
    holds = (np.arange(10) < good).reshape(2, 5)
    assert quantify(holds, HEADS, quotas, "").passed is passed


def test_a_head_is_a_pair_unless_layers_are_named() -> None:
    holds = np.ones((2, 5), dtype=bool)
    holds[1, :2] = False
    pooled, per_layer = [Quota("share", 0.8, unit="head")], [Quota("share", 0.8, unit="head"), Quota("all", unit="layer")]
    assert quantify(holds, HEADS, pooled, "").passed
    assert not quantify(holds, HEADS, per_layer, "").passed


def test_no_heads_reads_right() -> None:
    values = np.full((2, 5), 7.0)
    five = {"demand": bound(at_most=5), "quotas": [Quota("no", unit="head")], "text": "no heads"}
    assert judge(case(**five), fetching(data(values, ("layer", "head")))).passed
    values[1, 3] = 4
    verdict = judge(case(**five), fetching(data(values, ("layer", "head"))))
    assert not verdict.passed
    assert [offender.where for offender in verdict.offenders] == [{"layer": 1, "head": 3}]
    assert "which must not hold" in verdict.headline


def test_no_heads_counts_a_head_that_holds_in_a_single_sample() -> None:
    values = np.full((3, 2, 5), 7.0)
    values[2, 0, 4] = 1
    verdict = judge(
        case(demand=bound(at_most=5), quotas=[Quota("no", unit="head")], text="no heads"),
        fetching(data(values, ("sample", "layer", "head"))),
    )
    assert not verdict.passed
    assert verdict.offenders[0].where == {"sample": 2, "layer": 0, "head": 4}


@pytest.mark.parametrize("kind", ["all", "share"])
def test_a_head_must_hold_in_every_sample_and_query(kind: str) -> None:
    holds = np.ones((2, 1, 10, 3), dtype=bool)
    holds[0, 0, 0, 1] = holds[1, 0, 1, 2] = holds[1, 0, 2, 0] = False
    found = Field.of(data(np.zeros(holds.shape), ("sample", "layer", "head", "query")))
    made = quantify(holds, found, [Quota(kind, 0.8, unit="head")], "")  # type: ignore[arg-type]
    assert not made.passed
    assert made.blamed.sum() == 3
    assert quantify(holds, found, [Quota("share", 0.8, unit="head"), Quota("all", unit="sample")], "").passed


def test_two_of_three_seeds_and_who_is_to_blame() -> None:
    holds = np.ones((3, 4), dtype=bool)
    holds[0, 1] = holds[2, 0] = False
    found = Field.of(data(np.zeros((3, 4)), ("seed", "layer")))
    chain = [Quota("all", unit="layer"), Quota("count", 2, 3, "seed")]
    made = quantify(holds, found, chain, "all layers in 2 of 3 seeds")
    assert not made.passed
    assert made.summary == "1 of 3 seeds holds, 2 must"
    assert sorted(map(tuple, np.argwhere(made.blamed))) == [(0, 1), (2, 0)]
    holds[2, 0] = True
    assert quantify(holds, found, chain, "").passed


def test_places_in_a_group_that_holds_are_not_blamed() -> None:
    holds = np.array([[True, True, True, True, False], [True, False, False, False, False]])
    made = quantify(holds, HEADS, [Quota("share", 0.8, unit="head"), Quota("all", unit="layer")], "")
    assert {int(layer) for layer, _ in np.argwhere(made.blamed)} == {1}


@pytest.mark.parametrize(
    ("quotas", "message"),
    [
        ([Quota("all", unit="query")], "counts queries, but the dims left to count are layer, head"),
        ([Quota("count", 2, 3, "layer")], "2 layers were measured"),
        ([Quota("all_but", 2, unit="layer")], "demands nothing of 2 layers"),
    ],
)
def test_quotas_that_cannot_be_counted_are_errors(quotas: list[Quota], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        quantify(np.ones((2, 5), dtype=bool), HEADS, quotas, "written")


def test_shares_do_not_suffer_from_binary_fractions() -> None:
    for total, tenths in itertools.product(range(1, 60), range(1, 11)):
        found = Field.of(data(np.zeros(total), ("head",)))
        needed = -(-tenths * total // 10)
        for good, passed in ((needed, True), (needed - 1, False)):
            assert quantify(np.arange(total) < good, found, [Quota("share", tenths / 10, unit="head")], "").passed is passed


def test_nothing_checked_is_never_a_pass() -> None:
    found = Field.of(data(np.zeros((2, 2)), ("layer", "head"), present=np.zeros((2, 2), dtype=bool)))
    for kind in ("all", "any", "no"):
        with pytest.raises(MeasurementError, match="nothing was measured"):
            quantify(np.ones((2, 2), dtype=bool), found, [Quota(kind)], "")  # type: ignore[arg-type]
    with pytest.raises(MeasurementError, match="nothing was measured"):
        judge(case(), fetching(data(np.zeros((0, 4)), ("layer", "head"))))
