"""One operator on one example: its calls, its weights by probes, and comparisons whose tolerance follows from the numbers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attncheck.core.claims import OperatorClaims
from attncheck.laws import dense
from attncheck.laws.example import Example
from attncheck.laws.picture import of_weights
from attncheck.laws.registry import LawViolation, NotApplicable
from attncheck.laws.tensors import build

if TYPE_CHECKING:
    from torch import Tensor

Operator = Callable[..., Any]
TAKEN = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
"""What an operator is taken to accept whose signature cannot be read, as torch's own."""


@functools.lru_cache(maxsize=64)
def accepts(operator: Operator, name: str) -> bool:
    """Whether the operator takes a keyword of that name."""
    try:
        parameters = inspect.signature(operator).parameters
    except (TypeError, ValueError):
        return name in TAKEN
    return name in parameters or (name in TAKEN and any(p.kind is p.VAR_KEYWORD for p in parameters.values()))


class Trial:
    """What a law gets. `example` already fits the claims; `but` gives a trial of a changed example."""

    def __init__(self, operator: Operator, claims: OperatorClaims, example: Example, trail: list[Example] | None = None) -> None:
        self.operator, self.claims = operator, claims
        if example.scale is not None and not accepts(operator, "scale"):
            example = example.but(scale=None)
        self.example = example
        self.trail = [] if trail is None else trail
        """Examples that a law went through; the last is the one that it failed on."""
        self.trail.append(example)
        self.query, self.key, self.value, self.options = build(example, claims)

    def but(self, **changes: Any) -> Trial:
        from attncheck.laws.example import fitted

        return Trial(self.operator, self.claims, fitted(self.example.but(**changes), self.claims), self.trail)

    @property
    def generator(self) -> Any:
        """Random numbers of a law's own, the same at every run."""
        import torch

        return torch.Generator().manual_seed(7919 + self.example.seed)

    def returned(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """What the operator gives back; raising under its own claims is a violation."""
        try:
            return self.operator(query, key, value, **options)
        except (LawViolation, NotApplicable, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as problem:  # sys.exit() too: it would end the tests and not the search
            text = (str(problem).splitlines() or [""])[0][:200]
            raise LawViolation(f"the operator raised {type(problem).__name__}: {text}", "print(out)") from problem

    def call(
        self,
        query: Tensor | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        without: tuple[str, ...] = (),
        **options: Any,
    ) -> Tensor:
        """The output, with the example's own inputs where none are given."""
        import torch

        q = self.query if query is None else query
        k = self.key if key is None else key
        v = self.value if value is None else value
        wanted = {name: given for name, given in {**self.options, **options}.items() if name not in without}
        found = self.returned(q, k, v, **wanted)
        output = found[0] if isinstance(found, tuple) else found
        if not isinstance(output, torch.Tensor):
            raise LawViolation(f"the operator returned {type(output).__name__} where its output is expected")
        shape = (*q.shape[:-1], v.shape[-1])
        if tuple(output.shape) != shape:
            raise LawViolation(f"the output has shape {list(output.shape)}, not {list(shape)}", "print(out.shape)")
        return output

    @functools.cached_property
    def output(self) -> Tensor:
        return self.call()

    @functools.cached_property
    def expected(self) -> dense.Dense:
        return dense.attention(self.claims, self.query, self.key, self.value, self.options)

    @functools.cached_property
    def visible(self) -> Tensor:
        return dense.visible(self.claims, self.query, self.key, self.options)

    def weights(self) -> Tensor:
        """The weights that the operator applies, [batch, heads, N, M] in float64, read off by values that are 1 at one key each."""
        import torch

        width, M = self.value.shape[-1], self.key.shape[-2]
        columns = []
        for start in range(0, M, width):
            probe = torch.zeros_like(self.value, memory_format=torch.contiguous_format)
            stop = min(start + width, M)
            probe[..., torch.arange(start, stop), torch.arange(stop - start)] = 1.0
            columns.append(self.call(value=probe)[..., : stop - start].double())
        return torch.cat(columns, -1)

    def tolerance(self, sharpness: Tensor | float | None = None, value: Tensor | None = None, dtype: Any = None) -> Tensor:
        """What rounding may do to the output, [batch, heads, N, 1]: the error of scores is a few units of their largest terms."""
        import torch

        S = self.expected.sharpness if sharpness is None else torch.as_tensor(sharpness, dtype=torch.float64)
        v = self.value if value is None else value
        largest = v.double().abs().amax((-2, -1), keepdim=True)
        largest = largest.repeat_interleave(self.query.shape[1] // v.shape[1], 1)
        epsilon = torch.finfo(dtype or self.query.dtype).eps
        limit: Tensor = epsilon * (16 + 4 * S + v.shape[-2] ** 0.5) * largest + 1e-30
        return limit * self.size

    @functools.cached_property
    def size(self) -> float:
        """Largest sum of a row's absolute weights: 1 for what is normalised, measured, and at least 1, for anything else."""
        if self.claims.normalised or self.claims.reference:
            return 1.0
        return max(1.0, float(self.weights().abs().sum(-1).nan_to_num().max()))

    def rows(self) -> Tensor:
        """Rows that see a key, [batch, heads, N]: the others are `empty_rows`, a law of its own."""
        return self.visible.any(-1)

    def agree(
        self, found: Tensor, wanted: Tensor, tolerance: Tensor | float, what: str, *, rows: Tensor | None = None, then: str | None = None
    ) -> None:
        """Raise LawViolation at the worst place where |found - wanted| exceeds the tolerance, or where found is not finite."""
        import torch

        a, b = found.detach().double(), wanted.detach().double()
        limit = torch.as_tensor(tolerance, dtype=torch.float64).expand_as(a)
        difference = (a - b).abs()
        wrong = ~(difference <= limit)
        counted = self.rows() if rows is None else rows
        if counted.shape == wrong.shape[:-1]:
            wrong &= counted[..., None]
        if not bool(wrong.any()):
            return
        excess = (difference / limit).nan_to_num(nan=1e300, posinf=1e300).masked_fill(~wrong, -1)
        place = [int(i) for i in torch.unravel_index(excess.argmax(), excess.shape)]
        at = tuple(place)
        share = int(wrong.sum()) / wrong.numel()
        off = wrong[place[0], place[1]].any(-1).nonzero().flatten().tolist() if wrong.ndim == 4 else []
        picture = functools.partial(of_weights, self, place[0], place[1], rows=off) if off and self._pictured(a.shape) else None
        raise LawViolation(
            f"{what}: {float(a[at]):.6g}, not {float(b[at]):.6g}, at {place} (off by {float(difference[at]):.3g}, rounding explains "
            f"{float(limit[at]):.2g}); {share:.0%} of the numbers are off",
            then,
            picture,
        )

    def _pictured(self, shape: Any) -> bool:
        """Whether what was compared has the rows of this example's weights."""
        return tuple(shape[:3]) == tuple(self.query.shape[:3])


def skip(reason: str) -> NotApplicable:
    return NotApplicable(reason)
