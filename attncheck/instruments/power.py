"""The spectral norm of attention matrices as an interval, by power iteration through the kernel and its derivative.

The vector-Jacobian product with respect to the values is A^T u. Under grouped queries the value's gradient is the sum over the group,
so the g-th query head of a group works in column g of the value tensor: one call serves all heads (NUMERICS, finding 12).
From x = 1 and A >= 0 every step gives |A x| / |x| <= sigma_max <= sqrt(max_i (A^T A x)_i / x_i) (Collatz-Wielandt).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attncheck.core.errors import MeasurementError, NotObservable
from attncheck.instruments.context import DENSE_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.context import CallContext

STEPS = 10


class Products:
    """A x and A^T A x for every head of a call at once; vectors are [B, H, keys, c] or [B, H, N, c] with c columns a head."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        call = context.call
        self.group = call.heads // call.kv_heads
        self.columns = call.value.shape[-1] // self.group
        """Columns that every query head of a group has to itself."""
        if self.columns < 1:
            raise MeasurementError(f"{call.path}: {self.group} query heads share a value of width {call.value.shape[-1]}")
        self.counts = context.counts[:, None, :, None]
        self.dense: Tensor | None = None
        """[B, H, N, M]: the weights themselves, where the kernel has no derivative."""

    def gram(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """(A x, A^T A x) over the rows that count, for x [B, H, M, c], c <= columns. Raises NotObservable or MeasurementError."""
        call = self.context.call
        # flex has no derivative on CPU, and asking for one recompiles it: the layers after would run another kernel.
        hopeless = call.weights is not None or (call.implementation == "flex_attention" and call.query.device.type == "cpu")
        if self.dense is None and not hopeless:
            try:
                return self._through_kernel(vectors)
            except (NotObservable, NotImplementedError, RuntimeError) as error:
                if max(self.context.queries, self.context.keys) > DENSE_LIMIT:
                    raise NotObservable(
                        f"{call.path}: the kernel {call.implementation} has no derivative with respect to its "
                        f"values, and whole matrices are built up to {DENSE_LIMIT} tokens only ({error})"
                    ) from error
        if self.dense is None:
            self.dense = self._weights()
        image = self.dense @ vectors.to(self.dense.dtype)
        return image, self.dense.transpose(-1, -2) @ image

    def _weights(self) -> Tensor:
        call = self.context.call
        if call.weights is not None:
            return call.weights.float() * self.counts
        whole = torch.stack([torch.stack([self.context.weights(b, h) for h in range(call.heads)]) for b in range(self.context.batch)])
        return whole * self.counts

    def _through_kernel(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        call = self.context.call
        batch, heads, keys, count = vectors.shape
        kv_heads = call.kv_heads
        packed = torch.zeros(batch, kv_heads, call.value.shape[2], call.value.shape[-1], dtype=call.value.dtype, device=call.value.device)
        grouped = vectors.view(batch, kv_heads, self.group, keys, count).permute(0, 1, 3, 2, 4).reshape(batch, kv_heads, keys, -1)
        packed[:, :, :keys, : self.group * count] = grouped.to(packed.dtype)
        with torch.enable_grad():
            packed.requires_grad_(True)
            out = call.rerun(packed)
            if not out.requires_grad:
                raise NotObservable(f"{call.path}: the kernel {call.implementation} has no derivative with respect to its values here")
            shape = (batch, kv_heads, self.group, out.shape[2])
            own = torch.stack([out.view(*shape, -1)[:, :, g, :, g * count : (g + 1) * count] for g in range(self.group)], 2)
            image = (own.reshape(batch, heads, out.shape[2], count) * self.counts).detach()
            back = torch.zeros_like(out)
            for g in range(self.group):
                back.view(*shape, -1)[:, :, g, :, g * count : (g + 1) * count] = image.view(*shape, count)[:, :, g].to(out.dtype)
            (gradient,) = torch.autograd.grad(out, packed, back)
        pulled = gradient[:, :, :keys, : self.group * count].view(batch, kv_heads, keys, self.group, count)
        return image, pulled.permute(0, 1, 3, 2, 4).reshape(batch, heads, keys, count)


def spectral_interval(context: CallContext, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """(lower, upper) of sigma_max, [B, H] each, in float64. Needs non-negative weights; `upper` is certain only then."""
    call = context.call
    products = Products(context)
    x = torch.ones(context.batch, call.heads, context.keys, 1, dtype=torch.float64, device=call.query.device)
    lower = torch.zeros(context.batch, call.heads, dtype=torch.float64, device=call.query.device)
    upper = torch.full_like(lower, float("inf"))
    for _ in range(steps):
        image, pulled = products.gram(x.float() if call.value.dtype != torch.float64 else x)
        pulled = pulled.double()
        lower = torch.maximum(lower, image.double().norm(dim=(2, 3)) / x.norm(dim=(2, 3)))
        # Keys that nothing attends to drop out of A^T A altogether: their ratio is 0 and their x may vanish.
        ratio = torch.where(x > 0, pulled / x.clamp(min=1e-300), torch.where(pulled > 0, float("inf"), 0.0))
        upper = torch.minimum(upper, ratio.amax((2, 3)).sqrt())
        x = pulled / pulled.amax((2, 3), keepdim=True).clamp(min=1e-300)
        x = x.clamp(min=1e-12) * (pulled > 0)
    return lower, torch.maximum(upper, lower)
