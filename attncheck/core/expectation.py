"""How a demand beyond a plain bound is written down: one decorated function per name, see `attncheck.expectations`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attncheck.core.registry import Entry, Registry

F = TypeVar("F", bound=Callable[..., Any])

EXPECTATIONS: Registry[Entry] = Registry("demand")


def expectation(
    name: str,
    *,
    requires: Callable[..., Any] | None = None,
    observes: bool = True,
    consumes: Sequence[str] = (),
    parts: Callable[..., Sequence[str]] | None = None,
) -> Callable[[F], F]:
    """Register a demand: `(context, **arguments) -> Verdict`; its keyword-only parameters are the arguments that the spec may give.

    `requires(case, arguments)` lists what it needs measured besides the property's own observable, as (PassKey, Request) pairs.
    `observes` is False where it measures for itself, so that its property has no `observe`. `consumes` are the dims that it uses up
    (key, where it compares key by key): `for` cannot count them afterwards. `parts(kind, claims, arguments)` makes several tests of
    one, by what they are called, and raises AttncheckError where these claims do not do; the test's own is `context.case.part`.
    """

    def register(function: F) -> F:
        about = {"requires": requires, "observes": observes, "consumes": tuple(consumes), "parts": parts}
        EXPECTATIONS.add(Entry(name, function, about))
        return function

    return register
