"""A kernel that writes over its arguments leaves nothing to hold its answer against: an error that says so, and never a pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import zoo
from observing import run
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from attncheck.capture.operator_call import observe_operator
from attncheck.core.errors import MeasurementError, NotObservable
from attncheck.variants import attend

PARTS = ["query", "key", "value", "attn_mask"]


def writes(part: str, **arguments: Any) -> None:
    """As a kernel that rounds, normalises or scales without a copy does."""
    given = arguments[part]
    if given is not None:
        given.copy_(given.clone() if given.dtype == torch.bool else (given * 8).round() / 8)


@pytest.fixture
def registered() -> Iterator[str]:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **named: Any) -> Any:
        writes(attention.part, query=query, key=key, value=value, attn_mask=attention_mask)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **named)

    AttentionInterface.register("in-place", attention)
    AttentionMaskInterface.register("in-place", AttentionMaskInterface()["sdpa"])
    yield "in-place"
    AttentionInterface._global_mapping.pop("in-place")
    AttentionMaskInterface._global_mapping.pop("in-place")


@pytest.mark.parametrize("part", PARTS)
def test_in_a_model_of_transformers(registered: str, part: str) -> None:
    from transformers import AttentionInterface

    AttentionInterface._global_mapping["in-place"].part = part
    model = zoo.build("llama", "sdpa")
    model.set_attn_implementation(registered)
    named = "attention_mask" if part == "attn_mask" else part
    with pytest.raises(NotObservable, match=rf"layers\.0\.self_attn: its kernel \(in-place\) changes its {named} in place, .*on a copy"):
        run(model, zoo.tokens(2, 9, pad="left"))


@pytest.mark.parametrize("part", PARTS)
def test_in_an_operator(part: str) -> None:
    def operator(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, **named: Any) -> Tensor:
        writes(part, query=query, key=key, value=value, attn_mask=attn_mask)
        return scaled_dot_product_attention(query, key, value, attn_mask)

    given = {name: torch.randn(1, 2, 5, 4) for name in PARTS[:3]} | {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()}
    with pytest.raises(MeasurementError, match=f"the operator mine changes its {part} in place"):
        observe_operator(operator, given, lambda call: None, name="mine")


def test_in_what_a_module_announces() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
            return attend(self, operator, heads.clone(), heads.clone(), heads).transpose(1, 2).flatten(2)

    def operator(query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        writes("key", key=key)
        return scaled_dot_product_attention(query, key, value)

    with pytest.raises(NotObservable, match="Own: its operator changes its key in place"):
        run(Own(), {"x": torch.randn(1, 5, 8)})
