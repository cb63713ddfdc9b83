"""`train:` in a spec: what is refused where it stands, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.core.errors import SpecError
from attncheck.engine.vocabulary import vocabulary
from attncheck.spec.loader import load

HEAD = "attncheck: 1\nsubjects:\n"
TAIL = "inputs:\n  w: {tokens: random}\nexpect:\n  r: {observe: attention.row_sum, equals: 1}\n"


def problems(tmp_path: Path, subjects: str) -> list[str]:
    path = tmp_path / "a.attn.yaml"
    path.write_text(HEAD + "".join(f"  {line}\n" for line in subjects.splitlines()) + TAIL)
    try:
        load(path, vocabulary())
    except SpecError as error:
        return [str(problem).removeprefix(str(path)) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("a: {train: {recipe: bytes-ml, steps: 3}}", "unknown recipe 'bytes-ml'; allowed: bytes-lm, vit-digits; did you mean 'bytes-lm'?"),
        ("a: {train: bytes-lm}", ":3:14: subject a: train: neither steps nor epochs; allowed: one of steps, epochs"),
        ("a: {train: {recipe: bytes-lm, steps: 3, epochs: 2}}", ":3:23: subject a: train: steps and epochs; allowed: one of steps, epochs"),
        ("a: {train: {recipe: bytes-lm, epochs: 2}}", "bytes-lm draws its data without end and has no epochs; allowed: steps"),
        ("a: {train: {recipe: bytes-lm, steps: 0}}", ":3:40: subject a: train: steps: '0'; allowed: greater than or equal to 1"),
        ("a: {train: {recipe: bytes-lm, steps: 3, layer: 2}}", "did you mean 'layers'?"),
        ("a: {train: {recipe: bytes-lm, steps: 3, layers: two}}", ":3:51: subject a: train: layers: 'two'; allowed: a valid integer"),
        ("a: {train: {recipe: bytes-lm, steps: 3, width: 30, heads: 4}}", "a width of 30 does not divide into 4 heads"),
        ("a: {train: {recipe: bytes-lm, steps: 3, tokens: 100000}}", ":3:51: subject a: train: tokens: 100000 is more than the"),
        ("a: {train: {recipe: vit-digits, steps: 3, tokens: 50}}", ":3:53: subject a: train: tokens: 50 is no square number"),
        ("a: {train: {recipe: bytes-lm, steps: 3}, attention: {lrkv: {rank: 25}}}",
         ":3:55: subject a: train: attention: lrkv: rank: 25 is larger than the head dim 24; allowed: 0 to 24"),
        ("a: {train: {recipe: bytes-lm, steps: 3}, attention: mqaa}", "unknown attention variant 'mqaa'; did you mean 'mqa'?"),
    ],
    ids=lambda value: value if value.startswith("a:") else "",
)  # fmt: skip
def test_mistakes_stand_where_they_are(tmp_path: Path, subject: str, problem: str) -> None:
    (found,) = problems(tmp_path, subject)
    assert problem in found


def test_like_changes_one_option(tmp_path: Path) -> None:
    path = tmp_path / "a.attn.yaml"
    path.write_text(
        HEAD + "  a: {train: {recipe: bytes-lm, steps: 3, layers: 2}, seeds: [0, 1]}\n  b: {like: a, attention: {lrkv: {rank: 4}}}\n"
        "  c: {like: a, train: {layers: 3}, record_every: 1}\n" + TAIL
    )
    subjects = load(path, vocabulary()).subjects
    assert subjects["b"].definition.options["attention"] == {"lrkv": {"rank": 4, "residual": "learned"}}
    assert subjects["b"].definition.options["layers"] == 2
    assert subjects["c"].definition.options == {
        "recipe": "bytes-lm", "attention": "mha", "steps": 3, "epochs": None, "record_every": 1, "layers": 3
    }  # fmt: skip
    assert list(subjects["b"].seeds) == [0, 1]


def test_reading_a_spec_imports_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.attn.yaml"
    path.write_text(HEAD + "  a: {train: {recipe: vit-digits, epochs: 1}, attention: {polynomial: {power: 3}}}\n" + TAIL)
    code = (
        "import sys\nfrom pathlib import Path\nfrom attncheck.engine.vocabulary import vocabulary\nfrom attncheck.spec.loader import load\n"
        f"load(Path({str(path)!r}), vocabulary())\n"
        "print([name for name in ('torch', 'transformers', 'xarray', 'scipy', 'matplotlib', 'sklearn', 'PIL') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
