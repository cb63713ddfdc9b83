"""What a model is called with, as a few small numbers and words: tokens are drawn from the seed, padding and extras added."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.core.model_claims import ModelClaims
    from attncheck.laws.models.subject import Subject

LENGTHS = (1, 2, 3, 7, 8, 9, 12, 16, 17, 31, 33)


@dataclass(frozen=True)
class ModelExample:
    """One call: tokens [batch, length]. pad: row b has (b + 1) * length // 4 pads on that side."""

    batch: int = 2
    length: int = 12
    pad: str = "none"
    ones: bool = False
    """Whether an attention mask of ones is given where nothing is padded."""
    ask: bool = False
    """Whether attentions are asked for."""
    cache: bool = False
    """Whether a cache is asked for."""
    implementation: str | None = None
    seed: int = 0

    def but(self, **changes: Any) -> ModelExample:
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        rest = [
            f"{entry.name}={getattr(self, entry.name)}"
            for entry in dataclasses.fields(self)
            if entry.name not in ("batch", "length") and getattr(self, entry.name) != entry.default
        ]
        return " ".join([f"tokens[{self.batch},{self.length}]", *rest])

    def pads(self, row: int) -> int:
        return min((row + 1) * self.length // 4, self.length - 1) if self.pad != "none" else 0


PLAIN = ModelExample()
ADVERSARIAL: tuple[ModelExample, ...] = (
    PLAIN,
    PLAIN.but(ones=True),
    PLAIN.but(batch=3, length=17, pad="right", ask=True),
    PLAIN.but(batch=3, length=17, pad="left", cache=True),
    PLAIN.but(batch=1, length=1, cache=True),
    PLAIN.but(length=9, ask=True),
    PLAIN.but(batch=1, length=33, cache=True),
    PLAIN.but(batch=4, length=2, ones=True),
)
"""Tried first, always: padding beside causality, extras asked for, masks of ones, one token, a row alone."""


def fitted(example: ModelExample, claims: ModelClaims, subject: Subject) -> ModelExample:
    """The nearest example that the claims and the model allow."""
    changes: dict[str, Any] = {}
    if example.pad != "none" and (example.pad not in (claims.padding or ()) or not subject.takes("attention_mask")):
        changes["pad"] = "none"
    if example.ones and not subject.takes("attention_mask"):
        changes["ones"] = False
    if example.ask and not (set(claims.returns or ()) & {"attentions", "eager_attentions"} and subject.asks):
        changes["ask"] = False
    if example.cache and (not claims.cache or not subject.takes("use_cache")):
        changes["cache"] = False
    if example.implementation and (example.implementation not in (claims.implementations or ()) or subject.refused(example.implementation)):
        changes["implementation"] = None
    if example.length > subject.longest:
        changes["length"] = subject.longest
    if subject.kind == "pixels":
        changes.update(length=subject.longest, pad="none", ones=False, cache=False)
    return example.but(**changes)


def adversarial(claims: ModelClaims, subject: Subject, seed: int) -> Iterator[ModelExample]:
    """The list above and lengths around what the configuration names, under each implementation in turn, without repetitions."""
    edges = [PLAIN.but(length=length, batch=1) for length in subject.edges]
    names: list[str | None] = [name for name in claims.implementations or () if not subject.refused(name)]
    if not names or getattr(subject.config, "_attn_implementation", None) not in names:
        names = [None, *names]  # the model's own, which nobody named
    seen = set()
    for number, example in enumerate([*ADVERSARIAL[:1], *edges, *ADVERSARIAL[1:]]):
        # every example under one implementation, the telling ones under all
        for name in names if number < 1 or example.pad != "none" else (names[number % len(names)],):
            wanted = fitted(example.but(seed=seed, implementation=name), claims, subject)
            if wanted not in seen:
                seen.add(wanted)
                yield wanted


def smaller(example: ModelExample) -> Iterator[ModelExample]:
    """Simpler examples, the largest steps first."""
    for name in ("ask", "cache", "ones", "pad"):
        if getattr(example, name) != getattr(PLAIN, name):
            yield example.but(**{name: getattr(PLAIN, name)})
    for name in ("length", "batch"):
        size = getattr(example, name)
        for less in sorted({1, 2, 3, size // 2, size - 1}):
            if 1 <= less < size:
                yield example.but(**{name: less})


def drawn(claims: ModelClaims, subject: Subject, seed: int, count: int) -> list[ModelExample]:
    """`count` examples, or fewer where many are the same; the same for the same seed."""
    if count < 1:
        return []
    import hypothesis
    from hypothesis import strategies as st

    found: list[ModelExample] = []
    examples = st.builds(
        ModelExample,
        batch=st.integers(1, 4),
        length=st.sampled_from((*LENGTHS, *subject.edges)),
        pad=st.sampled_from(("none", "left", "right")),
        ones=st.booleans(),
        ask=st.booleans(),
        cache=st.booleans(),
        implementation=st.sampled_from(claims.implementations or (None,)),
        seed=st.integers(0, 1000),
    )

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(examples)
    def collect(example: ModelExample) -> None:
        wanted = fitted(example, claims, subject)
        if wanted not in found:
            found.append(wanted)

    collect()
    return found
