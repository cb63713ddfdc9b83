"""Converted weights are kept once, whole, and only for the very file and libraries that made them."""

from __future__ import annotations

import threading
import time

import pytest

from attncheck.subjects.converted import cache_folder, converted, key_of


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNCHECK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"one")
    return path


class Counting:
    def __init__(self, fails=False, wait=0.0):
        self.calls, self.fails, self.wait = 0, fails, wait

    def __call__(self, source, target):
        self.calls += 1
        (target / "model").write_bytes(source.read_bytes())
        time.sleep(self.wait)
        if self.fails:
            raise ValueError("half way")


def read(source, convert):
    with converted(source, convert, libraries=("torch",)) as (folder, notes):
        return (folder / "model").read_bytes(), folder, notes


def test_the_second_time_reads(source):
    convert = Counting()
    content, folder, notes = read(source, convert)
    assert (content, notes) == (b"one", [])
    assert read(source, convert)[1] == folder
    assert convert.calls == 1


def test_another_file_is_another_entry(source):
    convert = Counting()
    _, first, _ = read(source, convert)
    source.write_bytes(b"two")
    content, second, _ = read(source, convert)
    assert content == b"two"
    assert first != second
    assert key_of(source, ("torch",)) != key_of(source, ("torch", "numpy"))


def test_a_conversion_that_fails_leaves_nothing(source):
    with pytest.raises(ValueError, match="half way"):
        read(source, Counting(fails=True))
    assert [path.suffix for path in cache_folder().iterdir()] == [".lock"]
    assert read(source, Counting())[0] == b"one"


def test_two_at_once_convert_once(source):
    convert, contents = Counting(wait=0.2), []
    threads = [threading.Thread(target=lambda: contents.append(read(source, convert)[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents == [b"one"] * 3
    assert convert.calls == 1


def test_off_converts_each_time_and_says_so(source, monkeypatch):
    monkeypatch.setenv("ATTNCHECK_CACHE", "off")
    convert = Counting()
    content, folder, notes = read(source, convert)
    read(source, convert)
    assert (content, convert.calls) == (b"one", 2)
    assert notes == ["ATTNCHECK_CACHE=off: the weights were converted anew"]
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_no_error(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ATTNCHECK_CACHE", str(tmp_path / "file"))
    content, _, notes = read(source, Counting())
    assert content == b"one"
    assert "were not kept" in notes[0]


def test_the_user_s_folder_is_the_default(monkeypatch):
    import platformdirs

    monkeypatch.delenv("ATTNCHECK_CACHE", raising=False)
    assert str(cache_folder()).startswith(platformdirs.user_cache_dir("attncheck"))
