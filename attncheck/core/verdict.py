"""What judging yields: a verdict and, as plain data, the picture that explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from attncheck.core.baseline import Proposal

SHOWN = 5
"""Places that a verdict names when it is printed."""


@dataclass(frozen=True)
class Offender:
    """One place where a claim does not hold."""

    where: Mapping[str, Any]
    """dim -> coordinate, e.g. {layer: 3, head: 0}; only the dims that are left."""
    observed: float
    limit: str
    """The violated side as text with its number, e.g. '>= 1.15'."""
    excess: float
    """How far beyond the limit, in the unit of the value; orders offenders."""
    note: str = ""
    """The arithmetic behind it, e.g. '41.2 / 38.9 = 1.06'."""


@dataclass(frozen=True)
class Series:
    """One named line, bar group or cloud of a picture."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    role: Literal["subject", "context", "offender", "null"] = "subject"
    panel: str = ""
    """Panels only: the title of the panel that it belongs to."""
    texts: Sequence[str] = ()
    """Written at the points or bars, one each; an empty text writes nothing."""


@dataclass(frozen=True)
class Picture:
    """A figure as data; `report.pictures` draws it."""

    kind: Literal["scatter", "lines", "bars", "panels", "heat_map", "matrix"]
    title: str
    x_label: str = ""
    y_label: str = ""
    series: Sequence[Series] = ()
    bounds: Mapping[str, Any] = field(default_factory=dict)
    """'at_least' / 'at_most' / 'equals' -> a number, a sequence with one number per x of the first series, or such a sequence by panel."""
    grid: Sequence[Sequence[float]] = ()
    """Rows of a heat map or matrix, [layer][head] for heat maps; NaN is empty."""
    marked: Sequence[tuple[int, int]] = ()
    """What offends: cells of the grid, (row, column); without a grid points or bars, (series, point)."""
    marked_are: str = "beyond the bound"
    """What is said of the cells that are marked."""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    """Labels of the grid's rows and columns; empty counts from 0."""
    log_x: bool = False
    log_y: bool = False
    band_decades: float | None = None
    """Scatter: half-width of the band around the diagonal, in decades."""
    notes: Sequence[str] = ()


@dataclass
class Verdict:
    """The outcome of one property on one case."""

    passed: bool
    headline: str
    """One line fit for pytest's summary: 'alpha 0.41 > 0.25 at layer 3 (1 of 30 layers)'."""
    claim: str
    """The property in the spec's words, with the subject and the quantifier."""
    observed: list[str] = field(default_factory=list)
    """Lines of the failure text under 'observed', after the offenders."""
    offenders: list[Offender] = field(default_factory=list)
    """Worst first; the report shows the first few."""
    decided: str = "exact"
    """exact, bracketed or estimated(alpha)."""
    checked: int = 0
    """How many places the claim was checked at; never 0 for a pass."""
    summary: str = ""
    """How the quantifier came out: '1 of 3 seeds holds'."""
    setting: str = ""
    """Under what it was measured: 'float32, cpu, step 250'."""
    resolution: str = ""
    """Printed when rounding decided."""
    script: Sequence[str] = ()
    """Lines of Python that show what the verdict says, without attncheck."""
    notes: list[str] = field(default_factory=list)
    """Rows that see nothing, kernel caveats, compiled subjects measured uncompiled, ..."""
    picture: Picture | None = field(default=None, repr=False)
    numbers: dict[str, float] = field(default_factory=dict)
    """Measured summary numbers, for junit and JSON: min, median, max, share, ..."""
    proposal: Proposal | None = None
    """Of a baseline: what an update would write, and why."""
    case: str = ""
    """Which test: 'specs/x.attn.yaml::property[subject/input]'; set by the engine."""

    def __str__(self) -> str:
        """A few lines for a person: outcome, claim, the worst places, the rest."""
        word = "passed" if self.passed else self.decided if self.decided.startswith("not ") else "FAILED"
        lines = [f"{word}  {self.case}: {self.headline}", f"  claim     {self.claim}"]
        for offender in self.offenders[:SHOWN]:
            where = ", ".join(f"{dim} {at}" for dim, at in offender.where.items())
            note = f"  {offender.note}" if offender.note else ""
            lines.append(f"    {where or 'the value'}  {offender.observed:.4g}{note}  (limit {offender.limit})")
        count = int(self.numbers.get("offenders", len(self.offenders)))
        if count > SHOWN:
            lines.append(f"    and {count - SHOWN} more")
        observed = self.observed if self.decided not in ("not available", "not measured") else self.observed[1:]
        return "\n".join([*lines, *(f"    {line}" for line in observed), *(f"  note      {note}" for note in self.notes)])
