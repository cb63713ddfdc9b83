"""Arguments that make no sense are refused when the spec is read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from attncheck.engine.vocabulary import vocabulary


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("attention.spectral_norm", {"steps": 0}),
        ("attention.stable_rank", {"steps": 10**9}),
        ("attention.participation_ratio", {"columns": 1}),
        ("attention.frobenius_estimate", {"columns": 0}),
        ("attention.frobenius_estimate", {"columns": 100_000_000}),
        ("attention.frobenius_estimate", {"alpha": 2}),
        ("attention.frobenius_estimate", {"alpha": 0}),
        ("attention.key_mass", {"keys": []}),
    ],
)
def test_numbers_without_sense_are_refused(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        vocabulary().observables[name].arguments(**given)
