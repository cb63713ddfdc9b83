"""What each row observable means, on rows whose answer is known, and through real models against their own returned weights."""

from __future__ import annotations

import math

import kernels
import numpy as np
import pytest
import torch
import zoo
from kernels import measured, values
from observing import run, wanted
from torch import Tensor

from attncheck.core.errors import MeasurementError
from attncheck.core.observable import OBSERVABLES
from attncheck.engine.vocabulary import vocabulary

N = 40
EYE = torch.eye(N, dtype=torch.float64)
BACK = torch.arange(N) - 1


def attending(weights: Tensor, **options: object) -> kernels.AttentionCall:
    """A call of one head with exactly these rows; scores are their logarithms."""
    call = kernels.call(heads=1, kv_heads=1, queries=N, causal=False, **options)  # type: ignore[arg-type]
    call.query.zero_()
    call.bias = weights.float().clamp(min=1e-38).log()[None, None]
    call.mask = (weights > 0)[None, None]
    call.replay = lambda other: (weights @ other.double()).float()
    call.output = call.replay(call.value)
    return call


def uniform() -> Tensor:
    lower = torch.ones(N, N, dtype=torch.float64).tril()
    return lower / lower.sum(-1, keepdim=True)


def previous() -> Tensor:
    return EYE[BACK.clamp(min=0)]


KNOWN = {
    "attention.frobenius_norm": (uniform(), math.sqrt(sum(1 / i for i in range(1, N + 1)))),
    "attention.entropy": (uniform(), sum(math.log(i) for i in range(1, N + 1)) / N),
    "attention.largest_weight": (uniform(), sum(1 / i for i in range(1, N + 1)) / N),
    "attention.sink_mass": (0.7 * EYE[torch.zeros(N, dtype=torch.long)] + 0.3 * EYE, (0.7 * (N - 1) + 1) / N),
    "attention.first_four_mass": (uniform(), sum(min(4, i) / i for i in range(1, N + 1)) / N),
    "attention.mean_distance": (previous(), (N - 1) / N),
    "attention.previous_token": (previous(), 1.0),
    "attention.jacobian_norm": (previous(), 0.0),
    "logits.max": (uniform(), 0.0),
    "attention.row_sum": (uniform(), 1.0),
    "attention.future_mass": (uniform(), 0.0),
    "kernel.error": (uniform(), 0.0),
}


@pytest.mark.parametrize("name", list(KNOWN))
def test_known_answers(name: str) -> None:
    weights, answer = KNOWN[name]
    assert float(values(measured(attending(weights), name), name)) == pytest.approx(answer, rel=2e-6, abs=2e-6)


def test_distance_and_future_of_a_head_that_looks_ahead() -> None:
    ahead = EYE[(torch.arange(N) + 2).clamp(max=N - 1)]
    session = measured(attending(ahead), "attention.mean_distance", "attention.future_mass", "attention.previous_token")
    assert float(values(session, "attention.mean_distance")) == pytest.approx((2 * (N - 2) + 1) / N)
    assert float(values(session, "attention.future_mass")) == pytest.approx((N - 1) / N)
    assert float(values(session, "attention.previous_token")) == 0


@pytest.mark.parametrize("window", [1, 2, 5, 39])
def test_mass_outside_a_window_as_the_rows_say(window: int) -> None:
    found = values(measured(attending(uniform()), ("attention.outside_window_mass", {"window": window})), "attention.outside_window_mass")
    assert float(found) == pytest.approx(sum(max(i - window, 0) / i for i in range(1, N + 1)) / N, abs=2e-6)


def test_induction_looks_behind_the_last_earlier_copy() -> None:
    """Tokens a b c d a b c d ...: the head that attends to the token after the last copy has all its mass there."""
    tokens = (torch.arange(N) % 4)[None]
    behind = EYE[torch.where(torch.arange(N) >= 4, torch.arange(N) - 3, torch.zeros(N, dtype=torch.long))]
    assert float(values(measured(attending(behind), "attention.induction", tokens=tokens), "attention.induction")) == pytest.approx(1)
    assert float(values(measured(attending(previous()), "attention.induction", tokens=tokens), "attention.induction")) == 0
    kept = measured(attending(behind), ("attention.induction", {"per": "query"}), tokens=tokens).layers[0].values
    present = next(iter(kept.values())).present
    assert present[0, 0].tolist() == [False] * 4 + [True] * (N - 4)
    for other, words in ((torch.arange(N)[None], "no token occurs twice"), (None, "needs token ids")):
        with pytest.raises(MeasurementError, match=words):
            values(measured(attending(behind), "attention.induction", tokens=other), "attention.induction")


def test_induction_with_left_padding_does_not_copy_pads() -> None:
    tokens, valid = torch.zeros(1, N, dtype=torch.long), torch.ones(1, N, dtype=torch.bool)
    valid[0, :8] = False
    tokens[0, 8:] = torch.arange(N - 8) % 5 + 1
    slots = torch.where(torch.arange(N) >= 13, torch.arange(N) - 4, torch.full((N,), 8))
    call = attending(EYE[slots])
    assert float(values(measured(call, "attention.induction", tokens=tokens, valid=valid), "attention.induction")) == pytest.approx(1)


def test_key_mass_takes_a_list_of_ranges_and_counts_a_key_once() -> None:
    name = "attention.key_mass"
    for keys, count in (("0..3", 4), (["0..3", "2..5"], 6), ("38..", 2), ("7", 1), (["0..9", "20..29"], 20)):
        flat = torch.full((N, N), 1 / N, dtype=torch.float64)
        assert float(values(measured(attending(flat), (name, {"keys": keys})), name)) == pytest.approx(count / N, abs=1e-6)


def test_every_row_observable_is_one_number_a_query_when_asked() -> None:
    """and they fold to what the plain request gives."""
    call = kernels.call(batch=2)
    folds = {"mean": lambda x: x.mean(-1), "max": lambda x: x.amax(-1), "root_sum": lambda x: x.square().sum(-1).sqrt()}
    checked = 0
    for name, entry in vocabulary().observables.items():
        how = entry.about["over_queries"]
        needs = [p for p, (_, default) in entry.parameters.items() if default is ...]
        if how not in folds or needs or entry.about["reads"] not in ("rows", "probe") or name == "attention.padding_mass":
            continue
        session = measured(call, (name, {"per": "query"}), name)
        assert not session.faults, session.faults
        kept, folded = (torch.from_numpy(value.value) for value in session.layers[0].values.values())
        assert torch.allclose(folds[how](kept), folded, rtol=1e-9), name
        checked += 1
    assert checked >= 10


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "mistral", "gemma2", "gpt_oss", "bart"])
def test_statistics_of_the_weights_that_a_model_returns(name: str) -> None:
    model, arguments = zoo.build(name, "eager"), zoo.tokens(2, 21)
    if name == "bart":
        arguments["decoder_input_ids"] = zoo.tokens(2, 9, seed=1)["input_ids"]
    with torch.no_grad():
        out = model(**arguments, output_attentions=True)
    theirs = list(out.attentions) if name != "bart" else [
        *out.encoder_attentions, *(a for pair in zip(out.decoder_attentions, out.cross_attentions, strict=True) for a in pair)
    ]  # fmt: skip
    names = ("attention.frobenius_norm", "attention.entropy", "attention.largest_weight", "attention.sink_mass", "attention.column_mass")
    for one, weights in zip(run(model, arguments, names, kernel=False).calls, theirs, strict=True):
        a = weights.double()
        entropy = -torch.where(a > 0, a * a.clamp(min=1e-300).log(), 0.0).sum(-1).mean(-1)
        for found, exact in (
            ("attention.frobenius_norm", a.square().sum((-1, -2)).sqrt()),
            ("attention.entropy", entropy),
            ("attention.largest_weight", a.amax(-1).mean(-1)),
            ("attention.sink_mass", a[..., 0].mean(-1)),
            ("attention.column_mass", a.mean(-2)),
        ):
            assert np.allclose(one.values[found], exact.numpy(), atol=3e-6), (name, found)


def test_every_docstring_says_what_it_measures() -> None:
    wanted("attention.entropy")
    for name, entry in OBSERVABLES.items():
        assert len(entry.summary) > 30, name
        assert entry.summary.endswith("."), (name, entry.summary)


def test_mass_on_keys_that_the_input_does_not_have_is_no_claim() -> None:
    session = measured(attending(uniform()), ("attention.key_mass", {"keys": ["38..50"]}), ("attention.key_mass", {"keys": ["0", "40.."]}))
    (within, beyond) = (session.faults.get(key) for key in [want.request.key for want in session.by_reads["rows"]])
    assert within is None
    assert str(beyond) == "keys 40..: the input's keys are 0 to 39, so a claim about them says nothing"
