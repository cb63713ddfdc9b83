"""What the documentation gives to a CI: the scripts of the action and of the GitLab job, run as they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SPEC = """attncheck: 1
subjects:
  tiny: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2, vocab_size: 64}}
inputs:
  words: {tokens: random, length: 8}
expect:
  rows: {observe: attention.row_sum, equals: 1}
  low: {observe: attention.entropy, at_most: BOUND}
  slow: {observe: attention.entropy, at_most: 0, marks: [large]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "some specs").mkdir()
    shutil.copytree(tmp_path / "some specs", tmp_path / "specs")
    (tmp_path / "specs" / "x.attn.yaml").write_text(SPEC)
    return tmp_path


def shell(script: str, project: Path, bound: str, **given: str) -> subprocess.CompletedProcess[str]:
    path = project / "specs" / "x.attn.yaml"
    path.write_text(SPEC.replace("BOUND", bound))
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **given}
    return subprocess.run([bash, "-c", script], cwd=project, env=environment, capture_output=True, text=True)


def action() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize(("bound", "status"), [("9", 0), ("0.001", 1)])
def test_the_actions_script_gates(project: Path, bound: str, status: int) -> None:
    loaded = action()
    step = loaded["runs"]["steps"][0]
    assert all(re.fullmatch(r"\$\{\{ inputs\.\w+ \}\}", value) for value in step["env"].values()), "inputs reach the script as variables"
    assert "${{" not in step["run"]
    defaults = {name: told["default"] for name, told in loaded["inputs"].items()}
    page = project / "summary.md"
    done = shell(
        step["run"],
        project,
        bound,
        SPECS=defaults["specs"],
        ARGUMENTS='-m "not large" -p no:cacheprovider',
        STRICT=defaults["strict"],
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(page),
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "1 deselected" in done.stdout
    assert (project / "attention.json").exists()
    assert (project / "attention.xml").exists()
    assert ("::error file=specs/x.attn.yaml,line=8,col=3,title=low[tiny/words]::" in done.stdout) == bool(status)
    assert page.read_text().startswith("## Attention specs")


def test_an_argument_is_no_command(project: Path) -> None:
    step = action()["runs"]["steps"][0]
    done = shell(step["run"], project, "9", SPECS="specs", ARGUMENTS='-k "$(touch pwned)"', STRICT="false")
    assert not (project / "pwned").exists()
    assert done.returncode != 0


def test_the_gitlab_job_runs(project: Path) -> None:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (block,) = [found for found in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL) if "image:" in found]
    job = yaml.safe_load(block)["attention"]
    installing, running = job["script"]
    assert installing == "pip install attncheck"
    done = shell(f"{running} -m 'not large'", project, "9")
    assert done.returncode == 0, done.stdout + done.stderr
    for path in (job["artifacts"]["reports"]["junit"], job["artifacts"]["paths"][0]):
        assert (project / path).exists()
