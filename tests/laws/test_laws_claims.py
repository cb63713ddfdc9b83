"""Claims: what is unknown or contradictory is told, with what is allowed."""

from __future__ import annotations

import json

import pytest

from attncheck.core.claims import ClaimError, OperatorClaims


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"causel": True}, "did you mean 'causal'"),
        ({"causal": "sometimes"}, "allowed: True, False, 'flag'"),
        ({"causal": 1}, "causal: 1"),
        ({"mask": ["bool", "block"]}, "mask: 'block'"),
        ({"window": 0}, "above 0"),
        ({"window": 2.5}, "whole number"),
        ({"softcap": -1.0}, "above 0"),
        ({"scale": "1/sqrt(dd)"}, "an expression of d"),
        ({"positional": "none", "window": 4}, "positional: none"),
        ({"reference": "softmax", "nonnegative": False}, "nonnegative"),
        ({"reference": "softmax", "linear_in_values": False}, "linear"),
        ({"lse": "natural"}, "returns: output+lse"),
        ({"mask_with_causal": "allowed", "causal": True}, "without mask"),
        ({"rotary_axes": 2}, "without rotary"),
        ({"rotary": "half", "rotary_axes": "argument"}, "whole number above 0"),
        ({"rotary": "half", "positional": "none"}, "rotary or decay"),
        ({"blocks": "argument"}, "blocks without causal"),
        ({"decay": "argument", "causal": "flag"}, "causal: true"),
        ({"evicts": "least_weight"}, "without budget"),
        ({"quantised": ["int4"]}, "some of 'int8'"),
        ({"layouts": [3]}, "allowed: names"),
    ],
)
def test_wrong_claims_are_refused(claims, told):
    with pytest.raises(ClaimError) as refused:
        OperatorClaims.of(claims)
    assert told in str(refused.value)


def test_claims_survive_json():
    claims = OperatorClaims.of({"causal": "flag", "mask": ["bool"], "window": 4, "softcap": 30.0, "scale": "2/d", "deterministic": True})
    assert OperatorClaims.of(json.loads(json.dumps(claims.as_json()))) == claims
    assert claims.scale_for(8) == 0.25
