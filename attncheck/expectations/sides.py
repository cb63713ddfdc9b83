"""The sides of a claim: which passes measure the property's own quantity and its counterpart's, and reading them as fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.definitions import AXES, PassKey, Request, SubjectDefinition
from attncheck.core.errors import MeasurementError
from attncheck.expectations.places import place_of
from attncheck.spec.model import Case, Subject

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.core.evidence import LoadedSubject, SubjectSeries
    from attncheck.expectations.field import Field

Fetch = Callable[[PassKey, Request], "xr.Dataset"]
Load = Callable[[SubjectDefinition], "LoadedSubject | SubjectSeries"]


def variant_of(case: Case, subject: str | None = None, axes: Mapping[str, str] | None = None) -> tuple[SubjectDefinition, Subject]:
    """The definition on the other side: the case's own with `axes` changed, or that of another subject, all else equal.

    Each axis of another subject takes the case's value where the subject leaves the axis open or lists that value, else its only value.
    Raises MeasurementError where neither is possible.
    """
    if subject is None or subject == case.subject.definition.name:
        # the other side of a comparison with itself is the subject as it is
        return (case.variant.changed(**axes, perturbed="") if axes else case.variant), case.subject
    if subject not in case.counterparts:
        known = ", ".join(case.counterparts) or "none"
        raise MeasurementError(f"{case.property.place}: the counterpart {subject!r} is not known to this test; known: {known}")
    other = case.counterparts[subject]
    chosen: dict[str, str | None] = {}
    for axis in AXES:
        own, listed = getattr(case.variant, axis), tuple(other.axes.get(axis) or ())
        fixed = getattr(other.definition, axis)
        if not listed:
            chosen[axis] = fixed if fixed is not None else own
        elif own in listed or len(listed) == 1:
            chosen[axis] = own if own in listed else listed[0]
        else:
            raise MeasurementError(
                f"{case.property.place}: {subject} has {axis} {', '.join(listed)} and this test {own}: name one under the relation"
            )
    return other.definition.changed(**{**chosen, **(axes or {})}), other


def passes(case: Case, subject: str | None = None, axes: Mapping[str, str] | None = None) -> dict[int | None, PassKey]:
    """Seed -> pass; one pass with the key None where the subject repeats over no seeds."""
    variant, owner = variant_of(case, subject, axes)
    if not owner.seeds:
        return {None: PassKey(variant, case.input)}
    return {seed: PassKey(variant.changed(seed=seed), case.input) for seed in owner.seeds}


@dataclass(frozen=True)
class Context:
    """What an expectation is given: the case, and its measurements as fields."""

    case: Case
    fetch: Fetch
    root: Path | None = None
    """The project, where baselines lie."""
    load: Load | None = None
    """The subject itself, for a demand that measures for itself."""
    thorough: bool = False

    def measured(self, request: Request | None = None, *, subject: str | None = None, axes: Mapping[str, str] | None = None) -> Field:
        """The quantity of one side after `where`; defaults are the property's own. Raises MeasurementError on NaN or a bad selection."""
        from attncheck.expectations.field import Field, stack_seeds
        from attncheck.expectations.select import select

        prop = self.case.property
        own = request is None and subject is None and not axes
        asked = request or prop.request
        fields = {
            seed: Field.of(self.fetch(key, asked), dtype=key.subject.dtype, device=key.subject.device)
            for seed, key in passes(self.case, subject, axes).items()
        }
        whole = fields[None] if None in fields else stack_seeds({seed: found for seed, found in fields.items() if seed is not None})
        found = select(whole, prop, lenient=not own)
        side = "" if own else f" of {self.name(subject, axes)}"
        found.refuse_nan(f"{asked.name}{side}", place_of(prop, "observe"))
        return found

    def reduced(self, found: Field, *, own: bool = True) -> Field:
        """The property's reductions applied; the other side of a relation may lack some of the dims."""
        from attncheck.expectations.reduce import reduce

        return reduce(found, self.case.property, lenient=not own)

    def name(self, subject: str | None = None, axes: Mapping[str, str] | None = None) -> str:
        """A side in words: 'mha', or 'smollm2 (eager)'."""
        base = subject or self.case.subject.definition.name
        return f"{base} ({', '.join(axes.values())})" if axes else base
