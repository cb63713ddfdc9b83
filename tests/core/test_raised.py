"""What somebody else's exception becomes in our texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncheck.core.errors import LONGEST_TEXT, raised


def caught(source: str, path: Path, **names: object) -> BaseException:
    path.write_text(source, encoding="utf-8")
    try:
        exec(compile(source, str(path), "exec"), {"torch": torch, **names})
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_line_is_the_users_and_not_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = caught("x = torch.ones(2)\n\ntorch.nn.functional.layer_norm(x, (3,))\n", tmp_path / "mine.py")
    text = raised(error, " in layers.0")
    assert text.startswith("RuntimeError in layers.0: Given normalized_shape=[3]")
    assert text.endswith(" (mine.py:3)")


def test_a_place_elsewhere_is_told_without_the_way_to_it(tmp_path: Path) -> None:
    (tmp_path / "site-packages" / "theirs").mkdir(parents=True)
    error = caught("raise ValueError\n", tmp_path / "site-packages" / "theirs" / "model.py")
    assert raised(error) == "ValueError (theirs/model.py:1)"


def test_control_characters_and_endless_texts_stay_out(tmp_path: Path) -> None:
    error = caught(r"raise ValueError('\x1b[31mred\x1b[0m\n  and\tmore\x07' + 'x' * 9000)", tmp_path / "mine.py")
    text = raised(error)
    assert text.startswith("ValueError: red and morexxx")
    assert "\x1b" not in text
    assert len(text) < LONGEST_TEXT + 100
