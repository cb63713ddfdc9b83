"""Norms of queries, keys and values on a padded batch with fewer key than query heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from attncheck.capture.observe import observe
from attncheck.core.errors import NotObservable
from attncheck.instruments.context import CallContext
from attncheck.instruments.visibility import Visibilities
from attncheck.observables import norms

KINDS = (("query", norms.queries_frobenius_norm), ("key", norms.keys_frobenius_norm), ("value", norms.values_frobenius_norm))


@pytest.fixture(scope="module")
def contexts() -> list[CallContext]:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=48, intermediate_size=32, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=8
    )
    config._attn_implementation = "sdpa"
    model = transformers.LlamaForCausalLM(config).eval()
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[0, :3] = False
    made: list[CallContext] = []
    seen = Visibilities()
    given = {"input_ids": torch.randint(3, 39, (2, 9)), "attention_mask": valid.long()}
    observe(model, given, lambda call: made.append(CallContext(call, seen, valid=valid)), batch=2)
    return made


@pytest.mark.parametrize(("name", "function"), KINDS)
def test_only_what_is_no_padding_counts(contexts: list[CallContext], name: str, function: Any) -> None:
    for context in contexts:
        vectors = getattr(context.call, name).double().numpy()
        expected = np.array([[np.linalg.norm(vectors[b, h, 3 if b == 0 else 0 :]) for h in range(vectors.shape[1])] for b in range(2)])
        found = function(context)
        assert found.dims == ("sample", "head")
        assert found.value.shape == (2, 6 if name == "query" else 2)
        assert found.value == pytest.approx(expected, rel=1e-12)
        tokens = np.array([[6.0], [9.0]])
        assert function(context, average="tokens").value == pytest.approx(expected / np.sqrt(tokens), rel=1e-12)
        assert function(context, average="entries").value == pytest.approx(expected / np.sqrt(tokens * 8), rel=1e-12)


def test_rubbish_on_padding_stays_out(contexts: list[CallContext]) -> None:
    context = contexts[0]
    before = norms.keys_frobenius_norm(context).value
    held = context.call.key[0, :, :3].clone()
    context.call.key[0, :, :3] = torch.nan
    after = norms.keys_frobenius_norm(context).value
    context.call.key[0, :, :3] = held
    assert after == pytest.approx(before)


class BySoftmax(torch.nn.Module):
    """Attention written out: capture sees its weights and values, and neither queries nor keys."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.softmax(hidden @ hidden.mT, -1) @ hidden


def test_what_was_not_seen_has_no_norm_of_zero() -> None:
    hidden, kept = torch.randn(1, 2, 5, 4), []
    observe(BySoftmax(), {"hidden": hidden}, lambda call: kept.append(CallContext(call, Visibilities())))
    for name, function in KINDS[:2]:
        with pytest.raises(NotObservable, match=f"its {name} was not seen: the call is known by its softmax alone"):
            function(kept[0])
    np.testing.assert_allclose(norms.values_frobenius_norm(kept[0]).value, hidden.double().square().sum((-1, -2)).sqrt().numpy(), rtol=1e-6)
