"""`attncheck schema`, `explain`, `list`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import attncheck
from attncheck.cli import app, main
from attncheck.cli._examples import of_demand, of_law, of_observable
from attncheck.cli.explain import argument_lines, explanation
from attncheck.cli.schema import DEFAULT, schema_text
from attncheck.core.errors import AttncheckError
from attncheck.core.expectation import EXPECTATIONS
from attncheck.engine.vocabulary import vocabulary
from attncheck.spec.loader import load

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / DEFAULT


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_commands_are_listed() -> None:
    code, text = run("--help")
    assert code == 0
    for name in ("explain", "list", "schema"):
        assert name in text


def test_list_names_everything_or_one_sort() -> None:
    known = vocabulary()
    _, text = run("list")
    for name in (*known.observables, *known.expectations, *known.subject_kinds, *known.input_kinds):
        assert f"  {name} " in text
    _, demands = run("list", "demands")
    assert "tracks" in demands
    assert "attention.entropy" not in demands
    assert run("list", "laws")[0] == 2


def test_list_names_the_packaged_models_and_whole_sentences() -> None:
    _, text = run("list", "packages")
    assert "  glassllm             decoder, Llama: 4 layers" in text
    assert "log sigma_k on log k, k = 1 .. n, over the window `fit`" in run("list", "observables")[1]


def test_explain_tells_meaning_arguments_and_source() -> None:
    code, text = run("explain", "attention.entropy")
    assert code == 0
    assert text.startswith("attention.entropy: observable\n")
    for part in ("Shannon entropy", "dims    sample, layer, head", "unit    nats", "per: head | query (default head)"):
        assert part in text
    assert "symbol of a bound" in run("explain", "uniform_norm")[1]
    assert "kind of input" in run("explain", "text")[1]


def test_every_example_is_part_of_a_spec(tmp_path: Path) -> None:
    known = vocabulary()
    made = {name: of_observable(entry) for name, entry in known.observables.items()}
    made |= {name: of_demand(entry) for name, entry in known.expectations.items()}
    made |= {law: of_law(law) for law in ("masks-influence", "model-cache-stepwise")}
    path = tmp_path / "x.attn.yaml"
    for name, example in made.items():
        assert example.startswith("example:\n  my-property:\n"), name
        kind = "operator: sdpa, claims: {causal: flag}" if name == "masks-influence" else "config: {model_type: llama, tiny: true}"
        inputs = "inputs:\n  words: {tokens: random, length: 512}"
        path.write_text(f"attncheck: 1\nsubjects:\n  model: {{{kind}}}\n{inputs}\nexpect:{example.removeprefix('example:')}\n")
        assert load(path, known, root=tmp_path).cases, name
        code, text = run("explain", name)
        assert code == 0
        assert text.rstrip().endswith(example)


def test_observables_are_listed() -> None:
    assert run("observables")[1] == run("list", "observables")[1]


def test_arguments_are_in_words() -> None:
    vocabulary()
    lines = argument_lines(EXPECTATIONS["tracks"])
    assert "observable: an observable (required)" in lines
    assert "pearson: a bound (default none)" in lines
    assert "mass_kept: a bound with top (default none)" in lines


def test_an_unknown_name_leaves_with_the_nearest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["attncheck", "explain", "attention.entropi"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "unknown name 'attention.entropi'; did you mean 'attention.entropy'?\n"


def test_the_schema_is_printed_or_written_below_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run("schema")[1]
    assert run("schema", "--write") == (0, f"wrote {DEFAULT}\n")
    assert (tmp_path / DEFAULT).read_text(encoding="utf-8") == printed
    assert json.loads(printed)["title"] == "attncheck spec"
    assert run("schema", "--write", "other/place.json")[0] == 0
    assert (tmp_path / "other/place.json").exists()
    assert run("schema", "--write", "../escaped.json")[0] != 0
    assert not (tmp_path.parent / "escaped.json").exists()


@pytest.mark.skipif(not SHIPPED.exists(), reason=f"{DEFAULT} is not written yet: attncheck schema --write")
def test_the_shipped_schema_is_up_to_date() -> None:
    assert SHIPPED.read_text(encoding="utf-8") == schema_text(), "run: attncheck schema --write"


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from typer.testing import CliRunner; from attncheck.cli import app; CliRunner().invoke(app, ['--help'])\n"
    code += "print([name for name in ('torch', 'transformers', 'numpy', 'xarray', 'yaml') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_cache_says_what_is_kept_and_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "switches the cache off" in run("cache")[1]
    monkeypatch.setenv("ATTNCHECK_CACHE", str(tmp_path))
    monkeypatch.setenv("ATTNCHECK_CACHE_LIMIT", str(1 << 20))
    place = tmp_path / "measurements" / "ab"
    place.mkdir(parents=True)
    (place / "abc.safetensors").write_bytes(b"x" * 2048)
    assert run("cache") == (0, f"{tmp_path / 'measurements'}: 1 measurement, 0.0 MiB of at most 1\n")
    assert run("cache", "--clear")[1].endswith("removed 1\n")
    assert not list(place.iterdir())


def test_laws_are_listed_with_their_sentences_and_explained() -> None:
    from attncheck.laws.registry import laws

    code, text = run("laws")
    assert code == 0
    for entry in laws():
        assert f"  {entry.id}\n    {entry.sentence}\n" in text
    _, masks = run("laws", "masks")
    assert masks.startswith("masks:\n")
    assert "reference-" not in masks
    _, told = run("explain", "reference-dense_float64")
    assert told.startswith("reference-dense_float64: law of operators, family reference\n\nThe output equals the claimed formula")
    assert "claims.reference is not claimed" in told
    with pytest.raises(AttncheckError, match="did you mean 'masks'"):
        raise run_error("laws", "mask")


def run_error(*arguments: str) -> BaseException:
    error = CliRunner().invoke(app, list(arguments)).exception
    assert error is not None
    return error


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("entropy", "'attention.entropy'"),
        ("frobenius_norm", "'attention.frobenius_norm' or 'keys.frobenius_norm'"),
        ("future", "'attention.future_mass'"),
    ],
)
def test_the_last_part_of_a_name_is_enough_to_be_told_the_whole(asked: str, hint: str) -> None:
    with pytest.raises(AttncheckError, match=rf"did you mean {hint}"):
        explanation(vocabulary(), asked)


def test_python_m_attncheck_is_the_command() -> None:
    told = subprocess.run([sys.executable, "-m", "attncheck", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == attncheck.__version__
