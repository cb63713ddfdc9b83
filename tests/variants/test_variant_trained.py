"""Variants on trained weights: a packaged Llama's attention rebuilt, and its softmax replaced in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attncheck
from attncheck import variants
from attncheck.core.definitions import InputDefinition, SubjectDefinition
from attncheck.inputs import build
from attncheck.subjects import load

PIECES = ("q_proj", "k_proj", "v_proj", "o_proj")


class Replaced(nn.Module):
    """A variant's module where transformers calls a Llama's self_attn."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        return self.inner(hidden_states), None


def glassllm() -> tuple[Any, dict[str, Any]]:
    subject = load(SubjectDefinition("glassllm", "pretrained", {"name": "package:glassllm"}))
    feed = build(InputDefinition("manual", "corpus", {"name": "python-manual"}, length=96), subject.encoder, device="cpu", dtype="float32")
    return subject.model, feed.arguments


def with_weights_of(attention: nn.Module, definition: Any) -> Any:
    layer = variants.module(definition, width=128, heads=4, tokens=96, causal=True, rotary=True)
    with torch.no_grad():
        for name in PIECES:
            getattr(layer, name).weight.copy_(getattr(attention, name).weight)
    return layer


def test_grouped_queries_with_a_llamas_weights_are_its_attention() -> None:
    model, arguments = glassllm()
    seen: list[tuple[Tensor, Tensor]] = []
    handles = [
        block.self_attn.register_forward_hook(lambda m, args, kwargs, out: seen.append((kwargs["hidden_states"], out[0])), with_kwargs=True)
        for block in model.model.layers
    ]
    with torch.no_grad():
        model(**arguments)
        for handle in handles:
            handle.remove()
        assert len(seen) == 4
        for block, (hidden, output) in zip(model.model.layers, seen, strict=True):
            layer = with_weights_of(block.self_attn, {"gqa": {"kv_heads": 2}})
            torch.testing.assert_close(layer(hidden), output, atol=1e-5, rtol=1e-4)


def ungrouped(attention: Any) -> None:
    """The trained keys and values, each repeated for the query heads of its group."""
    with torch.no_grad():
        for name in ("k_proj", "v_proj"):
            repeated = nn.Linear(128, 128, bias=False)
            repeated.weight.copy_(getattr(attention, name).weight.view(2, 32, 128).repeat_interleave(2, 0).reshape(128, 128))
            setattr(attention, name, repeated)


@pytest.mark.parametrize("definition", ["mha", {"polynomial": {"power": 3, "factor": 1}}], ids=str)
def test_a_models_softmax_replaced(definition: Any) -> None:
    """That the norm stays below sqrt(N) holds of the trained model, and breaks once its softmax is a cube."""
    model, arguments = glassllm()
    before = attncheck.observe(model, arguments, ["attention.frobenius_norm"])["attention.frobenius_norm"]
    for block in model.model.layers:
        ungrouped(block.self_attn)
        block.self_attn = Replaced(with_weights_of(block.self_attn, definition))
    after = attncheck.observe(model, arguments, ["attention.frobenius_norm", "attention.future_mass"])
    norms = after["attention.frobenius_norm"]
    assert norms.sizes == before.sizes
    assert float(np.abs(after["attention.future_mass"]).max()) == 0
    if definition == "mha":
        np.testing.assert_allclose(norms.values, before.values, rtol=1e-4)
        assert float(norms.max()) <= 96**0.5 + 1e-4
    else:
        assert float(norms.max()) > 3 * 96**0.5
