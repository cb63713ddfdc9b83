"""What went wrong in a pass, as text: another process reads it and raises the same error for each property that needed the pass."""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass
from typing import Any

from attncheck.core.errors import AttncheckError, MeasurementError, NotObservable, Place, Problem, SpecError, Unavailable, printable

FRAMES = 6
"""Innermost frames that are kept of a foreign exception; the first ones are attncheck's own calls."""


LONGEST = 4_000
"""Characters of a message: an exception may carry a whole tensor or page."""


@dataclass(frozen=True)
class Fault:
    """An error without its objects. `detail` is the long part (a foreign traceback), reported once."""

    kind: str
    message: str
    remedy: str = ""
    detail: str = ""
    problems: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        notes = "\n".join(getattr(error, "__notes__", ()))
        match error:
            case Unavailable():
                return cls("Unavailable", error.reason, error.remedy, notes)
            case SpecError():
                return cls("SpecError", str(error), detail=notes, problems=tuple(asdict(problem) for problem in error.problems))
            case NotObservable():
                return cls("NotObservable", _shortened(str(error)), detail=notes or _cause(error))
            case AttncheckError():
                return cls("MeasurementError", _shortened(str(error)), detail=notes or _cause(error))
            case MemoryError():
                return cls("MeasurementError", _shortened(f"not enough memory: {error}" if str(error) else "not enough memory"))
            case _:
                return cls("MeasurementError", _shortened(f"{type(error).__name__}: {error}"), detail=_frames(error))

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Fault:
        return cls(**{**stored, "problems": tuple(stored.get("problems", ()))})

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}

    def error(self) -> AttncheckError:
        """A fresh exception of the same kind; the detail travels as a note (PEP 678)."""
        made: AttncheckError
        if self.kind == "Unavailable":
            made = Unavailable(self.message, self.remedy)
        elif self.kind == "SpecError":
            made = SpecError([Problem(**{**problem, "place": Place(**problem["place"])}) for problem in self.problems])
        elif self.kind == "NotObservable":
            made = NotObservable(self.message)
        else:
            made = MeasurementError(self.message)
        if self.detail:
            made.add_note(self.detail)
        return made


def _cause(error: BaseException) -> str:
    return _frames(error.__cause__) if error.__cause__ is not None else ""


def _frames(error: BaseException) -> str:
    shown = traceback.format_exception(type(error), error, error.__traceback__, limit=-FRAMES, chain=False)
    return _shortened("".join(shown).rstrip())


def _shortened(text: str) -> str:
    """The beginning and the end of what is too long, and nothing that a terminal would obey."""
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
