"""What the author of a model says of it. The laws of models follow from it; a field left out is not tested."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from attncheck.core.claims import ClaimError
from attncheck.core.errors import nearest

SEVERAL: dict[str, tuple[str, ...]] = {
    "padding": ("left", "right"),
    "cache": ("dynamic", "static", "quantised"),
    "deterministic": ("forward", "backward"),
    "returns": ("attentions", "eager_attentions", "hidden_states"),
}
"""Field -> the words of which it may hold some."""

FLAGS = ("causal", "batch", "packing", "rotary", "scale")
WORDS: dict[str, tuple[str, ...]] = {"positional": ("none", "relative", "absolute"), "dropout": ("none",)}


@dataclass(frozen=True, kw_only=True)
class ModelClaims:
    """Claims about a model in eval mode. None: not claimed.

    causal: no token reaches an earlier one (True), or every token reaches every other (False). window: number of tokens that a token
    sees, itself included, if causal, |i−j| < window otherwise; one number, or one for each block, None where a block sees all. padding:
    sides on which masked tokens may stand. batch: rows do not know of each other. cache: kinds with which decoding gives what one
    forward gives; dynamic and static ones slide in the layers whose configuration says so. packing: documents in one row, told apart by
    position_ids that begin anew, give what they give alone. implementations: names for set_attn_implementation that agree. positional:
    only differences of positions enter ("relative"), positions themselves do ("absolute"), or nothing does ("none"). rotary: angles are
    those of the configuration. scale: scores are multiplied with what the configuration says. deterministic: which passes repeat bit by
    bit. dropout: "none" in eval mode. returns: attentions (under every implementation, or eager_attentions under that one) and
    hidden_states, where they are asked for. exceptions: id of a law that the architecture breaks by design -> the reason, which the
    report shows.
    """

    causal: bool | None = None
    window: int | tuple[int | None, ...] | None = None
    padding: tuple[str, ...] | None = None
    batch: bool | None = None
    cache: tuple[str, ...] | None = None
    packing: bool | None = None
    implementations: tuple[str, ...] | None = None
    positional: str | None = None
    rotary: bool | None = None
    scale: bool | None = None
    deterministic: tuple[str, ...] | None = None
    dropout: str | None = None
    returns: tuple[str, ...] | None = None
    exceptions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in SEVERAL.items():
            self._several(name, allowed)
        self._several("implementations", None)
        for name in FLAGS:
            if getattr(self, name) is not None and not isinstance(getattr(self, name), bool):
                raise ClaimError(f"{name}: {getattr(self, name)!r}; allowed: True, False")
        for name, allowed in WORDS.items():
            if getattr(self, name) is not None and getattr(self, name) not in allowed:
                raise ClaimError(f"{name}: {getattr(self, name)!r}; allowed: {_listed(allowed)}")
        self._window()
        if not isinstance(self.exceptions, Mapping):
            raise ClaimError(f"exceptions: {self.exceptions!r}; allowed: a mapping from a law's id to the reason")
        for law, reason in self.exceptions.items():
            if not isinstance(reason, str) or not reason.strip():
                raise ClaimError(f"exceptions: {law}: {reason!r}; allowed: the reason, in words")
        if self.rotary and self.positional == "none":
            raise ClaimError("rotary with positional: none, though angles are positions; allowed: relative, absolute, or leave it out")
        if self.cache and self.causal is False:
            raise ClaimError("cache with causal: false, though later tokens would change what is kept; allowed: leave one of them out")

    def _several(self, name: str, allowed: tuple[str, ...] | None) -> None:
        given = getattr(self, name)
        if given is None:
            return
        parts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else (given,)
        for part in parts:
            if not isinstance(part, str) or (allowed is not None and part not in allowed):
                hint = nearest(str(part), allowed or ())
                words = "some of " + _listed(allowed) if allowed else "names, such as 'eager', 'sdpa'"
                raise ClaimError(f"{name}: {part!r}" + (f"; did you mean {hint!r}?" if hint else "") + f"; allowed: {words}")
        if name == "implementations" and len(parts) == 1:
            raise ClaimError(f"implementations: {parts[0]!r} alone agrees with nothing; allowed: two or more names")
        object.__setattr__(self, name, parts)

    def _window(self) -> None:
        given = self.window
        parts = tuple(given) if isinstance(given, list | tuple) else (given,)
        for part in parts:
            if part is not None and (not isinstance(part, int) or isinstance(part, bool) or part < 1):
                raise ClaimError(f"window: {part!r}; allowed: a whole number above 0, or one for each block, None where it sees all")
        if given is not None and self.causal is None:
            raise ClaimError("window without causal, which says what a window is; allowed: claim causal, True or False")
        object.__setattr__(self, "window", parts if isinstance(given, list | tuple) else given)

    @classmethod
    def of(cls, claims: Self | Mapping[str, Any]) -> Self:
        """Claims from a mapping, as a spec or a test has them. Raises ClaimError with what is allowed."""
        if isinstance(claims, cls):
            return claims
        if not isinstance(claims, Mapping):
            raise ClaimError(f"claims: found {type(claims).__name__}; allowed: ModelClaims or a mapping")
        names = [entry.name for entry in dataclasses.fields(cls)]
        for name in claims:
            if name not in names:
                hint = nearest(str(name), names)
                raise ClaimError(
                    f"unknown claim {name!r}" + (f"; did you mean {hint!r}?" if hint else "") + f"; allowed: {', '.join(names)}"
                )
        return cls(**claims)

    def but(self, **changes: Any) -> Self:
        """The same claims with some of them changed."""
        return dataclasses.replace(self, **changes)

    def unclaimed(self) -> list[str]:
        """Fields about which nothing was said."""
        return [entry.name for entry in dataclasses.fields(self) if getattr(self, entry.name) is None]

    def as_json(self) -> dict[str, Any]:
        """What was claimed, in types that JSON has; `of` reads it back."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            for name, value in values.items()
            if value is not None and value != {}
        }


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(repr(value) for value in values)
