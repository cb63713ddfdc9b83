"""A model's output in a few numbers: whether it moved, and about how far."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attncheck.capture.output import fingerprint
from attncheck.core.baseline import PROJECTIONS, Environment, Output, Recording, output_told

SHAPE = (2, 30, 200)
HERE = Environment("cpu", "", "float32", "sdpa")


def change(kind: str) -> Tensor:
    made = torch.zeros(SHAPE)
    if kind == "everywhere":
        return torch.randn(SHAPE) * 1e-3
    if kind == "one token":
        made[0, 7] = torch.randn(SHAPE[-1]) * 1e-2
    elif kind == "one column":
        made[:, :, 5] = torch.randn(SHAPE[:2]) * 1e-2
    else:
        made[1, 3, 4] = 0.1
    return made


def found(output: object, valid: Tensor | None = None) -> Output:
    made = fingerprint(output, valid)
    assert made is not None
    return made


@pytest.mark.parametrize("kind", ["everywhere", "one token", "one column", "one number"])
def test_the_size_of_a_change(kind: str) -> None:
    torch.manual_seed(0)
    ratios = []
    for _ in range(50):
        output, moved = torch.randn(SHAPE), change(kind)
        ratios.append(found(output).change(found(output + moved)) / float(moved.norm() / output.norm()))
    assert 0.9 < sum(ratios) / len(ratios) < 1.1
    assert 0.4 < min(ratios) <= max(ratios) < 2


def test_nothing_moved_is_nothing() -> None:
    output = torch.randn(SHAPE)
    assert found(output).change(found(output.clone())) == 0
    assert len(found(output).projections) == PROJECTIONS
    assert found(output).norm == pytest.approx(float(output.double().norm()), rel=1e-6)


def test_padding_counts_for_nothing() -> None:
    output, valid = torch.randn(SHAPE), torch.ones(SHAPE[:2], dtype=torch.bool)
    valid[0, :5] = False
    other = output.clone()
    other[0, :5] = 9
    assert found(output, valid) == found(other, valid)
    assert found(output) != found(other)


def test_what_a_forward_may_return() -> None:
    output = torch.randn(SHAPE)
    assert found((output, None)) == found({"ids": torch.ones(2, dtype=torch.long), "logits": output}) == found(output)
    assert found(torch.randn(4)).norm > 0
    for nothing in (None, (), torch.ones(3, dtype=torch.long), torch.full((2, 2), float("nan"))):
        assert fingerprint(nothing, None) is None


def recording(output: Output | None, dtype: str = "float32") -> Recording:
    return Recording(Environment("cpu", "", dtype, "sdpa"), "q", "", (), {}, [1.0], output)


def test_in_words() -> None:
    output = torch.randn(SHAPE)
    base = recording(found(output))
    assert output_told(base, recording(None)) == ""
    assert output_told(base, base) == "the model's output is as recorded, to the last digit kept"
    assert output_told(base, recording(found(output * (1 + 1e-6)))).endswith("of its norm, no more than rounding")
    assert output_told(base, recording(found(output * 1.01))).startswith("the model's output moved as well, by about 0.0")
    # What another dtype does by rounding alone is no move of the model.
    assert output_told(base, recording(found(output * 1.01), "bfloat16")).endswith("no more than rounding")
