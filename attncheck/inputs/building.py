"""One entry for every kind of input: check the arguments and what belongs to every kind, then call the kind's builder."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.arguments import checked_arguments
from attncheck.core.definitions import InputDefinition
from attncheck.core.errors import MeasurementError
from attncheck.core.evidence import Encoder, Feed
from attncheck.inputs.kinds import INPUT_KINDS

if TYPE_CHECKING:
    import numpy as np
    import torch

SIDES = ("left", "right")
MOST_TOKENS = 2**24
"""In one batch; some hundred times the longest context that is trained on. A slip of digits must not take the machine's memory."""


@dataclass(frozen=True)
class Building:
    """What a builder is told besides its arguments."""

    definition: InputDefinition
    encoder: Encoder | None
    """None for an operator."""
    device: str
    dtype: str
    root: Path
    forward_parameters: frozenset[str]
    """Names that model.forward takes; empty where unknown."""

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def batch(self) -> int:
        return self.definition.batch or 1

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def extra(self, name: str, default: Any) -> Any:
        """A fact that the encoder may have beyond the protocol."""
        return getattr(self.encoder, name, default)

    def error(self, text: str) -> MeasurementError:
        return MeasurementError(f"input {self.name}: {text}")

    def require_room(self, tokens: int) -> None:
        """Raises MeasurementError for more tokens than anybody means."""
        if tokens > MOST_TOKENS:
            raise self.error(f"{tokens:,} tokens in one batch; allowed: {MOST_TOKENS:,}")

    def pads(self) -> tuple[str, list[int]]:
        """The side of the padding and the pads of each row: row b of B gets amount * (b + 1) / B, rounded down, the last row all."""
        given = self.definition.padding
        if not given:
            return "right", [0] * self.batch
        amount = int(given["amount"])
        return str(given.get("side", "right")), [amount * (row + 1) // self.batch for row in range(self.batch)]

    def tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """On the device; floating point arrays in the subject's dtype."""
        import torch

        made = torch.from_numpy(array)
        return made.to(device=self.device, dtype=self.torch_dtype if made.is_floating_point() else None)


def build(
    definition: InputDefinition,
    encoder: Encoder | None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    root: Path | None = None,
    forward_parameters: AbstractSet[str] | None = None,
) -> Feed:
    """The arguments of one forward of the subject that `encoder` describes (None: an operator).

    Integers stay int64, floats take `dtype`. The content hash is over the values before that cast, so that it names the input and not
    the variant that reads it. Nothing padded: no attention_mask is given, and the kernel may take its causal path.

    Raises MeasurementError for an input that the subject cannot read (another kind, too long, ids outside its vocabulary) and for one
    that does not exist (an unknown corpus, a missing file, a text shorter than the length), each with the numbers.
    """
    entry = INPUT_KINDS[definition.kind]
    known = forward_parameters if forward_parameters is not None else getattr(encoder, "forward_parameters", frozenset())
    building = Building(definition, encoder, device, dtype, Path(root) if root is not None else Path.cwd(), frozenset(known))
    _check_common(building)
    built = entry.function(building, **checked_arguments(f"input {definition.name}", entry, definition.options))
    if not isinstance(built, Feed):
        raise MeasurementError(f"the builder of input kind {definition.kind!r} returned {type(built).__name__}, not a Feed")
    return built


def _check_common(building: Building) -> None:
    given = building.definition
    for name, value in (("batch", given.batch), ("length", given.length)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise building.error(f"{name} {value!r}; allowed: a whole number from 1 on")
    building.require_room(building.batch * (given.length or 1))
    padding = given.padding
    if not padding:
        return
    if not isinstance(padding, Mapping) or set(padding) - {"side", "amount"} or "amount" not in padding:
        raise building.error(f"padding {padding!r}; allowed: {{side: left or right, amount: tokens}}")
    if padding.get("side", "right") not in SIDES:
        raise building.error(f"padding side {padding['side']!r}; allowed: {', '.join(SIDES)}")
    amount = padding["amount"]
    if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0:
        raise building.error(f"padding amount {amount!r}; allowed: a whole number from 0 on")
    building.require_room(building.batch * amount)
    if given.length is not None and amount >= given.length:
        raise building.error(f"padding amount {amount} leaves nothing of length {given.length}, which counts the pads")
