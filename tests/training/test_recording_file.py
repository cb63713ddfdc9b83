"""The recorder's file: whatever ends the process, what was recorded before is there; a recording goes on where it was, or refuses."""

from __future__ import annotations

import json
import math
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_recorder import PROBE, SEEN, Net, net

import attncheck
from attncheck.core.errors import AttncheckError, MeasurementError
from attncheck.core.measurement import measurement
from attncheck.recording.lines import content_of, line_of, whole_lines
from attncheck.recording.stored import from_json, to_json

HEADER = {"attncheck_recording": 1}


def recording(path: Path, steps: int = 4, **options: Any) -> Path:
    with attncheck.record(net(), SEEN, path=path, inputs=PROBE, every=1, **options) as recorder:
        for n in range(steps):
            recorder.step(n)
    return path


def test_numbers_that_json_lacks_survive_to_the_bit() -> None:
    value = np.array([[math.nan, math.inf, -math.inf], [0.1, -0.0, 5e-324]])
    data = measurement(
        value,
        ("layer", "head"),
        present=np.array([[True, False, True], [True, True, True]]),
        coords={"layer": (("layer",), [0, 3]), "stack": (("layer",), ["self", "cross"])},
        symbols={"N": ((), 7.5), "H": (("layer",), np.array([2, 3]))},
        attrs={"unit": "nats", "kernel_error": math.inf, "notes": ["a note"], "empty_rows": 0, "resolution": 1e-5},
    )
    line = line_of({"values": {"it": to_json(data)}})
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    stored = content_of(line)
    assert stored is not None
    found = from_json(stored["values"]["it"])
    assert found.identical(data)
    assert found["value"].values.tobytes() == value.tobytes()
    assert {name: found[name].dtype.kind for name in ("value", "present", "layer", "stack")} == {
        "value": "f", "present": "b", "layer": "i", "stack": "U",
    }  # fmt: skip


def test_cut_at_any_byte_the_whole_lines_before_are_read(tmp_path: Path) -> None:
    lines = [line_of(HEADER), *(line_of({"step": n, "it": [0.1] * n}) for n in range(4))]
    whole, path = b"".join(lines), tmp_path / "run.jsonl"
    ends = np.cumsum([len(line) for line in lines])
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        found, kept = whole_lines(path)
        assert len(found) == (ends <= size).sum()
        assert kept == max([0, *ends[ends <= size]])


@pytest.mark.parametrize("torn", [b"", b"\0" * 100, b'{"step":4,"it":[0.1', b'{"step":9,"checksum":"00000000"}\n', b"\xff\n\n"])
def test_a_torn_end_is_cut_off_on_resume(tmp_path: Path, torn: bytes) -> None:
    path = recording(tmp_path / "run.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert attncheck.read_recording(path)["step"].values.tolist() == [0, 1, 2, 3]
    recording(path, 6, resume=True)
    assert path.read_bytes().startswith(whole)
    assert path.read_bytes().count(b"\n") == 7
    assert attncheck.read_recording(path)["step"].values.tolist() == [0, 1, 2, 3, 4, 5]


def test_damage_before_the_end_is_an_error(tmp_path: Path) -> None:
    path = recording(tmp_path / "run.jsonl")
    content = path.read_bytes()
    middle = content.index(b'"step":2') + 200
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    with pytest.raises(MeasurementError, match="line 4 is damaged, and there are whole lines after it"):
        attncheck.read_recording(path)


@pytest.mark.parametrize("content", [b"", line_of(HEADER)[:20], line_of(HEADER)])
def test_nothing_recorded_yet(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(MeasurementError, match="no step was recorded yet"):
        attncheck.read_recording(path)


def test_what_is_no_recording_is_refused_and_left_alone(tmp_path: Path) -> None:
    for name, content, said in (
        ("notes.txt", b"my notes\n", "is no recording"),
        ("other.jsonl", line_of({"step": 1}), "is no recording"),
        ("later.jsonl", line_of({"attncheck_recording": 2}), "a recording of format 2; allowed: .* of format 1"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(MeasurementError, match=said):
            attncheck.read_recording(path)
        with pytest.raises(MeasurementError, match=said):
            recording(path, resume=True)
        assert path.read_bytes() == content
    with pytest.raises(MeasurementError, match=r"cannot be read: No such file"):
        attncheck.read_recording(tmp_path / "absent.jsonl")


def test_a_recording_that_exists_is_not_written_over(tmp_path: Path) -> None:
    path = recording(tmp_path / "run.jsonl")
    before = path.read_bytes()
    with pytest.raises(AttncheckError, match="exists; resume=True goes on after its last step, or name another path"):
        recording(path)
    assert path.read_bytes() == before


def test_resume_begins_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert attncheck.read_recording(recording(tmp_path / "run.jsonl", resume=True)).sizes["step"] == 4


def test_resume_goes_on_after_the_last_step(tmp_path: Path) -> None:
    path = recording(tmp_path / "run.jsonl")
    kept = path.read_bytes()
    with attncheck.record(net(), SEEN, path=path, inputs=PROBE, resume=True) as recorder:
        for n in range(2, 10):  # a checkpoint of step 2
            recorder.step(n)
    assert recorder.steps == [0, 1, 2, 3, 4, 8, 9]
    assert path.read_bytes().startswith(kept)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"observables": ["logits.max"]}, r"its observables are attention\.entropy, logits\.max, and here logits\.max"),
        ({"model": torch.nn.Sequential(Net())}, r"its model is Net of 1440 parameters .*, and here Sequential of 1440"),
        ({"model": Net().double(), "inputs": {"x": PROBE["x"].double()}}, r"its model is Net of .*\), and here Net of"),
        ({"inputs": {"x": PROBE["x"] + 1}}, r"its inputs are \w+, and here \w+; allowed: the same observables, model, inputs"),
    ],
)
def test_resume_refuses_something_else(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = recording(tmp_path / "run.jsonl")
    before = path.read_bytes()
    given: dict[str, Any] = {"observables": SEEN, "model": net(), "inputs": PROBE, **change}
    recorder = attncheck.record(given["model"], given["observables"], path=path, inputs=given["inputs"], resume=True)
    with pytest.raises(AttncheckError, match=said), recorder:
        pass
    assert path.read_bytes() == before


def test_other_versions_of_the_libraries_are_noted(tmp_path: Path) -> None:
    path = recording(tmp_path / "run.jsonl")
    first, *others = path.read_bytes().splitlines(keepends=True)
    header = content_of(first)
    assert header is not None
    header["versions"]["torch"] = "1.0"
    path.write_bytes(line_of(header) + b"".join(others))
    recording(path, 6, resume=True)
    found = attncheck.read_recording(path)
    assert found.attrs["notes"] == [f"resumed after step 3 with torch {torch.__version__}"]
    assert found.attrs["versions"]["torch"] == "1.0"


def test_resume_refuses_another_number_of_heads_though_no_weight_tells(tmp_path: Path) -> None:
    path = recording(tmp_path / "run.jsonl")
    before = path.read_bytes()
    with (
        pytest.raises(
            MeasurementError, match="its earlier steps have sample 2, layer 1, head 2, and this model has sample 2, layer 1, head 4"
        ),
        attncheck.record(Net(4), SEEN, path=path, inputs=PROBE, resume=True) as recorder,
    ):
        recorder.step(4)
    assert path.read_bytes() == before


def test_a_bound_on_the_course_knows_what_was_recorded_before(tmp_path: Path) -> None:
    path, told = recording(tmp_path / "run.jsonl"), []
    model = net()
    model.scale = 100.0
    bounds = {"max": {"at_most": 50, "reduce": {"sample": "max", "head": "max", "step": "growth"}}}
    with attncheck.record(model, SEEN, path=path, inputs=PROBE, every=1, resume=True, bounds=bounds, on_break=told.append) as recorder:
        recorder.step(4)
    (broken,) = told
    assert "growth 100" in str(broken)


def test_one_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with attncheck.record(net(), SEEN, path=path, inputs=PROBE):
        script = f"from attncheck.recording.lines import *; Appender(Path({str(path)!r}), resume=True)"
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stderr
    assert "another process records to" in said


FULL = """
import resource, sys
from attncheck.recording.lines import *
appender = Appender(Path(sys.argv[1]), resume=False)
appender.append({"attncheck_recording": 1})
appender.append({"step": 0})
size = Path(sys.argv[1]).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 7, resource.RLIM_INFINITY))
try:
    appender.append({"step": 1})
except MeasurementError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
appender.append({"step": 2})
"""


def test_a_file_that_cannot_grow_keeps_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    said = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True).stdout
    assert re.search(r"run\.jsonl cannot be written: 7 of \d+ bytes were written; is the disk full", said)
    assert whole_lines(path)[0] == [HEADER, {"step": 0}, {"step": 2}]


WRITER = """
import sys
from pathlib import Path
from attncheck.recording.lines import Appender
appender = Appender(Path(sys.argv[1]), resume=True)
if not appender.lines:
    appender.append({"attncheck_recording": 1})
step = len(appender.lines) and appender.lines[-1].get("step", -1)
while True:
    step += 1
    appender.append({"step": step, "values": [0.1 * step] * 3000})
    print(step, flush=True)
"""

TRAINING = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from test_recorder import PROBE, SEEN, net
import attncheck
model, step = net().train(), 0
with attncheck.record(model, SEEN, path=sys.argv[1], inputs=PROBE, every=1, resume=True) as recorder:
    step = recorder.steps[-1] if recorder.steps else -1
    while True:
        step += 1
        recorder.step(step)
        print(step, flush=True)
"""


def killed(script: str, path: Path, seconds: float) -> int:
    """Start it, wait until it has recorded something and some random time longer, kill it; the last step that it was told is recorded."""
    command = [sys.executable, "-c", script, str(path), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    said = [first, *process.communicate(timeout=60)[0].splitlines(keepends=True)]
    assert process.returncode == -signal.SIGKILL
    return int([line for line in said if line.endswith("\n")][-1])


def test_killed_at_any_moment_no_line_is_lost(tmp_path: Path) -> None:
    path, draw = tmp_path / "run.jsonl", random.Random(0)
    for _ in range(8):
        last = killed(WRITER, path, draw.uniform(0, 0.1))
        found, _ = whole_lines(path)
        steps = [line["step"] for line in found[1:]]
        assert steps == list(range(steps[0], steps[-1] + 1)), "resumed without a gap"
        assert steps[-1] in (last, last + 1), "what step() returned from is there"
        assert all(line["values"] == [0.1 * line["step"]] * 3000 for line in found[1:])


@pytest.mark.slow
def test_a_killed_training_stays_readable_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for seconds in (0.05, 0.2):
        last = killed(TRAINING, path, seconds)
        found = attncheck.read_recording(path)
        assert found["step"].values.tolist()[: last + 1] == list(range(last + 1))
        assert np.isfinite(found["attention.entropy"].values).all()
        assert found.sizes["step"] in (last + 1, last + 2)
