"""Ten realistic changes of a model: the shipped baselines flag those that change behaviour, and pass the two that do not."""

from __future__ import annotations

import re
import shutil

import pytest
from acceptance_project import HERE, SHIPPED, Acceptance, outcomes

BASELINES = "baselines.attn.yaml"
RECORDED = "glassllm:  {pretrained: package:glassllm, dtype: [float32, bfloat16], attn_implementation: [sdpa, eager], inputs: manual}"
BEHAVIOUR = {
    "rope_base": "layer [0-3], head",
    "scale": "layer [0-3], head",
    "heads_swapped": "layer 1, head",
    "mask_one_key_short": "layer [0-3], head",
    "fine_tuned": "layer 2, head",
    "quantised_keys": "layer [0-3], head",
    "merge_reordered": "layer [1-3], head",
}
"""Change -> where it must be told to have moved: what a changed layer does to later ones may move more than the layer itself."""
HARMLESS = {"sdpa-for-eager": "attn_implementation: sdpa", "eager-for-sdpa": "attn_implementation: eager", "bfloat16": "dtype: bfloat16"}


def judged(acceptance: Acceptance, change: str, setting: str = "dtype: float32, attn_implementation: sdpa") -> tuple[dict[str, str], str]:
    """The shipped baselines, as they are recorded, on glassllm after a change: how each test came out, and what was printed."""
    text = (SHIPPED / BASELINES).read_text(encoding="utf-8")
    assert RECORDED in text
    changed = f"glassllm: {{python: {{factory: 'changed_models:model', arguments: {{change: {change}}}}}, {setting}, inputs: manual}}"
    text = re.sub(r"^  (mgm|rxnmapper): .*\n", "", text.replace(RECORDED, changed), flags=re.MULTILINE)
    acceptance.write(f"specs/{BASELINES}", text)
    shutil.copytree(SHIPPED.parent / "baselines", acceptance.path / "baselines")
    shutil.copy(HERE / "changed_models.py", acceptance.path)
    result = acceptance.run("--attn-spec", "-rA", "-p", "no:cacheprovider")
    return outcomes(result), result.stdout.str()


@pytest.mark.parametrize("change", BEHAVIOUR)
def test_what_changes_behaviour_is_flagged_where_it_changed(acceptance: Acceptance, change: str) -> None:
    found, printed = judged(acceptance, change)
    assert len(found) == 3
    failed = [test for test, outcome in found.items() if outcome == "FAILED"]
    assert failed, printed
    assert "ERROR" not in found.values(), printed
    told = re.findall(r"^(?:frobenius_norm|entropy|sink_mass) change in tolerances \S+ > 1 at (.*?) \(", printed, flags=re.MULTILINE)
    assert told
    first = re.findall(r"layers are to blame, the first is (layer \d)", printed) or told
    assert all(re.match(BEHAVIOUR[change], f"{where}, head" if "head" not in where else where) for where in {*told, *first}), printed


@pytest.mark.parametrize("change", HARMLESS)
def test_what_changes_no_behaviour_passes(acceptance: Acceptance, change: str) -> None:
    found, printed = judged(acceptance, "nothing", HARMLESS[change])
    assert list(found.values()) == ["PASSED"] * 3, printed


def test_a_dropped_qk_norm_is_flagged(acceptance: Acceptance) -> None:
    """No packaged model has one, so this one is recorded first."""
    spec = """attncheck: 1
subjects:
  qwen: {{python: {{factory: 'changed_models:with_qk_norm', arguments: {{dropped: {dropped}}}}}}}
inputs:
  text: {{corpus: python-manual, tokenizer: bytes, length: 64}}
expect:
  entropy: {{observe: attention.entropy, baseline: {{}}}}
  keys: {{observe: keys.frobenius_norm, baseline: {{}}}}
"""
    shutil.copy(HERE / "changed_models.py", acceptance.path)
    acceptance.write("specs/qwen.attn.yaml", spec.format(dropped="false"))
    acceptance.run("--attn-spec", "--snapshot-update").assert_outcomes(passed=2)
    acceptance.run("--attn-spec").assert_outcomes(passed=2)
    acceptance.write("specs/qwen.attn.yaml", spec.format(dropped="true"))
    acceptance.run("--attn-spec").assert_outcomes(failed=2)
