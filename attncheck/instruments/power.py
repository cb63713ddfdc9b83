"""The spectral norm of attention matrices as an interval, by power iteration through the kernel and its derivative.

The vector-Jacobian product with respect to the values is A^T u. Under grouped queries the value's gradient is the sum over the group,
so the g-th query head of a group works in column g of the value tensor: one call serves all heads (NUMERICS, finding 12).
From x = 1 and A >= 0 every step gives |A x| / |x| <= sigma_max <= sqrt(max_i (A^T A x)_i / x_i) (Collatz-Wielandt).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attncheck.core.errors import NotObservable
from attncheck.instruments.context import DENSE_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.instruments.context import CallContext

STEPS = 10


class Products:
    """A x and A^T A x for every head of a call at once; vectors are [B, H, M, c] or [B, H, N, c] with c columns a head."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        call = context.call
        self.group = call.heads // call.kv_heads
        self.columns = max(call.value.shape[-1] // self.group, 1)
        """Columns that every query head of a group has to itself."""
        self.counts = context.counts[:, None, :, None]
        self.dense: Tensor | None = None
        """[B, H, N, M] in float64: the weights themselves, where the kernel cannot be used."""
        known = context.kernel_weights if context.kernel_weights is not None else call.weights
        if known is not None:
            self.dense = known.double() * self.counts
        elif call.value.shape[-1] < self.group:
            self.dense = self._written_out(f"{self.group} query heads share a value of width {call.value.shape[-1]}")
        elif call.implementation == "flex_attention" and call.query.device.type == "cpu":
            # Asking for its derivative would also recompile it: the layers after would run another kernel.
            self.dense = self._written_out("flex attention has no derivative on CPU")

    @property
    def dtype(self) -> torch.dtype:
        """What vectors are rounded to on their way through."""
        return self.context.call.value.dtype if self.dense is None else torch.float64

    def gram(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """(A x, A^T A x) over the rows that count, for x [B, H, M, c], c <= columns. Raises NotObservable."""
        if self.dense is None:
            try:
                return self._through_kernel(vectors)
            except (NotObservable, NotImplementedError, RuntimeError) as error:
                self.dense = self._written_out(str(error))
        image = self.dense @ vectors.double()
        return image, self.dense.transpose(-1, -2) @ image

    def _written_out(self, reason: str) -> Tensor:
        context, call = self.context, self.context.call
        if max(context.queries, context.keys) > DENSE_LIMIT:
            raise NotObservable(
                f"{call.path}: needs products with the transposed attention matrix, which the kernel {call.implementation} does not give "
                f"({reason}), and whole matrices are built up to {DENSE_LIMIT} tokens only"
            )
        heads = [torch.stack([context.weights(b, h, torch.float64) for h in range(call.heads)]) for b in range(context.batch)]
        return torch.stack(heads) * self.counts

    def _through_kernel(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        call = self.context.call
        batch, heads, keys, count = vectors.shape
        kv_heads = call.kv_heads
        shape_of_values = (batch, kv_heads, call.value.shape[2], call.value.shape[-1])
        with torch.inference_mode(False):
            packed = torch.zeros(shape_of_values, dtype=call.value.dtype, device=call.value.device)
        grouped = vectors.view(batch, kv_heads, self.group, keys, count).permute(0, 1, 3, 2, 4).reshape(batch, kv_heads, keys, -1)
        packed[:, :, :keys, : self.group * count] = grouped.to(packed.dtype)
        with torch.inference_mode(False), torch.enable_grad():
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
    """(lower, upper) of sigma_max, [B, H] each, in float64. NaN where the weights are not numbers.

    The interval is widened by the rounding of the value's dtype. Weights with negative entries, which only kernels of operators have,
    have no such upper bound: their singular values are computed.
    """
    products = Products(context)
    if products.dense is not None and bool((products.dense < 0).any()):
        exact = torch.linalg.matrix_norm(products.dense, ord=2)
        return exact, exact
    if products.dense is None and (context.fault is not None or context.call.rows_from_kernel):
        raise NotObservable(
            f"{context.call.path}: its weights are not those of softmax attention and may be negative, where power iteration brackets no "
            f"norm; whole matrices are built up to {DENSE_LIMIT} tokens only"
        )
    call = context.call
    x = torch.ones(context.batch, call.heads, context.keys, 1, dtype=torch.float64, device=call.key.device)
    lower = torch.zeros(context.batch, call.heads, dtype=torch.float64, device=call.key.device)
    upper = torch.full_like(lower, float("inf"))
    for _ in range(steps):
        x = x.to(products.dtype).double()
        image, pulled = products.gram(x)
        image, pulled = image.double(), pulled.double()
        lower = torch.maximum(lower, image.norm(dim=(2, 3)) / x.norm(dim=(2, 3)))
        # Keys that nothing attends to drop out of A^T A altogether: their ratio is 0 and their x vanishes.
        ratio = torch.where(x > 0, pulled / x.clamp(min=1e-300), torch.where(pulled > 0, float("inf"), pulled))
        upper = torch.minimum(upper, ratio.amax((2, 3)).sqrt())
        x = pulled / pulled.amax((2, 3), keepdim=True).clamp(min=1e-300)
        x = x.clamp(min=1e-12) * (pulled > 0)
    rounding = max(1e-6, torch.finfo(products.dtype).eps) if products.dense is None else 1e-12
    return lower * (1 - rounding), torch.maximum(upper, lower) * (1 + rounding)
