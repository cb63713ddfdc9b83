"""Run a model once and hand every attention call to a callback; refuse to call anything observed that was only partly seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from attncheck.capture.announced import announced
from attncheck.capture.census import check_census, like_attention, named_attention, other_mixer
from attncheck.capture.interface import wrapped_interface
from attncheck.capture.operators import OperatorMode
from attncheck.capture.rotation import watching_rotations
from attncheck.capture.state import Observation, OnCall, recomputing
from attncheck.core.errors import MeasurementError, NotObservable, raised

if TYPE_CHECKING:
    from torch import nn


def observe(
    model: nn.Module,
    arguments: Mapping[str, Any],
    on_call: OnCall,
    *,
    batch: int = 1,
    attention_layers: int | None = None,
) -> tuple[Any, Observation]:
    """One forward without gradients; returns the model's output, the same to the bit as without us, and the record.

    Raises NotObservable where attention ran that no route saw, where none ran at all, or where another number of layers was seen than
    `attention_layers` (or the model's config) says; MeasurementError where the forward itself raised.
    """
    with torch.no_grad(), watching(model, on_call, batch=batch) as observation:
        try:
            output = model(**arguments)
        except (NotObservable, MeasurementError, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit() too: it would end the tests and not the measuring
            where = f" in {observation.where}" if observation.running else ""
            raise MeasurementError(f"the forward pass raised {raised(error, where)}") from error
    check_census(model, observation, attention_layers)
    return output, observation


@contextmanager
def watching(model: nn.Module, on_call: OnCall, *, batch: int = 1) -> Iterator[Observation]:
    """Watch whatever runs inside, by all routes; for one's own loop around `model`."""
    observation = Observation(on_call, batch=batch)
    mode = OperatorMode(observation)
    observation.modes.append(mode)
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            # Under inference_mode a dispatch mode gets linear and matmul whole and runs another product than torch would (mm or bmm).
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        if any(hasattr(module, "_orig_mod") for module in model.modules()) or getattr(model, "_compiled_call_impl", None) is not None:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            observation.notes.append("the compiled model was measured uncompiled")
        stack.enter_context(_paths(model, observation))
        stack.enter_context(_rotary_tables(model, observation))
        observation.rotations = stack.enter_context(watching_rotations(model))
        if _has_transformers(model):
            stack.enter_context(wrapped_interface(observation, model))
        stack.enter_context(announced(observation, model))
        stack.enter_context(mode)
        yield observation
    observation.doubtful.extend(mode.leftovers())


@contextmanager
def _paths(model: nn.Module, observation: Observation) -> Iterator[None]:
    """Keep the path of the running module. Global hooks: hooks on modules would switch torch's fused encoder layers off."""
    names: dict[int, str] = {}
    attention: set[int] = set()
    ours = get_ident()

    def look() -> None:
        names.update({id(module): name or type(module).__name__ for name, module in model.named_modules(remove_duplicate=True)})
        attention.update(id(module) for module in model.modules() if like_attention(module))
        observation.attention = {names[number] for number in attention}
        observation.unnamed = {names[id(module)] for module in model.modules() if id(module) in attention and not named_attention(module)}
        observation.other_mixers = {names[id(module)] for module in model.modules() if other_mixer(module)}

    look()

    def elsewhere() -> bool:
        # The hooks are of the whole process; what watches operators, and the list of running modules, are of this thread.
        return get_ident() != ours

    def enter(module: nn.Module, inputs: Any) -> None:
        if recomputing():
            return
        if id(module) not in names and not elsewhere() and any(module is own for own in model.modules()):
            look()  # a model may replace a part of itself while it runs, as BigBird does on short inputs
        if elsewhere():
            if id(module) in names and not observation.other_threads:
                observation.other_threads.append(names[id(module)])
                observation.unseen.append(f"{names[id(module)]} ran in another thread, where nothing can be watched")
            return
        if id(module) in names:
            observation.running.append(names[id(module)])
            if id(module) in attention:
                observation.ran[names[id(module)]] += 1
        elif observation.running and next(module.parameters(), None) is not None:
            observation.strangers.append(module)
            if like_attention(module):
                observation.ran_outside(observation.strangers[0])

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        # A forward that raised and was caught left its path behind.
        name = names.get(id(module))
        if name in observation.running and not recomputing() and not elsewhere():
            while observation.running.pop() != name:
                pass

    def leave_stranger(module: nn.Module, inputs: Any, output: Any) -> None:
        if elsewhere():
            return
        if observation.strangers and observation.strangers[-1] is module and not recomputing():
            observation.strangers.pop()

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave),
        register_module_forward_hook(leave_stranger, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _rotary_tables(model: nn.Module, observation: Observation) -> Iterator[None]:
    """Remember what the model's rotary embeddings gave, by layer type where they tell several apart."""

    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, torch.Tensor) and part.dim() == 3 for part in output):
            kinds = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
            observation.rotary[kinds[0] if kinds else ""] = (output[0].detach(), output[1].detach())

    handles = [
        module.register_forward_hook(keep, with_kwargs=True)
        for module in model.modules()
        if type(module).__name__.endswith("RotaryEmbedding")
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _has_transformers(model: nn.Module) -> bool:
    """Whether any part of the model is defined by, or derived from, transformers; plain torch models need no import of it."""
    return any(base.__module__.startswith("transformers.") for module in model.modules() for base in type(module).__mro__)
