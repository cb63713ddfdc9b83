"""Argument types of the language: bounds with further keys, other observables, axes, shares; and paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from attncheck.core.bounds import Bound, parse_expression
from attncheck.core.definitions import Request
from attncheck.core.errors import AttncheckError
from attncheck.core.fields import AxesArgument, BoundArgument, RequestArgument, Share, parse_part, parse_share
from attncheck.core.paths import beside, inside, is_explicit


class Top(BoundArgument):
    top: Share


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    observable: RequestArgument | None = None
    axes: AxesArgument | None = None
    mass: Top | None = None


def test_a_bound_with_a_further_key() -> None:
    made = Arguments.model_validate({"mass": {"top": "50%", "at_least": "1/sqrt(N)"}}, context={"symbols": ("N",)})
    assert made.mass is not None
    assert made.mass.top == 0.5
    assert made.mass.bound == Bound(at_least=parse_expression("1/sqrt(N)"))


@pytest.mark.parametrize(
    ("given", "sides"),
    [({"between": [1, "N"]}, ("1", "N", None)), ({"equals": 2}, (None, None, "2")), ({"at_most": "90%"}, (None, "90%", None))],
)
def test_the_sides_of_a_bound(given: dict[str, object], sides: tuple[str | None, ...]) -> None:
    bound = BoundArgument.model_validate(given).bound
    assert tuple(None if side is None else side.text for side in (bound.at_least, bound.at_most, bound.equals)) == sides


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "found none"),
        ({"at_least": 1, "at_most": 2}, "found at_least, at_most"),
        ({"between": [2, 1]}, "is empty"),
        ({"between": [1]}, "tuple|length|required"),
        ({"at_least": "x"}, "no symbol"),
        ({"atleast": 1}, "not permitted"),
    ],
)
def test_a_bad_bound(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BoundArgument.model_validate(given, context={"symbols": ("N",)})


def test_an_observable_from_python() -> None:
    assert Arguments.model_validate({"observable": "attention.entropy"}).observable == Request("attention.entropy")
    named = Arguments.model_validate({"observable": {"weights.alpha": {"matrix": "q"}}}).observable
    assert named == Request.of("weights.alpha", {"matrix": "q"})
    with pytest.raises(ValidationError, match="not an observable"):
        Arguments.model_validate({"observable": {"a": 1, "b": 2}})


def test_axes() -> None:
    assert Arguments.model_validate({"axes": {"dtype": "float32"}}).axes == {"dtype": "float32"}
    for bad in ({}, {"dtpye": "float32"}, {"dtype": ["float32"]}, "eager"):
        with pytest.raises(ValidationError, match=r"axis|differs|one value"):
            Arguments.model_validate({"axes": bad})


@pytest.mark.parametrize(("text", "share"), [("50%", 0.5), (0.5, 0.5), ("100%", 1.0), (1, 1.0), ("12.5%", 0.125)])
def test_shares(text: object, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["0%", 0, "101%", 1.5, "half", True, "nan", "-5%", "", None])
def test_bad_shares(text: object) -> None:
    with pytest.raises(ValueError, match="not a share"):
        parse_share(text)


def test_a_part_with_an_enormous_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a part"):
        parse_part("first " + "9" * 400)


def test_paths(tmp_path: Path) -> None:
    assert inside(tmp_path, "a/../b.txt") == tmp_path.resolve() / "b.txt"
    outside = tmp_path / "link"
    outside.symlink_to("/")
    for bad in ("../x", "/etc/passwd", "a/../../x", "link/x", "a\0b"):
        with pytest.raises(AttncheckError, match=r"outside|NUL"):
            inside(tmp_path, bad)
    assert beside(tmp_path, "notes.txt") == str(tmp_path.resolve() / "notes.txt")
    assert beside(tmp_path, "/data/notes.txt") == "/data/notes.txt"
    assert [is_explicit(text) for text in ("./m", "../m", "~/m", "/m", "org/m", "package:m")] == [True] * 4 + [False] * 2
