"""`attncheck.observe`: measurements of a model in hand, without a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attncheck.core.arguments import checked_arguments
from attncheck.core.definitions import Request, SubjectDefinition
from attncheck.core.errors import AttncheckError, MeasurementError, nearest
from attncheck.core.evidence import Feed, LoadedSubject
from attncheck.core.fields import parse_request
from attncheck.core.paths import is_explicit

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.core.evidence import SubjectSeries
    from attncheck.core.registry import Entry
    from attncheck.engine.measure import Measured


def observe(
    model: Any,
    inputs: Any,
    observables: Sequence[str | Mapping[str, Mapping[str, Any]]],
    *,
    attention_layers: int | None = None,
) -> xr.Dataset:
    """Measure observables of a model on one input.

    `model` is an nn.Module, an operator (a callable like scaled_dot_product_attention), or the checkpoints of a training: a folder of them,
    a glob or a list, as the subject kind `checkpoints` takes them, read one at a time along the dim `step`. `inputs` is a mapping of
    forward's keyword arguments (an `attention_mask` among them says what is padding), or a tensor of token ids or pixels. `observables` are
    names, or one-entry mappings of a name to its arguments, as in a spec. Returns a Dataset with a variable for each observable, named by
    the observable (and its arguments where one name comes twice), over (step, sample, layer, head, ...), NaN where there is no such place;
    an interval or a standard error comes as NAME.lower, NAME.upper and NAME.stderr. The model's mode, device and output are left as they
    are.

        found = attncheck.observe(model, {"input_ids": ids}, ["attention.entropy", {"attention.key_mass": {"keys": "0..3"}}])
        found["attention.entropy"].sel(layer=3)

    Raises AttncheckError where an observable or an argument is unknown or a quantity cannot be measured: NotObservable where attention
    ran that could not be seen, `attention_layers` saying how many layers there are.
    """
    from attncheck.engine.measure import measure_fed
    from attncheck.engine.vocabulary import vocabulary

    requests = [request_of(item, vocabulary().observables) for item in listed(observables)]
    feed = feed_of(model, inputs)
    if _is_series(model):
        return together(requests, measure_fed(_series(model, feed), feed, requests, attention_layers))
    return together(requests, measure_fed(subject_of(model, feed), feed, requests, attention_layers))


def subject_of(model: Any, feed: Feed) -> LoadedSubject:
    """A model or an operator in hand, as a subject."""
    import torch

    is_model = isinstance(model, torch.nn.Module)
    sample = next((p for p in model.parameters()), None) if is_model else next(iter(feed.arguments.values()))
    return LoadedSubject(
        SubjectDefinition(type(model).__name__ if is_model else getattr(model, "__name__", "operator"), "python", {}),
        model=model if is_model else None,
        operator=None if is_model else model,
        device=str(sample.device) if sample is not None else "cpu",
        dtype=str(sample.dtype).removeprefix("torch.") if sample is not None else "float32",
    )


def together(requests: Sequence[Request], measured: Measured) -> xr.Dataset:
    """One Dataset of all quantities. Raises the first fault."""
    import xarray as xr

    if measured.faults:
        raise next(iter(measured.faults.values()))
    names = [request.name for request in requests]
    found = xr.Dataset(attrs={"notes": measured.notes})
    for request in requests:
        data, own = measured.values[request.key], request.name if names.count(request.name) == 1 else request.key
        labelled = {str(name): data.coords[name] for name in data.coords if name in ("step", "layer", "stack", "path")}
        if "layer" in found.sizes and "layer" in data.sizes and found.sizes["layer"] != data.sizes["layer"]:
            raise MeasurementError(
                f"{request} has {data.sizes['layer']} layers and {names[0]} {found.sizes['layer']}; ask for them one by one"
            )
        there = data.get("present", True)
        for part in ("value", "lower", "upper", "stderr"):
            if part in data:
                variable = data[part].where(there).reset_coords(drop=True)
                found[own if part == "value" else f"{own}.{part}"] = variable
        found[own].attrs.update({key: value for key, value in data.attrs.items() if key != "labels"})
        found = found.assign_coords(labelled)
    return found


def _is_series(model: Any) -> bool:
    if isinstance(model, str):
        return Path(model).is_dir() or is_explicit(model) or any(sign in model for sign in "*?[")
    return isinstance(model, PathLike) or (isinstance(model, Sequence) and not callable(model))


def _series(model: Any, feed: Feed) -> SubjectSeries:
    """The checkpoints, on the device of the input."""
    import torch

    from attncheck.subjects import load_any

    source = fspath(model) if isinstance(model, str | PathLike) else [dict(i) if isinstance(i, Mapping) else fspath(i) for i in model]
    device = next((str(value.device) for value in feed.arguments.values() if isinstance(value, torch.Tensor)), "cpu")
    found = load_any(SubjectDefinition("checkpoints", "checkpoints", {"source": source}, device=device))
    return cast("SubjectSeries", found)


def listed(observables: Any) -> list[Any]:
    """The list itself. Raises AttncheckError where it is none, or empty."""
    if isinstance(observables, str | Mapping) or not isinstance(observables, Sequence) or not observables:
        raise AttncheckError(f"observables is a list of names such as ['attention.entropy'], not {observables!r}")
    return list(observables)


def request_of(item: Any, known: Mapping[str, Entry]) -> Request:
    """The request with its arguments checked and defaults filled in. Raises AttncheckError."""
    try:
        asked = parse_request(item)
    except ValueError as error:
        raise AttncheckError(str(error)) from None
    if asked.name not in known:
        hint = nearest(asked.name, known)
        raise AttncheckError(f"unknown observable {asked.name!r}" + (f"; did you mean {hint!r}?" if hint else ""))
    filled = checked_arguments("observe", known[asked.name], asked.arguments)
    return Request.of(asked.name, known[asked.name].arguments(**filled).model_dump(mode="json"))


def feed_of(model: Any, inputs: Any) -> Feed:
    """The input as forward's arguments. Raises MeasurementError where it is none."""
    import torch

    if isinstance(inputs, torch.Tensor):
        name = "pixel_values" if inputs.is_floating_point() else "input_ids"
        inputs = {name: inputs}
    if not isinstance(inputs, Mapping):
        raise MeasurementError(f"inputs must be a tensor or a mapping of forward's arguments, not {type(inputs).__name__}")
    arguments = dict(inputs)
    if not isinstance(model, torch.nn.Module) and not _is_series(model):
        if not callable(model):
            raise MeasurementError(f"model must be an nn.Module or an attention operator, not {type(model).__name__}")
        missing = [name for name in ("query", "key", "value") if not isinstance(arguments.get(name), torch.Tensor)]
        if missing:
            raise MeasurementError(f"an operator needs query, key and value as tensors; missing: {', '.join(missing)}")
    mask = arguments.get("attention_mask")
    valid = mask.bool() if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None
    return Feed(arguments, valid=valid)
