"""A first spec for a model or an operator: what was measured on it, as properties that pass now, each with the number it came from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncheck.core.definitions import InputDefinition, PassKey, Request, SubjectDefinition
from attncheck.core.errors import AttncheckError

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.engine.measure import MeasureOptions

BATCH = 4
"""Excerpts of one input: how far a quantity differs between them is its margin."""
LENGTH = 96
PADS = 24
LEAST_MARGIN = 0.1
HALF_ERROR = 2**-7
"""What rounding to bfloat16 does to a kernel's output at most, relative to its largest value."""
OBSERVED: dict[str, dict[str, Any]] = {
    "attention.row_sum": {"per": "query"},
    "kernel.error": {},
    "attention.frobenius_norm": {},
    "attention.future_mass": {"per": "query"},
    "attention.entropy": {},
}
OF_MODELS: dict[str, dict[str, Any]] = {"logits.max": {}}
OF_PADDING: dict[str, dict[str, Any]] = {"attention.padding_mass": {"per": "query"}}


@dataclass(frozen=True)
class Starter:
    """What a first spec is made of."""

    subject: SubjectDefinition
    inputs: Mapping[str, InputDefinition]
    found: Mapping[tuple[str, str], xr.Dataset]
    """(input, observable) -> what was measured."""
    refused: Mapping[str, str]
    """Observable -> why it could not be measured on any input."""


@dataclass(frozen=True)
class Proposed:
    """A property of a first spec: its name, what was measured, and its lines."""

    name: str
    said: str
    lines: tuple[str, ...]
    inputs: tuple[str, ...] = field(default=())
    """The inputs on which it is claimed; all where there is none."""


def measured(subject: SubjectDefinition, options: MeasureOptions) -> Starter:
    """Measure a subject on the inputs that it reads. Raises Unavailable, or MeasurementError where it takes none of them."""
    from attncheck.engine.measure import loaded_model, measure
    from attncheck.engine.vocabulary import vocabulary

    known = vocabulary().observables
    model = loaded_model(subject, options)
    wanted = OBSERVED if model.operator else {**OBSERVED, **OF_MODELS}
    subject = replace(subject, dtype=subject.dtype or model.dtype)
    found: dict[tuple[str, str], xr.Dataset] = {}
    inputs: dict[str, InputDefinition] = {}
    refused: dict[str, str] = {}
    first: AttncheckError | None = None
    for definition in _inputs(model.encoder, operator=model.operator is not None):
        if definition.name in inputs or (definition.padding and not inputs):
            continue
        asked = {**wanted, **OF_PADDING} if definition.padding else wanted
        requests = [Request.of(name, known[name].arguments(**given).model_dump(mode="json")) for name, given in asked.items()]
        try:
            answer = measure(PassKey(subject, definition), requests, options=options)
        except AttncheckError as error:
            first = first or error
            continue
        inputs[definition.name] = definition
        found |= {(definition.name, request.name): answer.values[request.key] for request in requests if request.key in answer.values}
        refused |= {request.name: str(answer.faults[request.key]) for request in requests if request.key in answer.faults}
    if not inputs:
        raise first or AttncheckError(f"{subject.name} reads no input that a first spec could give it")
    seen = {name for _, name in found}
    return Starter(subject, inputs, found, {name: why for name, why in refused.items() if name not in seen})


def _inputs(encoder: Any, *, operator: bool) -> Iterator[InputDefinition]:
    """In order of preference; of those with one name the first that the subject reads."""
    if operator:
        for causal in (False, True):
            for kind in ("normal", "outliers", "sink"):
                options: dict[str, Any] = {"distribution": kind, **({"causal": True} if causal else {})}
                yield InputDefinition(f"{kind}-causal" if causal else kind, "qkv", options, batch=2, length=64)
        return
    if getattr(encoder, "image_size", None) and getattr(encoder, "encode_plain", None) is None:
        yield InputDefinition("flower", "images", {"name": "flower"})
    padding = {"side": "right", "amount": PADS}
    texts = [("corpus", {"name": name}) for name in ("python-manual", "genera", "reactions")]
    for kind, options in (*texts, ("tokens", {"ids": "random"})):
        for length in (LENGTH, 32):
            yield InputDefinition("plain", kind, options, batch=BATCH, length=length)
            yield InputDefinition("padded", kind, options, batch=BATCH, length=length, padding={**padding, "amount": length // 4})


def proposals(found: Starter) -> Iterator[Proposed]:
    """The properties that hold now, from what must hold of any attention to what is so in this one."""
    yield from _of_rows(found)
    yield from _of_zeros(found)
    yield from _of_sizes(found)
    plain = next(iter(found.inputs))
    if (plain, "attention.entropy") in found.found and not _wild(found, plain, "attention.entropy"):
        yield Proposed(
            "entropy-is-as-recorded",
            "recorded under baselines/; a change fails with the heads that moved, --snapshot-update accepts it",
            ("observe: attention.entropy", "baseline: {}"),
            (plain,),
        )
    if found.subject.kind != "operator":
        other = "sdpa" if found.subject.attn_implementation == "eager" else "eager"
        yield Proposed(
            "implementations-agree",
            "another implementation of the same attention must give the same numbers",
            ("observe: attention.entropy", f"agrees_with: {{attn_implementation: {other}}}"),
            (plain,),
        )


def declined(found: Starter) -> Iterator[str]:
    """What one would expect of attention and what was not found here: no property, but to be known."""
    sums, errors = _numbers(found, "attention.row_sum"), _numbers(found, "kernel.error")
    if sums.size and not (sums.min() > 0 and sums.max() <= 1 + _slack(found)):
        yield f"attention.row_sum: {spoken(sums)}, which is no distribution over keys"
    if errors.size and errors.max() >= _most_error(found):
        yield f"kernel.error: {spoken(errors)}: what is applied is not softmax attention with the scale, mask and bias that it was given"
    for key, definition in found.inputs.items():
        causal = definition.options.get("causal") is True
        for observable, asked in (("attention.future_mass", causal), ("attention.padding_mass", bool(definition.padding))):
            if asked and (key, observable) in found.found and _of(found, key, observable).any():
                yield f"{observable} on {key}: {spoken(_of(found, key, observable))}, where 0 was asked for"


def _slack(found: Starter) -> float:
    return 2e-2 if found.subject.dtype in ("bfloat16", "float16") else 1e-5


def _most_error(found: Starter) -> float:
    """More than this is another attention than softmax of the declared arguments, and no bound on rounding."""
    return HALF_ERROR if found.subject.dtype in ("bfloat16", "float16") else 5e-3


def _of_rows(found: Starter) -> Iterator[Proposed]:
    sums, errors, norms = (_numbers(found, name) for name in ("attention.row_sum", "kernel.error", "attention.frobenius_norm"))
    slack, most = _slack(found), _most_error(found)
    observe = "observe: {attention.row_sum: {per: query}}"
    whole = bool(sums.size and np.abs(sums - 1).max() <= slack)
    if whole:
        said = f"{spoken(sums)}, asked of the kernel itself, row by row"
        yield Proposed("rows-sum-to-one", said, (observe, "equals: 1", f"tolerance: {{atol: {slack:g}}}"))
    elif sums.size and sums.min() > 0 and sums.max() <= 1 + slack:
        said = f"{spoken(sums)}: something takes mass, such as a sink"
        yield Proposed("rows-sum-to-one-at-most", said, (observe, "between: [0, 1]"))
    if errors.size and errors.max() < most:
        bound = most if most == HALF_ERROR else max(5e-5, up(10 * errors.max()))
        said = f"{spoken(errors)} between kernel and exact rows"
        yield Proposed("kernel-applies-what-it-was-given", said, ("observe: kernel.error", f"at_most: {bound:g}"))
    if norms.size and whole:
        lines = ("observe: attention.frobenius_norm", "between: [uniform_norm, ceiling_norm]")
        yield Proposed("norm-lies-between-uniform-and-one-key", spoken(norms), lines)


def _of_zeros(found: Starter) -> Iterator[Proposed]:
    for name, observable, why in (
        ("nothing-from-the-future", "attention.future_mass", "a causal kernel gives exactly 0"),
        ("nothing-from-padding", "attention.padding_mass", "a hidden key gets exactly 0"),
    ):
        inputs = tuple(key for key in found.inputs if (key, observable) in found.found and not _of(found, key, observable).any())
        if inputs:
            lines = (f"observe: {{{observable}: {{per: query}}}}", "at_most: 0")
            yield Proposed(name, f"0 everywhere, asked of the kernel itself: {why}", lines, inputs)


def _of_sizes(found: Starter) -> Iterator[Proposed]:
    if found.subject.kind == "operator":
        return
    for name, observable, least in (("no-head-collapses", "attention.entropy", True), ("logits-stay-small", "logits.max", False)):
        plain = next(iter(found.inputs))
        if (plain, observable) not in found.found:
            continue
        values = found.found[plain, observable]["value"]
        numbers = np.asarray(values.values, dtype=float)
        numbers = numbers[np.isfinite(numbers)]
        if not numbers.size:
            continue
        spread = float((values.max("sample") - values.min("sample")).max()) if values.sizes.get("sample", 1) > 1 else 0.0
        tenth = LEAST_MARGIN * abs(float(numbers.min() if least else numbers.max()))
        margin = max(spread, tenth)
        bound = down(numbers.min() - margin) if least else up(numbers.max() + margin)
        if least and bound <= 0:
            continue
        why = "what the excerpts of the input differ by at most" if spread > tenth else "a tenth"
        kept = f"; the margin of {margin:.2g} is {why}"
        lines = (f"observe: {observable}", f"{'at_least' if least else 'at_most'}: {bound:g}")
        yield Proposed(name, spoken(numbers) + kept, lines, (plain,))


def _of(found: Starter, key: str, observable: str) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = np.asarray(found.found[key, observable]["value"].values, dtype=float)
    finite: np.ndarray[Any, Any] = values[np.isfinite(values)]
    return finite


def _wild(found: Starter, key: str, observable: str) -> bool:
    """Whether anything is infinite, or all is missing: no baseline to begin with."""
    values = np.asarray(found.found[key, observable]["value"].values, dtype=float)
    return bool(np.isinf(values).any() or np.isnan(values).all())


def _numbers(found: Starter, observable: str) -> np.ndarray[Any, Any]:
    """Over all inputs."""
    parts = [_of(found, key, observable) for key in found.inputs if (key, observable) in found.found]
    return np.concatenate([part.ravel() for part in parts]) if parts else np.zeros(0)


def spoken(values: np.ndarray[Any, Any]) -> str:
    low, high = float(values.min()), float(values.max())
    return f"measured {low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"measured {low:.3g} to {high:.3g}"


def up(value: float) -> float:
    """Two digits, never below the value."""
    return -down(-value)


def down(value: float) -> float:
    """Two digits, never above the value."""
    if value == 0 or not math.isfinite(value):
        return float(value)
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{math.floor(value / unit) * unit:.6g}")
