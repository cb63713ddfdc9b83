"""Examples beyond the adversarial list, drawn by hypothesis from a seed, and the way from a failing one to the smallest that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attncheck.core.claims import OperatorClaims
from attncheck.laws.example import INPUTS, LAYOUTS, MASK_SHAPES, MASKS, PATTERNS, PLAIN, Example, fitted

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100)
WIDTHS = (1, 2, 3, 8, 11, 16, 32, 64)
HEADS = ((1, 1), (2, 1), (3, 3), (6, 2), (6, 3), (5, 5), (8, 2), (4, 4), (7, 1), (10, 5), (12, 3))
WORDS = (
    "layout", "inputs", "mask", "pattern", "mask_shape", "window", "softcap", "sinks", "bias", "segments", "blocks", "decay", "places",
    "scale", "magnitude", "causal",
)  # fmt: skip
"""Fields of an example that are simplest as PLAIN has them."""
MAGNITUDES = (1e-3, 0.1, 1.0, 1.0, 5.0, 40.0, 1e3, 1e5)


def drawn(claims: OperatorClaims, seed: int, count: int) -> list[Example]:
    """`count` examples, or fewer where many are the same under these claims; the same for the same seed."""
    if count < 1:
        return []
    import hypothesis
    from hypothesis import strategies as st

    found: list[Example] = []

    examples = st.builds(
        lambda shape, heads, equal, **rest: PLAIN.but(
            heads=heads[0], kv_heads=heads[1], queries=shape[0], keys=shape[0] if equal else shape[1], seed=seed, **rest
        ),
        shape=st.tuples(st.sampled_from(LENGTHS), st.sampled_from(LENGTHS)),
        heads=st.sampled_from(HEADS),
        equal=st.booleans(),
        batch=st.integers(1, 3),
        width=st.sampled_from(WIDTHS),
        value_width=st.sampled_from(WIDTHS),
        causal=st.booleans(),
        mask=st.sampled_from(MASKS),
        pattern=st.sampled_from(PATTERNS),
        mask_shape=st.sampled_from(MASK_SHAPES),
        inputs=st.sampled_from(INPUTS),
        magnitude=st.sampled_from(MAGNITUDES),
        layout=st.sampled_from(LAYOUTS),
        window=st.sampled_from((None, 1, 2, 4, 16)),
        softcap=st.sampled_from((None, 0.5, 2.0, 30.0)),
        sinks=st.booleans(),
        bias=st.booleans(),
        segments=st.booleans(),
        blocks=st.booleans(),
        decay=st.booleans(),
        places=st.booleans(),
        scale=st.sampled_from((None, 0.05, 1.0)),
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
    def collect(example: Example) -> None:
        wanted = fitted(example, claims)
        if wanted not in found:
            found.append(wanted)

    collect()
    return found


def _smaller(example: Example) -> Iterator[Example]:
    """Simpler examples, the largest steps first."""
    for name in WORDS:
        if getattr(example, name) != getattr(PLAIN, name):
            yield example.but(**{name: getattr(PLAIN, name)})
    for name in ("queries", "keys", "width", "value_width", "batch"):
        size = getattr(example, name)
        for smaller in sorted({1, 2, size // 2, size - 1}):
            if 1 <= smaller < size:
                yield example.but(**{name: smaller})
                if name == "queries" and example.queries == example.keys:
                    yield example.but(queries=smaller, keys=smaller)
    for heads, kv_heads in HEADS:
        if heads < example.heads:
            yield example.but(heads=heads, kv_heads=kv_heads)


def shrunk(example: Example, fails: Callable[[Example], bool], claims: OperatorClaims, tries: int = 150) -> Example:
    """The smallest example that greedy steps reach and that still fails."""
    moved = True
    seen = {example}
    while moved and tries > 0:
        moved = False
        for smaller in _smaller(example):
            candidate = fitted(smaller, claims)
            if candidate in seen:
                continue
            seen.add(candidate)
            tries -= 1
            if fails(candidate):
                example, moved = candidate, True
                break
            if tries <= 0:
                break
    return example
