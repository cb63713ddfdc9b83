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

    from attncheck.capture.rotation import RotationWatch
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
    if any(part == "decoder" or part.endswith("_decoder") for part in parts):
        return "decoder"
    return "encoder" if any(part == "encoder" or part.endswith("_encoder") for part in parts) else "self"


class Given:
    """What a kernel was given, to tell afterwards whether it is still that: numbers written over say nothing of what was asked."""

    def __init__(self, **arguments: Any) -> None:
        self._versions = {name: (value, _version(value)) for name, value in arguments.items() if isinstance(value, torch.Tensor)}

    def written_over(self) -> str:
        """Why the arguments are not what they were, or an empty text."""
        names = [name for name, (value, version) in self._versions.items() if _version(value) != version]
        return f"changes its {' and '.join(names)} in place, so that what it was given is gone; let it work on a copy" if names else ""


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


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
    doubtful: list[str] = field(default_factory=list)
    """What may be attention that no route took hold of: softmax results of its shape. `attention_layers` settles it."""
    notes: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    """Paths of the modules whose forward is running, outermost first."""
    attention: set[str] = field(default_factory=set)
    """Paths of all modules that look like attention."""
    ran: Counter[str] = field(default_factory=Counter)
    """How often each module that looks like attention was run."""
    strangers: list[nn.Module] = field(default_factory=list)
    """Running modules that are no part of the model, but have weights of their own (a teacher beside it, layers in a plain list)."""
    outside: list[str] = field(default_factory=list)
    """In which of them attention ran: the classes of the outermost."""
    unnamed: set[str] = field(default_factory=set)
    """Those of them that only their parts look like attention: mere projections, where the module around them makes the call."""
    other_mixers: set[str] = field(default_factory=set)
    """Paths of modules that say they mix tokens without a softmax: their exponentials are decays."""
    other_threads: list[str] = field(default_factory=list)
    """The first module of the model that ran in another thread."""
    inside: int = 0
    """Depth of wrapped attention calls: what runs in there belongs to a call that is seen already."""
    rotary: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    rotations: RotationWatch | None = None
    modes: list[Any] = field(default_factory=list)
    block_masks: dict[int, tuple[Any, Tensor]] = field(default_factory=dict)
    """Flex's block masks written out, by identity; the block mask is kept beside so that its identity stays its own."""
    _times: Counter[str] = field(default_factory=Counter)
    _per_stack: Counter[str] = field(default_factory=Counter)

    @property
    def where(self) -> str:
        return self.running[-1] if self.running else "(outside of any module)"

    def ran_outside(self, module: nn.Module) -> None:
        """Attention ran in `module`, which is no part of the model."""
        name = type(module).__name__
        if name not in self.outside:
            self.outside.append(name)

    def number(self, path: str, stack: str) -> tuple[int, str]:
        """Ordinal of this call in its stack, and the path with #n for repeated calls of one module."""
        times = self._times[path]
        self._times[path] += 1
        layer = self._per_stack[stack]
        self._per_stack[stack] += 1
        return layer, path if times == 0 else f"{path}#{times}"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run something that is seen already, or is our own, without watching it.

        Our mode is taken off, since compiled flex attention falls back under any; where the model has put one of its own on top of it
        (selective checkpointing), ours stays and lets everything through.
        """
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        paused: list[Any] = [mode for mode in self.modes if mode.active and _get_current_dispatch_mode() is mode]
        for mode in paused:
            mode.__exit__(None, None, None)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            for mode in paused:
                mode.__enter__()

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Measure without being watched and without leaving a trace: no dispatch mode of ours, no autograd, no autocast, full precision
        of matrix products (no TF32, no bfloat16 in their place), the random state as before."""
        state, precision = Randomness.now(), torch.get_float32_matmul_precision()
        try:
            if precision != "highest":
                torch.set_float32_matmul_precision("highest")
            with self.paused(), torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                yield
        finally:
            if precision != "highest":
                torch.set_float32_matmul_precision(precision)
            state.put_back()

    def seen(self, call: AttentionCall, route: str) -> None:
        """Count the call and hand it on."""
        self.calls.append(call.path)
        self.stacks.append(call.stack)
        self.routes[route] += 1
        with self.quietly():
            if self.rotations is not None:
                call.rotation = self.rotations.of(call)
            self.on_call(call)


@dataclass(frozen=True)
class Randomness:
    """The state of torch's random generators, of the CPU and of the CUDA devices in use."""

    cpu: Tensor
    cuda: list[Tensor] | None

    @classmethod
    def now(cls) -> Randomness:
        used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state_all() if used else None)

    def put_back(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state_all(self.cuda)


@contextmanager
def restored_randomness(state: Randomness | None) -> Iterator[None]:
    """Run with the random state of the original call, so that dropout draws the same mask, and put the present state back."""
    if state is None:
        yield
        return
    now = Randomness.now()
    state.put_back()
    try:
        yield
    finally:
        now.put_back()


def autocast_of(tensor: Tensor) -> dict[str, Any]:
    """Arguments of torch.autocast for the state that is in force on the tensor's device: a kernel runs again as it ran."""
    kind = tensor.device.type
    return {"device_type": kind, "dtype": torch.get_autocast_dtype(kind), "enabled": torch.is_autocast_enabled(kind)}


def recomputing() -> bool:
    """Inside a backward pass: gradient checkpointing runs a forward again, which is the same call and not another."""
    return bool(torch._C._current_graph_task_id() != -1)


def ordinary(tensor: Tensor) -> Tensor:
    """Detached, and usable where gradients are asked for: a tensor made under inference_mode is copied."""
    if not tensor.is_inference():
        return tensor.detach()
    with torch.inference_mode(False):
        return tensor.clone()
