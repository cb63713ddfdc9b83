"""Ratios and differences: joined by label, refused where the sides do not match, seeds and axes resolved."""

from __future__ import annotations

import numpy as np
import pytest
from judging_toolkit import bound, case, data, fetching, subject

from attncheck.core.definitions import Request
from attncheck.core.errors import MeasurementError
from attncheck.expectations import judge, requirements
from attncheck.spec.model import Quota, Reduction, Relation

MHA, LRKV = subject("mha", seeds=[0, 1, 2]), subject("lrkv", seeds=[0, 1, 2])
RATIO = {"relation": Relation("ratio", "mha"), "on": LRKV, "counterparts": [MHA]}


def passes(own: np.ndarray, other: np.ndarray) -> dict[tuple[str, int], object]:
    return {(name, seed): data(values[seed], ("layer",)) for name, values in (("lrkv", own), ("mha", other)) for seed in range(3)}


def test_a_ratio_is_taken_seed_by_seed_and_layer_by_layer() -> None:
    rng = np.random.default_rng(0)
    own, other = rng.uniform(1, 2, (3, 4)), rng.uniform(1, 2, (3, 4))
    made = judge(case(**RATIO, demand=bound(at_least=1.1)), fetching(passes(own, other)))
    expected = {(s, i): own[s, i] / other[s, i] for s in range(3) for i in range(4) if own[s, i] / other[s, i] < 1.1}
    assert {(o.where["seed"], o.where["layer"]): o.observed for o in made.offenders} == pytest.approx(expected)
    worst = min(expected, key=lambda place: expected[place])
    assert (made.offenders[0].where["seed"], made.offenders[0].where["layer"]) == worst
    assert made.offenders[0].note.startswith(f"{own[worst]:.2f} / {other[worst]:.2f} = ")


def test_the_arithmetic_tells_the_value_from_the_limit() -> None:
    own = np.array([[1.1499], [2.0], [2.0]])
    made = judge(case(**RATIO, demand=bound(at_least=1.15)), fetching(passes(own, np.ones((3, 1)))))
    assert made.offenders[0].note == "1.15 / 1 = 1.1499"


def test_a_difference_has_the_slack_of_its_operands() -> None:
    difference = {**RATIO, "relation": Relation("difference", "mha")}
    own, other = np.full((3, 1), 1000.005), np.full((3, 1), 1000.0)
    assert judge(case(**difference, demand=bound(at_most=0)), fetching(passes(own, other))).passed
    assert not judge(case(**difference, demand=bound(at_most=0)), fetching(passes(own + 0.02, other))).passed


def test_sides_that_do_not_match_are_an_error_that_says_both() -> None:
    answers = {"lrkv": data(np.ones((2, 8)), ("layer", "head")), "mha": data(np.ones((2, 4)), ("layer", "head"))}
    with pytest.raises(MeasurementError, match=r"35:5: lrkv has 8 heads \(0 to 7\) and mha has 4 heads \(0 to 3\)"):
        judge(case(**RATIO), fetching(answers))
    made = judge(case(**RATIO, reduce=[Reduction("head", "mean")], demand=bound(equals=1)), fetching(answers))
    assert made.passed


def test_labels_must_be_equal_and_not_only_as_many() -> None:
    answers = {
        "lrkv": data(np.ones(2), ("layer",), coords={"layer": (("layer",), np.array([0, 1]))}),
        "mha": data(np.ones(2), ("layer",), coords={"layer": (("layer",), np.array([3, 7]))}),
    }
    with pytest.raises(MeasurementError, match=r"2 layers \(0 to 1\) and mha has 2 layers \(3 to 7\)"):
        judge(case(**RATIO), fetching(answers))


def test_a_dim_of_one_side_only_is_the_same_for_all_of_the_other() -> None:
    answers = {"lrkv": data([[2.0, 4.0], [3.0, 9.0]], ("layer", "head")), "mha": data([1.0, 3.0], ("layer",))}
    made = judge(case(**RATIO, demand=bound(at_most=2.5), quotas=[Quota("all")]), fetching(answers))
    assert {(o.where["layer"], o.where["head"]): o.observed for o in made.offenders if o.where["seed"] == 0} == {(0, 1): 4, (1, 1): 3}


def test_division_by_zero_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="mha is 0 at 3 of 3 places"):
        judge(case(**RATIO), fetching(passes(np.ones((3, 1)), np.zeros((3, 1)))))


def test_a_symbol_that_differs_between_the_sides_cannot_be_used() -> None:
    answers = {name: data([1.0], ("layer",), symbols={"N": ((), size)}) for name, size in (("lrkv", 10), ("mha", 20))}
    with pytest.raises(MeasurementError, match="N in 'N' differs between the sides, lrkv and mha"):
        judge(case(**RATIO, demand=bound(at_most="N")), fetching(answers))


def test_where_and_reduce_act_on_both_sides() -> None:
    from attncheck.spec.model import Selector

    q, v = np.array([9.0, 0.3, 0.7, 0.5]), np.array([9.0, 0.1, 0.2, 0.15])
    ratio = case(
        observe="weights.q",
        relation=Relation("ratio", request=Request("weights.v")),
        where=[{"layer": Selector(1, None)}],
        reduce=[Reduction("layer", "spread")],
        demand=bound(between=[3.99, 4.01]),
    )
    assert judge(ratio, fetching({"weights.q": data(q, ("layer",)), "weights.v": data(v, ("layer",))})).passed


def test_intervals_of_both_sides_bound_the_ratio() -> None:
    wide = {"lower": np.array([1.9]), "upper": np.array([2.1])}
    answers = {"lrkv": data([2.0], ("layer",), **wide), "mha": data([1.0], ("layer",), lower=np.array([0.9]), upper=np.array([1.1]))}
    assert judge(case(**RATIO, demand=bound(between=[1.9 / 1.1 - 1e-9, 2.1 / 0.9 + 1e-9])), fetching(answers)).passed
    from attncheck.core.errors import Undecided

    with pytest.raises(Undecided):
        judge(case(**RATIO, demand=bound(at_least=2)), fetching(answers))


def test_requirements_list_a_pass_for_each_seed_of_both_sides() -> None:
    wanted = requirements(case(**RATIO))
    assert [(key.subject.name, key.subject.seed) for key, _ in wanted] == [(n, s) for n in ("lrkv", "mha") for s in range(3)]


def test_a_ratio_to_itself_needs_its_passes_once() -> None:
    itself = case(relation=Relation("ratio", "mha"), on=MHA, counterparts=[MHA], demand=bound(at_least=1.15))
    assert len(requirements(itself)) == 3
    made = judge(itself, fetching(data([3.0], ("layer",))))
    assert not made.passed


def test_an_axis_of_the_counterpart_follows_the_case_or_is_its_only_value() -> None:
    on = subject("lrkv", axes={"attn_implementation": ["sdpa", "eager"]}, attn_implementation="eager")
    both = subject("mha", axes={"attn_implementation": ["sdpa", "eager"]})
    only = subject("mha", axes={"attn_implementation": ["sdpa"]})
    several = subject("mha", axes={"attn_implementation": ["sdpa", "flex_attention"]})
    for other, expected in ((both, "eager"), (only, "sdpa"), (subject("mha"), "eager")):
        wanted = requirements(case(relation=Relation("ratio", "mha"), on=on, counterparts=[other]))
        assert wanted[1][0].subject.attn_implementation == expected
    with pytest.raises(MeasurementError, match="mha has attn_implementation sdpa, flex_attention and this test eager"):
        requirements(case(relation=Relation("ratio", "mha"), on=on, counterparts=[several]))


def test_a_relation_of_axes_changes_only_them() -> None:
    on = subject(attn_implementation="sdpa", dtype="float32")
    own, other = requirements(case(relation=Relation("ratio", axes={"attn_implementation": "eager"}), on=on))
    assert other[0].subject == own[0].subject.changed(attn_implementation="eager")
    assert own[1] == other[1]


def test_seeds_that_measure_other_shapes_are_an_error() -> None:
    answers = {("mha", s): data(np.ones(2 + s), ("layer",)) for s in range(3)}
    with pytest.raises(MeasurementError, match="seed 1 measured 3 layer, seed 0 2 layer"):
        judge(case(on=MHA), fetching(answers))
