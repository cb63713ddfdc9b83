"""What a measurement is made of: which quantity, on which subject, fed with which input. Plain data, hashable by content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

AXES = ("attn_implementation", "dtype", "device")
"""Keys of a subject where a list is a matrix of tests."""

DTYPES = ("float64", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda", "cuda:N", "mps")
_AXIS_VALUES = {"dtype": (re.compile("|".join(DTYPES)), DTYPES), "device": (re.compile(r"auto|cpu|cuda(:\d{1,4})?|mps"), DEVICES)}


def allowed_on_axis(axis: str, value: str) -> tuple[str, ...]:
    """What an axis takes, where the value is none of it; empty where it may be right. Only the models know the implementations."""
    pattern, allowed = _AXIS_VALUES.get(axis, (None, ()))
    return () if pattern is None or pattern.fullmatch(value) else allowed


def canonical(value: Any) -> str:
    """JSON with sorted keys: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def digest(value: Any) -> str:
    """A short content hash of JSON-like data."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Request:
    """An observable's name and its arguments, as the spec wrote them (defaults filled in)."""

    name: str
    arguments_json: str = "{}"

    @classmethod
    def of(cls, name: str, arguments: Mapping[str, Any] | None = None) -> Request:
        return cls(name, canonical(dict(arguments or {})))

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(json.loads(self.arguments_json))

    @property
    def key(self) -> str:
        return self.name if self.arguments_json == "{}" else f"{self.name}{self.arguments_json}"

    def __str__(self) -> str:
        shown = ", ".join(f"{name}: {value}" for name, value in self.arguments.items())
        return f"{self.name} ({shown})" if shown else self.name


@dataclass(frozen=True)
class SubjectDefinition:
    """A subject after `like`, defaults, axes and command line: everything that determines what is measured.

    `kind` is the registered subject kind, `options` its arguments (JSON-like). The name is for people and is no part of the key.
    """

    name: str
    kind: str
    options: Mapping[str, Any]
    attn_implementation: str | None = None
    dtype: str | None = None
    device: str | None = None
    weights: str = "trained"
    """"trained", or "random": the same architecture freshly initialised from `seed`."""
    seed: int = 0
    attention_layers: int | None = None
    perturbed: str = ""
    """The perturbation under which it is measured, by name: the self-test asks whether a property notices."""

    @property
    def content(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "name" and (name != "perturbed" or value)}

    @property
    def key(self) -> str:
        return digest(self.content)

    def __hash__(self) -> int:
        # `options` is a mapping, which the generated hash would refuse.
        return hash(self.key)

    def changed(self, **changes: Any) -> SubjectDefinition:
        return replace(self, **changes)


@dataclass(frozen=True)
class InputDefinition:
    """What a subject is fed. `kind` is the registered input kind, `options` its arguments; the rest applies to every kind."""

    name: str
    kind: str
    options: Mapping[str, Any]
    batch: int | None = None
    length: int | None = None
    padding: Mapping[str, Any] | None = None
    """{side: left | right, amount: tokens}: row b of a batch of B gets about amount * (b + 1) / B pads, the last row all of them."""

    @property
    def content(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "name"}

    @property
    def key(self) -> str:
        return digest(self.content)

    def __hash__(self) -> int:
        # `options` is a mapping, which the generated hash would refuse.
        return hash(self.key)


@dataclass(frozen=True)
class PassKey:
    """One forward pass: a subject and its input (None where only weights are read)."""

    subject: SubjectDefinition
    input: InputDefinition | None = None

    @property
    def key(self) -> str:
        return f"{self.subject.key}-{self.input.key if self.input else 'weights'}"

    def __str__(self) -> str:
        return self.subject.name + (f" on {self.input.name}" if self.input else "")


@dataclass
class Plan:
    """Which requests each pass must answer."""

    requests: dict[PassKey, list[Request]] = field(default_factory=dict)

    def add(self, pass_key: PassKey, request: Request) -> None:
        wanted = self.requests.setdefault(pass_key, [])
        if request not in wanted:
            wanted.append(request)
