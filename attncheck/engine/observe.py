"""`attncheck.observe`: measurements of a model in hand, without a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attncheck.core.definitions import Request, SubjectDefinition
from attncheck.core.errors import AttncheckError, MeasurementError
from attncheck.core.evidence import Feed, LoadedSubject

if TYPE_CHECKING:
    import xarray as xr


def observe(
    model: Any,
    inputs: Any,
    observables: Sequence[str | Mapping[str, Mapping[str, Any]]],
    *,
    attention_layers: int | None = None,
) -> xr.Dataset:
    """Measure observables of a model on one input.

    `model` is an nn.Module, or an operator (a callable like scaled_dot_product_attention). `inputs` is a mapping of forward's keyword
    arguments (an `attention_mask` among them says what is padding), or a tensor of token ids or pixels. `observables` are names, or
    one-entry mappings of a name to its arguments, as in a spec. Returns a Dataset with a variable for each observable, named by the
    observable (and its arguments where one name comes twice), over (sample, layer, head, ...). The model's mode and device are left as
    they are; its output is not changed. Raises AttncheckError where an observable is unknown or cannot be measured.
    """
    import torch
    import xarray as xr

    from attncheck.engine.measure import measure_fed
    from attncheck.engine.vocabulary import vocabulary

    known = vocabulary().observables
    requests = []
    for item in observables:
        name, arguments = (item, {}) if isinstance(item, str) else next(iter(item.items()))
        if name not in known:
            from attncheck.core.errors import nearest

            hint = nearest(name, known)
            raise AttncheckError(f"unknown observable {name!r}" + (f"; did you mean {hint!r}?" if hint else ""))
        try:
            filled = known[name].arguments(**arguments).model_dump(mode="json")
        except ValueError as error:
            raise AttncheckError(f"arguments of {name}: {error}") from error
        requests.append(Request.of(name, filled))

    feed = _feed(model, inputs)
    is_model = isinstance(model, torch.nn.Module)
    sample = next((p for p in model.parameters()), None) if is_model else next(iter(feed.arguments.values()))
    subject = LoadedSubject(
        SubjectDefinition(type(model).__name__ if is_model else getattr(model, "__name__", "operator"), "python", {}),
        model=model if is_model else None,
        operator=None if is_model else model,
        device=str(sample.device) if sample is not None else "cpu",
        dtype=str(sample.dtype).removeprefix("torch.") if sample is not None else "float32",
    )
    measured = measure_fed(subject, feed, requests, attention_layers)
    if measured.faults:
        raise next(iter(measured.faults.values()))
    names = [request.name for request in requests]
    variables = {
        request.name if names.count(request.name) == 1 else request.key: measured.values[request.key]["value"].rename(None)
        for request in requests
    }
    found = xr.Dataset({name: data.reset_coords(drop=True) for name, data in variables.items()})
    first = next(iter(measured.values.values()))
    found = found.assign_coords({name: first.coords[name] for name in first.coords if name in ("layer", "stack", "path")})
    for request, (name, _) in zip(requests, variables.items(), strict=True):
        found[name].attrs.update({key: value for key, value in measured.values[request.key].attrs.items() if key != "labels"})
    return found


def _feed(model: Any, inputs: Any) -> Feed:
    import torch

    if isinstance(inputs, torch.Tensor):
        name = "pixel_values" if inputs.is_floating_point() else "input_ids"
        inputs = {name: inputs}
    if not isinstance(inputs, Mapping):
        raise MeasurementError(f"inputs must be a tensor or a mapping of forward's arguments, not {type(inputs).__name__}")
    arguments = dict(inputs)
    mask = arguments.get("attention_mask")
    valid = mask.bool() if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None
    return Feed(arguments, valid=valid)
