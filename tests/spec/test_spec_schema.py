"""The JSON Schema: a valid draft-07 schema that accepts the figures and refuses the usual slips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from attncheck.core.errors import SpecError
from attncheck.core.vocabulary import Vocabulary
from attncheck.spec.loader import load_bytes
from attncheck.spec.nodes import read_or_raise
from attncheck.spec.schema import json_schema

HERE = Path(__file__).parent
GOOD = """attncheck: 1
subjects:
  a: {pretrained: x, dtype: [float32, float64], marks: [large]}
  b: {like: a, weights: random, seeds: [0, 1]}
  c: {operator: {polynomial: {power: 3}}}
inputs:
  t: {text: hello, batch: 2, padding: {side: left, amount: 1}}
expect:
  p:
    observe: {weights.alpha: {matrix: q}}
    where: {layer: 1.., stack: self}
    ratio_to: {subject: b}
    at_least: 1 / sqrt(N)
    for: 80% of layers
    subjects: a
"""
SLIPS = [
    ("attncheck: 1", "attncheck: 2"),
    ("subjects:\n", "subject:\n"),
    ("pretrained: x", "pretraned: x"),
    ("dtype: [float32", "dtyp: [float32"),
    ("weights: random", "weights: rnd"),
    ("seeds: [0, 1]", "seeds: [zero]"),
    ("  b:", "  B:"),
    ("text: hello", "txt: hello"),
    ("batch: 2", "batch: 0"),
    ("side: left", "side: top"),
    (", amount: 1", ""),
    ("observe: ", "obsreve: "),
    ("weights.alpha", "weights.alfa"),
    ("matrix: q", "matrix: z"),
    ("{matrix: q}", "{matrx: q}"),
    ("{weights.alpha: {matrix: q}}", "weights.alpha"),
    ("layer: 1..", "laier: 1.."),
    ("{subject: b}", "b"),
    ("at_least: 1 / sqrt(N)", "at_lest: 1"),
    ("at_least: 1 / sqrt(N)", "at_least: [1]"),
    ("at_least: 1 / sqrt(N)", "why: no demand"),
    ("at_least: 1 / sqrt(N)", "at_least: 1\n    at_most: 2"),
    ("at_least: 1 / sqrt(N)", "between: [1]"),
    ("80% of layers", "most layers"),
    ("subjects: a\n", "subjects: a\n    level: wran\n"),
    ("subjects: a\n", "subjects: a\n    unless: {subject: a}\n"),
    ("subjects: a\n", "subjects: a\n    tolerance: near\n"),
    ("subjects: a\n", "subjects: a\n    reduce: {layer: average}\n"),
]


@pytest.fixture(scope="module")
def schema(vocabulary: Vocabulary) -> Any:
    made = json_schema(vocabulary)
    Draft7Validator.check_schema(made)
    return Draft7Validator(made)


def plain(text: str) -> Any:
    return read_or_raise(text.encode(), "f").plain


@pytest.mark.parametrize("path", sorted((HERE / "figures").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_figures_are_accepted(schema: Any, path: Path) -> None:
    assert [error.message for error in schema.iter_errors(plain(path.read_text(encoding="utf-8")))] == []


def test_the_base_of_the_slips_is_accepted_by_schema_and_loader(schema: Any, vocabulary: Vocabulary) -> None:
    assert schema.is_valid(plain(GOOD))
    assert load_bytes(GOOD.encode(), HERE / "f.attn.yaml", vocabulary).cases


@pytest.mark.parametrize(("right", "slip"), SLIPS, ids=[slip.strip() for _, slip in SLIPS])
def test_slips_are_refused_by_schema_and_loader(schema: Any, vocabulary: Vocabulary, right: str, slip: str) -> None:
    assert right in GOOD
    text = GOOD.replace(right, slip, 1)
    assert not schema.is_valid(plain(text))
    with pytest.raises(SpecError):
        load_bytes(text.encode(), HERE / "f.attn.yaml", vocabulary)


def test_what_an_editor_shows(vocabulary: Vocabulary) -> None:
    made = json_schema(vocabulary)
    named = made["definitions"]["observable"]["anyOf"][1]["properties"]
    assert named["weights.norm"]["description"] == "Frobenius norm of a projection."
    assert named["weights.norm"]["properties"]["matrix"]["enum"] == ["q", "k", "v", "o"]
    assert "uniform_norm" in made["definitions"]["property"]["properties"]["at_least"]["description"]


def test_every_reference_is_defined_and_nothing_stands_beside_one(vocabulary: Vocabulary) -> None:
    made = json_schema(vocabulary)
    seen = []

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            if "$ref" in part:
                seen.append(part["$ref"])
                assert len(part) == 1 or set(part) == {"$ref"}
            for child in part.values():
                walk(child)
        elif isinstance(part, list):
            for child in part:
                walk(child)

    walk({name: child for name, child in made.items() if name != "properties"})
    assert seen
    for reference in seen:
        assert reference.removeprefix("#/definitions/") in made["definitions"]
