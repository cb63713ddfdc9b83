"""The laws of models: registered by name, each a function of one trial that returns, or raises LawViolation or NotApplicable."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import AttncheckError, nearest

if TYPE_CHECKING:
    from attncheck.core.model_claims import ModelClaims
    from attncheck.laws.models.trial import ModelTrial

FAMILIES = (
    "causal", "padding", "batch", "history", "extras", "implementations", "cache", "positions", "packing", "gradients",
    "encoder_decoder", "saving", "configuration",
)  # fmt: skip
"""Modules of attncheck.laws.models, cheapest and most telling first."""

Needs = Callable[["ModelClaims"], str | None]
"""Why a law does not apply under these claims, naming the field, or None where it does."""


@dataclass(frozen=True)
class ModelLaw:
    """One relation: `sentence` says what must hold and when."""

    name: str
    family: str
    sentence: str
    needs: Needs
    check: Callable[[ModelTrial], None]
    once: bool = False
    """Whether it makes its own inputs, so that one example is enough."""

    @property
    def id(self) -> str:
        return f"model-{self.family}-{self.name}"


MODEL_LAWS: dict[str, ModelLaw] = {}


def claims(*fields: str) -> Needs:
    """A law that needs each of `fields` to be claimed; "cache=static" asks for a word among several, "causal=False" for a value."""

    def needs(claimed: ModelClaims) -> str | None:
        for entry in fields:
            name, _, wanted = entry.partition("=")
            value: Any = getattr(claimed, name)
            if value is None:
                return f"claims.{name} is not claimed"
            if wanted and wanted not in (value if isinstance(value, tuple) else (str(value),)):
                return f"claims.{name} is {value}, not {wanted}"
            if not wanted and (value is False or value == ()):
                return f"claims.{name} is {value}"
        return None

    return needs


def model_law(
    name: str, *, family: str, needs: Needs | None = None, once: bool = False
) -> Callable[[Callable[[ModelTrial], None]], Callable[[ModelTrial], None]]:
    """Register a law. Its docstring's first paragraph is the sentence that a failure shows."""

    def register(check: Callable[[ModelTrial], None]) -> Callable[[ModelTrial], None]:
        sentence = " ".join((inspect.getdoc(check) or "").split("\n\n")[0].split())
        entry = ModelLaw(name, family, sentence, needs or (lambda claimed: None), check, once)
        if not sentence:
            raise AttncheckError(f"law {entry.id} has no docstring, which says what must hold and when")
        if entry.id in MODEL_LAWS and MODEL_LAWS[entry.id].check.__qualname__ != check.__qualname__:
            raise AttncheckError(f"two laws are called {entry.id}")
        MODEL_LAWS[entry.id] = entry
        return check

    return register


def model_laws(names: tuple[str, ...] | list[str] | None = None) -> list[ModelLaw]:
    """All laws of models, or those named by id or family ("model-cache"), in the order of the families.

    Raises AttncheckError on an unknown name."""
    for family in FAMILIES:
        import_module(f"attncheck.laws.models.{family}")
    known = sorted(MODEL_LAWS.values(), key=lambda entry: FAMILIES.index(entry.family))
    if names is None:
        return known
    families = [f"model-{family}" for family in FAMILIES]
    for name in names:
        if name not in MODEL_LAWS and name not in families:
            hint = nearest(name, [*MODEL_LAWS, *families])
            raise AttncheckError(f"no law {name!r}" + (f"; did you mean {hint!r}?" if hint else "") + f"; allowed: {', '.join(MODEL_LAWS)}")
    return [entry for entry in known if entry.id in names or f"model-{entry.family}" in names]
