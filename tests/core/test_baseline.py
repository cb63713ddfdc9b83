"""The file format of baselines, the nearest environment, the tolerance of a pair, and writing that never tears or deletes."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck.core.baseline import (
    Baseline,
    Environment,
    Identity,
    Proposal,
    Recording,
    changes,
    digits_of,
    files,
    pair_tolerance,
    parse,
    read,
    rounded,
    text_of,
    write,
)
from attncheck.core.errors import AttncheckError, MeasurementError

ME = Identity("specs/mine.attn.yaml", "norm", "glassllm", "manual")
CPU = Environment("cpu", "AVX512", "float32", "sdpa", {"torch": "2.13.0"})


def environment(**changed: object) -> Environment:
    return Environment(**{**CPU.__dict__, **changed})  # type: ignore[arg-type]


def recording(values: list[float | None] | None = None, where: Environment = CPU) -> Recording:
    values = [1.5, 2.25, None, 4.0] if values is None else values
    return Recording(where, "attention.entropy", "abc", ("layer", "head"), {"layer": [0, 1], "head": [0, 1]}, values)


def test_a_file_has_a_line_for_each_layer_and_reads_back() -> None:
    made = Baseline(ME, (recording(), recording([1.0, math.inf, -math.inf, 0.0], environment(dtype="bfloat16"))))
    text = text_of(made)
    assert '    "layer 1": [null, 4.0]\n' in text
    assert parse(text, "x") == made
    assert json.loads(text)["recordings"][1]["values"]["layer 0"] == [1.0, "inf"]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.sampled_from(["seed", "sample", "layer", "head", "query"]), st.integers(1, 3)), unique_by=lambda s: s[0]),
    data=st.data(),
)
def test_any_shape_reads_back(sizes: list[tuple[str, int]], data: st.DataObject) -> None:
    order = ["seed", "sample", "layer", "head", "query"]
    dims = tuple(sorted((name for name, _ in sizes), key=order.index))
    labels = {name: list(range(size)) for name, size in sizes}
    count = math.prod(size for _, size in sizes)
    value = st.none() | st.floats(allow_nan=False)
    made = Recording(CPU, "q", "", dims, labels, data.draw(st.lists(value, min_size=count, max_size=count)))
    assert parse(text_of(Baseline(ME, (made,))), "x").recordings == (made,)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "JSONDecodeError"),
        (lambda text: text.replace("[1.5, 2.25]", "[1.5]"), "3 values for 2 layer, 2 head"),
        (lambda text: text.replace('"layer 1"', '"layer 7"'), "rows of values are not those"),
        (lambda text: f"<<<<<<< ours\n{text}", "a merge conflict?"),
        (lambda text: text.replace('"attncheck_baseline": 1', '"attncheck_baseline": 2'), "format 2; this version reads 1"),
        (lambda text: "[]", "TypeError"),
    ],
    ids=["cut", "short-row", "other-row", "conflict", "format", "list"],
)
def test_a_damaged_file_is_told_and_never_overwritten(tmp_path: Path, damage: object, says: str) -> None:
    write(tmp_path, Proposal(ME, recording(), "missing"))
    path = tmp_path / ME.path
    broken = damage(path.read_text())  # type: ignore[operator]
    path.write_text(broken)
    with pytest.raises(AttncheckError, match=re.escape(says)):
        read(tmp_path, ME)
    with pytest.raises(AttncheckError, match=re.escape(says)):
        write(tmp_path, Proposal(ME, recording([9.0, 9.0, 9.0, 9.0]), "moved"))
    assert path.read_text() == broken


def test_the_nearest_environment_has_the_same_dtype_first_and_is_finest_else() -> None:
    gpu = environment(device="cuda", capability="9.0")
    half = environment(dtype="bfloat16")
    eager = environment(attn_implementation="eager")
    held = Baseline(ME, tuple(recording(where=where) for where in (half, gpu, eager, CPU)))

    def nearest(**changed: object) -> Environment:
        found = held.nearest(environment(**changed))
        assert found is not None
        return found.environment

    assert nearest() == CPU
    assert nearest(attn_implementation="eager", versions={"torch": "9"}) == eager
    assert nearest(dtype="bfloat16", device="cuda", capability="9.0") == half
    assert nearest(dtype="float16") == CPU
    assert nearest(device="cuda", capability="8.0") == gpu
    assert nearest(capability="AVX2") == CPU
    assert Baseline(ME).nearest(CPU) is None


def test_the_tolerance_belongs_to_the_pair() -> None:
    half = environment(dtype="bfloat16")
    assert pair_tolerance(CPU, environment(attn_implementation="eager")) == (1e-5, 1e-5)
    assert pair_tolerance(CPU, half) == pair_tolerance(half, CPU) == (3e-2, 3e-3)
    assert pair_tolerance(half, environment(dtype="bfloat16", versions={"torch": "9"})) == (1e-5, 1e-5)
    assert pair_tolerance(half, environment(dtype="bfloat16", attn_implementation="eager")) == (3e-2, 3e-3)
    assert pair_tolerance(environment(dtype="float64"), environment(dtype="float64")) == (1e-9, 1e-9)
    assert pair_tolerance(CPU, environment(dtype="float64")) == (1e-5, 1e-5)


@settings(max_examples=100, deadline=None)
@given(st.floats(-1e6, 1e6).filter(lambda value: abs(value) > 1e-30), st.sampled_from([1e-2, 1e-5, 1e-9]))
def test_rounding_costs_less_than_a_tenth_of_the_resolution(value: float, resolution: float) -> None:
    assert abs(rounded(value, digits_of(resolution)) - value) <= 0.1 * resolution * abs(value)


def test_changes_come_worst_first_in_units_of_the_tolerance() -> None:
    found = changes(recording([1.0, 2.0, None, 0.0]), recording([1.0, 2.2, None, 0.05]), rtol=0.01, atol=0.1)
    assert [(change.where, round(change.units, 3)) for change in found] == [
        ({"layer": 0, "head": 1}, round(0.2 / 0.12, 3)),
        ({"layer": 1, "head": 1}, 0.5),
        ({"layer": 0, "head": 0}, 0.0),
    ]
    assert changes(recording([0.0] * 4), recording([1.0] + [0.0] * 3), 0, 0)[0].units == math.inf
    assert changes(recording([1.0] * 4), recording([None] + [1.0] * 3), 1, 1)[0].units == math.inf  # type: ignore[list-item]
    with pytest.raises(MeasurementError, match="2 layer, 2 head then, one number now"):
        changes(recording(), Recording(CPU, "", "", (), {}, [1.0]), 1, 1)


def test_writing_touches_the_recording_of_its_own_environment_alone(tmp_path: Path) -> None:
    half = environment(dtype="bfloat16")
    assert write(tmp_path, Proposal(ME, recording(), "missing")) == "recorded"
    assert write(tmp_path, Proposal(ME, recording(where=half), "moved")) == "updated"
    assert write(tmp_path, Proposal(ME, recording([9.0, 9.0, 9.0, 9.0], environment(versions={"torch": "3"})), "moved")) == "updated"
    held = read(tmp_path, ME)
    assert held is not None
    assert [(one.environment.dtype, one.values[0]) for one in held.recordings] == [("float32", 9.0), ("bfloat16", 1.5)]
    before = (tmp_path / ME.path).stat().st_mtime_ns
    assert write(tmp_path, Proposal(ME, recording(where=half), "moved")) == "unchanged"
    assert (tmp_path / ME.path).stat().st_mtime_ns == before


def test_a_writer_that_dies_leaves_the_old_file_whole_and_its_rest_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, Proposal(ME, recording(), "missing"))
    old = (tmp_path / ME.path).read_text()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, Proposal(ME, recording([9.0] * 4), "moved"))
    assert (tmp_path / ME.path).read_text() == old
    folder = (tmp_path / ME.path).parent
    assert len(list(folder.iterdir())) == 2
    assert files(tmp_path) == [ME.path]
    assert write(tmp_path, Proposal(ME, recording([9.0] * 4), "moved")) == "updated"
    assert [path.name for path in folder.iterdir()] == [ME.path.name]


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    environments = [environment(capability=f"c{number}") for number in range(8)]
    threads = [threading.Thread(target=write, args=(tmp_path, Proposal(ME, recording(where=one), "missing"))) for one in environments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = read(tmp_path, ME)
    assert held is not None
    assert {one.environment.capability for one in held.recordings} == {one.capability for one in environments}


def test_a_file_of_another_spec_is_not_taken_for_ours_and_nothing_leaves_the_project(tmp_path: Path) -> None:
    write(tmp_path, Proposal(ME, recording(), "missing"))
    other = Identity("other/mine.attn.yaml", "norm", "glassllm", "manual")
    assert other.path == ME.path
    with pytest.raises(AttncheckError, match=r"is the baseline of norm of glassllm on manual in specs/mine\.attn\.yaml"):
        write(tmp_path, Proposal(other, recording(), "missing"))
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (project / "baselines").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AttncheckError, match="lies outside"):
        write(project, Proposal(ME, recording(), "missing"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
