"""Probes: zero claims found and refuted through the kernel, masses, the kernel check, and how columns are packed."""

from __future__ import annotations

from typing import Any

import kernels
import pytest
import torch
from kernels import measured, values
from observing import wanted
from torch import Tensor

from attncheck.core.definitions import Request
from attncheck.core.errors import MeasurementError
from attncheck.instruments.context import CallContext
from attncheck.instruments.probes import Prober, ProbeRequest, staggered
from attncheck.instruments.visibility import Visibilities

FUTURE, ALL = "attention.future_mass", ("attention.future_mass", {"cuts": "all"})


def leak(row: int, key: int, amount: float = 0.01, head: int = 0) -> kernels.Change:
    def change(weights: Tensor) -> Tensor:
        weights[:, head, row, key] += amount
        return weights

    return change


@pytest.mark.parametrize("neighbours", [1, 2, 3, 4, 7, 60, 61, 97, 128, 999])
@pytest.mark.parametrize("count", [1, 4, 19])
def test_staggered_thresholds_visit_every_neighbour_once_before_any_twice(neighbours: int, count: int) -> None:
    walked: list[int] = []
    while len(walked) < 3 * neighbours:
        walked += staggered(count, neighbours, len(walked))
    for start in range(0, 2 * neighbours, neighbours):
        assert sorted(walked[start : start + neighbours]) == list(range(neighbours))


def test_the_thresholds_of_a_pass_cover_every_neighbour_of_every_length() -> None:
    valid = torch.ones(3, 40, dtype=torch.bool)
    valid[1, :10], valid[2, 30:] = False, False
    session = measured([kernels.call(batch=3, queries=40, layer=layer, seed=layer) for layer in range(4)], FUTURE, valid=valid)
    found = session.prober.separated
    assert found == {("future", 39): set(range(39)), ("future", 29): set(range(29))}
    assert session.notes(wanted(FUTURE)[0]) == []
    few = measured(kernels.call(queries=200), FUTURE)
    apart, neighbours = few.prober.coverage("future")
    assert 0 < apart < neighbours == 199
    assert few.notes(wanted(FUTURE)[0]) == [
        f"attention.future_mass: the thresholds told {apart} of 199 neighbouring positions apart; with `cuts: all` every head is asked "
        "for all of them"
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value_width", [4, 8, 12, 33])
def test_a_correct_kernel_leaks_exactly_nothing(value_width: int, dtype: torch.dtype) -> None:
    window = torch.ones(50, 50, dtype=torch.bool).tril().triu(-6)
    calls = [
        kernels.call(batch=2, value_width=value_width, dtype=dtype, layer=0),
        kernels.call(batch=2, value_width=value_width, dtype=dtype, causal=False, mask=window, layer=1),
    ]
    for cuts in ("staggered", "all"):
        session = measured(calls, (FUTURE, {"cuts": cuts}), "attention.row_sum")
        assert all(float(values(session, FUTURE, layer).max()) == 0 for layer in (0, 1))
        own = measured(calls[1], ("attention.outside_window_mass", {"window": 7, "cuts": cuts}))
        assert float(values(own, "attention.outside_window_mass").max()) == 0
        assert values(session, "attention.row_sum") == pytest.approx(torch.ones(2, 6), abs=1e-6 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize(("row", "key"), [(0, 1), (20, 21), (20, 49), (48, 49)])
def test_one_leaked_key_in_one_row_is_found_iff_a_threshold_separates_it(row: int, key: int) -> None:
    call = kernels.call(change=leak(row, key))
    context = CallContext(call, Visibilities())
    for cut in range(49):
        prober = Prober(ProbeRequest(future={"staggered"}))
        prober._thresholds = lambda *_, cut=cut: torch.full((1, 2, 1), cut)  # type: ignore[method-assign, misc]
        probe = prober.ask(context)
        assert "staggered" in probe.future
        assert float(probe.future["staggered"][0, 0, row]) == pytest.approx(0.01 if row <= cut < key else 0, abs=1e-9)
        assert float(probe.future["staggered"][0, 1:].max()) == 0
    assert float(values(measured(call, ALL), FUTURE)[0, 0]) == pytest.approx(0.01 / 50, rel=1e-4)


def test_staggered_thresholds_find_a_leak_that_every_layer_and_head_has() -> None:
    """One pair of neighbours, at any place: some layer and head asks for it."""
    for row in range(0, 99, 7):
        calls = []
        for layer in range(4):

            def change(weights: Tensor, row: int = row) -> Tensor:
                weights[:, :, row, row + 1] += 0.001
                return weights

            calls.append(kernels.call(queries=100, value_width=32, change=change, layer=layer, seed=layer))
        session = measured(calls, FUTURE)
        assert max(float(values(session, FUTURE, layer).max()) for layer in range(4)) > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_leaks_at_block_edges(dtype: torch.dtype) -> None:
    """The last row of each block of 16 sees one key too many."""

    def change(weights: Tensor) -> Tensor:
        for row in (15, 31, 47):
            weights[:, 2, row] *= 0.9
            weights[:, 2, row, row + 1] = 0.1
        return weights

    call = kernels.call(change=change, dtype=dtype)
    shown = values(measured(call, (FUTURE, {"cuts": "all", "per": "query"})), FUTURE)
    assert shown[0, 2].nonzero().flatten().tolist() == [15, 31, 47]
    assert shown[0, 2, 15] == pytest.approx(0.1, rel=1e-2)
    assert float(shown[0, [0, 1, 3, 4, 5]].max()) == 0
    assert float(values(measured(call, "kernel.error"), "kernel.error")[0, 2]) > 0.05


@pytest.mark.parametrize("queries", [50, 400])
def test_a_leak_of_a_hundredth_in_one_head_is_seen_in_half_precision(queries: int) -> None:
    """Larger than rounding, so that the kernel check asks for every threshold."""
    row = queries // 2
    found = measured(kernels.call(queries=queries, dtype=torch.bfloat16, change=leak(row, row + 1, amount=0.02)), FUTURE)
    assert float(values(found, FUTURE)[0, 0]) > 0
    assert float(values(found, FUTURE)[0, 1:].max()) == 0


@pytest.mark.parametrize("row", [3, 20, 33, 48])
def test_what_one_request_is_told_does_not_hang_on_the_others(row: int) -> None:
    """A trace of a leak, below what makes a kernel suspicious: only thresholds between the two keys see it."""

    def asked(*others: Any) -> Tensor:
        call = kernels.call(value_width=32, change=leak(row, row + 1, amount=1e-5))
        return values(measured(call, FUTURE, *others), FUTURE)

    alone = asked()
    window = ("attention.outside_window_mass", {"window": 45})
    for others in ([ALL], [window], ["attention.row_sum", "kernel.error"], [("attention.frobenius_estimate", {"columns": 70})]):
        assert torch.equal(asked(*others), alone), others


def test_a_declared_mask_that_shows_the_future_is_believed() -> None:
    """Nobody hides it: the rows say so, whatever the thresholds."""
    call = kernels.call(causal=False)
    shown = values(measured(call, FUTURE), FUTURE)
    exact = (kernels.naive.attention(call.query, call.key).weights * torch.ones(50, 50).triu(1)).sum(-1).mean(-1)
    assert torch.allclose(shown, exact, atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_leaks(side: str) -> None:
    valid = torch.ones(2, 30, dtype=torch.bool)
    hidden = slice(0, 8) if side == "left" else slice(22, 30)
    valid[1, hidden] = False
    mask = valid[:, None, None, :].expand(2, 1, 30, 30)
    tight = kernels.call(batch=2, queries=30, causal=False, mask=mask)
    assert float(values(measured(tight, "attention.padding_mass", valid=valid), "attention.padding_mass").max()) == 0
    pad = 3 if side == "left" else 27

    def change(weights: Tensor) -> Tensor:
        weights[1, 4, 15, pad] += 0.02
        return weights

    leaky = kernels.call(batch=2, queries=30, causal=False, mask=mask, change=change)
    found = values(measured(leaky, ("attention.padding_mass", {"per": "query"}), valid=valid), "attention.padding_mass")
    assert float(found[1, 4, 15]) == pytest.approx(0.02, rel=1e-5)
    assert float(found[0].max()) == 0
    with pytest.raises(MeasurementError, match="no padding"):
        values(measured(tight, "attention.padding_mass"), "attention.padding_mass")


@pytest.mark.parametrize("row", [7, 20, 49])
def test_one_key_too_many_in_a_window_is_found(row: int) -> None:
    window = torch.ones(50, 50, dtype=torch.bool).tril().triu(-6)
    call = kernels.call(causal=False, mask=window, change=leak(row, row - 7, head=3))
    request = ("attention.outside_window_mass", {"window": 7, "cuts": "all", "per": "query"})
    found = values(measured(call, request), request[0])
    assert float(found[0, 3, row]) == pytest.approx(0.01, rel=1e-4)
    assert float(found[0].sum()) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("cuts", ["staggered", "all"])
def test_several_windows_share_one_pass(cuts: str) -> None:
    name = "attention.outside_window_mass"
    window = torch.ones(50, 50, dtype=torch.bool).tril().triu(-6)
    call = kernels.call(causal=False, mask=window, change=leak(20, 13, head=3))
    asked = {width: {"window": width, "cuts": cuts, "per": "query"} for width in (5, 7, 8)}
    session = measured(call, *((name, arguments) for arguments in asked.values()))
    weights = kernels.naive.attention(call.query, call.key, mask=window).weights
    weights[:, 3, 20, 13] += 0.01
    distance = torch.arange(50)[:, None] - torch.arange(50)
    for width, arguments in asked.items():
        shown = torch.as_tensor(session.layers[0].values[Request.of(name, arguments).key].value)
        expected = (weights * (distance >= width)).sum(-1)
        if cuts == "all" or width == 8:
            assert torch.allclose(shown.double(), expected, atol=1e-6)
        else:  # the kernel's own leak lies between thresholds; what the formula lets through is seen by the rows
            assert torch.allclose(shown[:, :3].double(), expected[:, :3], atol=1e-6)
    assert float(session.layers[0].values[Request.of(name, asked[8]).key].value.max()) == 0


def drop(weights: Tensor) -> Tensor:
    weights[:, 1] *= 0.99
    return weights


def test_a_kernel_that_drops_one_percent_of_one_head() -> None:
    call = kernels.call(change=drop)
    session = measured(call, "kernel.error", ("attention.row_sum", {"per": "query"}), "attention.entropy", "attention.column_mass")
    error, sums = values(session, "kernel.error"), values(session, "attention.row_sum")
    assert float(error[0, 1]) == pytest.approx(0.01, rel=0.02)
    assert float(error[0, [0, 2, 3, 4, 5]].max()) < 1e-5
    assert sums[0, 1] == pytest.approx(torch.full((50,), 0.99), abs=1e-5)
    for name in ("attention.entropy", "attention.column_mass"):
        with pytest.raises(MeasurementError, match=r"does not apply the attention.*at layer 0, head 1 \(layers\.0, test\).*0\.01"):
            values(session, name)
    for name in ("attention.effective_rank", "attention.participation_ratio", "attention.stable_rank"):
        with pytest.raises(MeasurementError, match="does not apply"):
            values(measured(call, name), name)


@pytest.mark.parametrize("wrong", ["scale", "window", "sink"])
def test_the_kernel_check_sees_what_the_arguments_do_not_say(wrong: str) -> None:
    call = kernels.call(sinks=torch.linspace(-1, 1, 6) if wrong == "sink" else None)
    assert float(values(measured(call, "kernel.error"), "kernel.error").max()) < 2e-6
    if wrong == "scale":
        call.scale *= 1.05
    elif wrong == "window":
        call.mask, call.is_causal = torch.ones(50, 50, dtype=torch.bool).tril().triu(-30), False
    else:
        call.sinks = None
    assert float(values(measured(call, "kernel.error"), "kernel.error").max()) > 5e-3


def test_bfloat16_kernels_pass_the_check_within_their_rounding() -> None:
    session = measured(kernels.call(dtype=torch.bfloat16), "kernel.error", "attention.entropy")
    assert 1e-5 < float(values(session, "kernel.error").max()) < 2e-2
    assert float(values(session, "attention.entropy").min()) > 0


@pytest.mark.parametrize("value_width", [1, 3, 8, 200])
def test_masses_do_not_depend_on_how_the_columns_are_packed(value_width: int) -> None:
    call = kernels.call(value_width=value_width)
    context = CallContext(call, Visibilities())
    probe = Prober(ProbeRequest(future={"staggered"}, outside={(5, "staggered")}, signs=70)).ask(context)
    weights = kernels.naive.attention(call.query, call.key, causal=True).weights
    assert torch.allclose(probe.row_sum.double(), weights.sum(-1), atol=1e-6)
    assert torch.allclose(probe.first.double(), weights[..., 0], atol=1e-6)
    assert torch.allclose(probe.first_four.double(), weights[..., :4].sum(-1), atol=1e-6)
    assert probe.signs is not None
    assert probe.sign_columns is not None
    expected = weights @ probe.sign_columns.double().repeat_interleave(3, 1)
    assert torch.allclose(probe.signs.double(), expected, atol=1e-5)
    assert set(probe.sign_columns.unique().tolist()) == {-1.0, 1.0}


def test_one_kernel_call_is_enough_for_what_fits_into_the_values() -> None:
    call, calls = kernels.call(value_width=64), []
    replay = call.replay
    call.replay = lambda other: (calls.append(other.shape), replay(other))[1]  # type: ignore[misc]
    measured(call, FUTURE, "attention.row_sum", "kernel.error", "attention.entropy")
    assert calls == [call.value.shape]


def test_a_kernel_that_cannot_be_run_again_is_refused_with_its_reason() -> None:
    call = kernels.call()
    call.replay, call.replay_refused = None, "it writes a cache (block_table)"
    session = measured(call, "attention.row_sum", "attention.entropy")
    with pytest.raises(MeasurementError, match=r"it writes a cache \(block_table\)"):
        values(session, "attention.row_sum")
    assert float(values(session, "attention.entropy").min()) > 0


@pytest.mark.parametrize("name", ["attention.row_sum", "attention.padding_mass", "attention.future_mass"])
def test_what_a_kernel_makes_of_a_query_that_is_no_number_is_no_number(name: str) -> None:
    """torch's flash kernel on the CPU gives 0 for such rows: a row sum of 0 would pass `at_most: 1`, a mass of 0 `at_most: 0`."""
    call = kernels.call(batch=1, heads=2, kv_heads=2, queries=9, causal=False)
    call.query[:, 1, 4] = torch.nan
    valid = torch.tensor([[True] * 7 + [False] * 2])
    found = values(measured(call, name, valid=valid), name)
    assert found.isnan().tolist() == [[False, True]]


@pytest.mark.parametrize("window", [-3, 0, 50, 500])
def test_a_window_that_leaves_no_key_outside_is_no_claim(window: int) -> None:
    request = ("attention.outside_window_mass", {"window": window})
    with pytest.raises(MeasurementError, match=f"window {window} at 50 keys: (none lies outside|a window of at least 1).*allowed: 1 to 49"):
        values(measured(kernels.call(), request), request[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("column", range(40))
def test_a_kernel_that_loses_one_column_of_the_values(column: int, dtype: torch.dtype) -> None:
    """Whichever column it is: asked or not, of the last block or not."""
    call = kernels.call(value_width=40, dtype=dtype)
    sound = call.replay
    assert sound is not None

    def replay(other: Tensor) -> Tensor:
        output = sound(other).clone()
        output[:, 3, :, column] = 0
        return output

    call.replay, call.output = replay, replay(call.value)
    session = measured(call, "kernel.error", "attention.row_sum", FUTURE, "attention.entropy")
    error = values(session, "kernel.error")[0]
    assert float(error[3]) > 0.05
    assert float(error[[0, 1, 2, 4, 5]].max()) < (1e-5 if dtype == torch.float32 else 2**-7)
    with pytest.raises(MeasurementError, match=r"at layer 0, head 3 "):
        values(session, "attention.entropy")
    for name in ("attention.row_sum", FUTURE):
        with pytest.raises(MeasurementError, match=r"does not treat all columns of its values alike: at layer 0, head 3 "):
            values(session, name)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("scale", "dtype"), [(1.0, torch.float32), (1e-30, torch.float32), (1e4, torch.float32), (1.0, torch.bfloat16)])
def test_the_output_of_a_sound_kernel_is_within_rounding(seed: int, scale: float, dtype: torch.dtype) -> None:
    """Values of any size, one key a thousand times the others', or 0, or all of them 0."""
    call = kernels.call(batch=2, value_width=24, dtype=dtype, seed=seed, sharpness=4.0)
    call.value *= scale
    call.value[:, 0, 7] *= 1000
    call.value[:, 1, 9] = 0
    call.value[1] *= 0 if seed % 2 else 1
    assert call.replay is not None
    call.output = call.replay(call.value)
    session = measured(call, "kernel.error", "attention.row_sum", "attention.entropy")
    assert not session.faults
    assert float(values(session, "kernel.error").max()) < (2e-5 if dtype == torch.float32 else 2**-7)


def test_values_that_are_no_numbers_are_not_held_against_the_kernel() -> None:
    """Its rows are what they are; that the output is no number is the values' doing."""
    call = kernels.call()
    call.value[0, 0, 20] = torch.nan
    assert call.replay is not None
    call.output = call.replay(call.value)
    session = measured(call, "kernel.error", "attention.row_sum", "attention.entropy")
    assert not session.faults
    assert float(values(session, "kernel.error").max()) < 1e-5


def test_an_output_that_is_no_number_while_the_values_are() -> None:
    call = kernels.call()
    call.output = call.output.clone()
    call.output[0, 4, 30, 5] = torch.nan
    session = measured(call, "kernel.error", "attention.entropy")
    assert float(values(session, "kernel.error")[0, 4]) == torch.inf
    with pytest.raises(MeasurementError, match=r"at layer 0, head 4 .*differ by .* on its own values"):
        values(session, "attention.entropy")


def test_a_kernel_that_cannot_run_again_is_held_against_its_output() -> None:
    call = kernels.call()
    call.replay, call.replay_refused = None, "it writes a cache"
    assert not measured(call, "attention.entropy").faults
    call.output = call.output * torch.tensor([1.0, 1, 1, 0.9, 1, 1])[None, :, None, None]
    with pytest.raises(MeasurementError, match=r"at layer 0, head 3 .*differ by 0\.\d+ on its own values"):
        values(measured(call, "attention.entropy"), "attention.entropy")
