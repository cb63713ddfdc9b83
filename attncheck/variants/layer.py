"""Any variant as a module: projections, rotary embeddings, QK-norm, cache, and the operator in the middle. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attncheck.variants.heads import KeyValueHeads
from attncheck.variants.registry import Definition, Projections, Shape
from attncheck.variants.route import attend

THETA = 10_000.0
"""Base of the rotary frequencies."""


class Cache:
    """What one module keeps of the tokens that it has read. `layer.cache()` makes one; every forward that gets it adds its tokens."""

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}
        self.positions: Tensor | None = None
        """[M] positions of the tokens kept; None where they are 0, 1, 2, ..."""
        self.length = 0

    def extend(self, state: Mapping[str, Tensor], positions: Tensor | None) -> None:
        """Add tokens, as copies that own their memory."""
        new = next(iter(state.values())).shape[2]
        if positions is not None or self.positions is not None:
            held = self.positions if self.positions is not None else torch.arange(self.length)
            more = positions if positions is not None else torch.arange(self.length, self.length + new)
            self.positions = torch.cat([held.to(more.device), more])
        self.state = {name: torch.cat([self.state[name], part], 2) if self.state else part.clone() for name, part in state.items()}
        self.length += new

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory that the tensors kept occupy, their storages counted whole and once."""
        kept = [*self.state.values(), *([self.positions] if self.positions is not None else [])]
        storages = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in kept}
        return sum(storages.values())


class Attention(nn.Module):
    """One attention layer of a variant: hidden [batch, N, width] -> [batch, N, width]. Linear maps have no bias."""

    def __init__(self, definition: Definition, shape: Shape, *, causal: bool) -> None:
        super().__init__()
        variant = definition.variant
        self.definition, self.shape, self.variant, self.causal = definition, shape, variant, causal
        self.rotary, self.qk_norm = shape.rotary, shape.qk_norm or variant.qk_norm
        self.num_heads, self.head_dim = shape.heads, shape.head_dim
        self.extras = {name: argument(shape) for name, argument in variant.extras.items()}
        self.keys: Projections = variant.projections or KeyValueHeads()
        self.query_dim = self.keys.query_dim(shape)
        self.q_proj = nn.Linear(shape.width, shape.heads * self.query_dim, bias=False)
        self.keys.build(self)
        self.o_proj = nn.Linear(shape.heads * self.head_dim, shape.width, bias=False)
        if variant.gain:
            self.q_gain, self.k_gain = nn.Parameter(torch.ones(self.query_dim)), nn.Parameter(torch.ones(self.query_dim))
        for name, initial in variant.learned.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(list(initial(shape)))))

    def extra_repr(self) -> str:
        return f"{self.definition}, heads={self.num_heads}, causal={self.causal}, rotary={self.rotary}, qk_norm={self.qk_norm}"

    def cache(self) -> Cache:
        """An empty cache for this module, for decoding step by step or in chunks."""
        return Cache()

    def forward(self, hidden: Tensor, cache: Cache | None = None, positions: Tensor | None = None) -> Tensor:
        """`positions` [N] are those of the tokens of `hidden`; default: on from what the cache holds, else from 0."""
        batch, count, _ = hidden.shape
        given = positions
        if positions is None:
            start = 0 if cache is None else cache.length
            positions = torch.arange(start, start + count, device=hidden.device)
        query = self.finished(self.split(self.q_proj(hidden), self.num_heads), positions, self.gain("q"))
        state = self.keys.state(self, hidden, positions)
        key_positions = positions
        if cache is not None:
            cache.extend(state, given)
            state = cache.state
            held = cache.positions
            key_positions = held if held is not None else torch.arange(cache.length, device=hidden.device)
        key, value = self.keys.expand(self, state, key_positions)
        output = self.attended(query, key, value, positions, key_positions)
        return self.o_proj(output.transpose(1, 2).reshape(batch, count, -1))  # type: ignore[no-any-return]

    def attended(self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        """[batch, heads, N, d_v] through torch's kernel, or through the variant's operator by `attend`."""
        mask: dict[str, Any] = self._mask(positions, key_positions)
        if self.variant.fused:
            kernel, grouped = functional.scaled_dot_product_attention, key.shape[1] != query.shape[1]
            if query.shape[-1] == value.shape[-1]:
                return kernel(query, key, value, **mask, enable_gqa=grouped)
            # On a CPU torch has no fused kernel for these widths: announced, so that queries and keys are seen and not weights alone.
            announced: Tensor = attend(self, kernel, query, key, value, rows="formula", **mask, enable_gqa=grouped)
            return announced
        options = self.extras | {name: getattr(self, name) for name in self.variant.learned}
        output: Tensor = attend(
            self, self.variant.operator, query, key, value, rows=self.variant.rows,  # type: ignore[arg-type]
            **mask, **options,
        )  # fmt: skip
        return output

    def _mask(self, positions: Tensor, key_positions: Tensor) -> dict[str, Any]:
        """The flag where it says everything, else a mask by positions; nothing where every query sees all keys."""
        window = self.variant.window
        if window is None and (not self.causal or positions is key_positions):
            return {"is_causal": self.causal}
        apart = positions[:, None] - key_positions[None, :]
        seen = apart >= 0 if self.causal else torch.ones_like(apart, dtype=torch.bool)
        if window is not None:
            seen = seen & (apart.abs() < window)
        return {"attn_mask": seen}

    def mapped(self, name: str, hidden: Tensor) -> Tensor:
        """The linear map of that name, applied."""
        found: Tensor = self.get_submodule(name)(hidden)
        return found

    def matrix(self, name: str) -> Tensor:
        """The weight [out, in] of the linear map of that name."""
        return self.get_parameter(f"{name}.weight")

    def gain(self, letter: str) -> Tensor | None:
        """QK-norm's learned gain [d] of the queries (q) or keys (k), where there is one."""
        return self.get_parameter(f"{letter}_gain") if self.variant.gain else None

    def split(self, projected: Tensor, heads: int) -> Tensor:
        """[batch, N, heads * d] -> [batch, heads, N, d]."""
        return projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)

    def finished(self, vectors: Tensor, positions: Tensor, gain: Tensor | None = None) -> Tensor:
        """Queries or keys after QK-norm (x / rms(x), times a gain if one is learned) and rotation, where the module has them."""
        if self.qk_norm:
            vectors = functional.rms_norm(vectors, (vectors.shape[-1],))
            vectors = vectors if gain is None else vectors * gain
        return self.rotated(vectors, positions) if self.rotary else vectors

    def rotated(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[batch, heads, N, d] with the last `rotated_dim` turned by the angles of `positions` [N]."""
        width = self.keys.rotated_dim(self.shape)
        still = vectors.shape[-1] - width
        turned = rotated_by(vectors[..., still:], positions)
        return turned if not still else torch.cat([vectors[..., :still], turned], -1)

    def projection_weights(self) -> dict[str, Tensor]:
        """Query, key, value and output maps head by head, with the parts of those that have any; what observables of weights read."""
        query = self.q_proj.weight.view(self.num_heads, self.query_dim, -1)
        output = self.o_proj.weight.view(-1, self.num_heads, self.head_dim)
        return {"query": query, "output": output, **self.keys.weights(self)}


def rotary_table(positions: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [N, width] of position · θ^(−2i/width), both halves alike; the angles in float64."""
    frequencies = THETA ** (-torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)
    angles = (positions.double()[:, None] * frequencies[None, :]).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated_by(vectors: Tensor, positions: Tensor) -> Tensor:
    """Vectors [..., N or 1, even] turned by the angles of `positions` [N]."""
    return apply_rotary_pos_emb(vectors, *rotary_table(positions, vectors.shape[-1], vectors.dtype))


def apply_rotary_pos_emb(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + width/2) of the last dim."""
    first, second = vectors.chunk(2, -1)
    return vectors * cos + torch.cat([-second, first], -1) * sin
