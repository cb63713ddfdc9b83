"""Ways in which attention goes wrong, done to a call while it is measured: a property that none of them fails says nothing.

Some change what the model computes, and kernel and rows agree on it; some change the kernel alone, behind the back of its query, key and
mask. Each is done in all heads of all layers, or to all matrices where weights are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from attncheck.core.errors import MeasurementError
from attncheck.instruments.context import CallContext, identity_weights
from attncheck.instruments.rows import ScoreTile, tiles
from attncheck.instruments.visibility import Visibilities

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.evidence import AttentionCall, LayerWeights

LONGEST = 2048
"""Keys beyond which whole matrices of every head are not made."""
NOISE = 0.5
"""Standard deviation of added noise, of what it is added to."""
HUGE = 1e4


@dataclass(frozen=True)
class Perturbation:
    """`what` is done, in words; `call` and `weights` do it, and are None where it cannot be done to them."""

    name: str
    what: str
    call: Callable[[AttentionCall, CallContext, bool], AttentionCall | None] | None = None
    weights: Callable[[list[LayerWeights]], list[LayerWeights]] | None = None
    log: float = 1.0
    """By what a number of the training's log is multiplied."""


def perturbed(perturbation: Perturbation, context: CallContext, *, kernel_rows: bool) -> AttentionCall:
    """The call as it would be: unchanged where this perturbation cannot be done to it. `kernel_rows`: its rows are its kernel's."""
    if context.keys > LONGEST:
        raise MeasurementError(f"{context.call.path}: {context.keys} keys; calls are perturbed up to {LONGEST}")
    from_kernel = kernel_rows or context.call.rows_from_kernel
    found = perturbation.call(context.call, context, from_kernel) if perturbation.call is not None else None
    return context.call if found is None else found


def dense(call: AttentionCall, context: CallContext, from_kernel: bool) -> Tensor:
    """The weights of a call [batch, heads, N, M], by its formula or as its kernel applies them."""
    if from_kernel:
        return identity_weights(call).float()
    own = CallContext(call, Visibilities(), valid=context.valid, valid_keys=context.valid_keys, tokens=context.tokens)
    whole = torch.zeros(own.batch, call.heads, own.queries, own.keys, device=call.query.device)
    for tile in tiles(own):
        whole[tile.batch, tile.head, tile.rows, tile.key_slice] = tile.weights
    return whole


def applying(call: AttentionCall, weights: Tensor) -> AttentionCall:
    """The call with a kernel that applies these weights."""
    group = call.heads // call.kv_heads

    def replay(value: Tensor) -> Tensor:
        wide = value[..., : weights.shape[-1], :].float().repeat_interleave(group if value.shape[1] != call.heads else 1, 1)
        return (weights @ wide).to(value.dtype)

    return replace(call, replay=replay, output=replay(call.value))


def _generator(call: AttentionCall) -> torch.Generator:
    return torch.Generator(call.query.device).manual_seed(call.layer)


def _noisy(tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
    ordinary = tensor.float()[tensor.abs() < HUGE]  # scores that were masked by a large number tell no size
    return tensor + (NOISE * ordinary.std(correction=0) * noise).to(tensor.dtype)


def _believed(
    call: AttentionCall,
    context: CallContext,
    from_kernel: bool,
    change: Callable[[AttentionCall], AttentionCall],
    matrix: Callable[[Tensor], Tensor],
) -> AttentionCall:
    """A change of what the model computes: the kernel follows the changed query, key or scale. Scores that were seen ready made, and
    weights of which no scores are known, are changed by `matrix` instead."""
    if from_kernel:
        return applying(call, matrix(dense(call, context, from_kernel)))
    changed = change(call) if call.scores is None else replace(call, scores=matrix(call.scores), weights=None)
    return applying(changed, dense(changed, context, from_kernel=False))


def _noise(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall:
    generator = _generator(call)
    return _believed(
        call,
        context,
        from_kernel,
        lambda one: replace(one, query=_noisy(one.query, generator), key=_noisy(one.key, generator), value=_noisy(one.value, generator)),
        lambda one: _noisy(one, generator),
    )


def _scale(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall:
    return _believed(call, context, from_kernel, lambda one: replace(one, key=2 * one.key), lambda one: 2 * one)


def _heads(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall | None:
    if call.heads == 1:
        return None
    return _believed(call, context, from_kernel, lambda one: replace(one, query=one.query.roll(1, 1)), lambda one: one.roll(1, 1))


def _late(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall | None:
    if context.keys == 1:
        return None
    return _believed(call, context, from_kernel, lambda one: replace(one, key=one.key.roll(1, 2)), lambda one: one.roll(1, -1))


def _unnormalised(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall:
    """Scores over the square root of N in the softmax's place; of a kernel without known scores, twice its weights."""
    if from_kernel or call.weights is not None:
        weights = 2 * dense(call, context, from_kernel)
    else:
        own = CallContext(call, Visibilities(), valid=context.valid, valid_keys=context.valid_keys, tokens=context.tokens)
        weights = torch.zeros(own.batch, call.heads, own.queries, own.keys, device=call.query.device)
        for tile in tiles(own):
            if isinstance(tile, ScoreTile):
                scores = (tile.shifted + tile.top[:, None]) / own.keys**0.5
                weights[tile.batch, tile.head, tile.rows, tile.key_slice] = scores.masked_fill(tile.exponentials == 0, 0)
    return replace(applying(call, weights), rows_from_kernel=True)


def _rows(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall:
    return applying(call, 1.01 * dense(call, context, from_kernel))


def _output(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall:
    return replace(call, output=1.05 * call.output)


def _leak(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall | None:
    """In the middle row the first key behind it that it must not see gets a twentieth."""
    weights = dense(call, context, from_kernel)
    row = context.queries // 2
    unseen = (weights[:, :, row, row + 1 :] == 0).all((0, 1)).nonzero().flatten()
    if not len(unseen):
        return None
    weights[:, :, row, row + 1 + int(unseen[0])] += 0.05
    return applying(call, weights)


def _missing(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall:
    """In the middle row the key with the largest weight is left out."""
    weights = dense(call, context, from_kernel)
    row = context.queries // 2
    weights[:, :, row].scatter_(-1, weights[:, :, row].argmax(-1, keepdim=True), 0.0)
    return applying(call, weights)


def _other_head(call: AttentionCall, context: CallContext, from_kernel: bool) -> AttentionCall | None:
    return applying(call, dense(call, context, from_kernel).roll(1, 1)) if call.heads > 1 else None


def _each(layers: list[LayerWeights], change: Callable[[Tensor, str, int], Tensor]) -> list[LayerWeights]:
    """The same change (of a matrix, q, k, v or o, and the layer's number) of every matrix, and of the parts that add up to one."""

    def changed(layer: LayerWeights) -> LayerWeights:
        def of(which: str) -> Tensor | None:
            found = layer.matrix(which)
            return None if found is None else change(found, which, layer.layer)

        parts = {which: {name: change(one, which, layer.layer) for name, one in several.items()} for which, several in layer.parts.items()}
        return replace(layer, query=of("q"), key=of("k"), value=of("v"), output=of("o"), parts=parts, memo={})

    return [changed(layer) for layer in layers]


def _noisy_weights(layers: list[LayerWeights]) -> list[LayerWeights]:
    return _each(layers, lambda one, which, layer: _noisy(one, torch.Generator(one.device).manual_seed(layer)))


def _larger_weights(layers: list[LayerWeights]) -> list[LayerWeights]:
    """Keys alone, so that a ratio of matrices moves too."""
    return _each(layers, lambda one, which, layer: 2 * one if which == "k" else one)


def _other_heads_weights(layers: list[LayerWeights]) -> list[LayerWeights]:
    return _each(layers, lambda one, which, layer: one.roll(1, 0) if which == "q" else one)


def _sharper_weights(layers: list[LayerWeights]) -> list[LayerWeights]:
    """Singular values to the third power, the largest kept: few directions are left."""

    def sharper(matrix: Tensor, which: str, layer: int) -> Tensor:
        flat = matrix.flatten(1).float() if which == "o" else matrix.flatten(0, -2).float()
        left, values, right = torch.linalg.svd(flat, full_matrices=False)
        made: Tensor = (left * (values**3 / values[:1].clamp(min=1e-30) ** 2)) @ right
        return made.reshape(matrix.shape).to(matrix.dtype)

    return _each(layers, sharper)


def _reversed_layers(layers: list[LayerWeights]) -> list[LayerWeights]:
    order = layers[::-1]
    return [
        replace(place, query=one.query, key=one.key, value=one.value, output=one.output, parts=one.parts, memo={})
        for place, one in zip(layers, order, strict=True)
    ]


PERTURBATIONS: dict[str, Perturbation] = {
    one.name: one
    for one in (
        Perturbation("noise", "noise of half its size is added to each query, key and value, or projection", _noise, _noisy_weights),
        Perturbation(
            "scale", "keys, or their projections, are twice as large; the log tells three times as much", _scale, _larger_weights, 3.0
        ),
        Perturbation("kernel-rows", "the kernel's rows are larger by a hundredth", _rows),
        Perturbation("no-softmax", "scores over the square root of N are the weights", _unnormalised),
        Perturbation("sharper", "few directions of each projection are left: singular values to the third power", weights=_sharper_weights),
        Perturbation("layers", "the projections stand in the reverse order of layers", weights=_reversed_layers),
        Perturbation("heads", "each head has its neighbour's queries", _heads, _other_heads_weights),
        Perturbation("late-keys", "keys stand one place late", _late),
        Perturbation("leak", "the kernel gives a key from the future a twentieth, in one row", _leak),
        Perturbation("missing-key", "the kernel leaves out the largest key, in one row", _missing),
        Perturbation("kernel-heads", "the kernel gives each head its neighbour's weights", _other_head),
        Perturbation("output", "what the kernel hands on is larger by a twentieth", _output),
    )
}
"""By name; those that fail most properties come first."""
