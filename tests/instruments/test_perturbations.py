"""What a perturbation does to a call, against plain formulas in float64."""

from __future__ import annotations

import pytest
import torch
import zoo

from attncheck.capture.observe import observe
from attncheck.capture.weights import attention_weights
from attncheck.core.definitions import Request
from attncheck.core.observable import OBSERVABLES
from attncheck.engine.vocabulary import vocabulary
from attncheck.instruments.perturbations import PERTURBATIONS, perturbed
from attncheck.instruments.session import Session, Wanted

KERNEL = ("kernel-rows", "leak", "missing-key", "kernel-heads", "output")


def calls(name, check):
    """Hands each call of a tiny llama and its perturbed twin to `check`."""
    session = Session([])
    seen = []

    def on_call(call):
        context = session._context(call)
        seen.append(call.layer)
        check(call, perturbed(PERTURBATIONS[name], context, kernel_rows=False))

    observe(zoo.build("llama"), zoo.tokens(2, 9), on_call)
    assert seen == [0, 1]


def naive(query, key, scale):
    key = key.double().repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query.double() @ key.mT * scale
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def weights(call):
    """Read off the kernel by identity values."""
    M = call.key.shape[-2]
    eye = torch.eye(M).expand(call.key.shape[0], call.key.shape[1], M, M)
    columns = [call.rerun(part) for part in eye.split(call.value.shape[-1], -1) if part.shape[-1] == call.value.shape[-1]]
    return torch.cat(columns, -1).double()


@pytest.mark.parametrize(
    ("name", "query", "key", "factor"),
    [
        ("scale", lambda q: q, lambda k: k, 2.0),
        ("heads", lambda q: q.roll(1, 1), lambda k: k, 1.0),
        ("late-keys", lambda q: q, lambda k: k.roll(1, 2), 1.0),
    ],
)
def test_what_the_model_computes_is_changed_and_its_kernel_follows(name, query, key, factor):
    def check(call, other):
        wanted = naive(query(call.query), key(call.key), factor * call.scale)
        found = weights(other)
        assert (found - wanted[..., : found.shape[-1]]).abs().max() < 1e-5
        assert other.output.shape == call.output.shape

    calls(name, check)


def test_noise_is_the_same_at_every_run():
    outputs = []
    for _ in range(2):
        calls("noise", lambda call, other: outputs.append((call.output, other.output)))
    assert torch.equal(outputs[0][1], outputs[2][1])
    assert (outputs[0][0] - outputs[0][1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", KERNEL)
def test_what_the_kernel_alone_does_is_found_by_its_error(name):
    vocabulary()
    request = Request("kernel.error")
    session = Session([Wanted(request, OBSERVABLES["kernel.error"])], perturbation=PERTURBATIONS[name])
    observe(zoo.build("llama"), zoo.tokens(2, 9), session.on_call)
    assert not session.faults
    assert all(float(layer.values[request.key].value.max()) > 5e-3 for layer in session.layers)


def test_without_softmax_rows_sum_to_nothing_in_particular():
    vocabulary()
    request = Request("attention.row_sum")
    session = Session([Wanted(request, OBSERVABLES["attention.row_sum"])], perturbation=PERTURBATIONS["no-softmax"])
    observe(zoo.build("llama"), zoo.tokens(2, 9), session.on_call)
    assert all(abs(float(layer.values[request.key].value.max()) - 1) > 1e-2 for layer in session.layers)


def test_projections_are_changed_as_said():
    layers = attention_weights(zoo.build("llama"))
    larger, other, turned = (PERTURBATIONS[name].weights(layers) for name in ("scale", "heads", "layers"))
    assert torch.equal(larger[0].key, 2 * layers[0].key)
    assert torch.equal(larger[0].query, layers[0].query)
    assert torch.equal(other[1].query[1], layers[1].query[0])
    assert torch.equal(turned[0].value, layers[1].value)
    assert turned[0].path == layers[0].path
    sharper = PERTURBATIONS["sharper"].weights(layers)
    before, after = (torch.linalg.svdvals(one[0].query.flatten(0, 1)) for one in (layers, sharper))
    torch.testing.assert_close(after, before**3 / before[0] ** 2, rtol=1e-3, atol=1e-5)
