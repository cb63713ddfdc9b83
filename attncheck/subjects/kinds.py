"""The registry of subject kinds: what may be measured, and the arguments that a spec gives for it.

    @subject_kind("pretrained")
    def pretrained(loading: Loading, *, name: str, revision: str | None = None) -> LoadedSubject:
        '''A model with trained weights. ...'''

The function is the loader itself; `attncheck.subjects.load` calls it with a Loading and the definition's options. Its keyword-only
parameters are the kind's arguments, and the first required one takes the shorthand: `pretrained: NAME` is `pretrained: {name: NAME}`.
A function with `**fields` takes any further names. `check` (arguments -> Complaints) is asked while a spec is read; `files` (arguments,
project root -> paths, or None) names all files that decide about the subject: without it, or with None, nothing measured on it is cached.
The registration must not import torch: loaders import inside their functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from attncheck.core.registry import Entry, Registry

F = TypeVar("F", bound=Callable[..., Any])

SUBJECT_KINDS: Registry[Entry] = Registry("subject kind")


def subject_kind(name: str, **about: Any) -> Callable[[F], F]:
    """Register a loader `(Loading, *, arguments) -> LoadedSubject` under the key that specs use for it.

    `check`, where given, maps the checked options to further complaints, which are told when the spec is read. `known`
    gives JSON Schemas of arguments by name, for editors, where the first argument may be one name with its arguments.
    """

    def register(function: F) -> F:
        SUBJECT_KINDS.add(Entry(name, function, about))
        return function

    return register
