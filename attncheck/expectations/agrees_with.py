"""`agrees_with`: the same subject measured another way (implementation, dtype, device) gives the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attncheck.core.definitions import PassKey, Request
from attncheck.core.expectation import expectation
from attncheck.core.fields import AxesArgument
from attncheck.core.verdict import Verdict
from attncheck.expectations.sides import Context, passes

if TYPE_CHECKING:
    from attncheck.spec.model import Case


def reference_axes(axes: Mapping[str, str]) -> dict[str, str]:
    """The axes of the reference that `vs_reference` judges both sides by: the other side's, in float32."""
    return {**axes, "dtype": "float32"}


def _requires(case: Case, arguments: Mapping[str, Any]) -> list[tuple[PassKey, Request]]:
    request = case.property.request
    wanted = [(key, request) for key in passes(case, axes=arguments["axes"]).values()]
    if case.property.tolerance.kind == "vs_reference":
        wanted += [(key, request) for key in passes(case, axes=reference_axes(arguments["axes"])).values()]
    return wanted


@expectation("agrees_with", requires=_requires)
def agrees_with(context: Context, *, axes: AxesArgument) -> Verdict:
    """The quantity agrees with that of the same subject with `axes` changed, place by place, within the property's tolerance.

    exact: equal to the last bit. allclose: |a - b| <= atol + rtol |b|. rms_ratio: the root mean square of a - b over that of b, within
    each head (each layer where there is nothing finer), is at most `ratio`. vs_reference: with r the other side in float32, the largest
    |a - r| of each layer is at most `factor` times the largest |b - r|, plus atol. Defaults belong to the pair of dtypes: 1e-9 between
    float64, 1e-5 where the coarser is float32, 3e-2 where it is a half precision; factor 2.
    """
    from attncheck.expectations.agreement import judge_agreement

    return judge_agreement(context, axes)
