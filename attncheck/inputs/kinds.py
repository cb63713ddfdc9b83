"""The registry of input kinds: what a subject may be fed, and the arguments that a spec gives for it.

    @input_kind("text")
    def text(building: Building, *, text: str | list[str], tokenizer: Tokenizer = "subject") -> Feed:
        '''Text, encoded by the subject's own tokenizer. ...'''

The function builds the feed; `attncheck.inputs.build` calls it with a Building (the definition, the subject's encoder, device, dtype).
Its keyword-only parameters are the kind's arguments, and the first required one takes the shorthand: `corpus: NAME` is
`corpus: {name: NAME}`. `batch`, `length` and `padding` belong to every kind and are no arguments. `check` and `files` are those of
`attncheck.subjects.kinds`. No torch at import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from attncheck.core.registry import Entry, Registry

F = TypeVar("F", bound=Callable[..., Any])

INPUT_KINDS: Registry[Entry] = Registry("input kind")


def input_kind(name: str, **about: Any) -> Callable[[F], F]:
    """Register a builder `(Building, *, arguments) -> Feed` under the key that specs use for it."""

    def register(function: F) -> F:
        INPUT_KINDS.add(Entry(name, function, about))
        return function

    return register
