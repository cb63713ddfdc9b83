"""Definitions: what is told of wrong ones, without torch; how specs and other packages name variants."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from attncheck import variants
from attncheck.cli.explain import explanation
from attncheck.engine.vocabulary import vocabulary
from attncheck.variants.catalogue import SHIPPED
from attncheck.variants.fields import VariantArgument
from attncheck.variants.registry import VARIANTS, Entry, Variant, resolved
from attncheck.variants.softmax import softmax_attention


class Argument(BaseModel):
    attention: VariantArgument


@pytest.mark.parametrize(
    ("definition", "told"),
    [
        ("sofmax", ["unknown attention variant 'sofmax'; did you mean 'softmax'?; allowed: softmax, mha, mqa, gqa, mla, lrkv"]),
        ({"lrvk": {"rank": 3}}, ["unknown attention variant 'lrvk'; did you mean 'lrkv'?"]),
        ("lrkv", ["lrkv needs 'rank'"]),
        ({"lrkv": {"rank": -1}}, ["lrkv: rank: Input should be greater than or equal to 0; found -1"]),
        ({"lrkv": {"rank": 2.5}}, ["lrkv: rank: Input should be a valid integer; found 2.5"]),
        ({"lrkv": {"rank": True}}, ["lrkv: rank: Input should be a valid integer; found True"]),
        ({"lrkv": {"rank": 3, "residual": "off"}}, ["lrkv: residual: Input should be 'learned' or 'zero'; found 'off'"]),
        ({"gqa": {"kv_head": 3}}, ["gqa needs 'kv_heads'", "gqa takes no 'kv_head'; did you mean 'kv_heads'?; allowed: kv_heads"]),
        ({"mha": {"heads": 3}}, ["mha takes no 'heads'; allowed: no arguments"]),
        ({"polynomial": {"power": 0}}, ["polynomial: power: Input should be greater than or equal to 1; found 0"]),
        ({"polynomial": {"factor": "1/sqrt(n)"}}, ["'n' is no symbol that a bound may use; allowed: N, d; did you mean 'N'?"]),
        ({"polynomial": {"factor": "__import__('os')"}}, ["is not allowed in a bound"]),
        ({"polynomial": {"factor": "9**9**9"}}, ["comes to inf, not to a finite number"]),
        ({"sigmoid": {"bias": "learned"}}, ["sigmoid: bias: 'learned' is no symbol"]),
        ({"softcap": {"cap": 0}}, ["softcap: cap: Input should be greater than 0"]),
        ({"sliding_window": {"window": 0}}, ["sliding_window: window: Input should be greater than or equal to 1"]),
        ({}, ["{} is not an attention variant; allowed: a name, or one name with its arguments, as in {lrkv: {rank: 10}}"]),
        ({"mha": {}, "mqa": {}}, ["is not an attention variant"]),
        ({"mha": 3}, ["is not an attention variant"]),
        (None, ["None is not an attention variant"]),
    ],
)
def test_what_is_wrong_is_told(definition: Any, told: list[str]) -> None:
    problems = variants.check(definition)
    assert len(problems) == len(told)
    assert all(part in problem for part, problem in zip(told, problems, strict=True))
    with pytest.raises(variants.VariantError):
        variants.operator(definition)
    with pytest.raises(ValidationError, match="attention"):
        Argument(attention=definition)


@pytest.mark.parametrize("definition", ["mha", "softmax", {"mha": None}, {"softmax": {}}])
def test_one_variant_in_several_forms(definition: Any) -> None:
    assert variants.check(definition, width=96, heads=4) == []
    assert Argument(attention=definition).attention == "softmax"


def test_all_arguments_are_filled_in() -> None:
    assert Argument(attention={"lrkv": {"rank": 10}}).attention == {"lrkv": {"rank": 10, "residual": "learned"}}
    assert Argument(attention="polynomial").attention == {"polynomial": {"power": 3, "factor": "1/sqrt(N)"}}
    assert str(resolved({"lrkv": {"rank": 10}})) == "lrkv (rank: 10, residual: learned)"


def test_the_schema_of_an_argument_that_names_a_variant() -> None:
    schema = json.loads(json.dumps(Argument.model_json_schema()))
    jsonschema.Draft7Validator.check_schema(schema)
    for right in ("mha", "polynomial", {"lrkv": {"rank": 10}}, {"polynomial": {"power": 3, "factor": 1}}, {"polynomial": None}):
        jsonschema.validate({"attention": right}, schema)
    for wrong in ("lrkv", "sofmax", {"lrkv": {"rank": -1}}, {"lrkv": {"rnk": 1}}, {"mha": {}, "mqa": {}}, {}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"attention": wrong}, schema)


def test_naming_and_checking_need_no_torch() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'xarray', 'scipy', 'matplotlib', 'numpy'): sys.modules[name] = None\n"
        "from attncheck import variants\n"
        "from attncheck.variants.fields import VariantArgument\n"
        "from attncheck.subjects.operator import check\n"
        "for name in variants.VARIANTS: variants.check(name, width=96, heads=4, rotary=True)\n"
        "assert variants.check({'lrkv': {'rank': 30}}, width=96, heads=4)\n"
        "assert not check({'name': 'polynomial', 'arguments': {'power': 3, 'is_causal': True}})\n"
        "assert check({'name': 'polynomial', 'arguments': {'powr': 3}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_variant_is_documented() -> None:
    known = vocabulary()
    assert set(SHIPPED) | {"mha"} == {name for name, entry in VARIANTS.items() if entry.function.__module__.startswith("attncheck.")}
    for name in SHIPPED:
        text = explanation(known, name)
        assert f"{name}: attention variant" in text
        assert "As an operator" in text
        assert "As a module" in text
        assert "arXiv:" in text
        for argument in VARIANTS[name].parameters:
            assert f"`{argument}`" in VARIANTS[name].doc


@pytest.fixture
def theirs() -> Iterator[None]:
    """A variant of another package."""

    @variants.variant("twice", source="nowhere")
    def twice(*, times: int = 2) -> Variant:
        """Softmax attention, several times over."""
        return Variant(lambda query, key, value, **options: times * softmax_attention(query, key, value, **options))

    yield
    del VARIANTS._entries["twice"]


@pytest.mark.usefixtures("theirs")
def test_a_variant_of_another_package() -> None:
    import torch

    torch.manual_seed(0)
    layer, x = variants.module({"twice": {"times": 3}}, width=8, heads=2, causal=True), torch.randn(1, 5, 8)
    plain = variants.module("mha", width=8, heads=2, causal=True)
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), 3 * plain(x))
    assert Argument(attention="twice").attention == {"twice": {"times": 2}}
    assert "Softmax attention, several times over." in explanation(vocabulary(), "twice")
    assert "unknown attention variant" not in str(variants.check("twice"))


def test_another_name_says_what_it_stands_for() -> None:
    assert "same as softmax" in explanation(vocabulary(), "mha")
    assert "same as" not in explanation(vocabulary(), "softmax")


def test_a_name_that_is_taken() -> None:
    with pytest.raises(Exception, match="attention variant 'softmax' is registered twice"):
        VARIANTS.add(Entry("softmax", lambda: None))


SPEC = """\
attncheck: 1
subjects:
  misspelt: {operator: {polynomal: {power: 3}}}
  argument: {operator: {polynomial: {powr: 3}}}
  range: {operator: {gqa: {kv_heads: 0}}}
  call:
    operator:
      polynomial: {power: 3, is_causl: true}
  right: {operator: {polynomial: {power: 3, is_causal: true}}}
inputs:
  normal: {qkv: normal}
expect:
  bounded: {observe: attention.frobenius_norm, at_most: 3, subjects: right}
"""


def test_a_spec_tells_the_line(pytester: pytest.Pytester) -> None:
    pytester.makefile(".attn.yaml", operators=SPEC)
    result = pytester.runpytest_subprocess("--attn-spec", "operators.attn.yaml")
    result.stdout.fnmatch_lines(
        [
            "4 problems:",
            "operators.attn.yaml:3:*subject misspelt: operator: unknown operator 'polynomal'; did you mean 'polynomial'?*",
            "operators.attn.yaml:4:*subject argument: operator: polynomial takes no 'powr'; did you mean 'power'?; allowed: power, *",
            "operators.attn.yaml:5:*subject range: operator: gqa: kv_heads: Input should be greater than or equal to 1; found 0",
            "operators.attn.yaml:8:*subject call: operator: polynomial takes no 'is_causl'; did you mean 'is_causal'?*",
        ]
    )


def test_specs_run_on_variants(pytester: pytest.Pytester) -> None:
    """φ/√N is φ over 14; softmax and linear attention stay in their bounds, where cubes do not; a causal flag hides the future."""
    pytester.makefile(
        ".attn.yaml",
        operators="""\
attncheck: 1
subjects:
  cubic: {operator: {polynomial: {power: 3, factor: 1}}}
  scaled: {operator: {polynomial: {power: 3, factor: 1/sqrt(N)}}}
  causal: {operator: {softmax: {is_causal: true}}}
  linear: {operator: linear}
inputs:
  normal: {qkv: normal, length: 196}
expect:
  divided: {observe: attention.frobenius_norm, ratio_to: {subject: cubic}, between: [0.9999999 / 14, 1.0000001 / 14], subjects: scaled}
  bounded: {observe: attention.frobenius_norm, between: [uniform_norm, ceiling_norm], subjects: [causal, linear], must_fail_on: cubic}
  causal: {observe: attention.future_mass, equals: 0, subjects: causal, must_fail_on: linear}
""",
    )
    pytester.runpytest_subprocess("--attn-spec", "operators.attn.yaml").assert_outcomes(passed=6)
