"""xdist: the same verdicts as alone, one measurement per pass among all workers, and processes that die or meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

COUNTED = """
import os
from pathlib import Path

def model(seed=0, killed=False):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    with open(Path(__file__).with_name("log"), "a") as log:
        log.write(f"{seed}\\n")
    if killed:
        os.kill(os.getpid(), 9)
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64))
"""


def counted(project: Project, seeds: range, extra: str = "") -> str:
    project.write("counted.py", COUNTED)
    return "\n".join(f"s{seed}: {{python: {{factory: 'counted:model', arguments: {{seed: {seed}}}}}}}" for seed in seeds) + extra


def builds(project: Project) -> list[str]:
    return sorted((project.pytester.path / "log").read_text().split())


def test_workers_give_the_verdicts_of_a_run_alone_and_measure_each_pass_once(project: Project) -> None:
    ratio = "observe: attention.row_sum, ratio_to: {subject: s0}, equals: 1, subjects: [s1, s2]"
    expect = f"rows: {{{project.holds}}}\nlow: {{{project.fails}}}\nboth: {{{ratio}}}"
    project.spec("specs/x.attn.yaml", expect, subjects=counted(project, range(3)))
    outcomes = []
    for args in ((), ("-n", "2")):
        project.run("--attn-spec", "--attn-json", "out.json", *args).assert_outcomes(passed=5, failed=3)
        told = json.loads((project.pytester.path / "out.json").read_text())
        outcomes.append(sorted((case["test"], case["outcome"], case["headline"]) for case in told["cases"]))
        assert builds(project) == ["0", "1", "2"]
        (project.pytester.path / "log").unlink()
    assert outcomes[0] == outcomes[1]
    assert len({record.parent for record in project.records}) == 2


def test_the_tests_of_a_pass_go_to_one_worker_unless_dist_was_asked_for(project: Project) -> None:
    project.write(
        "conftest.py",
        "def pytest_sessionfinish(session):\n"
        "    found = session.config.pluginmanager.getplugin('dsession')\n"
        "    if found: print('SCHEDULER', type(found.sched).__name__)\n",
    )
    exempt = "unless: [{subject: tiny, because: this is about scheduling}]"
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}, {exempt}}}\nq: {{{project.holds}, {exempt}}}")
    project.write("tests/test_plain.py", "def test_plain(): pass")
    result = project.run("--attn-spec", "specs", "tests", "-n", "2", "-v")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*SCHEDULER PassScheduling*"])
    lines = [line for line in result.outlines if "SKIPPED" in line and "x.attn.yaml" in line]
    assert len({line.split()[0] for line in lines}) == 1
    project.run("--attn-spec", "-n", "2", "--dist", "load").stdout.fnmatch_lines(["*SCHEDULER LoadScheduling*"])
    project.run("tests", "-n", "2").stdout.fnmatch_lines(["*SCHEDULER LoadScheduling*"])


@pytest.mark.slow
def test_a_killed_worker_costs_its_own_tests_and_no_other(project: Project) -> None:
    killed = "\nk: {python: {factory: 'counted:model', arguments: {seed: 9, killed: true}}}"
    expect = "\n".join(f"p{number}: {{{project.holds}}}" for number in range(3))
    project.spec("specs/x.attn.yaml", expect, subjects=counted(project, range(1), killed))
    result = project.run("--attn-spec", "-n", "2")
    # xdist counts the crash of a worker as a failure and gives the test to another one; after the second the pass is not tried again.
    result.assert_outcomes(passed=3, failed=2, errors=3)
    result.stdout.fnmatch_lines(["*2 processes ended without a word while they measured k on words*"])
    assert builds(project) == ["0", "9", "9"]


@pytest.mark.slow
def test_two_runs_at_once_do_not_meet(project: Project) -> None:
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}\nq: {{{project.fails}}}", subjects=counted(project, range(1)))
    command = [sys.executable, "-m", "pytest", "--attn-spec", "-q", "-p", "no:cacheprovider"]
    runs = [subprocess.Popen(command, cwd=project.pytester.path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for run in runs:
        assert "1 failed, 1 passed" in run.communicate(timeout=240)[0]
    assert len({record.parent for record in project.records}) == 2
    assert builds(project) == ["0", "0"]


def test_old_run_folders_go(project: Project) -> None:
    runs = project.pytester.path / ".attncheck" / "runs"
    for number in range(7):
        (runs / f"2020010{number + 1}T000000-old").mkdir(parents=True)
    for folder in runs.iterdir():
        os.utime(folder, (0, 0))
    project.spec("specs/x.attn.yaml", f"p: {{{project.holds}}}")
    project.run("--attn-spec").assert_outcomes(passed=1)
    assert len(list(runs.iterdir())) == 5
