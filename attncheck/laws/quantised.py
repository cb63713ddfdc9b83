"""Keys and values in eight bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor


def quantised(tensor: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """The tensor in eight bits, and what each head of it was divided by, [batch, kv_heads]."""
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    most = float(torch.iinfo(kind).max if dtype == "int8" else torch.finfo(kind).max)
    descale = tensor.abs().amax((-2, -1)).clamp(min=1e-12) / most
    scaled = tensor / descale[..., None, None]
    return (scaled.round() if dtype == "int8" else scaled).clamp(-most, most).to(kind), descale


@law("dequantised", family="quantised", needs=claimed("quantised"))
def dequantised(trial: Trial) -> None:
    """Keys and values in eight bits, each head with a factor of its own, give what the same numbers give in the query's dtype, at any
    number of queries."""
    import torch

    for queries in sorted({trial.example.queries, 1}):
        changed = trial.but(queries=queries)
        for dtype in trial.claims.quantised or ():
            # heads whose factors are far apart, so that one is never taken for another
            grown = 4.0 ** (torch.arange(changed.key.shape[1]) % 3)[:, None, None].to(changed.key.dtype)
            key, k_descale = quantised(changed.key * grown, dtype)
            value, v_descale = quantised(changed.value * grown, dtype)
            plain = [t.to(changed.query.dtype) * s[..., None, None] for t, s in ((key, k_descale), (value, v_descale))]
            wanted = changed.call(key=plain[0], value=plain[1])
            found = changed.call(key=key, value=value, k_descale=k_descale, v_descale=v_descale)
            sharpness = changed.expected.sharpness * float(grown.max())
            changed.agree(
                found,
                wanted,
                4 * changed.tolerance(sharpness, plain[1]),
                f"output at {changed.example.queries} queries of {dtype} keys and values, against the same dequantised",
            )
