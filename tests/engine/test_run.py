"""A run on real two-layer models: measured once, judged against the naive computation, must-fail cases turned around."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attncheck
from attncheck.core.errors import MeasurementError, SpecError
from attncheck.engine.plan import plan
from attncheck.engine.run import Run, RunOptions, case_name
from attncheck.engine.vocabulary import vocabulary
from attncheck.spec.loader import load
from attncheck.spec.model import Spec

MODEL = (
    "{model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, "
    "num_attention_heads: 2, num_key_value_heads: 2, vocab_size: 64}"
)
TOKENS = list(range(3, 15))


def spec(folder: Path, expect: str, subjects: str = "") -> Spec:
    lines = "\n".join(f"  {line.strip()}" for line in expect.strip().splitlines())
    path = folder / "x.attn.yaml"
    path.write_text(
        f"attncheck: 1\nsubjects:\n  tiny: {{config: {MODEL}}}\n  twin: {{like: tiny, seed: 1}}\n"
        f"  many: {{like: tiny, seeds: [0, 1, 2]}}\n{subjects}"
        f"inputs:\n  words: {{tokens: random, length: 12}}\n  ids: {{tokens: {TOKENS}}}\ndefaults: {{inputs: words}}\nexpect:\n{lines}\n"
    )
    return load(path, vocabulary(), root=folder)


def run_of(folder: Path, loaded: Spec) -> Run:
    return Run(folder / "run", plan(loaded.cases), RunOptions(folder))


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "run").glob("*.json"))]


def test_all_properties_of_a_pass_come_from_one_measurement(tmp_path: Path) -> None:
    loaded = spec(
        tmp_path,
        """
        rows: {observe: attention.row_sum, between: [0.999, 1.001], subjects: tiny}
        low: {observe: attention.entropy, at_most: 0.01, subjects: tiny}
        """,
    )
    run = run_of(tmp_path, loaded)
    verdicts = [run.judge(case) for case in loaded.cases]
    assert [verdict.passed for verdict in verdicts] == [True, False]
    assert [verdict.case for verdict in verdicts] == ["x.attn.yaml::rows[tiny/words]", "x.attn.yaml::low[tiny/words]"]
    (record,) = records(tmp_path)
    answered = record["answered"]
    assert isinstance(answered, dict)
    assert {key.split("{")[0] for key in answered} == {"attention.row_sum", "attention.entropy"}


def test_the_measured_entropy_is_that_of_the_models_own_weights(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "def model():\n"
        "    torch.manual_seed(0)\n"
        "    return LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2,"
        " num_attention_heads=2, vocab_size=64, initializer_range=0.5))\n"
    )
    subject = "  mine: {python: 'mine:model'}\n"
    loaded = spec(tmp_path, "p: {observe: attention.entropy, at_most: 9, subjects: mine, inputs: ids}", subject)
    (case,) = loaded.cases
    run = run_of(tmp_path, loaded)
    run.judge(case)
    (key,), (pass_key,) = run.keys(case), plan([case]).requests
    assert key == pass_key.key
    measured = run.fetch(pass_key, case.property.request)["value"].values[0]
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64, initializer_range=0.5)
    )
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model.eval()(torch.tensor([TOKENS]), output_attentions=True).attentions
    naive = torch.stack([-torch.xlogy(one[0].double(), one[0].double()).sum(-1).mean(-1) for one in weights])
    assert measured == pytest.approx(naive.numpy(), rel=1e-4)


def test_seeds_are_a_dim_of_the_judged_measurement(tmp_path: Path) -> None:
    loaded = spec(tmp_path, "low: {observe: attention.entropy, at_most: 0.01, subjects: many, for: 2 of 3 seeds}")
    (case,) = loaded.cases
    run = run_of(tmp_path, loaded)
    verdict = run.judge(case)
    assert not verdict.passed
    assert len(records(tmp_path)) == 3
    assert {offender.where.get("seed") for offender in verdict.offenders} <= {0, 1, 2}


def test_a_must_fail_case_passes_when_the_property_fails_there(tmp_path: Path) -> None:
    loaded = spec(
        tmp_path,
        """
        flat: {observe: attention.entropy, at_least: 0.1, subjects: tiny, must_fail_on: twin}
        low: {observe: attention.entropy, at_most: 0.01, subjects: tiny, must_fail_on: twin}
        """,
    )
    run = run_of(tmp_path, loaded)
    verdicts = {case_name(case).split("::")[1]: run.judge(case) for case in loaded.cases}
    assert {name: verdict.passed for name, verdict in verdicts.items()} == {
        "flat[tiny/words]": True,
        "flat[twin/words/must-fail]": False,
        "low[tiny/words]": False,
        "low[twin/words/must-fail]": True,
    }
    assert verdicts["flat[twin/words/must-fail]"].headline.startswith("the property holds on twin too, so it says nothing: ")
    assert verdicts["low[twin/words/must-fail]"].headline.startswith("fails on twin, as it must: ")


def test_a_selection_of_nothing_raises_and_never_passes(tmp_path: Path) -> None:
    loaded = spec(tmp_path, "p: {observe: attention.entropy, where: {layer: 9}, at_most: 9, subjects: tiny}")
    with pytest.raises((MeasurementError, SpecError), match=r"x\.attn\.yaml:11"):
        run_of(tmp_path, loaded).judge(loaded.cases[0])


def test_a_must_fail_case_does_not_pass_because_nothing_could_be_measured(tmp_path: Path) -> None:
    loaded = spec(tmp_path, "p: {observe: attention.entropy, where: {layer: 9}, at_most: 9, subjects: tiny, must_fail_on: twin}")
    for case in loaded.cases:
        with pytest.raises((MeasurementError, SpecError)):
            run_of(tmp_path, loaded).judge(case)


def test_progress_is_told_before_measuring(tmp_path: Path) -> None:
    said: list[str] = []
    loaded = spec(tmp_path, "p: {observe: attention.entropy, at_most: 9, subjects: tiny}")
    Run(tmp_path / "run", plan(loaded.cases), RunOptions(tmp_path, progress=said.append)).judge(loaded.cases[0])
    assert said[0] == "measuring tiny on words: 1 quantity"


def test_check_judges_a_file_without_pytest(tmp_path: Path) -> None:
    loaded = spec(
        tmp_path,
        """
        rows: {observe: attention.row_sum, between: [0.999, 1.001], subjects: tiny}
        low: {observe: attention.entropy, at_most: 0.01, subjects: tiny}
        far: {observe: attention.entropy, where: {head: 8}, at_most: 0.01, subjects: tiny}
        gone: {observe: attention.entropy, at_most: 9, subjects: flash}
        exempt: {observe: attention.entropy, at_most: 0.01, subjects: tiny, unless: [{subject: tiny, because: not here}]}
        """,
        "  flash: {like: tiny, attn_implementation: flash_attention_2}\n",
    )
    verdicts = attncheck.check(loaded.path, root=tmp_path)
    assert [(verdict.case.split("::")[1], verdict.passed, verdict.decided) for verdict in verdicts] == [
        ("rows[tiny/words]", True, "exact"),
        ("low[tiny/words]", False, "exact"),
        ("far[tiny/words]", False, "not measured"),
        ("gone[flash/words]", False, "not available"),
    ]
    assert "pip install flash-attn" in verdicts[3].headline


def test_check_refuses_a_malformed_file(tmp_path: Path) -> None:
    (tmp_path / "bad.attn.yaml").write_text("attncheck: 1\n")
    with pytest.raises(SpecError):
        attncheck.check(tmp_path / "bad.attn.yaml", root=tmp_path)


def test_public_names_are_few_and_lazy() -> None:
    assert {"check", "observe", "AttentionWarning"} <= set(dir(attncheck))
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = attncheck.chekc  # type: ignore[attr-defined]


def test_a_verdict_is_printed_as_a_few_lines(tmp_path: Path) -> None:
    (tmp_path / "x.attn.yaml").write_text(
        "attncheck: 1\nsubjects: {m: {pretrained: 'package:glassllm'}}\ninputs: {t: {corpus: python-manual, length: 16}}\n"
        "expect:\n  small: {observe: attention.entropy, at_most: 0.5}\n  bad: {observe: attention.padding_mass, at_most: 0}\n"
    )
    small, bad = attncheck.check(tmp_path / "x.attn.yaml", root=tmp_path)
    lines = str(small).splitlines()
    assert lines[0].startswith("FAILED  x.attn.yaml::small[m/t]: ")
    assert lines[1] == "  claim     attention.entropy of m <= 0.5 for all"
    assert sum("(limit <= 0.5)" in line for line in lines) == 5
    assert len(lines) < 10
    assert len(repr(small)) < 4000
    assert str(bad).startswith("not measured  x.attn.yaml::bad[m/t]: the input has no padding")
    assert str(bad).count("no padding") == 1
