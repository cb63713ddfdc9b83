"""Pictures stay under the project root, whatever names, ids and links say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging_toolkit import case

from attncheck.core.errors import AttncheckError
from attncheck.report.paths import picture_name, picture_path, within


def named(name: str, id_: str) -> object:
    made = case(name=name)
    return type(made)(**{**made.__dict__, "id": id_})


def test_the_path_of_a_case(tmp_path: Path) -> None:
    made = named("keys-are-larger", "lrkv/manual")
    assert picture_path(tmp_path, made) == tmp_path.resolve() / ".attncheck/plots/mine/keys-are-larger-lrkv-manual.png"  # type: ignore[arg-type]


def test_specs_of_one_name_in_two_folders_have_pictures_of_their_own(tmp_path: Path) -> None:
    made = named("p", "a/b")
    place = made.property.place  # type: ignore[attr-defined]
    other = replace(made, property=replace(made.property, place=replace(place, path=f"elsewhere/{Path(place.path).name}")))  # type: ignore[attr-defined, type-var]
    assert picture_path(tmp_path, made) == picture_path(tmp_path, other)  # type: ignore[arg-type]
    assert picture_path(tmp_path, made, namesakes=True) != picture_path(tmp_path, other, namesakes=True)  # type: ignore[arg-type]


def test_ids_that_would_share_a_name_do_not() -> None:
    names = {picture_name(named(name, id_)) for name, id_ in [("p", "a-b/c"), ("p", "a/b-c"), ("p", "a/b/c"), ("p-a", "b/c")]}  # type: ignore[arg-type]
    assert len(names) >= 3
    assert picture_name(named("p", "a-b/c")) != picture_name(named("p", "a/b-c"))  # type: ignore[arg-type]


@given(st.text(max_size=300), st.text(max_size=300))
def test_no_name_leaves_the_folder(name: str, id_: str) -> None:
    root = Path("/srv/project")
    made = picture_path(root, named(name, id_))  # type: ignore[arg-type]
    assert made.parent == root / ".attncheck" / "plots" / "mine"
    assert len(made.name) < 200


def test_a_link_out_of_the_project_is_refused(tmp_path: Path) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / ".attncheck").symlink_to(outside)
    with pytest.raises(AttncheckError, match="leads out of"):
        picture_path(root, case())


@pytest.mark.parametrize("parts", [("..", "x"), ("/etc/passwd",), ("a", "..", "..", "x")])
def test_parts_that_climb_are_refused(tmp_path: Path, parts: tuple[str, ...]) -> None:
    with pytest.raises(AttncheckError):
        within(tmp_path, *parts)
