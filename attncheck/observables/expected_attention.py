"""Expected against observed attention: what a Gaussian model of the queries predicts that later queries pay to a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncheck.core.errors import MeasurementError
from attncheck.core.fields import Span, parse_span
from attncheck.core.observable import Value, observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.context import CallContext
    from attncheck.instruments.rotary import Rotation
    from attncheck.instruments.rows import Tile

PLACE = ("sample", "layer", "head", "key")
SOURCE = "arXiv:2510.00636"


def _finish_observed(means: Tensor, context: CallContext, *, queries: Span, keys: Span, normalise: bool = False) -> Tensor:
    import torch

    chosen = _within(context.key_positions, keys) & context.key_counts
    for sample in range(context.batch):
        asked = _within(context.query_positions[sample], queries) & context.counts[sample]
        _some(asked, "queries", queries, context.query_positions[sample][context.counts[sample]])
        _some(chosen[sample], "keys", keys, context.key_positions[sample][context.key_counts[sample]])
    kept = torch.where(chosen[:, None, :], means, torch.nan)
    return kept / kept.nansum(-1, keepdim=True) if normalise else kept


@observable("attention.observed_scores", reads="columns", dims=PLACE, source=SOURCE, finish=_finish_observed)
def observed_scores(tile: Tile, *, queries: Span, keys: Span, normalise: bool = False) -> tuple[Tensor, int]:
    """Mean true attention weight that the chosen queries pay to each chosen key: (1/n) sum_i a_ij.

    `queries` and `keys` are ranges of positions, counted from the first token that is no padding. With `normalise` the means are divided
    by their sum over the chosen keys, which makes them comparable in size to `attention.expected_scores`; without, they are smaller by the
    mass on the keys that were left out (the sinks).

    Raises MeasurementError where a sample has none of the queries or keys.
    """
    chosen = _within(tile.query_positions, queries) & tile.counts
    return tile.scatter(tile.weights[chosen].double().sum(0)), int(chosen.sum())


@observable("attention.column_mass", reads="columns", dims=PLACE)
def column_mass(tile: Tile) -> Tensor:
    """Mean attention weight that each key receives, over the queries that count; under a causal mask keys that few queries see get less."""
    return tile.scatter(tile.weights[tile.counts].double().sum(0))


@observable("attention.expected_scores", reads="call", dims=PLACE, source=SOURCE)
def expected_scores(
    context: CallContext,
    *,
    statistics: Span,
    future: Span,
    keys: Span,
    variant: Literal["averaged-rotary", "mixture", "per-position"] = "averaged-rotary",
) -> Value:
    """Attention that queries at the positions `future` are expected to pay to each chosen key; sums to 1 over the keys.

    Queries before the rotary embedding are modelled as a Gaussian N(mu, Sigma) per query head, fitted to the positions `statistics`
    (biased covariance). With s the model's scale and k a rotated key, E exp(s q.k) = exp(s mu'.k + s^2/2 k^T Sigma' k), normalised over
    the chosen keys. mu' and Sigma' carry the model's own rotation of the `future` positions:

    - averaged-rotary: mu' = Rbar mu, Sigma' = Rbar Sigma Rbar^T with Rbar the mean rotation (the paper's; pairs that turn fast vanish);
    - mixture: mean and covariance of the mixture of the rotated Gaussians over the future positions;
    - per-position: the normalised scores of each future position, averaged; the most exact and the slowest.

    The captured queries are un-rotated with what the model's own rotary function did, so a norm of the queries, biases, fused projections,
    partial rotary and layers that do not rotate are in. A softcap is not (a note says so), nor are masks: choose keys that the future
    queries see. A key head serves every query head of its group. `keys: 4..511` leaves four sinks out.

    Raises MeasurementError where a sample has fewer than 2 queries in `statistics`, none in `future`, or no key in `keys`, and
    NotObservable where the model's rotation is not known.
    """
    import torch

    from attncheck.instruments.rotary import Rotation

    call = context.call
    rotation = Rotation.of(call)
    group = call.heads // call.kv_heads
    scores = torch.full((context.batch, call.heads, context.keys), torch.nan, dtype=torch.float64)
    present = torch.zeros(scores.shape, dtype=torch.bool)
    for sample in range(context.batch):
        at, counted = context.query_positions[sample], context.counts[sample]
        past, later = _within(at, statistics) & counted, _within(at, future) & counted
        chosen = _within(context.key_positions[sample], keys) & context.key_counts[sample]
        _some(past, "statistics", statistics, at[counted], least=2)
        _some(later, "future", future, at[counted])
        _some(chosen, "keys", keys, context.key_positions[sample][context.key_counts[sample]])
        query = call.query[sample, :, past].double()
        if rotation is not None:
            query = rotation.at(sample, past).unapply(query)
        turned = None if rotation is None else rotation.at(sample, later)
        key = call.key[sample, :, chosen].double().repeat_interleave(group, 0)
        present[sample] = chosen.cpu()
        scores[sample][:, chosen.cpu()] = expected(*moments(query), key, call.scale, turned, variant).cpu()
    notes = ["the softcap of the scores is not part of the Gaussian model"] if call.softcap is not None else []
    return Value(scores.numpy(), ("sample", "head", "key"), notes=notes, present=present.numpy())


def moments(query: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [H, d] and biased covariance [H, d, d] of queries [H, n, d] over their positions."""
    mean = query.mean(1)
    centred = query - mean[:, None]
    return mean, centred.mT @ centred / query.shape[1]


def expected(mean: Tensor, covariance: Tensor, key: Tensor, scale: float, rotation: Rotation | None, variant: str) -> Tensor:
    """Expected attention [H, K] to rotated keys [H, K, d], for queries N(mean, covariance) before `rotation` [positions, pairs]."""
    if rotation is None:
        return _logits(mean, covariance, key, scale).softmax(-1)
    if variant == "averaged-rotary":
        turn = rotation.mean()
        return _logits(turn.apply(mean[:, None])[:, 0], turn.both_sides(covariance), key, scale).softmax(-1)
    if variant == "mixture":
        return _logits(*_mixture(mean, covariance, rotation), key, scale).softmax(-1)
    total = key.new_zeros(key.shape[:2])
    positions = rotation.positions
    for t in range(positions):
        # q = R x, so q.k = x.(R^T k): turning the keys back costs less than turning the covariance.
        total += _logits(mean, covariance, rotation.one(t).transposed(key), scale).softmax(-1)
    return total / positions


def _logits(mean: Tensor, covariance: Tensor, key: Tensor, scale: float) -> Tensor:
    """log E exp(scale q.k) for q ~ N(mean, covariance): [H, K]."""
    import torch

    first: Tensor = torch.einsum("hd,hkd->hk", mean, key)
    second: Tensor = torch.linalg.vecdot(key @ covariance, key)
    return scale * first + scale**2 / 2 * second


def _mixture(mean: Tensor, covariance: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """Mean and covariance of R_t x over t and x: E[R (C + m m^T) R^T] - (E R m)(E R m)^T."""
    second = covariance + mean[:, :, None] * mean[:, None, :]
    positions = rotation.positions
    summed = sum((rotation.one(t).both_sides(second) for t in range(1, positions)), rotation.one(0).both_sides(second))
    turned = rotation.mean().apply(mean[:, None])[:, 0]
    return turned, summed / positions - turned[:, :, None] * turned[:, None, :]


def _within(positions: Tensor, span: str) -> Tensor:
    start, stop = parse_span(span)
    inside = positions >= start
    return inside if stop is None else inside & (positions <= stop)


def _some(chosen: Tensor, name: str, span: str, positions: Tensor, least: int = 1) -> None:
    start, stop = parse_span(span)
    last = int(positions.max()) if len(positions) else -1
    if int(chosen.sum()) < least or (stop is not None and stop > last):
        raise MeasurementError(
            f"{name}: {span} asks for positions {start} to {'the end' if stop is None else stop}; the input has 0 to {last}, and "
            f"{int(chosen.sum())} of those asked for count (needed: {least})"
        )
