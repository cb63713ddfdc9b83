"""Cases and measurements by hand: the smallest spec around one property, and a fetch that answers from a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from attncheck.core.bounds import Bound, parse_expression
from attncheck.core.definitions import InputDefinition, PassKey, Request, SubjectDefinition
from attncheck.core.errors import Place
from attncheck.core.expectation import EXPECTATIONS
from attncheck.core.measurement import measurement
from attncheck.spec.model import Case, Demand, Property, Quota, Reduction, Relation, Selector, Subject, Tolerance

PATH = "specs/mine.attn.yaml"
INPUT = InputDefinition("manual", "corpus", {"corpus": "python-manual"}, length=64)


def subject(
    name: str = "smollm2", *, seeds: Sequence[int] = (), axes: Mapping[str, Sequence[str]] | None = None, **changes: Any
) -> Subject:
    definition = SubjectDefinition(name, "pretrained", {"pretrained": name}).changed(**changes)
    return Subject(definition, {"attn_implementation": (), "dtype": (), "device": (), **(axes or {})}, seeds)


def bound(**sides: Any) -> Bound:
    if "between" in sides:
        sides["at_least"], sides["at_most"] = sides.pop("between")
    return Bound(**{name: parse_expression(side) for name, side in sides.items()})


def case(
    *,
    observe: str | Request = "weights.alpha",
    demand: Bound | Demand | None = None,
    where: Sequence[Mapping[str, Selector]] = (),
    reduce: Sequence[Reduction] = (),
    relation: Relation | None = None,
    quotas: Sequence[Quota] = (Quota("all"),),
    text: str = "all",
    tolerance: Tolerance | None = None,
    on: Subject | None = None,
    counterparts: Sequence[Subject] = (),
    name: str = "stays-flat",
    **more: Any,
) -> Case:
    on = on or subject()
    prop = Property(
        name=name,
        place=Place(PATH, 31, 3),
        request=Request(observe) if isinstance(observe, str) else observe,
        demand=demand if isinstance(demand, Demand) else Demand("bound", demand or bound(at_most=1)),
        where=where,
        reduce=reduce,
        relation=relation,
        quantifier=quotas,
        quantifier_text=text,
        tolerance=tolerance or Tolerance(),
        places={
            "observe": Place(PATH, 32, 5),
            "where": Place(PATH, 33, 5),
            "where.head": Place(PATH, 33, 13),
            "reduce": Place(PATH, 34, 5),
            "ratio_to": Place(PATH, 35, 5),
            "at_most": Place(PATH, 36, 5),
            "at_least": Place(PATH, 36, 5),
            "tracks": Place(PATH, 36, 5),
            "for": Place(PATH, 37, 5),
        },
        **more,
    )
    return Case(
        property=prop,
        subject=on,
        variant=on.definition,
        input=INPUT,
        id=f"{on.definition.name}/manual",
        counterparts={other.definition.name: other for other in counterparts},
    )


def expectation(kind: str, **arguments: Any) -> Demand:
    """A demand as the language makes it: arguments validated by the registered model."""
    model = EXPECTATIONS[kind].arguments.model_validate(arguments)
    return Demand(kind, arguments={name: getattr(model, name) for name in type(model).model_fields})


def data(value: Any, dims: Sequence[str], **more: Any) -> xr.Dataset:
    """A measurement in float32 whose labels count from 0."""
    array = np.asarray(value, dtype=float)
    coords = {dim: ((dim,), np.arange(size)) for dim, size in zip(dims, array.shape, strict=True)}
    attrs = {"unit": "", "decided": "exact", "dtype": "float32", "device": "cpu", **more.pop("attrs", {})}
    return measurement(array, dims, coords={**coords, **more.pop("coords", {})}, attrs=attrs, **more)


def fetching(answers: xr.Dataset | Mapping[Any, xr.Dataset] | Callable[[PassKey, Request], xr.Dataset]) -> Any:
    """A fetch: one Dataset for all, or by subject name, (subject name, seed), request name, or axis value."""

    def fetch(key: PassKey, request: Request) -> xr.Dataset:
        ran = {"implementation": key.subject.attn_implementation} if key.subject.attn_implementation else {}
        return answer(key, request).assign_attrs(**ran)

    def answer(key: PassKey, request: Request) -> xr.Dataset:
        if isinstance(answers, xr.Dataset):
            return answers
        if callable(answers):
            return answers(key, request)
        subject_ = key.subject
        for tried in ((subject_.name, subject_.seed), subject_.attn_implementation, subject_.dtype, request.name, subject_.name):
            if tried in answers:
                return answers[tried]
        raise KeyError((subject_, request))

    return fetch
