"""Run a model once and hand every attention call to a callback; refuse to call anything observed that was only partly seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from attncheck.capture.interface import wrapped_interface
from attncheck.capture.operators import OperatorMode
from attncheck.capture.state import Observation, OnCall
from attncheck.core.errors import MeasurementError, NotObservable

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
        except (NotObservable, MeasurementError):
            raise
        except Exception as error:
            where = f" in {observation.where}" if observation.running else ""
            raise MeasurementError(f"the forward pass raised {type(error).__name__}{where}: {error}") from error
    check_census(model, observation, attention_layers)
    return output, observation


@contextmanager
def watching(model: nn.Module, on_call: OnCall, *, batch: int = 1) -> Iterator[Observation]:
    """Watch whatever runs inside, by all routes; for one's own loop around `model`."""
    observation = Observation(on_call, batch=batch)
    mode = OperatorMode(observation)
    observation.modes.append(mode)
    with ExitStack() as stack:
        if any(hasattr(module, "_orig_mod") for module in model.modules()) or getattr(model, "_compiled_call_impl", None) is not None:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            observation.notes.append("the compiled model was measured uncompiled")
        stack.enter_context(_paths(model, observation))
        stack.enter_context(_rotary_tables(model, observation))
        if _has_transformers(model):
            stack.enter_context(wrapped_interface(observation, model))
        stack.enter_context(mode)
        yield observation
    observation.unseen.extend(mode.leftovers())


def check_census(model: nn.Module, observation: Observation, attention_layers: int | None) -> None:
    """Nothing passes vacuously: raise NotObservable unless all attention that ran was seen, and as many layers as there are."""
    seen = len(observation.calls)
    if observation.unseen:
        raise NotObservable(
            f"attention ran that cannot be observed ({seen} other calls were): " + "; ".join(observation.unseen[:5])
            + (f"; and {len(observation.unseen) - 5} more" if len(observation.unseen) > 5 else "")
        )  # fmt: skip
    if seen == 0:
        raise NotObservable(
            f"no attention call was seen in {type(model).__name__}: neither transformers' attention interface, nor a fused attention "
            "operator, nor a softmax applied to values ran; kernels of other libraries need to be called as an `operator:` subject"
        )
    expected = attention_layers if attention_layers is not None else layers_by_config(model)
    if expected is not None and seen < expected:
        source = "attention_layers" if attention_layers is not None else "the model's config"
        raise NotObservable(f"{seen} attention calls were seen where {source} says {expected}: {', '.join(observation.calls[:8])}")


def layers_by_config(model: nn.Module) -> int | None:
    """How many attention calls a transformers config promises, or None where it does not say plainly (hybrid and composite models)."""
    config = getattr(model, "config", None)
    layers = getattr(config, "num_hidden_layers", None)
    if not isinstance(layers, int) or getattr(config, "is_encoder_decoder", False) or hasattr(config, "text_config"):
        return None
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list | tuple):
        return sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds)
    hybrid = ("layers_block_type", "attn_layer_period", "hybrid_override_pattern", "block_types", "attention_types", "full_attn_idxs")
    return None if any(hasattr(config, name) for name in hybrid) else layers


@contextmanager
def _paths(model: nn.Module, observation: Observation) -> Iterator[None]:
    """Keep the path of the running module. Global hooks: hooks on modules would switch torch's fused encoder layers off."""
    names = {id(module): name or type(module).__name__ for name, module in model.named_modules(remove_duplicate=True)}

    def enter(module: nn.Module, inputs: Any) -> None:
        if id(module) in names:
            observation.running.append(names[id(module)])

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        if id(module) in names and observation.running:
            observation.running.pop()

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
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
