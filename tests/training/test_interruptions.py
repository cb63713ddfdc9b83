"""Real processes: one killed in the middle goes on to the same course, and of two that ask at once one trains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

SCRIPT = """
import sys
from attncheck.core.definitions import SubjectDefinition
from attncheck.engine.vocabulary import vocabulary
from attncheck.subjects import load_any
vocabulary()
options = {"recipe": "bytes-lm", "attention": "mha", "layers": 1, "width": 32, "heads": 2, "tokens": 32, "batch": 4,
           "steps": 120, "record_every": 10}
load_any(SubjectDefinition("tiny", "train", options, device="cpu"), progress=lambda text: print(text, flush=True))
print("done", flush=True)
"""


def start(cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "ATTNCHECK_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True)


def files(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((cache / "trained").glob("*/*")) if not path.name.startswith(".")}


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_course(tmp_path: Path) -> None:
    assert start(tmp_path / "whole").communicate(timeout=120)[0].endswith("done\n")
    for kill in (1, 2):
        process = start(tmp_path / "cut")
        assert process.stdout is not None
        for line in process.stdout:
            if f"step {40 * kill} " in line:
                os.kill(process.pid, signal.SIGKILL)
                break
        process.wait(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert "complete" not in files(tmp_path / "cut")
        assert "state.safetensors" in files(tmp_path / "cut")
    said = start(tmp_path / "cut").communicate(timeout=120)[0]
    assert "step 10 " not in said, "it began anew"
    assert said.endswith("done\n")
    whole, cut = files(tmp_path / "whole"), files(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    assert len([name for name in whole if name.startswith("step-")]) == 13
    assert whole == cut


@pytest.mark.slow
def test_of_two_processes_one_trains(tmp_path: Path) -> None:
    def waiting(process: subprocess.Popen[str]) -> bool:
        assert process.stdout is not None
        return "another process is at it, waiting" in process.stdout.readline()

    # Which folder it will be is known only once somebody has made it.
    first = start(tmp_path)
    assert first.stdout is not None
    first.stdout.readline()
    first.kill()
    first.communicate()
    (lock,) = (tmp_path / "trained").glob("*.lock")
    with filelock.FileLock(str(lock)):
        both = [start(tmp_path), start(tmp_path)]
        assert all(waiting(process) for process in both)
    said = [process.communicate(timeout=120)[0] for process in both]
    assert sorted("step 120 of 120" in text for text in said) == [False, True]
    assert all(text.endswith("done\n") for text in said)
