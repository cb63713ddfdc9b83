"""Measurements kept between runs: the same answers without measuring, and a miss for every change of what determines them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from transformers import LlamaConfig, LlamaForCausalLM

from attncheck.core.definitions import InputDefinition, PassKey, Request, SubjectDefinition
from attncheck.core.observable import OBSERVABLES, observable
from attncheck.engine import identity, measure
from attncheck.engine.cache import Cache
from attncheck.engine.run import Run, RunOptions
from attncheck.engine.vocabulary import vocabulary

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
}
CONFIG = SubjectDefinition("tiny", "config", TINY)
WORDS = InputDefinition("words", "tokens", {"ids": "random"}, length=12)
ENTROPY, SINK = Request.of("attention.entropy", {"per": "head"}), Request.of("attention.sink_mass", {"per": "head"})


class Project:
    """A project folder with a checkpoint, a text and code of its own, and a cache; `measured` counts passes that were run."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.measured, self.runs, self.patch = folder, 0, 0, monkeypatch
        real = measure.measure

        def counted(*given: Any, **named: Any) -> Any:
            self.measured += 1
            return real(*given, **named)

        monkeypatch.setattr(measure, "measure", counted)
        monkeypatch.setenv("ATTNCHECK_CACHE", str(folder.parent / "cache"))
        monkeypatch.setenv("ATTNCHECK_CACHE_LIMIT", str(1 << 28))
        # These tests are code of the project themselves.
        monkeypatch.setattr(identity, "loaded_code", lambda: "")
        # Reading all of torch takes a second; the test on transformers' code reads it.
        monkeypatch.setattr(identity, "_trees", lambda root: [Path(root)])
        (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 8)
        (folder / "conftest.py").write_text("SETTING = 1\n")
        LlamaForCausalLM(LlamaConfig(**{k: v for k, v in TINY.items() if k != "model_type"})).save_pretrained(folder / "model")

    @property
    def checkpoint(self) -> SubjectDefinition:
        return SubjectDefinition("trained", "pretrained", {"name": "./model", "revision": None, "variant": None, "task": None})

    @property
    def text(self) -> InputDefinition:
        return InputDefinition("text", "file", {"path": "text.txt", "tokenizer": "bytes"}, length=12)

    def fetch(self, pass_key: PassKey, *requests: Request, **options: Any) -> list[xr.Dataset]:
        identity.surroundings.cache_clear()
        identity.content.cache_clear()
        measure._held.clear()
        self.runs += 1
        run = Run(self.folder.parent / f"run{self.runs}", options=RunOptions(self.folder, cache=True, **options))
        try:
            return [run.fetch(pass_key, request) for request in requests or (ENTROPY,)]
        finally:
            run.close()

    def hit(self, pass_key: PassKey, *requests: Request, **options: Any) -> bool:
        before = self.measured
        self.fetch(pass_key, *requests, **options)
        return self.measured == before


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    vocabulary()
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project", monkeypatch)


def test_the_second_run_gives_the_same_without_measuring(project: Project) -> None:
    for pass_key in (PassKey(CONFIG, WORDS), PassKey(project.checkpoint, project.text)):
        (first,) = project.fetch(pass_key)
        measured = project.measured
        (second,) = project.fetch(pass_key)
        assert project.measured == measured
        xr.testing.assert_identical(first, second)
        for name in ("value", "stack", "path"):
            assert np.array_equal(first[name].values, second[name].values)


def test_only_what_is_not_there_is_measured(project: Project) -> None:
    pass_key = PassKey(CONFIG, WORDS)
    project.fetch(pass_key, ENTROPY)
    assert not project.hit(pass_key, ENTROPY, SINK)
    assert project.hit(pass_key, SINK, ENTROPY)


def touched(path: str, change: Callable[[bytes], bytes]) -> Callable[[Project, PassKey], PassKey]:
    def apply(project: Project, pass_key: PassKey) -> PassKey:
        place = project.folder / path
        told = place.stat() if place.exists() else None
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(change(place.read_bytes() if told else b""))
        if told:  # a change that hides from the clock
            os.utime(place, ns=(told.st_atime_ns, told.st_mtime_ns))
        return pass_key

    return apply


def flipped(content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]


def environment(name: str, value: str) -> Callable[[Project, PassKey], PassKey]:
    def apply(project: Project, pass_key: PassKey) -> PassKey:
        project.patch.setenv(name, value)
        return pass_key

    return apply


def defined(**changes: Any) -> Callable[[Project, PassKey], PassKey]:
    return lambda project, pass_key: PassKey(pass_key.subject.changed(**changes), pass_key.input)


def fed(length: int) -> Callable[[Project, PassKey], PassKey]:
    return lambda project, pass_key: PassKey(pass_key.subject, InputDefinition("text", "file", project.text.options, length=length))


def another_torch(project: Project, pass_key: PassKey) -> PassKey:
    real = metadata.distributions

    def newer(**context: Any) -> Any:
        for found in real(**context):
            yield Newer(found._path) if found.metadata["Name"] == "torch" else found  # type: ignore[attr-defined]

    project.patch.setattr(metadata, "distributions", newer)
    return pass_key


class Newer(metadata.PathDistribution):
    """The same files, a record of which one hash is another."""

    def read_text(self, filename: Any) -> str | None:
        text = super().read_text(filename)
        return f"{text}torch/lib/libtorch_cpu.so,sha256=other,1\n" if filename == "RECORD" else text


CHANGES: dict[str, Callable[[Project, PassKey], PassKey]] = {
    "a-bit-of-the-weights": touched("model/model.safetensors", flipped),
    "the-checkpoints-configuration": touched(
        "model/config.json", lambda text: text.replace(b'"rope_theta": 10000.0', b'"rope_theta": 10001.0')
    ),
    "a-file-beside-the-weights": touched("model/tokenizer_config.json", lambda text: text + b"{}"),
    "the-text": touched("text.txt", lambda text: text.replace(b"quick", b"slick")),
    "code-of-the-project": touched("conftest.py", lambda text: text.replace(b"1", b"2")),
    "new-code-in-the-project": touched("kernels/mine.cu", lambda text: text + b"// another\n"),
    "another-build-of-torch": another_torch,
    "threads": environment("OMP_NUM_THREADS", "7"),
    "a-switch-of-torch": environment("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"),
    "the-length": fed(13),
    "the-dtype": defined(dtype="bfloat16"),
    "the-implementation": defined(attn_implementation="eager"),
    "random-weights": defined(weights="random"),
    "the-count-of-layers": defined(attention_layers=2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_a_miss(project: Project, change: str) -> None:
    pass_key = PassKey(project.checkpoint, project.text)
    project.fetch(pass_key)
    assert project.hit(pass_key)
    changed = CHANGES[change](project, pass_key)
    assert not project.hit(changed)
    assert project.hit(changed)


EDITED = ["transformers/integrations/sdpa_attention.py", "attncheck/instruments/rows.py", "torch/nn/functional.py"]


@pytest.mark.parametrize("edited", EDITED)
def test_an_edited_file_of_the_libraries_is_a_miss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, edited: str) -> None:
    before, real = identity.surroundings(str(tmp_path)), identity.content
    monkeypatch.setattr(identity, "content", lambda path: "edited" if path.as_posix().endswith(edited) else real(path))
    identity.surroundings.cache_clear()
    assert identity.surroundings(str(tmp_path)) != before
    monkeypatch.undo()
    identity.surroundings.cache_clear()
    assert identity.surroundings(str(tmp_path)) == before


def test_an_editable_install_counts_that_no_path_leads_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "their checkout"
    source.mkdir()
    told = tmp_path / "site" / "theirs-1.0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (told / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(str(told.parent))
    assert source in identity._trees(str(tmp_path / "project"))


def test_the_command_line_and_the_arguments_count(project: Project) -> None:
    pass_key = PassKey(CONFIG, WORDS)
    project.fetch(pass_key)
    assert not project.hit(pass_key, dtype="bfloat16")
    assert not project.hit(pass_key, Request.of("attention.entropy", {"per": "query"}))
    assert project.hit(pass_key)


def test_the_code_of_an_observable_counts_wherever_it_lies(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "elsewhere" / "theirs.py"
    place.parent.mkdir()
    source = "def doubled(tile):\n    '''Twice.'''\n    return 2 * tile.row_sum\n"
    place.write_text(source)
    monkeypatch.syspath_prepend(str(place.parent))
    import theirs  # type: ignore[import-not-found]

    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(place.parent)])
    observable("attention.doubled", reads="rows", dims=("layer", "head"), over_queries="mean")(theirs.doubled)
    try:
        request = Request.of("attention.doubled", OBSERVABLES["attention.doubled"].arguments().model_dump(mode="json"))
        project.fetch(PassKey(CONFIG, WORDS), request)
        assert project.hit(PassKey(CONFIG, WORDS), request)
        place.write_text(source.replace("2 *", "3 *"))
        assert not project.hit(PassKey(CONFIG, WORDS), request)
    finally:
        OBSERVABLES._entries.pop("attention.doubled")


@pytest.mark.parametrize(
    "subject",
    [
        SubjectDefinition("own", "python", {"factory": "mine:model", "arguments": None}),
        SubjectDefinition("own", "operator", {"name": "mine:attention", "arguments": None}),
        CONFIG.changed(attn_implementation="registered-by-a-conftest"),
        SubjectDefinition("far", "pretrained", {"name": "./model", "trust_remote_code": True}),
    ],
)
def test_what_cannot_be_known_is_never_kept(project: Project, subject: SubjectDefinition) -> None:
    cache = Cache.opened()
    assert cache is not None
    assert cache.keys(PassKey(CONFIG, WORDS), [ENTROPY], project.folder, {})
    assert cache.keys(PassKey(subject, WORDS), [ENTROPY], project.folder, {}) == {}


LOADED = """
import sys
sys.path[:0] = sys.argv[1:]
from attncheck.engine.identity import loaded_code
import numpy, torch, transformers, xarray, attncheck.plugin
before = loaded_code()
import flagged
print([before, loaded_code()])
"""


def test_once_code_of_the_project_is_loaded_nothing_is_kept(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conftest may change a library on a flag of its own: the hash of its text says nothing of the flag."""
    (tmp_path / "flagged.py").write_text("import os\nBUG = os.environ.get('MYBUG')\n")
    done = subprocess.run([sys.executable, "-c", LOADED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['', 'flagged']"
    monkeypatch.setattr(identity, "loaded_code", lambda: "conftest")
    assert [project.hit(PassKey(CONFIG, WORDS)) for _ in range(2)] == [False, False]


def test_a_project_of_too_many_files_is_not_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MOST_FILES", 3)
    for number in range(4):
        (project.folder / f"part{number}.py").touch()
    assert not project.hit(PassKey(CONFIG, WORDS))
    assert not project.hit(PassKey(CONFIG, WORDS))


def test_a_failure_is_not_kept(project: Project) -> None:
    padding = Request.of("attention.padding_mass", {"per": "head"})
    for _ in range(2):
        with pytest.raises(Exception, match="no padding"):
            project.fetch(PassKey(CONFIG, WORDS), padding)
    assert project.measured == 2


def entries(project: Project) -> list[Path]:
    return sorted((project.folder.parent / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize("content", [b"", b"half of a fi", b"\x00" * 4096])
def test_a_torn_file_is_a_miss_and_is_replaced(project: Project, content: bytes) -> None:
    (first,) = project.fetch(PassKey(CONFIG, WORDS))
    (entry,) = entries(project)
    entry.write_bytes(content)
    assert not project.hit(PassKey(CONFIG, WORDS))
    xr.testing.assert_identical(project.fetch(PassKey(CONFIG, WORDS))[0], first)


def test_what_was_unused_for_longest_goes_first(project: Project) -> None:
    cache = Cache(project.folder.parent / "small", limit=1 << 20)
    data = xr.Dataset({"value": (("layer",), np.zeros(1000))})
    for number in range(20):
        cache.put(f"{number:016x}", data, [])
        os.utime(cache._path(f"{number:016x}"), (number, number))
    assert cache.get(f"{0:016x}") is not None  # reading it makes it the latest
    cache.shrink(5 * 9000)
    left = {path.stem for path in cache.place.rglob("*.safetensors")}
    assert f"{0:016x}" in left
    assert f"{1:016x}" not in left
    assert cache.size()[1] <= 5 * 9000
    cache.put("f" * 16, xr.Dataset({"value": (("layer",), np.zeros(100_000))}), [])
    assert cache.get("f" * 16) is None, "one measurement may not fill the cache"


HAMMER = """
import sys, numpy as np, xarray as xr
from pathlib import Path
from attncheck.engine.cache import Cache
cache = Cache(Path(sys.argv[1]), limit=60_000)
print("ready", flush=True)
for turn in range(int(sys.argv[2])):
    key = f"{turn % 7:016x}"
    found = cache.get(key)
    if found is not None:
        value = found[0]["value"].values
        assert (value == turn % 7).all() and value.shape == (700,), "torn"
    cache.put(key, xr.Dataset({"value": (("layer",), np.full(700, float(turn % 7)))}), [])
    if turn % 5 == 0:
        cache.shrink(30_000)
print("done")
"""


def test_several_processes_and_a_kill(tmp_path: Path) -> None:
    """Four write, read and remove the same keys; one of them is killed in the middle."""

    def start(turns: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HAMMER), str(tmp_path), str(turns)], stdout=subprocess.PIPE, text=True
        )

    killed, others = start(1_000_000), [start(120) for _ in range(3)]
    assert killed.stdout is not None
    killed.stdout.readline()
    assert [other.communicate(timeout=60)[0].split() for other in others] == [["ready", "done"]] * 3
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    cache = Cache(tmp_path)
    found = [cache.get(f"{number:016x}") for number in range(7)]
    assert any(found)
    assert all(kept is None or (kept[0]["value"].values == number).all() for number, kept in enumerate(found))
