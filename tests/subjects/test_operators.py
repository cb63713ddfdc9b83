"""`operator:` the table, importable ones, and the plain formula against a float64 twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attncheck.core.errors import MeasurementError
from attncheck.subjects import load
from attncheck.variants.softmax import softmax_attention as softmax


def naive(query, key, value, mask, scale):
    """One query row at a time, in float64."""
    batch, heads, n, _ = query.shape
    group = heads // key.shape[1]
    out = np.zeros((batch, heads, n, value.shape[-1]))
    for b in range(batch):
        for h in range(heads):
            for i in range(n):
                seen = [j for j in range(key.shape[2]) if mask(i, j)]
                if not seen:
                    continue
                scores = np.array([scale * float(query[b, h, i].double() @ key[b, h // group, j].double()) for j in seen])
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out[b, h, i] = sum(w * value[b, h // group, j].double().numpy() for w, j in zip(weights, seen, strict=True))
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_softmax_is_the_formula(causal, kv_heads):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, kv_heads, 7, 8), torch.randn(2, kv_heads, 7, 3)
    ours = softmax(query, key, value, is_causal=causal, enable_gqa=kv_heads != 4)
    expected = naive(query, key, value, lambda i, j: not causal or j <= i, 1 / math.sqrt(8))
    np.testing.assert_allclose(ours.numpy(), expected, atol=2e-6)
    torch.testing.assert_close(
        ours, torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=kv_heads != 4)
    )


def test_softmax_with_masks_and_empty_rows():
    torch.manual_seed(1)
    query, key, value = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    seen = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=torch.bool)
    expected = naive(query, key, value, lambda i, j: bool(seen[i, j]), 0.3)
    np.testing.assert_allclose(softmax(query, key, value, attn_mask=seen, scale=0.3).numpy(), expected, atol=2e-6)
    additive = torch.zeros(4, 4).masked_fill(~seen, -math.inf)
    np.testing.assert_allclose(softmax(query, key, value, attn_mask=additive, scale=0.3).numpy(), expected, atol=2e-6)


def test_softmax_drops_weights_and_rescales_the_others():
    torch.manual_seed(0)
    q, v = torch.zeros(1, 1, 400, 2), torch.eye(400)[None, None]
    dropped = softmax(q, q, v, dropout_p=0.25)[0, 0]
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    torch.testing.assert_close(dropped.max(), torch.tensor(1 / 400 / 0.75))


def test_arguments_are_bound(define):
    torch.manual_seed(0)
    q = torch.randn(1, 1, 3, 4)
    scaled = load(define("operator", {"name": "sdpa", "arguments": {"scale": 0.25}})).operator
    torch.testing.assert_close(scaled(q, q, q), softmax(q, q, q, scale=0.25))


def test_a_variant_by_its_name_with_its_arguments_and_those_of_the_call(define):
    torch.manual_seed(0)
    q = torch.randn(1, 2, 5, 4)
    causal = load(define("operator", {"name": "polynomial", "arguments": {"power": 2, "factor": 0.5, "is_causal": True}})).operator
    scores = (q.double() @ q.double().mT / 2).square().tril() / 2
    torch.testing.assert_close(causal(q, q, q), (scores @ q.double()).float())
    with pytest.raises(MeasurementError, match="polynomial takes no 'powr'; did you mean 'power'"):
        load(define("operator", {"name": "polynomial", "arguments": {"powr": 2}}))
    with pytest.raises(MeasurementError, match="gqa needs 'kv_heads'"):
        load(define("operator", {"name": "gqa"}))


def test_importable_ones(define, tmp_path):
    (tmp_path / "operators_of_a_test.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def mean(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):\n"
        "    return value.mean(-2, keepdim=True).expand(*query.shape[:-1], -1)\n"
        "def made(*, times):\n"
        "    return lambda query, key, value, **options: value * times\n"
        "class Module(nn.Module):\n"
        "    def forward(self, query, key, value, **options): return value\n"
        "def number(): return 3\n"
    )
    v = torch.randn(1, 2, 3, 4)

    def operator(name, **arguments):
        return load(define("operator", {"name": f"operators_of_a_test:{name}", "arguments": arguments}), root=tmp_path).operator

    torch.testing.assert_close(operator("mean")(v, v, v)[:, :, 0], v.mean(-2))
    assert torch.equal(operator("made", times=2)(v, v, v), 2 * v)
    assert torch.equal(operator("Module")(v, v, v), v)
    with pytest.raises(MeasurementError, match="returned int; allowed: an attention operator"):
        operator("number")
    with pytest.raises(MeasurementError, match="takes no 'scal'; did you mean 'scale'"):
        operator("mean", scal=1)


def test_unknown_names_and_axes(define):
    with pytest.raises(MeasurementError, match=r"unknown operator 'sdpaa'; did you mean 'sdpa'.*allowed: sdpa, softmax"):
        load(define("operator", {"name": "sdpaa"}))
    with pytest.raises(MeasurementError, match="attn_implementation does not go with an operator"):
        load(define("operator", {"name": "sdpa"}, attn_implementation="eager"))


def test_an_operator_that_takes_anything_is_no_factory(define, tmp_path):
    (tmp_path / "wrapping.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention\n"
        "def any_of_it(*args, **kwargs): return scaled_dot_product_attention(*args, **kwargs)\n"
        "def broken(scale=1): return unknown\n"
    )
    query = torch.randn(1, 2, 3, 4)
    found = load(define("operator", {"name": "wrapping:any_of_it"}), root=tmp_path).operator
    torch.testing.assert_close(found(query, query, query), torch.nn.functional.scaled_dot_product_attention(query, query, query))
    with pytest.raises(MeasurementError, match=r"called for the operator that it returns, and raised NameError: .*\(query, key, value"):
        load(define("operator", {"name": "wrapping:broken"}), root=tmp_path)
