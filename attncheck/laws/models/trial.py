"""One model on one example: its forwards, and comparisons whose tolerance is a multiple of its own distance from float64."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from attncheck.core.model_claims import ModelClaims
from attncheck.laws.models.example import ModelExample, fitted
from attncheck.laws.models.subject import MORE, Run, Subject
from attncheck.laws.picture import of_tokens
from attncheck.laws.registry import LawViolation, NotApplicable

if TYPE_CHECKING:
    from torch import Tensor

MULTIPLE = 16
"""Two forwards that should agree may differ by so many times what one of them differs from float64."""
UNITS = 32
"""And by so many units in the last place, where that distance happens to be small."""
BLIND = 0.2
"""A forward that is that far from float64, relative to its largest numbers, tells nothing."""


def lines(example: ModelExample, subject: Subject) -> list[str]:
    """A script that builds `inputs`, with torch alone. The laws run it too."""
    e = example
    text = [f"g = torch.Generator().manual_seed({e.seed})"]
    if subject.kind == "pixels":
        channels, height, width = subject.pixels
        text.append(f"inputs = dict(pixel_values=torch.randn({e.batch}, {channels}, {height}, {width}, generator=g))")
        if subject.dtype is not None and str(subject.dtype) != "torch.float32":
            text.append(f"inputs['pixel_values'] = inputs['pixel_values'].to({subject.dtype})")
    else:
        low, high = subject.tokens
        length = e.length + MORE if subject.encoder_decoder else e.length
        text.append(f"ids = torch.randint({low}, {high}, ({e.batch}, {length}), generator=g)")
        text.append("inputs = dict(input_ids=ids)")
        if e.pad != "none" or e.ones:
            text.append("mask = torch.ones_like(ids)")
        if e.pad != "none":
            for row in range(e.batch):
                pads = e.pads(row)
                if pads:
                    text.append(f"mask[{row}, {f':{pads}' if e.pad == 'left' else f'-{pads}:'}] = 0")
            if subject.pad is not None:
                text.append(f"ids[mask == 0] = {subject.pad}")
        if e.pad != "none" or e.ones:
            text.append("inputs['attention_mask'] = mask")
        if e.pad == "left" and not subject.encoder_decoder and subject.takes("position_ids"):
            text.append("inputs['position_ids'] = (mask.cumsum(-1) - 1).clamp(min=0)")
        if subject.encoder_decoder:
            text.append(f"inputs['decoder_input_ids'] = torch.randint({low}, {high}, ({e.batch}, {e.length}), generator=g)")
        if subject.takes("use_cache"):
            text.append(f"inputs['use_cache'] = {e.cache}")
    if e.ask:
        text.append("inputs['output_attentions'] = True")
    return text


class ModelTrial:
    """What a law gets. `example` already fits the claims; `but` gives a trial of a changed one."""

    def __init__(self, subject: Subject, claims: ModelClaims, example: ModelExample, trail: list[ModelExample] | None = None) -> None:
        self.subject, self.claims, self.example = subject, claims, example
        self.trail = [] if trail is None else trail
        """Examples that a law went through; the last is the one that it failed on."""
        self.trail.append(example)

    def but(self, **changes: Any) -> ModelTrial:
        return ModelTrial(self.subject, self.claims, fitted(self.example.but(**changes), self.claims, self.subject), self.trail)

    @functools.cached_property
    def inputs(self) -> dict[str, Any]:
        """Arguments of the forward. Nobody writes into them: `with_tokens` copies."""
        import torch

        names: dict[str, Any] = {"torch": torch}
        exec(compile("\n".join(lines(self.example, self.subject)), "<example>", "exec"), names)
        found: dict[str, Any] = names["inputs"]
        return found

    @property
    def main(self) -> str:
        """The argument whose tokens the output follows."""
        if self.subject.kind == "pixels":
            return "pixel_values"
        return "decoder_input_ids" if self.subject.encoder_decoder else "input_ids"

    @property
    def ids(self) -> Tensor:
        found: Tensor = self.inputs[self.main]
        return found

    @functools.cached_property
    def real(self) -> Tensor:
        """Places of the output that are no padding, [batch, length]."""
        import torch

        mask = None if self.subject.encoder_decoder else self.inputs.get("attention_mask")
        return torch.ones(self.plain.output.shape[:2], dtype=torch.bool) if mask is None else mask.bool()

    @property
    def generator(self) -> Any:
        """Random numbers of a law's own, the same at every run."""
        import torch

        return torch.Generator().manual_seed(7919 + self.example.seed)

    def others(self, like: Tensor) -> Tensor:
        """Other tokens, or other pixels, of the same shape: different at every place."""
        import torch

        if like.is_floating_point():
            return torch.randn(like.shape, generator=self.generator, dtype=torch.float32).to(like.dtype) * 3
        low, high = self.subject.tokens
        step = torch.randint(1, max(high - low, 2), like.shape, generator=self.generator)
        return low + (like - low + step) % max(high - low, 1)

    def under(self) -> AbstractContextManager[None]:
        """The example's implementation, for what is done to the model itself between its forwards."""
        return self.subject.implementation(self.example.implementation)

    def run(
        self,
        replaced: Mapping[str, Any] | None = None,
        *,
        without: tuple[str, ...] = (),
        model: Any = None,
        gradients: bool = False,
        **changes: Any,
    ) -> Run:
        """A forward on the example's inputs with some of them changed, under the example's implementation."""
        inputs = {name: value for name, value in {**self.inputs, **(replaced or {}), **changes}.items() if name not in without}
        with self.under():
            return self.subject.run(inputs, model=model, gradients=gradients)

    @property
    def plain(self) -> Run:
        """The forward on the inputs as they are, computed once per example."""
        key = ("plain", self.example)
        store = self.subject.cache
        if key not in store:
            for old in [k for k in store if k[0] in ("plain", "exact", "moved")][:-64]:
                del store[old]
            store[key] = self.run()
        found: Run = store[key]
        return found

    @functools.cached_property
    def bare(self) -> ModelTrial:
        """The same tokens without padding and extras: rows of nothing but padding are not finite in every float64 forward."""
        example = self.example.but(pad="none", ones=False, ask=False, cache=False)
        return self if example == self.example else ModelTrial(self.subject, self.claims, example, [])

    @property
    def exact(self) -> Run:
        """The bare example by the float64 twin, under the model's own implementation."""
        key = ("exact", self.bare.example.but(implementation=None))
        store = self.subject.cache
        if key not in store:
            try:
                store[key] = self.subject.run(self.bare.inputs, exact=True)
            except NotApplicable:  # a kernel that knows no float64
                store[key] = self.moved
        found: Run = store[key]
        return found

    @property
    def moved(self) -> Run:
        """The bare example with every weight moved by one unit in its last place: how far rounding carries, whatever it decides."""
        key = ("moved", self.bare.example)
        store = self.subject.cache
        if key not in store:
            with self.under():
                store[key] = self.subject.run(self.bare.inputs, model=self.subject.jittered)
        found: Run = store[key]
        return found

    def noise(self, layer: int | None = None, *, moved: bool = False) -> tuple[float, Tensor]:
        """How far the bare forward is from float64, relative to each feature's largest number, and these numbers [features].

        A fault that float64 has as well moves both and is no noise. One that only this precision has is: then the laws are as blind
        as the fault is large, and beyond BLIND they say so. moved: how far from the forward with moved weights instead."""
        import torch

        other = self.moved if moved else self.exact
        a, b = (run.output if layer is None else run.layers[layer] for run in (self.bare.plain, other))
        a, b = a.double().flatten(0, 1), b.double().flatten(0, 1)
        if not bool(torch.isfinite(a).all()):
            raise LawViolation("the output is not finite", "print(out)")
        if not bool(torch.isfinite(b).all()):
            raise NotApplicable("the model in float64 is not finite")
        largest = b.abs().amax(0).clamp(min=float(b.abs().amax()) * 1e-3 + 1e-30)
        return float(((a - b).abs() / largest).max()), largest

    def tolerance(self, layer: int | None = None, *, moved: bool = False) -> Tensor:
        """What rounding may explain, for each feature."""
        import torch

        relative, largest = self.noise(layer, moved=moved)
        if relative > BLIND:
            other = "itself with weights moved by a unit in the last place" if moved else "the same model in float64"
            raise NotApplicable(f"the forward is {relative:.0%} from {other}: nothing smaller can be told")
        limit: Tensor = (MULTIPLE * relative + UNITS * torch.finfo(self.subject.dtype or torch.float32).eps) * largest
        return limit

    def agree(
        self,
        found: Tensor,
        wanted: Tensor,
        what: str,
        *,
        where: Tensor | None = None,
        layer: int | None = None,
        scale: float = 1.0,
        first: int = 0,
        then: str | None = None,
    ) -> None:
        """Raise LawViolation at the worst place where the two differ by more than rounding explains.

        where: places that count, first: the number of the first token given."""
        import torch

        a, b = found.detach().double(), wanted.detach().double()
        if a.shape != b.shape:
            raise LawViolation(f"{what}: shape {list(a.shape)}, not {list(b.shape)}", then)
        limit = (self.tolerance(layer) * scale).expand_as(a)
        difference = (a - b).abs()
        wrong = ~(difference <= limit)
        if where is not None:
            wrong &= where.reshape(*where.shape, *[1] * (wrong.ndim - where.ndim))
        if not bool(wrong.any()):
            return
        # Before anything is accused, a second opinion: a router on the edge between two experts turns on rounding, and the distance
        # from float64 in one forward need not show it.
        limit = limit.maximum((self.tolerance(layer, moved=True) * scale).expand_as(a))
        wrong &= ~(difference <= limit)
        if not bool(wrong.any()):
            return
        excess = (difference / limit).nan_to_num(nan=1e300, posinf=1e300).masked_fill(~wrong, -1)
        place = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
        at = f"row {place[0]}, token {first + place[1]}" if len(place) > 1 else f"row {place[0]}"
        tokens = wrong.flatten(2).any(-1) if wrong.ndim > 2 else wrong
        raise LawViolation(
            f"{what}: {float(a[place]):.6g}, not {float(b[place]):.6g}, at {at} (off by {float(difference[place]):.3g}, rounding explains "
            f"{float(limit[place]):.2g}); {int(tokens.sum())} of {tokens.numel()} tokens are off",
            then,
            functools.partial(of_tokens, excess, f"{what[:1].upper()}{what[1:]}") if wrong.ndim > 2 else None,
        )

    def agree_everywhere(self, found: Run, wanted: Run, what: str, *, where: Tensor | None = None, then: str | None = None) -> None:
        """`agree` after every block, the first one first, so that it is named, and on the output."""
        place = self.real if where is None else where
        if len(found.layers) == len(wanted.layers) == len(self.plain.layers):
            for number, (a, b) in enumerate(zip(found.layers, wanted.layers, strict=True)):
                self.agree(a, b, f"{what}, after block {number + 1} of {len(wanted.layers)}", where=place, layer=number, then=then)
        self.agree(found.output, wanted.output, what, where=place, then=then)
