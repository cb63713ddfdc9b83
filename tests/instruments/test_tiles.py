"""Tiles: every statistic where float32 is most likely to lose it, and what is visible to whom."""

from __future__ import annotations

import math

import kernels
import naive
import pytest
import torch
from kernels import measured, values
from torch import Tensor

from attncheck.core.errors import MeasurementError
from attncheck.instruments.context import DENSE_LIMIT, CallContext, identity_weights
from attncheck.instruments.rows import ScoreTile, tiles
from attncheck.instruments.visibility import Visibilities, rows_per_tile, visible_rows

PER_QUERY = {"per": "query"}


def context_of(call: kernels.AttentionCall, valid: Tensor | None = None) -> CallContext:
    return CallContext(call, Visibilities(), valid=valid)


def with_bias(bias: Tensor, **options: object) -> kernels.AttentionCall:
    """A call whose scores are the bias: whatever shape of rows a test needs. No kernel made its output: measure it unchecked."""
    call = kernels.call(heads=1, kv_heads=1, queries=bias.shape[0], keys=bias.shape[1], causal=False, **options)  # type: ignore[arg-type]
    call.query.zero_()
    call.bias, call.replay = bias[None, None].float(), None
    return call


SHARP = [0.0, 1.0, 5.0, 20.0, 45.0, 80.0, 200.0, 1e4]


@pytest.mark.parametrize("gap", SHARP)
def test_entropy_of_sharp_rows(gap: float) -> None:
    """One key `gap` above 49 others: absolute error stays at float32's, relative error as long as anything is left."""
    scores = torch.zeros(50, 50)
    scores[torch.arange(50), torch.arange(50)] = gap
    found = values(measured(with_bias(scores), ("attention.entropy", PER_QUERY), check_kernel=False), "attention.entropy")
    exact = naive.entropy(torch.softmax(scores.double(), -1))
    assert torch.allclose(found[0, 0], exact, atol=2e-7, rtol=2e-6)


@pytest.mark.parametrize("gap", SHARP)
@pytest.mark.parametrize("sink", [None, -3.0, 2.0])
def test_jacobian_against_autograd_in_float64(gap: float, sink: float | None) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(6, 23, generator=generator)
    scores[torch.arange(6), torch.arange(6) * 3] += gap
    call = with_bias(scores)
    call.sinks = None if sink is None else torch.tensor([sink])
    found = values(measured(call, ("attention.jacobian_norm", PER_QUERY), check_kernel=False), "attention.jacobian_norm")[0, 0]

    def weights(row: Tensor) -> Tensor:
        logits = row if sink is None else torch.cat([row, row.new_tensor([sink])])
        return torch.softmax(logits, 0)[:23]

    for i in range(6):
        jacobian = torch.autograd.functional.jacobian(weights, scores[i].double())
        assert float(found[i]) == pytest.approx(float(jacobian.norm()), rel=3e-6, abs=1e-12)


def test_jacobian_of_two_equal_weights_reaches_its_bound() -> None:
    scores = torch.full((4, 30), -50.0)
    scores[:, 3] = scores[:, 8] = 0
    found = values(measured(with_bias(scores), "attention.jacobian_norm", check_kernel=False), "attention.jacobian_norm")
    assert float(found) == pytest.approx(math.sqrt(4) / 2, rel=1e-6)


def test_distances_of_a_local_head_in_a_long_sequence() -> None:
    """Positions in the hundreds are not subtracted from each other's sums: what is near stays exact."""
    length = 700
    call = kernels.call(heads=2, kv_heads=1, queries=length)
    at = torch.arange(length)
    call.bias, call.replay = -(at[:, None] - at[None]).abs()[None, None].float(), None
    exact = naive.attention(call.query, call.key, causal=True, bias=call.bias).weights @ torch.arange(length).double()
    found = values(measured(call, ("attention.mean_distance", PER_QUERY), check_kernel=False), "attention.mean_distance")
    # Positions are counted from the tile's first row, so that float32 rounds numbers up to 128 and not up to 700.
    assert float((found - (at - exact)).abs().max()) < 128 * 2**-22


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 2, 3, 63, 64, 65, 128])
def test_largest_logit_and_weights_row_by_row(queries: int, causal: bool) -> None:
    call = kernels.call(queries=queries, causal=causal, sharpness=9.0)
    twin = naive.attention(call.query, call.key, causal=causal)
    session = measured(call, ("logits.max", PER_QUERY), ("attention.largest_weight", PER_QUERY), ("attention.frobenius_norm", PER_QUERY))
    assert torch.allclose(values(session, "logits.max"), twin.scores.amax(-1), atol=1e-5)
    assert torch.allclose(values(session, "attention.largest_weight"), twin.weights.amax(-1), atol=1e-6)
    assert torch.allclose(values(session, "attention.frobenius_norm"), twin.weights.norm(dim=-1), atol=1e-6)
    context = context_of(call)
    for head in range(6):
        assert torch.allclose(context.weights(0, head, torch.float64), twin.weights[0, head], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_sum_exp(dtype: torch.dtype) -> None:
    call = kernels.call(sinks=torch.linspace(-2, 2, 6))
    twin = naive.attention(call.query, call.key, causal=True)
    for tile in tiles(context_of(call), dtype):
        assert isinstance(tile, ScoreTile)
        assert call.sinks is not None
        exact = torch.logaddexp(torch.logsumexp(twin.scores[0, tile.head, tile.rows], -1), call.sinks[tile.head].double())
        assert torch.allclose(tile.log_sum_exp.double(), exact, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_sinks_by_query() -> None:
    call = kernels.call(batch=2, sinks=torch.randn(2, 6, 50, generator=torch.Generator().manual_seed(2)))
    twin = naive.attention(call.query, call.key, causal=True, sinks=call.sinks)
    session = measured(call, ("attention.row_sum", PER_QUERY), "kernel.error", ("attention.largest_weight", PER_QUERY))
    assert torch.allclose(values(session, "attention.row_sum"), twin.weights.sum(-1), atol=1e-6)
    assert torch.allclose(values(session, "attention.largest_weight"), twin.weights.amax(-1), atol=1e-6)


def masks() -> dict[str, Tensor]:
    at = torch.arange(130)
    lower = at[:, None] >= at[None]
    chunk = lower & (at[:, None] // 50 == at[None] // 50)
    window = lower & (at[:, None] - at[None] < 17)
    empty = window.clone()
    empty[40:110] = False
    generator = torch.Generator().manual_seed(0)
    return {
        "window": window[None, None],
        "chunks": chunk[None, None],
        "a whole tile empty": empty[None, None],
        "random by head and sample": torch.rand(2, 6, 130, 130, generator=generator) > 0.7,
        "two dims": window,
        "padding alone": (at > 20)[None, None, None],
        "three dims": torch.stack([window] * 6),
    }


@pytest.mark.parametrize("additive", [None, -1e4, torch.finfo(torch.float32).min, -math.inf])
@pytest.mark.parametrize("kind", list(masks()))
def test_masks_of_every_shape(kind: str, additive: float | None) -> None:
    shown = masks()[kind]
    mask = shown if additive is None else torch.where(shown, 0.0, additive)
    call = kernels.call(batch=2, queries=130, causal=False, mask=mask)
    twin = naive.attention(call.query, call.key, mask=mask)
    context = context_of(call)
    assert torch.equal(context.visible.expand(2, 6, -1), twin.visible.sum(-1))
    assert torch.equal(context.counts, twin.visible.any(-1).any(1))
    assert context.empty_rows == int((~twin.visible.any(-1)).all(1).sum())
    for tile in tiles(context):
        got = torch.zeros(len(tile.counts), 130)
        got[:, tile.key_slice] = tile.weights
        sees = twin.visible[tile.batch, tile.head, tile.rows].any(-1)
        assert torch.allclose(got[sees].double(), twin.weights[tile.batch, tile.head, tile.rows][sees], atol=1e-6)
        assert torch.equal(visible_rows(call, tile.batch, tile.head, tile.rows), twin.visible[tile.batch, tile.head, tile.rows])


def test_an_additive_mask_that_also_shifts_scores() -> None:
    mask = torch.where(masks()["window"], torch.linspace(-2, 2, 130), -math.inf)
    call = kernels.call(queries=130, causal=False, mask=mask)
    twin = naive.attention(call.query, call.key, mask=mask)
    found = values(measured(call, ("attention.entropy", PER_QUERY), "kernel.error"), "attention.entropy")
    assert torch.allclose(found, naive.entropy(twin.weights), atol=2e-6)


def test_what_is_visible_is_found_once_for_a_mask_and_not_kept_for_ever() -> None:
    shared = masks()["window"]
    found = Visibilities(held=3)
    calls = [kernels.call(queries=130, causal=False, mask=shared, layer=layer) for layer in range(3)]
    assert len({id(found.of(call)) for call in calls}) == 1
    for layer in range(8):
        found.of(kernels.call(queries=130, causal=False, mask=shared.clone(), layer=layer))
    assert len(found._found) == 3
    changed = shared.clone()
    call = kernels.call(queries=130, causal=False, mask=changed)
    before = found.of(call).counts.clone()
    changed[..., 0] = True
    assert not torch.equal(found.of(call).counts, before), "a mask written to is another mask"


@pytest.mark.parametrize("side", ["left", "right"])
def test_weights_at_given_positions(side: str) -> None:
    valid = torch.ones(2, 70, dtype=torch.bool)
    valid[1, slice(0, 20) if side == "left" else slice(50, 70)] = False
    mask = valid[:, None, None, :] & torch.ones(70, 70, dtype=torch.bool).tril()
    call = kernels.call(batch=2, queries=70, causal=False, mask=mask)
    twin = naive.attention(call.query, call.key, mask=mask)
    start = torch.tensor([0, 20 if side == "left" else 0])
    for tile in tiles(context_of(call, valid)):
        for offset in (0, 1, 5, 69):
            wanted = tile.query_positions - offset
            slots = wanted + start[tile.batch]
            exact = [
                float(twin.weights[tile.batch, tile.head, row, slot]) if position >= 0 and slot < 70 else 0.0
                for row, slot, position in zip(range(tile.rows.start, tile.rows.stop), slots.tolist(), wanted.tolist(), strict=True)
            ]
            counted = tile.counts
            assert torch.allclose(tile.at(wanted)[counted].double(), torch.tensor(exact, dtype=torch.float64)[counted], atol=1e-6)


def test_scatter_and_masses_over_keys() -> None:
    call = kernels.call(queries=100)
    twin = naive.attention(call.query, call.key, causal=True)
    session = measured(call, "attention.column_mass", ("attention.key_mass", {"keys": ["0..3", "2..9", "40"]}))
    assert torch.allclose(values(session, "attention.column_mass"), twin.weights.mean(-2), atol=1e-6)
    chosen = twin.weights[..., [*range(10), 40]].sum(-1).mean(-1)
    assert torch.allclose(values(session, "attention.key_mass"), chosen, atol=1e-6)


@pytest.mark.parametrize("value_width", [1, 4, 7, 8, 64])
@pytest.mark.parametrize("keys", [1, 5, 64])
def test_identity_values_give_the_weights(value_width: int, keys: int) -> None:
    call = kernels.call(batch=2, queries=9, keys=keys, causal=False, value_width=value_width)
    assert torch.allclose(identity_weights(call).double(), naive.attention(call.query, call.key).weights, atol=1e-6)


def test_whole_matrices_are_refused_past_the_limit() -> None:
    call = kernels.call(queries=DENSE_LIMIT + 1, heads=1, kv_heads=1)
    with pytest.raises(MeasurementError, match="up to 512 keys only; the input has 513"):
        identity_weights(call)
    with pytest.raises(MeasurementError, match="up to 512 tokens only; the input has 513"):
        context_of(call).weights(0, 0)
    assert math.ceil(call.query.shape[2] / rows_per_tile(call.key.shape[2])) == len(list(tiles(context_of(call))))
