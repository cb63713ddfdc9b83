"""`where`: indices against plain slicing, unions, and errors that name the place and what is allowed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from judging_toolkit import bound, case, data, fetching

from attncheck.core.errors import MeasurementError
from attncheck.expectations import judge
from attncheck.expectations.field import Field
from attncheck.expectations.select import indices, select
from attncheck.spec.model import Quota, Selector

TEN = np.arange(10)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (Selector(3, 3, single=True), [3]),
        (Selector(-1, -1, single=True), [9]),
        (Selector(-10, -10, single=True), [0]),
        (Selector(2, 4), [2, 3, 4]),
        (Selector(7, None), [7, 8, 9]),
        (Selector(part=("first", 0.5)), [0, 1, 2, 3, 4]),
        (Selector(part=("last", 0.25)), [7, 8, 9]),
        (Selector(part=("middle", 0.2)), [4, 5]),
        (Selector(part=("first", 3.0)), [0, 1, 2]),
        (Selector(part=("first", 0.01)), [0]),
    ],
)
def test_selectors(selector: Selector, expected: list[int]) -> None:
    assert indices(selector, TEN, "layer", "here").tolist() == expected


def test_labels_are_the_models_own_numbers() -> None:
    labels = np.array([3, 7, 11, 15])
    assert indices(Selector(7, 7, single=True), labels, "layer", "here").tolist() == [1]
    assert indices(Selector(-1, -1, single=True), labels, "layer", "here").tolist() == [3]
    with pytest.raises(MeasurementError, match="layer 4 of 4; measured: 3, 7, 11, 15"):
        indices(Selector(4, 4, single=True), labels, "layer", "here")


def test_a_label_that_two_stacks_share_selects_both() -> None:
    assert indices(Selector(0, 0, single=True), np.array([0, 1, 0, 1]), "layer", "here").tolist() == [0, 2]


@pytest.mark.parametrize("selector", [Selector(12, 12, single=True), Selector(-11, -11, single=True), Selector(4, 511), Selector(10, None)])
def test_out_of_range_is_an_error_with_the_allowed_range(selector: Selector) -> None:
    with pytest.raises(MeasurementError, match=r"of 10; allowed: 0 to 9, or -10 to -1"):
        indices(selector, TEN, "head", "here")


def test_the_error_names_the_place_in_the_yaml() -> None:
    found = data(np.ones((2, 8)), ("layer", "head"))
    wrong = case(where=[{"head": Selector(12, 12, single=True)}])
    with pytest.raises(MeasurementError, match=re.escape("specs/mine.attn.yaml:33:13: head 12 of 8; allowed: 0 to 7")):
        judge(wrong, fetching(found))


def test_a_dim_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="has no query"):
        judge(case(where=[{"query": Selector(0, 3)}]), fetching(data([1.0], ("layer",))))


def test_a_union_selects_each_of_its_mappings_and_nothing_else() -> None:
    values = np.arange(24.0).reshape(4, 6)
    one, two = {"layer": Selector(0, 0, single=True), "head": Selector(1, 2)}, {"layer": Selector(3, 3, single=True)}
    made = select(Field.of(data(values, ("layer", "head"))), case(where=[one, two]).property)
    wanted = {(0, 1), (0, 2), *((3, head) for head in range(6))}
    chosen = {tuple(made.where(index).values()) for index in np.argwhere(made.there())}
    assert chosen == wanted
    assert sorted(made.value[made.there()]) == sorted(values[place] for place in wanted)


def test_a_union_is_counted_by_what_it_holds() -> None:
    both = [{"layer": Selector(0, 0, single=True)}, {"head": Selector(0, 0, single=True)}]
    verdict = judge(
        case(where=both, demand=bound(at_most=0.5), quotas=[Quota("all", unit="head")]), fetching(data(np.zeros((3, 4)), ("layer", "head")))
    )
    assert (verdict.passed, verdict.checked) == (True, 6)


def test_selecting_only_absent_places_is_an_error() -> None:
    found = data(np.ones((2, 4)), ("layer", "head"), present=np.array([[1, 1, 0, 0], [1, 1, 1, 1]], dtype=bool))
    with pytest.raises(MeasurementError, match="selects nothing that was measured"):
        judge(case(where=[{"layer": Selector(0, 0, single=True), "head": Selector(3, 3, single=True)}]), fetching(found))


STACKED = data(
    np.arange(10.0).reshape(5, 2),
    ("layer", "head"),
    coords={"stack": (("layer",), np.array(["encoder", "decoder", "cross", "decoder", "cross"]))},
)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"stack": Selector(single=True, text="cross")}, [2, 4]),
        ({"stack": Selector(single=True, text="decoder"), "layer": Selector(-1, -1, single=True)}, [3]),
        ({"layer": Selector(3, 3, single=True), "stack": Selector(single=True, text="decoder")}, [3]),
        ({"stack": Selector(single=True, text="cross"), "layer": Selector(part=("first", 0.5))}, [2]),
    ],
)
def test_a_stack_selects_its_layers(where: dict[str, Selector], expected: list[int]) -> None:
    chosen = select(Field.of(STACKED), case(where=[where]).property)
    assert chosen.labels["layer"].tolist() == expected
    assert chosen.value.tolist() == np.arange(10.0).reshape(5, 2)[expected].tolist()


def test_a_stack_that_was_not_measured_is_named() -> None:
    asked = case(where=[{"stack": Selector(single=True, text="vision")}])
    with pytest.raises(MeasurementError, match="no layer of the stack 'vision'; measured: encoder, decoder, cross"):
        select(Field.of(STACKED), asked.property)
    other = case(where=[{"stack": Selector(single=True, text="cross"), "layer": Selector(3, 3, single=True)}])
    with pytest.raises(MeasurementError, match="layer 3 of 2; measured: 2, 4"):
        select(Field.of(STACKED), other.property)
