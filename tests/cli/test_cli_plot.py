"""`attncheck plot`: a picture of each property on each subject, and what could not be drawn is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attncheck.cli import app
from attncheck.core.errors import AttncheckError

SPEC = """attncheck: 1
subjects:
  one: {config: {model_type: llama, tiny: true, num_hidden_layers: 2}}
  two: {config: {model_type: gpt2, tiny: true, n_layer: 3}}
  broken: {config: {model_type: llama, tiny: true, hidden_act: nothing}}
inputs:
  words: {tokens: random, length: 12}
expect:
  holds: {observe: attention.entropy, at_least: 0, subjects: [one, two]}
  fails: {observe: attention.entropy, reduce: {head: mean, layer: slope}, at_least: 100, subjects: [one, two]}
  cannot: {observe: attention.entropy, at_least: 0, subjects: broken}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.attn.yaml").write_text(SPEC)
    return tmp_path


def test_each_property_on_each_subject(spec: Path) -> None:
    result = CliRunner().invoke(app, ["plot", "x.attn.yaml"])
    assert result.exit_code == 1
    assert "cannot[broken/words]: broken: 'llama' cannot be made tiny" in result.output
    told = [line for line in result.output.splitlines() if line.endswith(".png")]
    names = [f"{name}-{subject}-words.png" for name in ("fails", "holds") for subject in ("one", "two")]
    assert sorted(Path(line).name for line in told) == names
    assert all((spec / line).is_file() for line in told)
    # The twin is drawn beside it, whichever came first.
    assert "two/words" in (spec / ".attncheck/plots/x/fails-one-words.svg").read_text()


def test_one_property(spec: Path) -> None:
    result = CliRunner().invoke(app, ["plot", "x.attn.yaml", "--property", "holds"])
    assert result.exit_code == 0
    assert result.output.count(".png") == 2
    with pytest.raises(AttncheckError, match="has no property 'hold'; it has holds, fails, cannot"):
        raise CliRunner().invoke(app, ["plot", "x.attn.yaml", "--property", "hold"]).exception or AssertionError
