"""contract(...).parametrize(): one pytest test per law, in a user's module."""

from __future__ import annotations

MODULE = """
from torch.nn.functional import scaled_dot_product_attention
from attncheck.testing import contract

def leaky(query, key, value, is_causal=False):
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal and query.shape[-2] < 9)

@contract({operator}, claims={claims}, examples=1).parametrize()
def test_mine(law):
    law.check()
"""


def run(pytester, operator, claims):
    pytester.makepyfile(MODULE.format(operator=operator, claims=claims))
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rfs")


def test_each_law_is_a_test(pytester):
    claims = {"causal": "flag", "gqa": True, "normalised": True, "nonnegative": True, "linear_in_values": True}
    found = run(pytester, "scaled_dot_product_attention", claims)
    outcomes = found.parseoutcomes()
    assert outcomes.get("failed", 0) == 0
    assert outcomes["passed"] > 12
    found.stdout.fnmatch_lines(["*claims.softcap is not claimed*"])


def test_a_broken_law_fails_its_test(pytester):
    found = run(pytester, "leaky", {"causal": "flag", "normalised": True})
    found.stdout.fnmatch_lines(["*law causal-future: Later keys*", "*found: *", "*reproduce:*", "FAILED *test_mine[[]causal-future]*"])


def test_too_few_laws_fail(pytester):
    found = run(pytester, "scaled_dot_product_attention", {"gqa": False})
    assert found.parseoutcomes()["failed"] == 1
    found.stdout.fnmatch_lines(["*HARDLY ANYTHING WAS TESTED*", "FAILED *enough-laws-applied*"])
