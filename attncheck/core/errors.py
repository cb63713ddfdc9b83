"""One error family. What each means for a test: Unavailable skips, MeasurementError errs, SpecError refuses the file."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.core.verdict import Verdict

LONGEST_TEXT = 2000
"""Characters of a foreign exception's text that are shown."""
MOST_PROBLEMS = 200
"""Mistakes of one file that are printed; `SpecError.problems` holds all."""
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class AttncheckError(Exception):
    """Base of everything that attncheck raises on purpose."""


@dataclass(frozen=True, order=True)
class Place:
    """A position in a spec file; line and column count from 1."""

    path: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake in a spec: where, what was found, what is allowed, and the nearest known name."""

    place: Place
    found: str
    allowed: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        text = f"{self.place}: {self.found}"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        if self.nearest:
            text += f"; did you mean {self.nearest!r}?"
        return text


class SpecError(AttncheckError):
    """A spec file with one or more mistakes, all of them listed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        count = len(self.problems)
        lines = [*map(str, self.problems[:MOST_PROBLEMS]), *([f"and {count - MOST_PROBLEMS} more"] if count > MOST_PROBLEMS else [])]
        super().__init__(f"{count} problem{'s' if count != 1 else ''}:\n" + "\n".join(lines))


class Unavailable(AttncheckError):
    """A model, package or device that is not here. `remedy` is the exact command or setting that brings it."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}; {remedy}" if remedy else reason)


class MeasurementError(AttncheckError):
    """Something could not be measured: never a pass, never a failure of the claim."""


class DoesNotApply(AttncheckError):
    """A test that says nothing of this subject, which is no fault of either; the message says why."""


class Undecided(MeasurementError):
    """An estimate too wide to decide the claim. `places` are the undecided cells (dim -> coordinate), to be measured exactly."""

    def __init__(self, message: str, places: Sequence[Mapping[str, Any]] = ()) -> None:
        self.places = tuple(dict(place) for place in places)
        super().__init__(message)


class NotObservable(MeasurementError):
    """Attention ran that no capture route could see; the message names what was missed and what to do."""


class BoundBroken(AttncheckError):
    """A live bound that does not hold, raised out of the training that `attncheck.record` watches. The text is a failure's.

    `quantity` is the recorded quantity, `step` the step at which it broke, `verdict` the numbers (None where the quantity could not be
    judged: it is not a number), `picture` the path of its picture.
    """

    def __init__(
        self, message: str, *, quantity: str = "", step: int = 0, verdict: Verdict | None = None, picture: Path | None = None
    ) -> None:
        self.quantity, self.step, self.verdict, self.picture = quantity, step, verdict, picture
        super().__init__(message)


class AttentionWarning(UserWarning):
    """A property of `level: warn`, or a live bound of `attncheck.record`, that does not hold; `-W error::attncheck.AttentionWarning` makes
    it fail."""


def printable(text: str) -> str:
    """Without control characters and what a terminal would obey; line ends stay."""
    return _CONTROL.sub("", text)


def raised(error: BaseException, where: str = "") -> str:
    """What somebody else's code raised, for one line of ours: type, text without control characters, and the line that raised it, the
    innermost one that is neither ours nor torch's."""
    text = " ".join(printable(str(error)).split())
    kind = f"{type(error).__name__}{where}"
    shown = f"{kind}: {text}" if text else kind
    if len(shown) > LONGEST_TEXT:
        shown = f"{shown[:LONGEST_TEXT]} ..."
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _inner(frame.filename)]
    return f"{shown} ({_short(frames[-1].filename)}:{frames[-1].lineno})" if frames else shown


def _inner(filename: str) -> bool:
    place = Path(filename)
    return filename.startswith("<") or "torch" in place.parts or Path(__file__).resolve().parents[1] in place.resolve().parents


def _short(filename: str) -> str:
    """Relative to where one works, or from the package on."""
    place = Path(filename)
    if place.is_relative_to(Path.cwd()):
        return str(place.relative_to(Path.cwd()))
    parts = place.parts
    return "/".join(parts[parts.index("site-packages") + 1 :] if "site-packages" in parts else parts[-2:])


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name closest to `name`, or an empty string. The same letters in another case are closest of all."""
    names = list(known)
    for other in names:
        if other.lower() == str(name).lower():
            return other
    found = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    return found[0] if found else ""
