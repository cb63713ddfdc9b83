"""The output of a kernel against the exact rows times its values, without forming that product: no column may hide in another."""

from __future__ import annotations

from itertools import permutations

import kernels
import pytest
import torch
from torch import Tensor

from attncheck.core.evidence import AttentionCall
from attncheck.instruments.agreement import combine, own_error


def error(call: AttentionCall, output: Tensor) -> float:
    """Of another output than the call's own, which is exact."""
    given = combine(call, call.key.shape[2])
    assert given is not None
    heads = call.heads // call.kv_heads
    scores = call.query @ call.key.repeat_interleave(heads, 1).mT * call.scale
    weights = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    call.output = output
    return float(own_error(call, weights @ given.repeat_interleave(heads, 1)).max())


def test_the_output_itself_is_no_error() -> None:
    call = kernels.call(width=16)
    assert error(call, call.output) < 1e-6


@pytest.mark.parametrize("layer", range(3))
def test_every_pair_of_columns_that_is_exchanged_or_merged(layer: int) -> None:
    call = kernels.call(width=16)
    call.layer, sound = layer, call.output
    for one, other in permutations(range(16), 2):
        exchanged, merged = sound.clone(), sound.clone()
        exchanged[..., [one, other]] = sound[..., [other, one]]
        merged[..., one] += sound[..., other]
        merged[..., other] = 0
        assert error(call, exchanged) > 1e-3, (one, other)
        assert error(call, merged) > 1e-3, (one, other)


def test_a_column_of_the_wrong_sign_or_moved_by_one() -> None:
    call = kernels.call(width=16)
    sound = call.output
    for column in range(16):
        negated = sound.clone()
        negated[..., column] *= -1
        assert error(call, negated) > 1e-2
    assert error(call, sound.roll(1, -1)) > 1e-2
