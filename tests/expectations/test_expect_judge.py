"""The whole way: speed, imports, what a verdict carries, which picture it gets."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from judging_toolkit import bound, case, data, expectation, fetching, subject

from attncheck.core.definitions import Request
from attncheck.core.expectation import EXPECTATIONS
from attncheck.core.expectation import expectation as register
from attncheck.core.verdict import Verdict
from attncheck.expectations import judge, requirements
from attncheck.expectations.field import Field
from attncheck.spec.model import Reduction, Relation

HEADS = data(np.random.default_rng(0).uniform(0.1, 0.4, (30, 9)), ("layer", "head"), symbols={"N": ((), 1024)})


def test_the_package_imports_without_the_heavy_ones() -> None:
    heavy = ["torch", "transformers", "xarray", "scipy", "matplotlib", "numpy"]
    code = f"import sys; import attncheck.expectations, attncheck.report; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pass_says_what_was_measured() -> None:
    made = judge(case(demand=bound(at_most=1)), fetching(HEADS))
    assert made.passed
    assert made.headline.startswith("weights.alpha 0.1 to 0.399: 270 of 270 heads hold")
    assert (made.checked, made.decided, made.setting) == (270, "exact", "float32, cpu")
    assert made.numbers["max"] == pytest.approx(float(HEADS["value"].max()))
    assert made.numbers["holding_share"] == 1
    assert not made.offenders


def test_empty_rows_and_notes_reach_the_verdict() -> None:
    found = data([1.0], ("layer",), attrs={"notes": ["compiled subject measured uncompiled"], "empty_rows": 5})
    assert judge(case(), fetching(found)).notes == ["compiled subject measured uncompiled", "5 query rows see no key and are left out"]


def test_a_token_is_named_where_a_query_offends() -> None:
    found = data([[0.1, 2.0]], ("head", "query"), attrs={"labels": [["The", " cat"]]})
    assert judge(case(demand=bound(at_most=1)), fetching(found)).offenders[0].note == "query token ' cat'"


def test_a_stack_is_named_where_it_tells_layers_apart() -> None:
    found = data(
        [0.1, 2.0], ("layer",), coords={"layer": (("layer",), np.array([0, 0])), "stack": (("layer",), np.array(["encoder", "cross"]))}
    )
    assert judge(case(demand=bound(at_most=1)), fetching(found)).offenders[0].where == {"layer": 0, "stack": "cross"}


def test_the_first_layer_to_blame_is_told_where_it_is_not_the_worst() -> None:
    """A fault moves the input of every later layer, often by more than its own output."""
    found = data([[0.1, 0.2], [1.1, 0.3], [2.0, 5.0]], ("layer", "head"))
    assert judge(case(demand=bound(at_most=1)), fetching(found)).observed[-1] == "2 layers are to blame, the first is layer 1"
    worst_first = data([[0.1, 0.2], [1.1, 6.0], [2.0, 5.0]], ("layer", "head"))
    only = data([[0.1, 0.2], [0.1, 0.3], [2.0, 5.0]], ("layer", "head"))
    for other in (worst_first, only):
        assert "to blame" not in " ".join(judge(case(demand=bound(at_most=1)), fetching(other)).observed)


def test_dims_come_in_one_order_whatever_the_measurement_has() -> None:
    found = Field.of(data(np.arange(6.0).reshape(2, 3), ("head", "layer")))
    assert found.dims == ("layer", "head")
    assert found.value[2, 0] == 2


def test_offenders_are_capped_and_counted() -> None:
    made = judge(case(demand=bound(at_most=0)), fetching(HEADS))
    assert len(made.offenders) == 100
    assert made.numbers["offenders"] == 270


def test_third_parties_register_their_own_demands() -> None:
    def needs(case_: Any, arguments: Any) -> Any:
        return [(requirements(case())[0][0], Request("weights.other"))]

    @register("is-even", requires=needs)
    def is_even(context: Any, *, offset: int = 0) -> Verdict:
        value = int(context.measured().value.sum()) + offset
        return Verdict(value % 2 == 0, f"{value}", "is even", checked=1)

    try:
        asked = case(demand=expectation("is-even", offset=1))
        assert [request.name for _, request in requirements(asked)] == ["weights.alpha", "weights.other"]
        assert judge(asked, fetching(data([1.0], ("layer",)))).passed
    finally:
        EXPECTATIONS._entries.pop("is-even")


STEPS = {"step": (("step",), np.array([1, 10, 100]))}


@pytest.mark.parametrize(
    ("dims", "shape", "options", "kind"),
    [
        (("layer", "head"), (3, 4), {}, "heat_map"),
        (("sample", "layer", "head", "query"), (2, 3, 4, 5), {}, "heat_map"),
        (("layer",), (5,), {}, "lines"),
        (("layer",), (1,), {}, "bars"),
        (("head",), (4,), {}, "bars"),
        ((), (), {}, "bars"),
        (("seed", "layer"), (3, 4), {}, "lines"),
        (("sample", "layer"), (9, 4), {}, "lines"),
        (("layer", "head", "query"), (1, 1, 9), {}, "lines"),
        (("step", "layer", "head"), (3, 4, 2), {}, "panels"),
        (("step",), (3,), {}, "panels"),
        (("step", "layer"), (3, 4), {"reduce": [Reduction("step", "growth")]}, "panels"),
        (("step",), (3,), {"reduce": [Reduction("step", "growth")]}, "lines"),
        (("layer",), (5,), {"reduce": [Reduction("layer", "peak")]}, "lines"),
        (("layer", "head"), (5, 40), {"reduce": [Reduction("layer", "spread")]}, "lines"),
        (("layer",), (5,), {"relation": Relation("ratio", request=Request("weights.other"))}, "bars"),
    ],
)
@pytest.mark.parametrize("limit", [0.0, 100.0])
def test_each_shape_of_claim_gets_its_picture(dims: tuple[str, ...], shape: tuple[int, ...], options: Any, kind: str, limit: float) -> None:
    rng = np.random.default_rng(0)
    coords = {"step": (("step",), np.array([1, 10, 100])[: shape[dims.index("step")]])} if "step" in dims else {}
    found = data(rng.uniform(1, 2, shape), dims, coords=coords)
    made = judge(case(demand=bound(at_most=limit), **options), fetching(found))
    assert made.passed is (limit == 100)
    assert made.picture is not None
    assert made.picture.kind == kind
    if kind == "heat_map":
        assert np.asarray(made.picture.grid).shape == (3, 4)
        assert bool(made.picture.marked) is not made.passed


def test_a_heat_map_shows_the_worst_sample_and_marks_every_one() -> None:
    values = np.zeros((2, 3, 4))
    values[1, 2, 3], values[0, 0, 1] = 9, 5
    made = judge(case(demand=bound(at_most=1)), fetching(data(values, ("sample", "layer", "head"))))
    assert made.picture is not None
    assert made.picture.title.endswith("sample 1")
    assert made.picture.grid[2][3] == 9
    assert set(made.picture.marked) == {(2, 3), (0, 1)}


def test_the_bars_of_a_ratio_carry_both_sides_and_the_bound_on_the_others_scale() -> None:
    answers = {"lrkv": data([41.2, 50.0], ("layer",)), "mha": data([38.9, 40.0], ("layer",))}
    asked = case(relation=Relation("ratio", "mha"), on=subject("lrkv"), counterparts=[subject("mha")], demand=bound(at_least=1.15))
    picture = judge(asked, fetching(answers)).picture
    assert picture is not None
    assert [series.label for series in picture.series] == ["lrkv", "mha"]
    assert list(picture.series[0].texts) == ["1.06", "1.25"]
    assert picture.bounds["at_least"] == pytest.approx([38.9 * 1.15, 40 * 1.15])
    assert picture.marked == ((0, 0),)
