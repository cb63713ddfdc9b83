"""verify: reproducible, within its budget, loud where nothing applied, with a script that reproduces."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
import torch
from correct import OPERATORS, SDPA
from torch.nn.functional import scaled_dot_product_attention

import attncheck
from attncheck.core.claims import OperatorClaims
from attncheck.core.errors import AttncheckError
from attncheck.laws.dense import attention
from attncheck.laws.example import ADVERSARIAL, LAYOUTS, fitted
from attncheck.laws.search import drawn
from attncheck.laws.tensors import build


def unscaled(query, key, value, attn_mask=None, is_causal=False):
    return scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=1.0)


CLAIMS = {"causal": "flag", "mask": ["bool"], "scale": "1/sqrt(d)", "reference": "softmax", "normalised": True}


def test_the_script_of_a_failure_reproduces_it():
    report = attncheck.verify(unscaled, CLAIMS, laws=["reference-dense_float64"])
    ((law, message, example),) = report.violations
    assert law == "reference-dense_float64"
    script = re.search(r"  reproduce:\n((?:    .*\n?)+)", message)
    assert script is not None
    code = [line.strip() for line in script[1].splitlines() if "as operator" not in line]
    names = {"operator": unscaled}
    exec("\n".join(code), names)
    claims = OperatorClaims.of(CLAIMS)
    query, key, value, options = build(example, claims)
    assert torch.equal(names["q"], query)
    wanted = attention(claims, query, key, value, options).output
    assert float((names["out"].double() - wanted).abs().max()) > 1e-3


def test_a_failure_shrinks_to_a_small_shape():
    ((_, message, example),) = attncheck.verify(unscaled, CLAIMS, laws=["reference-dense_float64"]).violations
    assert example.size <= 60, message
    assert example.inputs == "gaussian"
    assert example.mask == "none"


def test_the_same_seed_gives_the_same_report():
    first, again = (str(attncheck.verify(unscaled, CLAIMS, seed=5, examples=3, laws=["values", "masks", "reference"])) for _ in range(2))
    assert first == again
    claims = OperatorClaims.of(SDPA)
    assert drawn(claims, 3, 15) == drawn(claims, 3, 15) != drawn(claims, 4, 15)


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    attncheck.verify(*OPERATORS["sdpa"], examples=0, laws=["determinism"])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_hardly_any_law_applied_is_no_pass():
    report = attncheck.verify(scaled_dot_product_attention, {"gqa": True}, budget=0.0001, examples=0)
    assert not report.passed
    assert not report.violations
    assert "HARDLY ANYTHING WAS TESTED" in str(report)
    assert any("budget" in reason for _, reason in report.skipped)


def test_an_operator_that_raises_breaks_its_claims():
    def raising(query, key, value, **options):
        if query.shape[-2] != key.shape[-2]:
            raise RuntimeError("only square")
        return scaled_dot_product_attention(query, key, value, **options)

    report = attncheck.verify(raising, {"causal": False, "reference": "softmax"}, examples=0, laws=["reference"])
    assert "only square" in report.violations[0][1]


def test_unknown_laws_are_refused():
    with pytest.raises(AttncheckError, match="did you mean 'masks'"):
        attncheck.verify(scaled_dot_product_attention, {"causal": False}, laws=["mask"])


def test_the_budget_is_kept():
    def calls(budget):
        made = []

        def slow(query, key, value, **options):
            made.append(time.sleep(0.01))
            return scaled_dot_product_attention(query, key, value, **options)

        attncheck.verify(slow, SDPA, budget=budget)
        return len(made)

    assert calls(0.3) < calls(2.5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_what_they_say(layout):
    claims = OperatorClaims.of(SDPA)
    example = fitted(ADVERSARIAL[0].but(layout=layout, keys=9, heads=4, kv_heads=4), claims)
    _, key, _, _ = build(example, claims)
    assert key.shape == (2, 4, 9, 8)
    assert key.is_contiguous() is (layout == "contiguous")


def test_the_dense_twin_agrees_with_torch_in_float64():
    claims = OperatorClaims.of(SDPA)
    for example in ADVERSARIAL:
        query, key, value, options = build(fitted(example, claims), claims)
        precise = {
            name: given.double() if torch.is_tensor(given) and given.is_floating_point() else given for name, given in options.items()
        }
        wanted = scaled_dot_product_attention(query.double(), key.double(), value.double(), **precise)
        torch.testing.assert_close(attention(claims, query, key, value, options).output, wanted, rtol=1e-9, atol=1e-9)


def test_laws_come_in_one_order_whichever_family_was_imported_first():
    source = "{first}\nfrom attncheck.laws.registry import laws\nprint([entry.id for entry in laws()])"
    printed = [
        subprocess.run([sys.executable, "-c", source.format(first=first)], capture_output=True, text=True, check=True).stdout
        for first in ("", "import attncheck.laws.gradients")
    ]
    assert printed[0] == printed[1]
    assert "gradients-float64_autograd" in printed[0]
