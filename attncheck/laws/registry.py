"""The laws: registered by name, each a function of one trial that returns, or raises LawViolation or NotApplicable."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import AttncheckError, nearest

if TYPE_CHECKING:
    from attncheck.core.claims import OperatorClaims
    from attncheck.core.verdict import Picture
    from attncheck.laws.trial import Trial

FAMILIES = (
    "reference", "values", "masks", "heads", "batch", "causal", "window", "scores", "shapes", "gradients", "determinism", "returns",
    "packing", "blocks", "decay", "rotary", "norm", "shards", "budget", "quantised", "convert", "compiled",
)  # fmt: skip
"""Modules of attncheck.laws, cheapest and most telling first."""

Needs = Callable[["OperatorClaims"], str | None]
"""Why a law does not apply under these claims, naming the field, or None where it does."""


class LawViolation(AttncheckError):
    """A law that does not hold, with the numbers. `then` is one line of Python, after the operator's call, that shows it; `picture`
    makes a picture of it, and is asked once the smallest example is found."""

    def __init__(self, message: str, then: str | None = None, picture: Callable[[], Picture | None] | None = None) -> None:
        self.then, self.picture = then, picture
        super().__init__(message)


class NotApplicable(AttncheckError):
    """A law that says nothing about this example; the message says why."""


@dataclass(frozen=True)
class Law:
    """One relation: `sentence` says what must hold and when."""

    name: str
    family: str
    sentence: str
    needs: Needs
    check: Callable[[Trial], None]
    sweeps: bool = False
    """Whether it goes through lengths, sizes or shifts by itself, so that few examples are enough."""
    thorough: bool = False
    """Whether an example costs seconds, so that it is tried in a thorough search only."""

    @property
    def id(self) -> str:
        return f"{self.family}-{self.name}"


LAWS: dict[str, Law] = {}


def claimed(*fields: str) -> Needs:
    """A law that needs each of `fields` to be claimed; "causal=True" style values are compared as text."""

    def needs(claims: OperatorClaims) -> str | None:
        for field in fields:
            name, _, wanted = field.partition("=")
            value: Any = getattr(claims, name)
            if value is None or value is False or value == ():
                return f"claims.{name} is {'not claimed' if value is None else value}"
            if wanted and wanted not in (value if isinstance(value, tuple) else (str(value),)):
                return f"claims.{name} is {value}, not {wanted}"
        return None

    return needs


def law(
    name: str, *, family: str, needs: Needs | None = None, sweeps: bool = False, thorough: bool = False
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Register a law. Its docstring's first paragraph is the sentence that a failure shows."""

    def register(check: Callable[[Trial], None]) -> Callable[[Trial], None]:
        sentence = " ".join((inspect.getdoc(check) or "").split("\n\n")[0].split())
        entry = Law(name, family, sentence, needs or (lambda claims: None), check, sweeps, thorough)
        if not sentence:
            raise AttncheckError(f"law {entry.id} has no docstring, which says what must hold and when")
        if entry.id in LAWS and LAWS[entry.id].check.__qualname__ != check.__qualname__:
            raise AttncheckError(f"two laws are called {entry.id}")
        LAWS[entry.id] = entry
        return check

    return register


def laws(names: tuple[str, ...] | list[str] | None = None) -> list[Law]:
    """All laws, or those named by id or by family, in the order of the families, whichever was imported first: a run stops at the first
    violation, and a seed must find the same one in every session. Raises AttncheckError on an unknown name."""
    for family in FAMILIES:
        import_module(f"attncheck.laws.{family}")
    order = {family: number for number, family in enumerate(FAMILIES)}
    known = sorted(LAWS.values(), key=lambda entry: order.get(entry.family, len(order)))
    if names is None:
        return known
    for name in names:
        if name not in LAWS and name not in FAMILIES:
            hint = nearest(name, [*LAWS, *FAMILIES])
            raise AttncheckError(f"no law {name!r}" + (f"; did you mean {hint!r}?" if hint else "") + f"; allowed: {', '.join(LAWS)}")
    return [entry for entry in known if entry.id in names or entry.family in names]
