"""A pass: folding over queries, rows that do not count, numbers that are none, symbols, faults that stay with their request."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import kernels
import naive
import numpy as np
import pytest
import torch
import zoo
from kernels import measured, values
from observing import run, wanted
from torch import Tensor

from attncheck.core.errors import AttncheckError, MeasurementError
from attncheck.core.observable import OBSERVABLES, Value, observable
from attncheck.instruments.folding import fold
from attncheck.instruments.session import Fed, Wanted

ALL_ROWS = ("attention.entropy", "attention.frobenius_norm", "attention.largest_weight", "attention.sink_mass", "logits.max",
            "attention.mean_distance", "attention.jacobian_norm", "attention.previous_token", "attention.first_four_mass")  # fmt: skip


def folding(how: str, *, per_query: bool = False) -> Wanted:
    found = wanted(("attention.entropy", {"per": "query"} if per_query else {}))[0]
    entry = found.entry
    made = type(entry)(entry.name, entry.function, {**entry.about, "over_queries": how})
    return Wanted(found.request, made)


@pytest.mark.parametrize(
    ("how", "expected"),
    [("mean", 2.0), ("max", 3.0), ("min", 1.0), ("sum", 6.0), ("root_sum", math.sqrt(6)), ("mean_where_known", 2.0)],
)
def test_folds_over_the_queries_that_count(how: str, expected: float) -> None:
    rows = torch.tensor([[[1.0, 100.0, 2.0, 3.0, -100.0]]])
    counts = torch.tensor([[True, False, True, True, False]])
    assert fold(rows, counts, folding(how)).value.item() == pytest.approx(expected)
    kept = fold(rows, counts, folding(how, per_query=True))
    root = math.sqrt if how == "root_sum" else float
    assert kept.value[0, 0, [0, 2, 3]] == pytest.approx([root(1), root(2), root(3)])
    assert kept.present[0, 0].tolist() == counts[0].tolist()
    broken = rows.clone()
    broken[0, 0, 2] = torch.nan
    assert math.isnan(fold(broken, counts, folding(how), broken).value.item())
    assert not math.isnan(fold(torch.where(counts, rows, torch.nan), counts, folding(how)).value.item()), "a row that does not count"


def test_a_row_that_has_nothing_to_say_is_left_out_and_one_that_is_no_number_is_not() -> None:
    rows = torch.tensor([[[torch.nan, 1.0, 3.0]]])
    counts = torch.ones(1, 3, dtype=torch.bool)
    assert fold(rows, counts, folding("mean_where_known"), torch.ones(1, 1, 3)).value.item() == 2
    sums = torch.tensor([[[torch.nan, 1.0, 1.0]]])
    assert math.isnan(fold(rows, counts, folding("mean_where_known"), sums).value.item())
    kept = fold(rows, counts, folding("mean_where_known", per_query=True), torch.ones(1, 1, 3))
    assert kept.present[0, 0].tolist() == [False, True, True]
    assert fold(rows, counts, folding("mean_where_known", per_query=True), sums).present[0, 0].tolist() == [True, True, True]


def test_a_sample_without_a_row_is_no_place() -> None:
    rows, counts = torch.ones(2, 3, 4), torch.tensor([[True] * 4, [False] * 4])
    found = fold(rows, counts, folding("mean"))
    assert found.present.tolist() == [[True] * 3, [False] * 3]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("check", [True, False])
def test_numbers_that_are_none_never_become_numbers(where: str, bad: float, check: bool) -> None:
    """In query or key, at a place that is seen: every row observable is NaN at that head, or errs for all of them."""
    call = kernels.call(batch=2, kv_heads=6)
    getattr(call, where)[1, 4, 10, 3] = bad
    session = measured(call, *ALL_ROWS, "attention.column_mass", check_kernel=check)
    for name in (*ALL_ROWS, "attention.column_mass"):
        if check:
            with pytest.raises(MeasurementError, match=rf"the {where} holds values that are not numbers.*layer 0, head 4, sample 1"):
                values(session, name)
            continue
        found = values(session, name)
        assert bool((found[1, 4].isnan() | found[1, 4].isinf()).any()), name
        assert not bool(found[0].isnan().any()), name
        assert not bool(found[1, [0, 1, 2, 3, 5]].isnan().any()), name
        value = next(v for key, v in session.layers[0].values.items() if key.startswith(name))
        assert value.present is None or value.present[1, 4].any(), "an absent place would not be judged"


def test_no_number_in_a_hidden_key_does_no_harm() -> None:
    valid = torch.ones(1, 50, dtype=torch.bool)
    valid[0, 40:] = False
    call = kernels.call(causal=False, mask=valid[:, None, None, :].expand(1, 1, 50, 50))
    call.key[..., 45, :] = torch.nan
    call.replay = None
    session = measured(call, *ALL_ROWS, valid=valid)
    for name in ALL_ROWS:
        assert not bool(values(session, name).isnan().any()), name


def test_a_kernel_whose_output_is_no_number_errs() -> None:
    def change(weights: Tensor) -> Tensor:
        weights[:, 3, 20] = torch.nan
        return weights

    session = measured(kernels.call(change=change), "attention.entropy", "attention.row_sum", "attention.future_mass", "kernel.error")
    with pytest.raises(MeasurementError, match="does not apply"):
        values(session, "attention.entropy")
    for name in ("attention.row_sum", "attention.future_mass"):
        assert values(session, name)[0].isnan().tolist() == [False, False, False, True, False, False], name
    # The rows are numbers there: a kernel that gives none is wrong, and not unknown.
    assert values(session, "kernel.error")[0].isinf().tolist() == [False, False, False, True, False, False]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_left_padding_in_a_model_leaves_its_rows_out(implementation: str) -> None:
    """Eager's padded queries attend evenly to everything, SDPA's to nothing: the measurement is the same, and that of the text alone."""
    model = zoo.build("llama", implementation)
    alone = zoo.tokens(1, 12, seed=4)["input_ids"]
    ids = torch.cat([torch.zeros(1, 5, dtype=torch.long), alone], 1)
    mask = (torch.arange(17) >= 5)[None].long()
    names = ("attention.entropy", "attention.frobenius_norm", "attention.future_mass", "attention.row_sum", "attention.mean_distance")
    padded = run(model, {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}, names, kernel=False,
                 valid=mask.bool())  # fmt: skip
    plain = run(model, {"input_ids": alone}, names, kernel=False)
    for one, other in zip(padded.calls, plain.calls, strict=True):
        for name in names:
            assert np.allclose(one.values[name], other.values[name], atol=2e-6), name
        assert one.symbols["N"] == [12]
        assert one.symbols["uniform_norm"] == pytest.approx(other.symbols["uniform_norm"], rel=1e-6)
    assert [layer.empty_rows for layer in padded.session.layers] == [0, 0], "padding is no empty row"
    unsaid = run(model, {"input_ids": ids, "attention_mask": mask}, names, kernel=False)
    assert [layer.empty_rows for layer in unsaid.session.layers] == [5, 5]
    assert unsaid.calls[0].symbols["N"] == [12]


def test_symbols_of_a_padded_batch_with_sinks() -> None:
    valid = torch.ones(2, 30, dtype=torch.bool)
    valid[1, :12] = False
    mask = valid[:, None, None, :] & torch.ones(30, 30, dtype=torch.bool).tril().triu(-8)
    sinks = torch.linspace(-2, 2, 6)
    call = kernels.call(batch=2, queries=30, causal=False, mask=mask, sinks=sinks)
    twin = naive.attention(call.query, call.key, mask=mask, sinks=sinks)
    session = measured(call, "attention.frobenius_norm", valid=valid)
    symbols = {name: value.value for name, value in session.layers[0].symbols.items()}
    assert symbols["N"].tolist() == symbols["M"].tolist() == [30, 18]
    assert (symbols["d"], symbols["d_v"], symbols["H"], symbols["H_kv"]) == (8, 8, 6, 2)
    assert symbols["ceiling_norm"] == pytest.approx([math.sqrt(30), math.sqrt(18)])
    counted = valid[:, None, :].expand(2, 6, 30)
    floor = torch.where(counted, twin.weights.sum(-1) ** 2 / twin.visible.sum(-1).clamp(min=1), 0.0).sum(-1).sqrt()
    assert symbols["uniform_norm"] == pytest.approx(floor.numpy(), rel=1e-6)
    norm = values(session, "attention.frobenius_norm").numpy()
    assert (symbols["uniform_norm"] <= norm * (1 + 1e-6)).all()
    assert (norm <= symbols["ceiling_norm"][:, None]).all()


def test_an_encoder_and_its_decoder_are_counted_each_by_itself() -> None:
    """Decoder rows are not hidden by the encoder's padding, even where both have the same length."""
    arguments = zoo.tokens(2, 12, pad="right")
    arguments["decoder_input_ids"] = zoo.tokens(2, 12, seed=1)["input_ids"]
    arguments["decoder_attention_mask"] = torch.ones(2, 12, dtype=torch.long)
    arguments["decoder_attention_mask"][0, 10:] = 0
    valid, own = arguments["attention_mask"].bool(), arguments["decoder_attention_mask"].bool()
    seen = run(zoo.build("bart", "sdpa"), arguments, ("attention.entropy",), kernel=False, valid=valid,
               decoder=Fed(own, arguments["decoder_input_ids"]))  # fmt: skip
    for one in seen.calls:
        queries, keys = {"encoder": ([12, 9], [12, 9]), "decoder": ([10, 12], [10, 12]), "cross": ([10, 12], [12, 9])}[one.call.stack]
        assert one.symbols["N"].tolist() == queries
        assert one.symbols["M"].tolist() == keys
        assert one.twin is not None
        counted = valid if one.call.stack == "encoder" else own
        exact = naive.folded("attention.entropy", naive.entropy(one.twin.weights), counted)
        assert one.values["attention.entropy"] == pytest.approx(exact.numpy(), abs=1e-5)


@pytest.fixture
def broken_observable() -> Iterator[str]:
    @observable("test.broken", reads="rows", dims=("sample", "layer", "head"), over_queries="mean")
    def broken(tile: Any) -> Any:
        """Raises at the second head."""
        if tile.head == 1:
            raise ZeroDivisionError("by design")
        return tile.entropy

    yield "test.broken"
    OBSERVABLES._entries.pop("test.broken")


def test_a_fault_stays_with_its_request(broken_observable: str) -> None:
    session = measured([kernels.call(layer=0), kernels.call(layer=1)], broken_observable, "attention.entropy")
    with pytest.raises(AttncheckError, match=r"test\.broken.* raised ZeroDivisionError: by design"):
        values(session, broken_observable)
    for layer in (0, 1):
        assert float(values(session, "attention.entropy", layer).min()) > 0
    assert not any(key.startswith(broken_observable) for layer in session.layers for key in layer.values)


def test_a_request_with_other_arguments_is_another_request() -> None:
    session = measured(
        kernels.call(), ("attention.key_mass", {"keys": "0"}), ("attention.key_mass", {"keys": "1.."}), "attention.sink_mass"
    )
    first, rest = (torch.from_numpy(v.value) for key, v in session.layers[0].values.items() if key.startswith("attention.key_mass"))
    assert torch.allclose(first + rest, torch.ones(1, 6, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(first, values(session, "attention.sink_mass"), atol=1e-6)


ROWS_DIMS, KEY_DIMS = ("sample", "layer", "head"), ("sample", "layer", "head", "key")
WRONG: list[tuple[str, tuple[str, ...], Any, str]] = [
    ("rows", ROWS_DIMS, lambda tile: torch.zeros(3), r"a tensor of \[3\]; allowed: a tensor of \[rows\]"),
    ("rows", ROWS_DIMS, lambda tile: "three", r"a str; allowed"),
    ("rows", ROWS_DIMS, lambda tile: np.zeros(3), r"an array of \[3\]"),
    ("columns", KEY_DIMS, lambda tile: torch.zeros(2), r"a tensor of \[2\]; allowed: a tensor of \[keys\]"),
    ("columns", KEY_DIMS, lambda tile: (5, 5), r"an int; allowed"),
    ("probe", ROWS_DIMS, lambda probe: 5, r"an int; allowed: a tensor of \[batch, heads, queries\]"),
    ("probe", ROWS_DIMS, lambda probe: probe.row_sum[0], r"a tensor of \[6, 50\]"),
    ("call", ROWS_DIMS, lambda context: torch.zeros(1), r"a tensor of \[1\]; allowed: a Value over sample, head"),
    ("call", ROWS_DIMS, lambda context: Value(np.zeros(3), ("sample", "head")), r"a Value of 1 dims over sample, head"),
]


@pytest.mark.parametrize(("reads", "dims", "function", "said"), WRONG)
def test_an_observable_that_returns_something_else_errs_alone(reads: Any, dims: tuple[str, ...], function: Any, said: str) -> None:
    folded: Any = {"over_queries": "mean"} if reads in ("rows", "probe") else {}
    name = "test.slip"
    observable(name, reads=reads, dims=dims, **folded)(function)
    try:
        session = measured(kernels.call(), name, "attention.entropy")
        with pytest.raises(MeasurementError, match=rf"the observable test\.slip returned {said}"):
            values(session, name)
        assert not values(session, "attention.entropy").isnan().any()
    finally:
        OBSERVABLES._entries.pop(name)
