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

    max over queries of |kernel(q, k, z) - A z| for 8 random columns z of +-1, and of |O r - A (V r)| / A s for the call's own output O
    and values V and 2 random r over the columns of a value (of mean square 1, of either sign, no two alike), s being the larger of |V r|
    and |V|: A V is checked without forming it (Freivalds), and no column of the output is left out. A is computed in float32 from the q,
    k, mask, scale, softcap, bias and sinks that the kernel was given. A key too many or too few, a lost scale, dropped mass, a column of
    the values lost or in another's place: each moves one of the two. Infinite where the kernel gives no number and the rows do.
    Where attention was seen by its softmax alone, A are the weights that were applied: a factor or mask put on them after the softmax is
    then part of A, and shows in attention.row_sum.
    About 1e-6 in float32. In bfloat16 up to 2^-7 by sdpa, where the output's rounding adds up over its columns; eager attention rounds the
    scores too and differs the more, the larger they are: up to 0.03 on correct models.
    """
    if probe.error is None:
        dropout = probe.context.call.dropout
        why = f"dropout of {dropout:g} ran, so that its kernel applies other weights" if dropout else "no exact rows to hold it against"
        raise MeasurementError(f"{probe.context.call.path}: {why}")
    return probe.error
