"""Which law catches which mutant of a model, beside one comparison of logits; the second half of docs/detection.md."""

from __future__ import annotations

from typing import Any

import torch
import zoo
from model_mutants import MODEL_MUTANTS, ModelMutant

import attncheck
from attncheck.core.model_claims import ModelClaims


def caught(mutant: ModelMutant, seed: int = 0) -> str | None:
    """The first law of models that a new instance of the mutant breaks."""
    report = attncheck.verify_model(mutant.make(), ModelClaims.of(mutant.claims), seed=seed, examples=2, first=True)
    return report.violations[0][0] if report.violations else None


def plainly(mutant: ModelMutant) -> bool:
    """Whether torch.testing.assert_close tells its outputs from the right model's: one call of [2, 12] tokens, no padding, no cache."""
    model = mutant.make()
    others = [name for name in mutant.claims.get("implementations", ()) if name.startswith("mutant_")]
    if mutant.right is not None:
        right = mutant.right()
    elif others:
        right = mutant.make()
        model.set_attn_implementation(others[0])
    else:
        right = zoo.build(model.config.model_type)
    ids: dict[str, Any] = {"input_ids": zoo.tokens(2, 12)["input_ids"]}
    if model.config.is_encoder_decoder:
        ids["decoder_input_ids"] = zoo.tokens(2, 12, seed=1)["input_ids"]
    with torch.no_grad():
        found, wanted = (one(**ids)[0] for one in (model, right))
    try:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    except AssertionError:
        return True
    return False


HEAD = """
## Models

Reported bugs of whole models, each as one changed step of a tiny model of transformers with random weights
(`tests/bugs/model_mutants.py`), held against the laws of models (`attncheck.verify_model`, seed 0). The plain comparison calls the model
and the right one once, on [2, 12] tokens without padding or cache, and compares what comes back. No law knows of any of these mutants,
but the laws were developed beside them. The first run caught three fewer: one model did not run in float64, and the laws, which took
their tolerance from there, said nothing of it (they now move its weights by a unit in the last place instead); the other two mutants did
not act, or hid the model's arguments, and were rewritten. Of the three that came later (sc-04, sc-05, sw-11) sw-11 was missed at first,
since the law of reach left out encoders, and the scale of a configuration had no law. The segments of sw-11's vision layers are windows of
an encoder of text here.

| bug | what goes wrong | first law broken | plain comparison |
|---|---|---|---|
"""


def section() -> str:
    rows, seen, plain = [], 0, 0
    for mutant in MODEL_MUTANTS:
        law, visible = caught(mutant), plainly(mutant)
        seen, plain = seen + bool(law), plain + visible
        rows.append(
            f"| {mutant.row} | {mutant.what[0].upper()}{mutant.what[1:]} | {law or '**missed**'} | {'seen' if visible else 'missed'} |"
        )
    total = len(MODEL_MUTANTS)
    return HEAD + "\n".join(rows) + f"\n\nCaught: {seen} of {total} by the laws of models, {plain} of {total} by the plain comparison.\n"
