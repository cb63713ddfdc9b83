"""Do the exact rows describe what the kernel applied? How far the two may be apart by rounding, and what is said where they are further."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from attncheck.core.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.evidence import AttentionCall
    from attncheck.instruments.context import CallContext

DISAGREEMENT = {torch.float64: 2e-3, torch.float32: 2e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Past this difference the rows are not what ran: rounding reaches 1e-5 in float32; in bfloat16 4e-3 on +-1 columns and 7e-3 on values.

A kernel that rounds its scores to half precision (eager) is further off where scores are large: see `_rounding_of_scores`.
"""

UNEVEN = {torch.float64: 2e-3, torch.float32: 2e-3, torch.bfloat16: 2**-5, torch.float16: 2**-7}
"""Past this difference between two answers of one kernel its columns are not treated alike. Its scores round alike in both."""

SUSPICIOUS = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 2**-7, torch.float16: 2**-9}
"""Past this difference zero-mass claims are asked for at every threshold: a closer look, and no verdict. In half precision sdpa
stays below; eager attention may not, and is then looked at in vain."""


COMBINATIONS = 2
"""Combinations of a value's columns that are held against the output. One alone may happen to hide two faults from each other."""


def column_weights(call: AttentionCall) -> Tensor:
    """float32 [d_v, COMBINATIONS] of mean square 1, the same for every run of the same call.

    Of either sign and all of different sizes, between 0.48 and 1.44: under +-1 alone a kernel that exchanged two columns of equal sign, or
    moved one onto the other, would pass.
    """
    draws = torch.Generator().manual_seed(20240611 + 7919 * call.layer)
    shape = (call.value.shape[-1], COMBINATIONS)
    signs = torch.randint(0, 2, shape, generator=draws, dtype=torch.int8) * 2 - 1
    sizes = (torch.rand(shape, generator=draws) + 0.5) * (12 / 13) ** 0.5
    made: Tensor = (signs * sizes).to(call.value.device, torch.float32)
    return made


def combine(call: AttentionCall, keys: int) -> Tensor | None:
    """[B, kv_heads, keys, COMBINATIONS + 1]: the call's values under `column_weights`, then their sizes: the larger of those and norms.

    A product A V is checked without forming it: (A V) r = A (V r) for any r (Freivalds). All columns of the values take part, so that a
    kernel which is right where it is asked and wrong in other columns does not pass. None for an output of another width.
    """
    if call.output.shape[-1] != call.value.shape[-1]:
        return None
    value = call.value[:, :, :keys].float()
    mixed, norm = value @ column_weights(call), torch.linalg.vector_norm(value, dim=-1, keepdim=True)
    return torch.cat([mixed, torch.maximum(norm, mixed.abs().amax(-1, keepdim=True))], -1)


def own_error(call: AttentionCall, combined: Tensor) -> Tensor:
    """[B, H, N]: how far the kernel's output is from A V under `column_weights`, in units of A times the values' sizes.

    Weights that are off by a share are off by at most that share here, as on +-1 columns.

    `combined` [B, H, N, COMBINATIONS + 1] are the exact weights times `combine`. 0 where values that are no numbers leave nothing to
    compare; infinite where the output alone is none.
    """
    expected, size = combined[..., :-1].float(), combined[..., -1].float()
    answered = call.output.float() @ column_weights(call)
    smallest = torch.finfo(call.output.dtype).tiny
    apart = (expected - answered).abs().amax(-1) / size.clamp(min=smallest)
    comparable = combined.isfinite().all(-1)
    return torch.where(comparable, torch.where(apart.isfinite(), apart, torch.inf), 0.0)


def limit(call: AttentionCall, limits: Mapping[torch.dtype, float] = DISAGREEMENT) -> float:
    """Difference that rounding explains. Autocast may take float32 values and return less."""
    return max(limits.get(dtype, 0.1) for dtype in (call.value.dtype, call.output.dtype))


def suspicious(call: AttentionCall, error: Tensor) -> bool:
    """Whether some head of [B, H] errors is further off than a sound kernel gets."""
    dtype = call.value.dtype
    return float(error.max()) > SUSPICIOUS.get(dtype, 2**-7)


def disagreement(context: CallContext, asked: Tensor, own: Tensor, layer: int) -> MeasurementError | None:
    """Why this call's rows describe another attention than the one that ran; None where they do not.

    `asked`, `own` [B, H, N]: what the two differ by on +-1 columns, and on the call's own values.
    """
    call = context.call
    found = _past_rounding(context, torch.maximum(asked, own))
    if found is None:
        return None
    sample, head, worst, allowed = found
    at = _at(context, layer, sample, head)
    broken = [name for name in ("query", "key", "scores") if not finite(getattr(call, name))]
    if broken:
        return MeasurementError(f"the {broken[0]} holds values that are not numbers, so its attention is none: at {at}")
    on = "values of +-1" if worst == _largest(asked) else "its own values, in units of their size"
    return MeasurementError(
        f"the kernel does not apply the attention that its query, key and mask define: at {at} the two differ by {_size(worst)} on {on} "
        f"(rounding stays below {allowed:g}); exact rows would describe another attention than the one that ran. See `kernel.error`"
    )


def uneven(context: CallContext, combined: Tensor, unconfirmed: Tensor, layer: int, *, signed: bool) -> MeasurementError | None:
    """Why a kernel's answers in the columns that were asked say nothing of the others; None where its output bears them out.

    `combined` [B, H, N, COMBINATIONS + 1] are the kernel's own answers to `combine`, so that no exact rows are needed. `unconfirmed` rows
    [B, H, N] are no numbers. Where weights may be `signed`, sizes may cancel in a row, and the largest of the head is taken.
    """
    if signed:
        combined = torch.cat([combined[..., :-1], combined[..., -1:].abs().amax(-2, keepdim=True).expand_as(combined[..., -1:])], -1)
    counted = context.counts[:, None, :] & ~unconfirmed
    error = torch.where(counted, own_error(context.call, combined), 0.0)
    worst, allowed = _largest(error), limit(context.call, UNEVEN)
    if worst <= allowed:
        return None
    sample, head = _where(error)
    return MeasurementError(
        f"the kernel does not treat all columns of its values alike: at {_at(context, layer, sample, head)} sums over the columns of its "
        f"output differ from its answer to the same sums of its values by {_size(worst)} of their size (rounding stays below {allowed:g}). "
        "What it says of the columns that were asked is not true of the others. See `kernel.error`"
    )


def _past_rounding(context: CallContext, error: Tensor) -> tuple[int, int, float, float] | None:
    """(sample, head, error, what rounding explains) of the largest error [B, H, N], where it is more than that."""
    worst, allowed = _largest(error), limit(context.call)
    if worst <= allowed:
        return None
    sample, head = _where(error)
    allowed += rounding_of_scores(context.call, sample, head)
    return None if worst <= allowed else (sample, head, worst, allowed)


def _size(worst: float) -> str:
    """Of values that are 0 any other answer is beyond all measure."""
    return f"{worst:.3g}" if worst < 1e6 else "more than a million"


def _largest(error: Tensor) -> float:
    return float(error.nan_to_num(nan=torch.inf).max())


def _where(error: Tensor) -> tuple[int, int]:
    return divmod(int(error.nan_to_num(nan=torch.inf).amax(-1).argmax()), error.shape[1])


def _at(context: CallContext, layer: int, sample: int, head: int) -> str:
    call = context.call
    return f"layer {layer}, head {head}" + (f", sample {sample}" if context.batch > 1 else "") + f" ({call.path}, {call.implementation})"


def nonlinearity(context: CallContext, asked: Tensor, own: Tensor) -> MeasurementError | None:
    """Weights that were read off with identity values are weights only if the kernel is linear in its values; None where it is.

    `asked` [B, H, N]: by how much the kernel's answers to +-1 columns differ from the weights times them; `own`: its output from the
    weights times its own values.
    """
    assert context.kernel_weights is not None
    size = torch.where(context.counts[:, None, :], context.kernel_weights.abs().sum(-1).float(), 0.0)
    apart, allowed = torch.maximum(asked / size.clamp(min=1), own), limit(context.call)
    if _largest(apart) <= allowed:
        return None
    sample, head = _where(apart)
    at = f"head {head}" + (f", sample {sample}" if context.batch > 1 else "")
    return MeasurementError(
        f"{context.call.path}: the output is not weights times values: at {at} it differs by {_largest(torch.maximum(asked, own)):.3g} "
        f"from the weights (read off with identity values) times the values; rounding stays below {allowed:g}. The operator is not linear "
        "in its values, treats their columns differently or takes those of another head, so it has no attention matrix"
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
