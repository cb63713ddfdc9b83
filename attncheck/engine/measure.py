"""One pass: load the subject, run it once on its input, reduce every attention call to the requests, put the layers together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import AttncheckError, MeasurementError, raised

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.core.baseline import Output
    from attncheck.core.definitions import PassKey, Request, SubjectDefinition
    from attncheck.core.evidence import Feed, LoadedSubject, SubjectSeries
    from attncheck.core.observable import Value
    from attncheck.instruments.perturbations import Perturbation
    from attncheck.instruments.session import Fed, Session, Wanted

SUBJECTS_HELD = 2
"""Loaded models that stay in memory, the most recently used ones; tests come grouped by subject."""


@dataclass(frozen=True)
class MeasureOptions:
    """What the command line says about measuring; device and dtype are in the subject's definition by now."""

    root: Path | None = None
    trust_remote_code: bool = False
    device: str | None = None
    dtype: str | None = None
    progress: Callable[[str], None] | None = None


@dataclass
class Measured:
    """What a pass gave: a Dataset or an error for each request key, and notes that belong to all of them."""

    values: dict[str, xr.Dataset] = field(default_factory=dict)
    faults: dict[str, AttncheckError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


_held: OrderedDict[tuple[str, str], LoadedSubject | SubjectSeries] = OrderedDict()


def loaded(definition: SubjectDefinition, options: MeasureOptions) -> LoadedSubject | SubjectSeries:
    """The subject, from the few that are held or loaded anew. Raises Unavailable or MeasurementError."""
    from attncheck.subjects import load_any

    key = (definition.key, str(options.root))
    if key not in _held:
        while len(_held) >= SUBJECTS_HELD:
            _held.popitem(last=False)
        if definition.attn_implementation == "flex_attention":
            import torch

            # Past its limit of recompilations in a process dynamo silently runs flex attention unfused.
            torch._dynamo.reset()
        _held[key] = load_any(definition, root=options.root, trust_remote_code=options.trust_remote_code, progress=options.progress)
    _held.move_to_end(key)
    return _held[key]


def loaded_model(definition: SubjectDefinition, options: MeasureOptions) -> LoadedSubject:
    """The same for a single model or operator. Raises MeasurementError for a series of checkpoints."""
    from attncheck.core.evidence import SubjectSeries

    found = loaded(definition, options)
    if isinstance(found, SubjectSeries):
        raise MeasurementError(
            f"{definition.name}: {definition.kind} is a series of {len(found.steps)} checkpoints, and one model is needed"
        )
    return found


def measure(pass_key: PassKey, requests: Sequence[Request], *, options: MeasureOptions | None = None) -> Measured:
    """Answer all requests of one pass. Raises Unavailable, or MeasurementError where nothing at all could be measured."""
    options = options or MeasureOptions()
    definition = pass_key.subject
    subject = loaded(definition.changed(perturbed=""), options)
    wanted = _wanted(requests)
    perturbation = _perturbation(definition.perturbed)

    def one(model: LoadedSubject, some: Sequence[Wanted]) -> Measured:
        return _measure_one(model, some, lambda: _feed(pass_key, model, options), definition.attention_layers, perturbation)

    return _measure_any(subject, wanted, one, options.progress, log_factor=perturbation.log if perturbation is not None else 1.0)


def _perturbation(name: str) -> Perturbation | None:
    if not name:
        return None
    from attncheck.instruments.perturbations import PERTURBATIONS

    return PERTURBATIONS[name]


def measure_fed(
    subject: LoadedSubject | SubjectSeries, feed: Feed, requests: Sequence[Request], attention_layers: int | None = None
) -> Measured:
    """The same for a subject that is loaded already and a feed that is built: what `attncheck.observe` calls."""
    return _measure_any(subject, _wanted(requests), lambda model, some: _measure_one(model, some, lambda: feed, attention_layers))


def _measure_any(
    subject: LoadedSubject | SubjectSeries,
    wanted: Sequence[Wanted],
    one: Callable[[LoadedSubject, Sequence[Wanted]], Measured],
    progress: Callable[[str], None] | None = None,
    *,
    log_factor: float = 1.0,
) -> Measured:
    from attncheck.core.evidence import SubjectSeries
    from attncheck.engine.series import measure_series

    if isinstance(subject, SubjectSeries):
        return measure_series(subject, wanted, one, progress, log_factor=log_factor)
    measured = one(subject, [want for want in wanted if want.reads != "log"])
    name = subject.definition.name
    for want in wanted:
        if want.reads == "log":
            measured.faults[want.request.key] = MeasurementError(
                f"{want.request} is noted while a model is trained, and {name} is not a training; allowed: train or checkpoints subjects"
            )
    return measured


def _measure_one(
    subject: LoadedSubject,
    wanted: Sequence[Wanted],
    feed: Callable[[], Feed],
    attention_layers: int | None,
    perturbation: Perturbation | None = None,
) -> Measured:
    weights = [want for want in wanted if want.reads == "weights"]
    calls = [want for want in wanted if want.reads != "weights"]
    measured = Measured(notes=list(subject.notes))
    if weights:
        _measure_weights(subject, weights, measured, perturbation)
    if calls:
        _measure_calls(subject, feed(), calls, measured, attention_layers, perturbation)
    return measured


def _wanted(requests: Sequence[Request]) -> list[Wanted]:
    from attncheck.core.observable import OBSERVABLES
    from attncheck.engine.vocabulary import vocabulary
    from attncheck.instruments.session import Wanted

    vocabulary()
    return [Wanted(request, OBSERVABLES[request.name]) for request in requests]


def _feed(pass_key: PassKey, subject: LoadedSubject, options: MeasureOptions) -> Feed:
    import inspect

    from attncheck.inputs import build

    if pass_key.input is None:
        raise MeasurementError(f"{pass_key} has no input, which its quantities need")
    accepted = set(inspect.signature(subject.model.forward).parameters) if subject.model is not None else set()
    return build(
        pass_key.input, subject.encoder, device=subject.device, dtype=subject.dtype, root=options.root, forward_parameters=accepted
    )


def _measure_calls(
    subject: LoadedSubject,
    feed: Feed,
    wanted: list[Wanted],
    measured: Measured,
    attention_layers: int | None,
    perturbation: Perturbation | None = None,
) -> None:
    import torch

    from attncheck.capture.observe import observe
    from attncheck.capture.operator_call import observe_operator
    from attncheck.capture.output import fingerprint
    from attncheck.instruments.session import Session

    tokens, found = feed.arguments.get("input_ids"), None
    session = Session(
        wanted,
        valid=feed.valid,
        tokens=tokens if isinstance(tokens, torch.Tensor) else None,
        decoder=_decoder(subject, feed),
        kernel_rows=subject.operator is not None,
        perturbation=perturbation,
    )
    if subject.operator is not None:
        observe_operator(subject.operator, feed.arguments, session.on_call, name=subject.definition.name)
    elif subject.model is not None:
        batch = next((int(value.shape[0]) for value in feed.arguments.values() if isinstance(value, torch.Tensor) and value.dim()), 1)
        output, record = observe(subject.model, feed.arguments, session.on_call, batch=batch, attention_layers=attention_layers)
        measured.notes += record.notes
        found = fingerprint(output, feed.valid)
    _collect(subject, feed, session, wanted, measured, found)


def _decoder(subject: LoadedSubject, feed: Feed) -> Fed | None:
    """The decoder's own sequence of an encoder-decoder model; it is not padded as the encoder's is."""
    import torch

    from attncheck.instruments.session import Fed

    given = feed.arguments
    if not (getattr(getattr(subject.model, "config", None), "is_encoder_decoder", False) or "decoder_input_ids" in given):
        return None
    mask, tokens = given.get("decoder_attention_mask"), given.get("decoder_input_ids")
    return Fed(mask.bool() if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None, tokens)


def _collect(
    subject: LoadedSubject, feed: Feed, session: Session, wanted: list[Wanted], measured: Measured, output: Output | None = None
) -> None:
    from attncheck.engine.assemble import RESOLUTION

    layers = session.layers
    empty = max((layer.empty_rows for layer in layers), default=0)
    if empty:
        measured.notes.append(f"{empty} query rows that see no key are left out of every reduction")
    errors = [float(layer.kernel_error.max()) for layer in layers if layer.kernel_error is not None]
    attrs: dict[str, Any] = {
        "dtype": subject.dtype,
        "device": subject.device,
        "capability": capability(subject.device),
        "implementation": layers[0].implementation if layers else "",
        "resolution": RESOLUTION.get(subject.dtype, 1e-5),
        "labels": [list(row) for row in feed.labels],
        "empty_rows": empty,
        "input_hash": feed.content_hash,
        "notes": [],
    }
    if output is not None:
        attrs["output"] = output.stored()
    if len(errors) == len(layers) and errors:
        attrs["kernel_error"] = max(errors)
    for want in wanted:
        key = want.request.key
        if key in session.faults:
            measured.faults[key] = session.faults[key]
            continue
        values = [layer.values.get(key) for layer in layers]
        if all(value is None for value in values):
            measured.faults[key] = MeasurementError(f"{want.request} gave nothing on {subject.definition.name}")
            continue
        _put_together(
            measured,
            want,
            values,
            stacks=[layer.stack for layer in layers],
            paths=[layer.path for layer in layers],
            symbols=[layer.symbols for layer in layers],
            attrs={**attrs, "notes": session.notes(want)},
        )


def _put_together(measured: Measured, want: Wanted, values: list[Value | None], **about: Any) -> None:
    """One request over all layers. An observable whose layers do not fit together costs the others nothing."""
    from attncheck.engine.assemble import assembled

    try:
        measured.values[want.request.key] = assembled(want.entry, values, **about)
    except Exception as error:
        measured.faults[want.request.key] = MeasurementError(f"the values that {want.request} gave do not fit together: {raised(error)}")


def _measure_weights(subject: LoadedSubject, wanted: list[Wanted], measured: Measured, perturbation: Perturbation | None = None) -> None:
    from attncheck.capture.weights import attention_weights
    from attncheck.core.observable import Value
    from attncheck.engine.assemble import RESOLUTION

    if subject.model is None:
        for want in wanted:
            measured.faults[want.request.key] = MeasurementError(f"{want.request} reads weights; {subject.definition.name} is an operator")
        return
    try:
        layers = attention_weights(subject.model)
    except AttncheckError as error:
        measured.faults.update({want.request.key: error for want in wanted})
        return
    if perturbation is not None and perturbation.weights is not None:
        layers = perturbation.weights(layers)
    attrs = {
        "dtype": subject.dtype,
        "device": subject.device,
        "capability": capability(subject.device),
        "resolution": RESOLUTION.get(subject.dtype, 1e-5),
        "notes": [],
    }
    symbols = [{"H": Value(layer.heads), "H_kv": Value(layer.kv_heads)} for layer in layers]
    for want in wanted:
        try:
            if want.entry.about["whole_model"]:
                values = list(want.entry.function(layers, **want.arguments))
            else:
                values = [want.entry.function(layer, **want.arguments) for layer in layers]
        except AttncheckError as error:
            measured.faults[want.request.key] = error
            continue
        except Exception as error:
            measured.faults[want.request.key] = MeasurementError(f"{want.request} raised {raised(error)}")
            continue
        values = [value if isinstance(value, Value) or value is None else Value(value) for value in values]
        _put_together(
            measured,
            want,
            values,
            stacks=[layer.stack for layer in layers],
            paths=[layer.path for layer in layers],
            symbols=symbols,
            attrs=attrs,
        )


def capability(device: str) -> str:
    """Of a device, as far as it decides which kernels run: '9.0' of a GPU, 'AVX512' of a processor."""
    import torch

    if device.startswith("cuda"):
        return ".".join(map(str, torch.cuda.get_device_capability(device)))
    return str(torch.backends.cpu.get_cpu_capability()) if device == "cpu" else ""
