"""Do the exact rows describe what the kernel applied? How far the two may be apart by rounding, and what is said where they are further."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attncheck.core.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.evidence import AttentionCall
    from attncheck.instruments.context import CallContext

DISAGREEMENT = {torch.float64: 2e-3, torch.float32: 2e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Past this difference on +-1 columns the rows are not what ran: rounding reaches 1e-5 in float32 and 4e-3 in bfloat16.

A kernel that rounds its scores to half precision (eager) is further off where scores are large: see `_rounding_of_scores`.
"""

SUSPICIOUS = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Past this difference zero-mass claims are asked for at every threshold; in half precision, past `DISAGREEMENT`."""


def limit(call: AttentionCall) -> float:
    """Difference on +-1 columns that rounding explains. Autocast may take float32 values and return less."""
    return max(DISAGREEMENT.get(dtype, 0.1) for dtype in (call.value.dtype, call.output.dtype))


def suspicious(call: AttentionCall, error: Tensor) -> bool:
    """Whether some head of [B, H] errors is further off than a sound kernel gets."""
    dtype = call.value.dtype
    return float(error.max()) > SUSPICIOUS.get(dtype, DISAGREEMENT.get(dtype, 0.1))


def disagreement(call: AttentionCall, error: Tensor, layer: int, batch: int) -> MeasurementError | None:
    """Why this call's rows describe another attention than the one that ran, from the kernel's error [B, H]; None where they do not."""
    worst, allowed = float(error.max()), limit(call)
    if worst <= allowed:
        return None
    sample, head = divmod(int(error.argmax()), error.shape[1])
    allowed += rounding_of_scores(call, sample, head)
    if worst <= allowed:
        return None
    at = f"layer {layer}, head {head}" + (f", sample {sample}" if batch > 1 else "") + f" ({call.path}, {call.implementation})"
    broken = [name for name in ("query", "key", "scores") if not finite(getattr(call, name))]
    if broken:
        return MeasurementError(f"the {broken[0]} holds values that are not numbers, so its attention is none: at {at}")
    return MeasurementError(
        f"the kernel does not apply the attention that its query, key and mask define: at {at} the two differ by {worst:.3g} on values of "
        f"+-1 (rounding stays below {allowed:g}); exact rows would describe another attention than the one that ran. See `kernel.error`"
    )


def nonlinearity(context: CallContext, checked: Tensor, answered: Tensor) -> MeasurementError | None:
    """Weights that were read off with identity values are weights only if the kernel is linear in its values; None where it is.

    `checked` are the weights times the +-1 columns, `answered` the kernel's own output for them, [B, H, N, c] both.
    """
    counted = context.counts[:, None, :]
    apart = torch.where(counted, (checked.float() - answered).abs().amax(-1), 0.0)
    size = torch.where(counted, answered.abs().amax(-1), 0.0)
    worst = float(apart.max())
    if worst <= limit(context.call) * max(1.0, float(size.max())):
        return None
    return MeasurementError(
        f"{context.call.path}: the operator is not linear in its values, so it has no attention matrix: on values of +-1 its output "
        f"and its weights (read off with identity values) times those values differ by {worst:.3g}"
    )


def rounding_of_scores(call: AttentionCall, sample: int, head: int) -> float:
    """How far +-1 columns may be off where a kernel keeps its scores in half precision.

    Product, scale and mask each round by half a unit in the last place, u S for scores up to S, and a change of d in the scores of a row
    moves its answer by at most 2 d: 2 * 3 * u / 2 * S, taken as 4 u (1 + S).
    """
    dtypes = [dtype for dtype in (call.value.dtype, call.output.dtype) if dtype in (torch.bfloat16, torch.float16)]
    if not dtypes or call.query.shape[-1] == 0:
        return 0.0
    query = call.query[sample, head].float() * call.scale
    key = call.key[sample, head // (call.heads // call.kv_heads)].float()
    largest = max(float((query[start : start + 64] @ key.mT).abs().max()) for start in range(0, len(query), 64))
    unit = max(torch.finfo(dtype).eps for dtype in dtypes) / 2
    return 4 * unit * (1 + largest)


def finite(tensor: Tensor | None) -> bool:
    """Whether no entry is NaN or +inf; -inf among scores is a hidden key."""
    return tensor is None or bool((tensor < torch.inf).all())
