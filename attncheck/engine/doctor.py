"""What this machine can run, and how a given model would be captured, attention call by attention call."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.definitions import InputDefinition, SubjectDefinition
from attncheck.core.errors import AttncheckError, MeasurementError, raised

if TYPE_CHECKING:
    from attncheck.core.evidence import AttentionCall, Feed, LoadedSubject

LENGTH = 32
"""Tokens of the forward that shows how a model is captured."""
FLASH = ("flash_attention_2", "flash_attention_3")


def machine() -> Iterator[tuple[str, str]]:
    """(what, how it is) of this machine: versions, devices, attention implementations, packaged models, folders."""
    import torch

    from attncheck.engine import cache
    from attncheck.engine.measure import capability
    from attncheck.engine.results import versions
    from attncheck.subjects.converted import cache_folder
    from attncheck.subjects.packaged import known_packages

    yield "versions", ", ".join(f"{name} {version}" for name, version in (("python", platform.python_version()), *versions().items()))
    yield "cpu", f"{platform.machine()}, {capability('cpu')}, {torch.get_num_threads()} threads"
    cards = [f"cuda:{i} {torch.cuda.get_device_name(i)} ({capability(f'cuda:{i}')})" for i in range(torch.cuda.device_count())]
    built = "this torch is built without CUDA" if torch.version.cuda is None else "no device is visible"
    yield "cuda", "; ".join(cards) or built
    if torch.backends.mps.is_available():
        yield "mps", "available"
    yield "attention", ", ".join(implementations())
    for name, package in known_packages().items():
        yield f"package:{name}", "installed" if package.installed() else package.install
    kept = cache.Cache.opened()
    yield "kept between runs", str(kept.place) if kept is not None else "nothing (ATTNCHECK_CACHE, ATTNCHECK_CACHE_LIMIT)"
    yield "converted weights", str(cache_folder() or "not kept (ATTNCHECK_CACHE=off)")


def implementations() -> Iterator[str]:
    """Those of transformers that run here; a flash kernel that is not installed is left out."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from attncheck.subjects.attention import flash_installed

    for name in ("eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()):
        if "flash" not in name or (name in FLASH and flash_installed(name)):
            yield name


@dataclass(frozen=True)
class Seen:
    """One attention call as capture sees it."""

    layer: int
    stack: str
    path: str
    route: str
    """interface, operator, softmax, attend: how it was seen."""
    implementation: str
    shape: str
    """'4 heads on 2, 32 queries, 32 keys, width 32'."""
    rules: str
    """What hides keys or bends scores: causal, mask, window, softcap, sinks, bias."""
    probe: str
    """Whether the kernel can be asked with other values, or why not."""


@dataclass
class Diagnosis:
    """How a model would be captured."""

    name: str
    kind: str
    """The model's class."""
    fed: str
    calls: list[Seen] = field(default_factory=list)
    routes: Counter[str] = field(default_factory=Counter)
    refused: str = ""
    """Why its measurements would be errors; empty where all attention is seen."""
    notes: list[str] = field(default_factory=list)
    weights: str = ""
    """Which layers have projections that were recognised, or why none."""


def diagnose(name: str, root: Path, **settings: Any) -> Diagnosis:
    """Load a model as a spec would (package:NAME, a directory, a hub name, or module:function) and watch one short forward.

    `settings` are attn_implementation, dtype, device. Raises Unavailable or MeasurementError where it cannot be loaded or fed.
    """
    from attncheck.capture.census import check_census
    from attncheck.capture.observe import watching
    from attncheck.engine.vocabulary import vocabulary
    from attncheck.subjects import load

    vocabulary()
    factory = ":" in name and not name.startswith("package:")
    kind, options = ("python", {"factory": name}) if factory else ("pretrained", {"name": name})
    subject = load(SubjectDefinition(name, kind, options, **settings), root=root)
    model = subject.model
    if model is None:
        raise AttncheckError(f"{name} is an operator: attncheck.verify tells what it does")
    feed, fed = _fed(subject, root)
    found = Diagnosis(name, type(model).__name__, fed, notes=list(subject.notes))
    told: Counter[str] = Counter()

    def on_call(call: AttentionCall) -> None:
        nonlocal told
        (route,) = (observation.routes - told).elements()
        told = Counter(observation.routes)
        found.calls.append(_seen(call, route))

    import torch

    with torch.no_grad(), watching(model, on_call) as observation:
        try:
            model(**feed.arguments)
        except AttncheckError:
            raise
        except Exception as error:
            raise MeasurementError(f"{name}, fed {fed}: the forward pass raised {raised(error)}") from error
    found.routes, found.notes = observation.routes, [*found.notes, *observation.notes]
    try:
        check_census(model, observation, None)
    except AttncheckError as error:
        found.refused = str(error)
    found.weights = _weights(model)
    return found


def _fed(subject: LoadedSubject, root: Path) -> tuple[Feed, str]:
    """What the model is given: text if it reads text, else a photograph, else random ids."""
    from attncheck.inputs import build

    encoder = subject.encoder
    readable = getattr(encoder, "encode_plain", None) is not None
    if getattr(encoder, "image_size", None) and not readable:
        definition, said = InputDefinition("flower", "images", {"name": "flower"}), "a photograph"
    elif readable:
        definition, said = InputDefinition("manual", "corpus", {"name": "python-manual"}, length=LENGTH), f"{LENGTH} tokens of text"
    else:
        definition, said = InputDefinition("random", "tokens", {"ids": "random"}, length=LENGTH), f"{LENGTH} random ids"
    from attncheck.subjects.encoders import forward_parameters

    known = frozenset(forward_parameters(subject.model)) if subject.model is not None else frozenset()
    setting: dict[str, Any] = {"device": subject.device, "dtype": subject.dtype, "root": root, "forward_parameters": known}
    try:
        return build(definition, encoder, **setting), said
    except AttncheckError:
        if definition.kind != "corpus":
            raise
        # A vocabulary of something else than English, such as genera or reactions.
        return build(InputDefinition("random", "tokens", {"ids": "random"}, length=LENGTH), encoder, **setting), f"{LENGTH} random ids"


def _seen(call: AttentionCall, route: str) -> Seen:
    grouped = f" on {call.kv_heads}" if call.kv_heads != call.heads else ""
    width, values = call.query.shape[-1], call.value.shape[-1]
    rules = {
        "causal": call.is_causal,
        "mask": call.mask is not None,
        f"window {call.window}": call.window is not None,
        f"softcap {call.softcap}": call.softcap is not None,
        "sinks": call.sinks is not None,
        "bias": call.bias is not None,
        "rows off the kernel": call.rows_from_kernel,
        "weights as returned": call.weights is not None,
    }
    shape = f"{call.heads} heads{grouped}, N {call.query.shape[2]}, M {call.key.shape[2]}, d {width}"
    return Seen(
        call.layer,
        call.stack,
        call.path,
        route,
        call.implementation,
        shape + (f", d_v {values}" if values != width else ""),
        ", ".join(rule for rule, holds in rules.items() if holds) or "none",
        "yes" if call.replay is not None else f"no: {call.replay_refused or 'its kernel is not known'}",
    )


def _weights(model: Any) -> str:
    from attncheck.capture.weights import attention_weights

    try:
        layers = attention_weights(model)
    except AttncheckError as error:
        return f"not recognised: {error}"
    counts = {matrix: sum(layer.matrix(matrix) is not None for layer in layers) for matrix in ("q", "k", "v", "o")}
    told = [f"{matrix} of {'all' if count == len(layers) else count}" for matrix, count in counts.items()]
    return f"{len(layers)} layers; {', '.join(told)}"
