"""Named things. A decorator registers a function; its keyword-only parameters become the argument model of the language."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_type_hints

from attncheck.core.errors import AttncheckError, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Complaint:
    """What is wrong with an argument beyond its type, told while the spec is read: `about["check"]` of an entry gives them."""

    argument: str
    found: str
    allowed: str | Sequence[str] = ""
    """A text, or the names that are allowed."""
    like: str | None = None
    """The name found, for the nearest of those."""


@dataclass(frozen=True)
class Entry:
    """A registered name: what it does and what arguments it takes."""

    name: str
    function: Callable[..., Any]
    about: dict[str, Any] = field(default_factory=dict)
    """What the registry's decorator was told besides the name (dims, unit, what it reads, ...)."""

    def complaints(self, arguments: Mapping[str, Any]) -> list[Complaint]:
        """What the entry's own check has against arguments of the right types; without torch, before anything is loaded."""
        check = self.about.get("check")
        return list(check(arguments)) if check is not None else []

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.function) or ""

    @property
    def summary(self) -> str:
        return self.doc.split("\n\n")[0].replace("\n", " ")

    @cached_property
    def parameters(self) -> dict[str, tuple[Any, Any]]:
        """Keyword-only parameters: name -> (type, default or ...)."""
        given = {name: p for name, p in inspect.signature(self.function).parameters.items() if p.kind is p.KEYWORD_ONLY}
        # Only these are evaluated: the positional ones are named by types that are imported for type checking alone.
        named = SimpleNamespace(__annotations__={name: p.annotation for name, p in given.items() if p.annotation is not p.empty})
        hints = get_type_hints(named, globalns=getattr(self.function, "__globals__", {}), include_extras=True)
        found = {name: (hints.get(name, Any), ... if p.default is p.empty else p.default) for name, p in given.items()}
        return {**found, **self.about.get("extra_parameters", {})}

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """The pydantic model of the arguments; unknown ones are refused unless the function takes `**names`."""
        from pydantic import ConfigDict, create_model

        title = "".join(part.title() for part in self.name.replace(".", "_").split("_"))
        fields: dict[str, Any] = dict(self.parameters)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.function).parameters.values())
        config = ConfigDict(extra="allow" if takes_any else "forbid", arbitrary_types_allowed=True)
        return create_model(title, __config__=config, **fields)


E_co = TypeVar("E_co", bound=Entry)


class Registry(Generic[E_co]):
    """Names to entries, in the order of registration."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._entries: dict[str, E_co] = {}

    def add(self, entry: E_co) -> None:
        if entry.name in self._entries and self._entries[entry.name].function.__module__ != entry.function.__module__:
            raise AttncheckError(
                f"{self.noun} {entry.name!r} is registered twice: by "
                f"{self._entries[entry.name].function.__module__} and {entry.function.__module__}"
            )
        self._entries[entry.name] = entry

    def __getitem__(self, name: str) -> E_co:
        if name not in self._entries:
            hint = nearest(name, self._entries)
            raise AttncheckError(f"unknown {self.noun} {name!r}" + (f"; did you mean {hint!r}?" if hint else ""))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterator[tuple[str, E_co]]:
        return iter(self._entries.items())
