"""What one observed forward keeps: who is running, which attention calls were seen, and what stayed unseen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attncheck.core.evidence import AttentionCall

OnCall = Callable[["AttentionCall"], None]


def stack_of(path: str, module: nn.Module | None = None) -> str:
    """self, encoder, decoder, cross or vision, from the module's path and its own flags."""
    low = path.lower()
    if getattr(module, "is_cross_attention", False) or any(word in low for word in ("cross", "encoder_attn", "encdecattention")):
        return "cross"
    parts = low.split(".")
    if any("vision" in part or "visual" in part or part in ("vit", "image_encoder") for part in parts):
        return "vision"
    if "decoder" in parts:
        return "decoder"
    return "encoder" if "encoder" in parts else "self"


@dataclass
class Observation:
    """The record of one forward."""

    on_call: OnCall
    batch: int = 1
    calls: list[str] = field(default_factory=list)
    """Paths of the observed calls in order, with #n from a module's second call on."""
    stacks: list[str] = field(default_factory=list)
    routes: Counter[str] = field(default_factory=Counter)
    unseen: list[str] = field(default_factory=list)
    """Attention that ran and that no route could take hold of, named."""
    notes: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    """Paths of the modules whose forward is running, outermost first."""
    inside: int = 0
    """Depth of wrapped attention calls: what runs in there belongs to a call that is seen already."""
    rotary: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    modes: list[Any] = field(default_factory=list)
    _times: Counter[str] = field(default_factory=Counter)
    _per_stack: Counter[str] = field(default_factory=Counter)

    @property
    def where(self) -> str:
        return self.running[-1] if self.running else "(outside of any module)"

    def number(self, path: str, stack: str) -> tuple[int, str]:
        """Ordinal of this call in its stack, and the path with #n for repeated calls of one module."""
        times = self._times[path]
        self._times[path] += 1
        layer = self._per_stack[stack]
        self._per_stack[stack] += 1
        return layer, path if times == 0 else f"{path}#{times}"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run something that is seen already, or is our own, without watching it."""
        paused = [mode for mode in reversed(self.modes) if mode.active]
        for mode in paused:
            mode.__exit__(None, None, None)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            for mode in reversed(paused):
                mode.__enter__()

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Measure without being watched and without leaving a trace: no dispatch modes, no autograd, no autocast, RNG as before."""
        state = torch.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        try:
            with self.paused(), torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                yield
        finally:
            torch.set_rng_state(state)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)

    def seen(self, call: AttentionCall, route: str) -> None:
        """Count the call and hand it on."""
        self.calls.append(call.path)
        self.stacks.append(call.stack)
        self.routes[route] += 1
        with self.quietly():
            self.on_call(call)


@contextmanager
def restored_randomness(state: Tensor | None) -> Iterator[None]:
    """Run with the CPU random state of the original call, so that dropout draws the same mask, and put the present state back."""
    if state is None:
        yield
        return
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(now)
