"""A live bound at one step: whether it holds, and if not, its text and its picture over the recorded steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.errors import AttncheckError, BoundBroken, MeasurementError, printable

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.core.verdict import Picture, Verdict
    from attncheck.recording.bounds import LiveBound

SETTLED = 3
"""Recorded steps from which on a bound on the course of a quantity is judged: an exponent needs two steps above 0."""
_PLACE = re.compile(r"bounds:\d+:\d+: ")


def judged(bound: LiveBound, data: xr.Dataset) -> Verdict:
    """The verdict on a measurement over steps. Raises MeasurementError where the claim cannot be checked."""
    from attncheck.expectations import judge

    return judge(bound.case, lambda pass_key, request: data)


def without_place(error: AttncheckError) -> str:
    """The message without the line of a file that nobody wrote."""
    return _PLACE.sub("", str(error))


def broken(
    bound: LiveBound, step: int, now: xr.Dataset | MeasurementError, course: Callable[[], xr.Dataset], path: Path, *, first: bool
) -> BoundBroken | None:
    """What to tell where the bound does not hold at this step; None where it does.

    `now` is the measurement of the step, or of all steps for a bound on the course; `course` reads all steps. What is not a number, or
    could not be measured, holds no bound. Raises MeasurementError where already the `first` step cannot be judged: then the bound is wrong.
    """
    from attncheck.report import broken_text

    verdict, why = None, ""
    if isinstance(now, MeasurementError):
        why = str(now)
    elif said := _not_numbers(bound, now):
        why = said
    else:
        try:
            verdict = judged(bound, now)
        except MeasurementError as error:
            why = without_place(error)
            if first:
                raise MeasurementError(f"bounds: {bound.name}: {why}") from None
        if verdict is not None and verdict.passed:
            return None
    try:
        whole = course()
        picture = _draw(_picture(bound, whole), picture_path(path, bound.name))
        steps = whole.sizes["step"]
    except (AttncheckError, OSError):  # the claim is told in any case
        picture, steps = None, 0
    text = broken_text(bound.case, bound.claim, verdict, why, step=step, recording=path, steps=steps, picture_path=picture)
    return BoundBroken(printable(text), quantity=bound.name, step=step, verdict=verdict, picture=picture)


def picture_path(recording: Path, name: str) -> Path:
    """`run.attention.entropy.png` beside `run.jsonl`."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return recording.with_name(f"{recording.stem}.{safe}.png")


def _not_numbers(bound: LiveBound, data: xr.Dataset) -> str:
    """'attention.entropy is not a number at 4 of 4 places, first at layer 0, head 0', or an empty text."""
    from attncheck.expectations.field import Field

    try:
        Field.of(data).refuse_nan(bound.name, "")
    except MeasurementError as error:
        return str(error).removeprefix(": ")
    return ""


def _picture(bound: LiveBound, whole: xr.Dataset) -> Picture | None:
    """The verdict's own picture, or the bare course where some of it is not a number."""
    import numpy as np

    from attncheck.expectations.course import panels
    from attncheck.expectations.field import Field
    from attncheck.expectations.sides import Context

    if not _not_numbers(bound, whole):
        return judged(bound, whole).picture
    found = Field.of(whole)
    shown = panels(Context(bound.case, lambda *asked: whole), found, None, np.zeros(found.shape, dtype=bool), bound.name)
    return replace(shown, notes=(*shown.notes, "where a line ends, it is not a number or was not measured"))


def _draw(picture: Picture | None, path: Path) -> Path | None:
    from attncheck.report.pictures import draw

    return None if picture is None else draw(picture, path)
