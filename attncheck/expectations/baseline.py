"""`baseline`: the quantity is what it was when it was recorded, place by place, within a tolerance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from attncheck.core.baseline import Identity
from attncheck.core.errors import MeasurementError
from attncheck.core.expectation import expectation
from attncheck.core.verdict import Verdict
from attncheck.expectations.sides import Context

if TYPE_CHECKING:
    from attncheck.spec.model import Case


class AcrossDtypes(BaseModel):
    """The tolerance between a recording in one dtype and a run in another: |new - old| <= atol + rtol |old|."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rtol: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3e-2
    atol: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3e-3


def identity_of(case: Case) -> Identity:
    """Whose baseline a case has: spec, property, subject, input. The axes of the subject belong to the environment."""
    spec = case.property.place.path
    return Identity(spec, case.property.name, case.subject.definition.name, case.input.name if case.input else None)


@expectation("baseline")
def baseline(
    context: Context,
    *,
    rtol: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None,
    atol: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None,
    across_dtypes: AcrossDtypes | None = None,
) -> Verdict:
    """The quantity is what was recorded under `baselines/`, place by place: |new - old| <= atol + rtol |old|.

    What is compared comes after where, reduce and ratio_to. The recording of the nearest environment is chosen and named: dtype first, then
    device, its capability, implementation, versions. `rtol` and `atol` hold between equal dtypes (one alone sets the other to 0), and
    `across_dtypes` between different ones; a property's `tolerance:` holds for both. Defaults belong to the pair: 1e-9 between float64,
    1e-5 between float32, rtol 3e-2 and atol 3e-3 where one is a half precision. A baseline that is not there yet fails; `pytest
    --snapshot-update` records it, and overwrites only what left its tolerance.

    Raises NotComparable where the baseline is of another input, selection or shape.
    """
    from attncheck.expectations.moved import judge_baseline

    if context.case.must_fail:
        raise MeasurementError(f"{context.case.property.place}: a baseline has no negative control: its subject has no recorded numbers")
    return judge_baseline(context, rtol, atol, across_dtypes)
