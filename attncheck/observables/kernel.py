"""Does the kernel apply the attention that its query, key and mask define?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError
from attncheck.core.observable import observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.probes import Probe


@observable("kernel.error", reads="probe", dims=("sample", "layer", "head"), over_queries="max")
def kernel_error(probe: Probe) -> Tensor:
    """Largest difference between the model's kernel and exact rows, on the model's own activations.

    max over queries and 8 random columns z of +-1 of |kernel(q, k, z) - A z|, where A is computed in float32 from the q, k, mask, scale,
    softcap, bias and sinks that the kernel was given. A key too many or too few, a lost scale, dropped mass: each moves A z. About 1e-6
    in float32; of the order of the dtype's rounding (2^-8) in bfloat16.
    """
    if probe.error is None:
        raise MeasurementError("no exact rows to hold against this kernel")
    return probe.error
