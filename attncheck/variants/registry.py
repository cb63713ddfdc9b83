"""The registry of attention variants: one decorated function per file, which turns its arguments into a `Variant`.

    @variant("polynomial", source="arXiv:2410.18613")
    def polynomial(*, power: Power = 3, factor: Factor = "1/sqrt(N)") -> Variant:
        '''Polynomial attention: ...'''

The keyword-only parameters are the variant's arguments, in specs and in Python alike. Registering and checking need no torch: the
function may only put things together, and torch is imported where an operator or a module is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from attncheck.core.errors import MeasurementError, nearest
from attncheck.core.registry import Entry, Registry

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.variants.layer import Attention

Operator = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., "Variant"])

VARIANTS: Registry[Entry] = Registry("attention variant")


class VariantError(MeasurementError):
    """A definition that names no variant, or one that cannot be built as asked; lists every problem."""


@dataclass(frozen=True)
class Shape:
    """The place that a module of a variant takes in a model."""

    width: int
    heads: int
    tokens: int | None = None
    """Length of the sequences, where it is fixed."""
    rotary: bool = False
    qk_norm: bool = False

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


class Projections(Protocol):
    """How the keys and values of a module come from its hidden states, and what a cache keeps of them."""

    def query_dim(self, shape: Shape) -> int:
        """Width of a query of one head."""
        ...

    def rotated_dim(self, shape: Shape) -> int:
        """How many of a head's last dims rotary embeddings turn."""
        ...

    def problems(self, shape: Shape) -> list[str]: ...

    def build(self, layer: Attention) -> None:
        """Add the parameters to the module."""
        ...

    def state(self, layer: Attention, hidden: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """What a cache keeps of each token: tensors [batch, any, N, any]."""
        ...

    def expand(self, layer: Attention, state: Mapping[str, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [batch, kv_heads, M, d] and values [batch, kv_heads, M, d_v] of the tokens kept, ready for the operator."""
        ...

    def weights(self, layer: Attention) -> dict[str, Tensor]:
        """`key`, `value` [kv_heads, d, width] and parts such as `key.shared`, for observables of weights."""
        ...


@dataclass(frozen=True)
class Variant:
    """One attention variant with its arguments filled in."""

    operator: Operator
    """The signature of torch's scaled_dot_product_attention, plus keyword extras."""
    projections: Projections | None = None
    """None: a key and a value per head."""
    fused: bool = False
    """On keys and values of its projections the operator is plain softmax attention: a module calls torch's own kernel."""
    window: int | None = None
    qk_norm: bool = False
    """Queries and keys of a module are normalised, whatever its caller says."""
    gain: bool = False
    """... with a learned gain per channel."""
    extras: Mapping[str, Callable[[Shape], Any]] = field(default_factory=dict)
    """Arguments of the operator that depend on the module's place."""
    learned: Mapping[str, Callable[[Shape], Sequence[float]]] = field(default_factory=dict)
    """Arguments of the operator that a module learns: name -> initial values."""
    rows: str = "kernel"
    """How the weights of a module's call are read: off the operator ("kernel"), or by the softmax formula of its arguments ("formula")."""


def variant(name: str, *, source: str, aliases: Sequence[str] = ()) -> Callable[[F], F]:
    """Register a function of keyword-only arguments that returns a `Variant`; its docstring is what `attncheck explain` prints."""

    def register(function: F) -> F:
        for known in (name, *aliases):
            VARIANTS.add(Entry(known, function, {"source": source, "is": name}))
        return function

    return register


@dataclass(frozen=True)
class Definition:
    """A definition taken apart and checked: the variant's main name and all its arguments, JSON-like."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def variant(self) -> Variant:
        made: Variant = VARIANTS[self.name].function(**self.arguments)
        return made

    def __str__(self) -> str:
        shown = ", ".join(f"{name}: {value}" for name, value in self.arguments.items())
        return f"{self.name} ({shown})" if shown else self.name

    @property
    def plain(self) -> str | dict[str, Any]:
        """As a spec may write it; equal variants give equal data, whichever form named them."""
        return {self.name: dict(self.arguments)} if self.arguments else self.name


def named(definition: Any) -> tuple[str, Mapping[str, Any]] | None:
    """'mha' or {'lrkv': {'rank': 10}} -> name and arguments; None for anything else."""
    if isinstance(definition, str):
        return definition, {}
    if isinstance(definition, Mapping) and len(definition) == 1:
        ((name, arguments),) = definition.items()
        if isinstance(name, str) and isinstance(arguments, Mapping | None):
            return name, arguments or {}
    return None


def examined(definition: Any) -> Definition | list[str]:
    """The definition taken apart, or everything that is wrong with it."""
    from pydantic import ValidationError

    if isinstance(definition, Definition):
        return definition
    taken = named(definition)
    if taken is None:
        return [
            f"{definition!r} is not an attention variant; allowed: a name, or one name with its arguments, as in {{lrkv: {{rank: 10}}}}"
        ]
    name, arguments = taken
    if name not in VARIANTS:
        hint = nearest(name, VARIANTS)
        also = f"; did you mean {hint!r}?" if hint else ""
        return [f"unknown attention variant {name!r}{also}; allowed: {', '.join(VARIANTS)}"]
    entry = VARIANTS[name]
    try:
        model = entry.arguments(**dict(arguments))
    except ValidationError as error:
        problems = []
        for item in error.errors():
            argument = str(item["loc"][0]) if item["loc"] else ""
            if item["type"] == "extra_forbidden":
                hint = nearest(argument, entry.parameters)
                told = f"{name} takes no {argument!r}" + (f"; did you mean {hint!r}?" if hint else "")
                problems.append(f"{told}; allowed: {', '.join(entry.parameters) or 'no arguments'}")
            elif item["type"] == "missing":
                problems.append(f"{name} needs {argument!r}")
            else:
                problems.append(f"{name}: {argument}: {item['msg'].removeprefix('Value error, ')}; found {item['input']!r}")
        return list(dict.fromkeys(problems))
    return Definition(str(entry.about["is"]), model.model_dump(mode="json"))


def resolved(definition: Any) -> Definition:
    """The definition taken apart. Raises VariantError with every problem."""
    found = examined(definition)
    if isinstance(found, Definition):
        return found
    raise VariantError("; ".join(found))


def misfits(variant: Variant, shape: Shape) -> list[str]:
    """Why the variant does not fit into a place of this shape."""
    problems = []
    if shape.width < 1 or shape.heads < 1 or shape.width % max(shape.heads, 1):
        return [f"a width of {shape.width} does not divide into {shape.heads} heads"]
    if shape.rotary and shape.head_dim % 2:
        problems.append(f"rotary embeddings need heads of an even width; found {shape.width} / {shape.heads} = {shape.head_dim}")
    if shape.tokens is not None and shape.tokens < 1:
        problems.append(f"tokens: {shape.tokens}; allowed: 1 or more")
    return problems + (variant.projections.problems(shape) if variant.projections is not None else [])
