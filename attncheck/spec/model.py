"""A spec after validation: plain frozen data, `like` and defaults resolved, every place kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attncheck.core.bounds import Bound as Bound
from attncheck.core.bounds import Expression as Expression
from attncheck.core.definitions import AXES as AXES
from attncheck.core.definitions import InputDefinition, Request, SubjectDefinition
from attncheck.core.errors import Place


@dataclass(frozen=True)
class Selector:
    """A choice along one dim: one index (negative counts from the end), a closed range, or a leading / trailing part.

    `head: 0` is (0, 0, single); `4..511` is (4, 511); `512..` is (512, None); 'last quarter' is part=(last, 0.25).
    """

    start: int | None = None
    stop: int | None = None
    """Inclusive."""
    single: bool = False
    part: tuple[Literal["first", "last", "middle"], float] | None = None
    text: str = ""


@dataclass(frozen=True)
class Reduction:
    dim: str
    how: str
    above: float | None = None
    """Argument of first_above and first_below."""


@dataclass(frozen=True)
class Relation:
    """ratio_to or difference_to: what differs on the other side; all else is equal."""

    kind: Literal["ratio", "difference"]
    subject: str | None = None
    request: Request | None = None
    axes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tolerance:
    """How near is equal. kind: exact | allclose | rms_ratio | vs_reference; missing numbers mean the dtype's default."""

    kind: Literal["exact", "allclose", "rms_ratio", "vs_reference"] = "allclose"
    rtol: float | None = None
    atol: float | None = None
    ratio: float | None = None
    factor: float | None = None


@dataclass(frozen=True)
class Demand:
    """The one demand of a property: kind "bound" with `bound`, or a registered expectation with its validated `arguments`."""

    kind: str
    bound: Bound | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """For an expectation: attribute values of its pydantic argument model (Requests, Bounds, literals)."""


@dataclass(frozen=True)
class Quota:
    """One link of `for`: '80% of heads' is share 0.8 of head; 'all but 2 layers' is all_but 2; '2 of 3 seeds' is count 2 of total 3."""

    kind: Literal["all", "any", "no", "share", "all_but", "count"]
    amount: float | None = None
    total: int | None = None
    unit: str | None = None
    """head (a (layer, head) pair), layer, query, key, sample, seed, step; None means every place."""


@dataclass(frozen=True)
class Exemption:
    """`unless`: where the property is not expected to hold, and why."""

    subject: str | None
    input: str | None
    axes: Mapping[str, str]
    because: str
    place: Place | None = None


@dataclass(frozen=True)
class Property:
    name: str
    place: Place
    request: Request
    demand: Demand
    where: Sequence[Mapping[str, Selector]] = ()
    reduce: Sequence[Reduction] = ()
    relation: Relation | None = None
    quantifier: Sequence[Quota] = (Quota("all"),)
    """Inner to outer, as written: 'all layers in 2 of 3 seeds'."""
    quantifier_text: str = "all"
    tolerance: Tolerance = Tolerance()
    subjects: Sequence[str] = ()
    inputs: Sequence[str] = ()
    must_fail_on: Sequence[str] = ()
    unless: Sequence[Exemption] = ()
    level: Literal["fail", "warn"] = "fail"
    marks: Sequence[str] = ()
    why: str = ""
    source: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Place of each of the property's keys by dotted path ('where.layer', 'at_least', 'tracks.pearson'), for run-time errors."""
    text: Mapping[str, Any] = field(default_factory=dict)
    """The property as written, for the claim line."""


@dataclass(frozen=True)
class Subject:
    """A subject as the spec has it, with its axes still open."""

    definition: SubjectDefinition
    axes: Mapping[str, Sequence[str]]
    """attn_implementation, dtype, device: the values to run over; () leaves it to the command line or the default."""
    seeds: Sequence[int] = ()
    marks: Sequence[str] = ()
    inputs: Sequence[str] = ()
    optional: bool = False
    claims: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = None


@dataclass(frozen=True)
class Case:
    """One test: a property on a subject variant and an input."""

    property: Property
    subject: Subject
    variant: SubjectDefinition
    """The subject with one value for each axis."""
    input: InputDefinition | None
    must_fail: bool = False
    exemption: Exemption | None = None
    id: str = ""
    """subject, axis values where they vary, input: joined with '/'; a must-fail case ends in '/must-fail'."""
    marks: Sequence[str] = ()
    counterparts: Mapping[str, Subject] = field(default_factory=dict)
    """The subjects that the property's ratio_to, difference_to or demand names, by name: the other sides of the comparison."""
    part: str = ""
    """Which of its demand's tests this is, where the demand makes several: the id of a law."""
    input_place: Place | None = None


@dataclass(frozen=True)
class Spec:
    path: Path
    about: str
    source: str
    subjects: Mapping[str, Subject]
    inputs: Mapping[str, InputDefinition]
    properties: Mapping[str, Property]
    cases: Sequence[Case] = ()
    """All tests in the order of the file: properties, then subjects, axes, inputs; must-fail twins after their property's own."""
