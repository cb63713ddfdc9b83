"""The real vocabulary: complete, torch-free, documented, and extended by entry points."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from attncheck.core.measurement import DIMS
from attncheck.engine import vocabulary as module
from attncheck.spec.loader import load_bytes
from attncheck.spec.schema import json_schema

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "xarray", "scipy", "matplotlib")


def test_a_spec_is_loaded_without_the_heavy_packages() -> None:
    code = (
        f"import sys; [sys.modules.__setitem__(name, None) for name in {HEAVY!r}]\n"
        "from pathlib import Path; from attncheck.engine.vocabulary import vocabulary; from attncheck.spec.loader import load_bytes\n"
        "text = b'attncheck: 1\\nsubjects: {a: {pretrained: x}}\\ninputs: {t: {text: x}}\\n'\n"
        "text += b'expect: {p: {observe: attention.entropy, at_least: 1 / sqrt(N)}}\\n'\n"
        "print(load_bytes(text, Path('x.attn.yaml'), vocabulary()).cases[0].id, 'numpy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout, done.stderr) == ("a/t False\n", "")


def test_every_entry_is_documented_and_its_arguments_can_be_written() -> None:
    known = module.vocabulary()
    for entries in (known.observables, known.expectations, known.subject_kinds, known.input_kinds):
        assert entries
        for name, entry in entries.items():
            assert entry.summary.endswith("."), name
            entry.arguments.model_json_schema()
    for name in known.observables:
        assert set(known.dims(name)) <= set(DIMS)
        assert known.reads(name) in ("rows", "columns", "probe", "call", "weights", "hidden", "log")


def test_the_schema_of_the_real_vocabulary() -> None:
    Draft7Validator.check_schema(json_schema(module.vocabulary()))


def test_entry_points_extend_the_vocabulary_and_a_broken_one_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    from attncheck.core.observable import OBSERVABLES, observable

    made = types.ModuleType("third_party_attention")

    def register() -> None:
        @observable("thirdparty.quantity", reads="weights", dims=("layer",))
        def quantity(layer: Any, *, power: int) -> float:
            """A quantity of somebody else. Long text."""
            return float(power)

    made.register = register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "third_party_attention", made)
    points = [
        metadata.EntryPoint("mine", "third_party_attention:register", module.GROUP),
        metadata.EntryPoint("broken", "no_such_module_here", module.GROUP),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == module.GROUP else [])
    module._register.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"entry point broken .* ModuleNotFoundError"):
            known = module.vocabulary()
        text = b"attncheck: 1\nsubjects: {a: {pretrained: x}}\nexpect: {p: {observe: {thirdparty.quantity: {power: 2}}, at_least: 1}}\n"
        assert load_bytes(text, Path("x.attn.yaml"), known).properties["p"].request.arguments == {"power": 2}
    finally:
        OBSERVABLES._entries.pop("thirdparty.quantity", None)
        module._register.cache_clear()
