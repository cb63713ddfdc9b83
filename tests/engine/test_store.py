"""The run folder: measured once, faults kept as text, killed processes and parallel ones do no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from attncheck.core.definitions import InputDefinition, PassKey, Request, SubjectDefinition
from attncheck.core.errors import AttncheckError, MeasurementError, Place, Problem, SpecError, Unavailable
from attncheck.core.measurement import measurement
from attncheck.engine.faults import Fault
from attncheck.engine.store import ATTEMPTS, Outcome, Store, new_run, prune

HANGS = 60.0
PASS = PassKey(SubjectDefinition("tiny", "config", {"model_type": "llama"}), InputDefinition("words", "tokens", {"tokens": "random"}))
ENTROPY, ALPHA = Request.of("attention.entropy"), Request.of("weights.alpha", {"matrix": "q"})


class Measuring:
    """Answers every request with the number of the call, so that a test sees who was measured when."""

    def __init__(self) -> None:
        self.calls: list[list[Request]] = []

    def __call__(self, pass_key: PassKey, requests: list[Request]) -> Outcome:
        self.calls.append(requests)
        return Outcome({request.key: measurement(np.full(3, float(len(self.calls))), ("layer",)) for request in requests}, notes=["said"])


def test_a_second_store_of_the_run_reads_what_the_first_measured(tmp_path: Path) -> None:
    measure = Measuring()
    Store(tmp_path / "run").ensure(PASS, [ENTROPY, ALPHA], measure)
    other = Store(tmp_path / "run")
    record = other.ensure(PASS, [ALPHA, ENTROPY], measure)
    assert measure.calls == [[ENTROPY, ALPHA]]
    assert record.notes == ["said"]
    assert other.values(PASS)[ALPHA.key]["value"].values.tolist() == [1.0, 1.0, 1.0]


def test_a_request_that_comes_later_is_measured_alone_and_joins_the_others(tmp_path: Path) -> None:
    measure, store = Measuring(), Store(tmp_path / "run")
    store.ensure(PASS, [ENTROPY], measure)
    record = store.ensure(PASS, [ENTROPY, ALPHA], measure)
    assert measure.calls == [[ENTROPY], [ALPHA]]
    assert list(record.answered) == [ENTROPY.key, ALPHA.key]
    values = store.values(PASS)
    assert [float(values[request.key]["value"][0]) for request in (ENTROPY, ALPHA)] == [1.0, 2.0]


def test_whatever_would_end_the_process_is_a_fault_but_an_interrupt_is_not(tmp_path: Path) -> None:
    """pytest's fixtures are broken for all later tests by what is no Exception."""

    def leaving(pass_key: PassKey, requests: list[Request]) -> Outcome:
        raise SystemExit(3)

    def interrupted(pass_key: PassKey, requests: list[Request]) -> Outcome:
        raise KeyboardInterrupt

    record = Store(tmp_path / "run").ensure(PASS, [ENTROPY], leaving)
    assert record.failure is not None
    assert record.failure.message == "SystemExit: 3"
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path / "other").ensure(PASS, [ENTROPY], interrupted)
    assert not list((tmp_path / "other").glob("*.started"))


def test_a_message_without_end_is_cut_in_the_middle() -> None:
    fault = Fault.of(ValueError("begin " + "x" * 1_000_000 + " end"))
    assert fault.message.startswith("ValueError: begin x")
    assert fault.message.endswith("x end")
    assert len(fault.message) + len(fault.detail) < 10_000


def test_the_name_is_no_part_of_the_key(tmp_path: Path) -> None:
    measure, store = Measuring(), Store(tmp_path / "run")
    store.ensure(PASS, [ENTROPY], measure)
    store.ensure(PassKey(PASS.subject.changed(name="other"), PASS.input), [ENTROPY], measure)
    store.ensure(PassKey(PASS.subject.changed(dtype="float64"), PASS.input), [ENTROPY], measure)
    assert len(measure.calls) == 2


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("package gguf is missing", "pip install gguf"),
        MeasurementError("rows do not sum to one"),
        SpecError([Problem(Place("x.attn.yaml", 3, 5), "head 9", "0..3")]),
    ],
)
def test_a_failed_pass_raises_the_same_error_in_every_process(tmp_path: Path, error: Exception) -> None:
    def fails(pass_key: PassKey, requests: list[Request]) -> Outcome:
        raise error

    Store(tmp_path / "run").ensure(PASS, [ENTROPY], fails)
    measure = Measuring()
    failure = Store(tmp_path / "run").ensure(PASS, [ENTROPY, ALPHA], measure).failure
    assert failure is not None
    again = failure.error()
    assert (type(again), str(again), measure.calls) == (type(error), str(error), [])
    if isinstance(error, Unavailable):
        assert isinstance(again, Unavailable)
        assert again.remedy == "pip install gguf"
    if isinstance(error, SpecError):
        assert isinstance(again, SpecError)
        assert again.problems == error.problems


def test_a_foreign_exception_keeps_its_traceback_as_a_note(tmp_path: Path) -> None:
    def fails(pass_key: PassKey, requests: list[Request]) -> Outcome:
        raise ZeroDivisionError("in the forward")

    failure = Store(tmp_path / "run").ensure(PASS, [ENTROPY], fails).failure
    assert failure is not None
    error = failure.error()
    assert isinstance(error, MeasurementError)
    assert str(error) == "ZeroDivisionError: in the forward"
    assert "in fails" in error.__notes__[0]


def test_one_requests_fault_does_not_cost_the_others(tmp_path: Path) -> None:
    def half(pass_key: PassKey, requests: list[Request]) -> Outcome:
        return Outcome({ENTROPY.key: measurement(np.zeros(2), ("layer",))}, {ALPHA.key: Fault.of(MeasurementError("no rows"))})

    record = Store(tmp_path / "run").ensure(PASS, [ENTROPY, ALPHA], half)
    assert list(record.answered) == [ENTROPY.key]
    assert record.faults[ALPHA.key].message == "no rows"


def test_a_request_that_nobody_answered_is_a_fault_and_no_silence(tmp_path: Path) -> None:
    record = Store(tmp_path / "run").ensure(PASS, [ALPHA], lambda pass_key, requests: Outcome({}))
    assert "gave no value for weights.alpha" in record.faults[ALPHA.key].message


def test_an_interrupt_leaves_nothing_behind_that_counts_as_an_attempt(tmp_path: Path) -> None:
    def interrupted(pass_key: PassKey, requests: list[Request]) -> Outcome:
        raise KeyboardInterrupt

    store = Store(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        store.ensure(PASS, [ENTROPY], interrupted)
    assert store.record(PASS) is None
    assert not list((tmp_path / "run").glob("*.started"))
    assert store.ensure(PASS, [ENTROPY], Measuring()).answered.keys() == {ENTROPY.key}


CHILD = """
    import os, signal, sys, time
    import numpy as np
    from pathlib import Path
    from attncheck.core.definitions import InputDefinition, PassKey, Request, SubjectDefinition
    from attncheck.core.measurement import measurement
    from attncheck.engine.store import Outcome, Store

    PASS = PassKey(SubjectDefinition("tiny", "config", {"model_type": "llama"}), InputDefinition("words", "tokens", {"tokens": "random"}))
    folder, how = Path(sys.argv[1]), sys.argv[2]

    def measure(pass_key, requests):
        with open(folder.parent / "log", "a") as log:
            log.write(f"{os.getpid()}\\n")
        if how == "killed":
            (folder / f".{pass_key.key}.safetensors.1.tmp").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)
        return Outcome({request.key: measurement(np.arange(4.0), ("layer",)) for request in requests})

    store = Store(folder)
    store.ensure(PASS, [Request.of("attention.entropy")], measure)
    print(store.values(PASS)["attention.entropy"]["value"].values.sum())
"""


def start(folder: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(CHILD), str(folder), how], stdout=subprocess.PIPE, text=True)


def test_processes_that_come_together_measure_once(tmp_path: Path) -> None:
    children = [start(tmp_path / "run", "well") for _ in range(3)]
    assert [child.communicate(timeout=60)[0].strip() for child in children] == ["6.0"] * 3
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_a_killed_process_leaves_no_lock_and_no_half_file_that_others_trust(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed = start(folder, "killed")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    store = Store(folder)
    assert store.record(PASS) is None
    begun = time.monotonic()
    record = store.ensure(PASS, [ENTROPY], Measuring())
    assert list(record.answered) == [ENTROPY.key]
    assert time.monotonic() - begun < HANGS


def test_a_pass_that_kills_its_processes_is_told_and_not_tried_for_ever(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for _ in range(ATTEMPTS):
        start(folder, "killed").communicate(timeout=60)
    measure = Measuring()
    failure = Store(folder).ensure(PASS, [ENTROPY], measure).failure
    assert failure is not None
    assert f"{ATTEMPTS} processes ended without a word" in failure.message
    assert measure.calls == []


def test_pruning_keeps_the_last_and_what_a_process_still_uses(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in range(8):
        (runs / f"2020010{number}T000000-abc").mkdir(parents=True)
    with FileLock(str(runs / "20200101T000000-abc" / "1-x.alive")):
        for folder in runs.iterdir():
            os.utime(folder, (0, 0))
        prune(runs, keep=3)
        left = sorted(folder.name[7] for folder in runs.iterdir())
    assert left == ["1", "5", "6", "7"]


def test_a_fresh_run_folder_is_never_pruned(tmp_path: Path) -> None:
    (tmp_path / "20200101T000000-abc").mkdir()
    prune(tmp_path, keep=0)
    assert [folder.name for folder in tmp_path.iterdir()] == ["20200101T000000-abc"]


def test_a_run_folder_keeps_itself_out_of_git(tmp_path: Path) -> None:
    store = Store(new_run(tmp_path))
    store.ensure(PASS, [ENTROPY], Measuring())
    store.close()
    assert (tmp_path / ".attncheck" / ".gitignore").read_text() == "*\n"
    assert not list(store.folder.glob("*.alive"))


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / ".attncheck").write_text("")
    with pytest.raises(MeasurementError, match=r"Not a directory: \.attncheck/runs/\S+ under the root directory.*--rootdir"):
        Store(new_run(tmp_path)).ensure(PASS, [ENTROPY], Measuring())


def test_a_link_out_of_the_project_is_not_followed(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    project.mkdir()
    outside.mkdir()
    (project / ".attncheck").symlink_to(outside)
    with pytest.raises(AttncheckError, match="lies outside"):
        new_run(project)
    assert not list(outside.iterdir())


def test_nothing_that_a_terminal_obeys_is_kept_of_an_error() -> None:
    try:
        raise ValueError("plain \x1b[31mred\x1b[0m \x07")
    except ValueError as error:
        fault = Fault.of(error)
    assert fault.message == "ValueError: plain red "
    assert "\x1b" not in fault.detail
    assert "ValueError: plain red" in fault.detail


def test_too_little_memory_needs_no_traceback() -> None:
    assert Fault.of(MemoryError("Unable to allocate 29.8 GiB")) == Fault(
        "MeasurementError", "not enough memory: Unable to allocate 29.8 GiB"
    )
