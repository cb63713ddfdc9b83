"""Sizes of the queries, keys and values that the attention received."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncheck.core.errors import NotObservable
from attncheck.core.observable import Value, observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.evidence import AttentionCall
    from attncheck.instruments.context import CallContext

PLACE = ("sample", "layer", "head")
Average = Literal["none", "tokens", "entries"]


@observable("queries.frobenius_norm", reads="call", dims=PLACE)
def queries_frobenius_norm(context: CallContext, *, average: Average = "none") -> Value:
    """Frobenius norm of the queries [N, d] that the attention received, over the positions that count: after any norm and rotary.

    It grows as sqrt(N): `average: tokens` gives the root mean square of the tokens' norms, `entries` that of the single numbers.
    """
    return _norm(context.call, "query", context.counts, average)


@observable("keys.frobenius_norm", reads="call", dims=PLACE, source="arXiv:2601.11471, Figure 8 (there of the projection)")
def keys_frobenius_norm(context: CallContext, *, average: Average = "none") -> Value:
    """Frobenius norm of the keys [M, d] that the attention received, over the positions that are no padding, one per key-value head.

    After any norm and rotary. It grows as sqrt(M): `average: tokens` gives the root mean square of the tokens' norms, `entries` that of
    the single numbers.
    """
    return _norm(context.call, "key", context.key_counts, average)


@observable("values.frobenius_norm", reads="call", dims=PLACE)
def values_frobenius_norm(context: CallContext, *, average: Average = "none") -> Value:
    """Frobenius norm of the values [M, d_v] that the attention received, over the positions that are no padding, one per key-value head.

    It grows as sqrt(M): `average: tokens` gives the root mean square of the tokens' norms, `entries` that of the single numbers.
    """
    return _norm(context.call, "value", context.key_counts, average)


def _norm(call: AttentionCall, part: Literal["query", "key", "value"], counts: Tensor, average: Average) -> Value:
    """[B, H] from vectors [B, H, N, d] and counts [B, N]. Raises NotObservable where the call was seen without them."""
    import torch

    vectors: Tensor = getattr(call, part)
    if not vectors.shape[-1]:
        raise NotObservable(f"{call.path}: its {part} was not seen: the call is known by its softmax alone ({call.implementation})")
    squares = vectors.double().square().sum(-1)
    # where, not a product: what stands on padding may be anything, NaN included.
    summed = torch.where(counts[:, None, :], squares, 0.0).sum(-1)
    if average != "none":
        tokens = counts.sum(-1)[:, None]
        summed = summed / (tokens * (vectors.shape[-1] if average == "entries" else 1))
    return Value(summed.sqrt().cpu().numpy(), ("sample", "head"))
