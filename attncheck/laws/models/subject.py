"""The model under the laws: a copy of it to work on, its float64 twin, and the facts that inputs are made from."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import MeasurementError, raised
from attncheck.laws.registry import LawViolation, NotApplicable

if TYPE_CHECKING:
    from torch import Tensor, nn

LONGEST = 160
"""Examples beyond this length would make a battery on a real model take minutes."""
MORE = 3
"""An encoder's input has so many tokens more than its decoder's, so that one is never taken for the other."""


@dataclass(frozen=True)
class Run:
    """One forward: output [batch, length, ...], the hidden states after each block in the order of calls, and all that was returned."""

    output: Tensor
    layers: tuple[Tensor, ...]
    result: Any
    paths: tuple[str, ...] = ()
    """Of the module that made each of `layers`."""


class Subject:
    """A model in eval mode. The caller's is never touched: the laws change a copy's implementation, mode and weights' gradients."""

    def __init__(self, model: nn.Module) -> None:
        self.name = type(model).__name__
        try:
            self.model: Any = copy.deepcopy(model).eval()
        except Exception as problem:
            raise MeasurementError(f"{self.name} cannot be copied, which the laws of models need: {raised(problem)}") from problem
        for parameter in self.model.parameters():
            # loaded for reading only, as ours are; gradients are laws too
            if parameter.is_floating_point():
                parameter.requires_grad_(True)
        self.config: Any = getattr(self.model, "config", None)
        nested = getattr(self.config, "get_text_config", None)
        self.text: Any = nested(decoder=True) if nested is not None else self.config
        self.encoder_decoder = bool(getattr(self.config, "is_encoder_decoder", False))
        main = getattr(model, "main_input_name", "input_ids")
        if main not in ("input_ids", "pixel_values"):
            raise MeasurementError(f"{self.name} takes {main}; allowed: models of input_ids or pixel_values")
        self.kind = "pixels" if main == "pixel_values" else "tokens"
        self.parameters = self._parameters()
        self.cache: dict[Any, Any] = {}
        """What the laws have computed on this model, by what determines it."""

    def _parameters(self) -> tuple[set[str], bool]:
        names: set[str] = set()
        rest = False
        # what a forward hands on by **rest goes to the class above
        for function in [self.model.forward, *(vars(kind)["forward"] for kind in type(self.model).__mro__ if "forward" in vars(kind))]:
            parameters = inspect.signature(function).parameters.values()
            names |= {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
            rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
            if not rest:
                break
        return names, rest

    def takes(self, name: str) -> bool:
        """Whether the forward has a parameter of that name; flags that transformers reads from the rest are taken by its models."""
        named, rest = self.parameters
        return name in named or (rest and self.config is not None and name in ("output_attentions", "output_hidden_states"))

    @property
    def cache_name(self) -> str:
        """What the forward calls its cache: transformers renamed past_key_values to cache in 5.2x."""
        return "cache" if self.takes("cache") else "past_key_values"

    def cache_of(self, result: Any) -> Any:
        """The cache that a forward returned, or None."""
        found = getattr(result, self.cache_name, None)
        return getattr(result, "past_key_values", None) if found is None else found

    @functools.cached_property
    def twin(self) -> Any:
        """The same weights in float64: what tells rounding from a fault. Parts that compute in float32 by themselves still do."""
        import torch

        twin = copy.deepcopy(self.model).to(torch.float64)
        if hasattr(twin, "config"):
            twin.config.dtype = torch.float64
        if hasattr(twin, "set_experts_implementation"):
            # grouped products of experts know no float64
            with contextlib.suppress(ValueError):
                twin.set_experts_implementation("eager")
        return twin.eval()

    @functools.cached_property
    def jittered(self) -> Any:
        """The copy with every weight moved by one unit in its last place, up or down: in place of a twin that does not run."""
        import torch

        other = copy.deepcopy(self.model)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in other.parameters():
                if parameter.is_floating_point():
                    sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                    parameter.mul_(1 + sign.to(parameter.device) * torch.finfo(parameter.dtype).eps)
        return other

    @functools.cached_property
    def dtype(self) -> Any:
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), None)

    @functools.cached_property
    def tokens(self) -> tuple[int, int]:
        """The widest range of token ids [low, high) without special ones."""
        table = self.model.get_input_embeddings() if hasattr(self.model, "get_input_embeddings") else None
        weight = getattr(table, "weight", None)
        count = getattr(self.text, "vocab_size", None) or (weight.shape[0] if weight is not None else None)
        if count is None:
            count = next((m.num_embeddings for m in self.model.modules() if hasattr(m, "num_embeddings")), None)
        if count is None:
            raise MeasurementError(f"{self.name} tells no vocabulary: neither config.vocab_size nor an embedding was found")
        special = [-1, int(count)]
        for name in vars(self.config) if self.config is not None else ():
            given = getattr(self.config, name, None)
            if name.endswith(("_token_id", "_token_index")) and isinstance(given, int) and 0 <= given < count:
                special.append(given)
        edges = sorted(set(special))
        low, high = max(itertools.pairwise(edges), key=lambda pair: pair[1] - pair[0])
        return low + 1, high

    @functools.cached_property
    def pixels(self) -> tuple[int, int, int]:
        """Channels, height and width of an image: four patches a side where the model takes another size than its own."""
        import torch

        own: Any = getattr(self.config, "image_size", 32)
        size = tuple(own) if isinstance(own, list | tuple) else (own, own)
        channels, patch = int(getattr(self.config, "num_channels", 3)), getattr(self.config, "patch_size", None)
        if isinstance(patch, int) and 4 * patch < size[0]:
            small = torch.zeros(1, channels, 4 * patch, 4 * patch, dtype=self.dtype)
            with contextlib.suppress(Exception), torch.no_grad():
                self.model(pixel_values=small)
                return channels, 4 * patch, 4 * patch
        return channels, size[0], size[1]

    @functools.cached_property
    def asks(self) -> bool:
        """Whether it runs at all where attentions are asked for: one law says so, the others need not repeat it."""
        import torch

        inputs: dict[str, Any] = {}
        if self.kind == "pixels":
            inputs["pixel_values"] = torch.zeros(1, *self.pixels, dtype=self.dtype)
        else:
            for name in ("input_ids", "decoder_input_ids") if self.encoder_decoder else ("input_ids",):
                inputs[name] = torch.full((1, 3), self.tokens[0])
        try:
            self.run({**inputs, "output_attentions": True})
        except LawViolation:
            return False
        return True

    @functools.cached_property
    def pad(self) -> int | None:
        given = getattr(self.config, "pad_token_id", None)
        return given if isinstance(given, int) and given >= 0 else None

    @functools.cached_property
    def longest(self) -> int:
        if self.kind == "pixels":
            return LONGEST
        for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
            given = getattr(self.text, name, None)
            if isinstance(given, int) and given > 0:
                return min(given, LONGEST)
        return LONGEST

    @functools.cached_property
    def edges(self) -> tuple[int, ...]:
        """Lengths around thresholds that the configuration names: a window's edges, an original maximum of positions."""
        found: list[int] = []
        for name in ("sliding_window", "window_size", "attention_window", "attention_chunk_size", "local_attention"):
            given = getattr(self.text, name, None)
            if isinstance(given, int) and given > 0:
                found += [given - 1, given, given + 1, 2 * given + 3]
        rope = getattr(self.text, "rope_parameters", None) or {}
        for part in (rope, *(value for value in rope.values() if isinstance(value, Mapping))):
            given = part.get("original_max_position_embeddings")
            if isinstance(given, int) and given > 0:
                found += [given, given + 3]
        return tuple(sorted({length for length in found if 1 <= length <= self.longest}))

    @contextmanager
    def implementation(self, name: str | None) -> Iterator[None]:
        """The copy under another attention implementation, for the block."""
        if name is None:
            yield
            return
        before = getattr(self.config, "_attn_implementation", None)
        if before == name:
            yield
            return
        if not hasattr(self.model, "set_attn_implementation"):
            raise NotApplicable("the model has no set_attn_implementation")
        try:
            self.model.set_attn_implementation(name)
        except (ValueError, ImportError) as problem:
            raise NotApplicable(f"implementation {name} was refused: {raised(problem)[:300]}") from problem
        if getattr(self.config, "_attn_implementation", None) != name:
            # older classes choose for good when they are built, and only warn here
            with self._rebuilt(name):
                yield
            return
        try:
            yield
        finally:
            self.model.set_attn_implementation(before or "eager")

    @contextmanager
    def _rebuilt(self, name: str) -> Iterator[None]:
        """A new model of the class under `name`, with the same weights, in the copy's place."""
        key = ("rebuilt", name)
        if key not in self.cache:
            build: Any = getattr(type(self.model), "_from_config", None)
            try:
                other = build(copy.deepcopy(self.config), attn_implementation=name)
                other.load_state_dict(self.model.state_dict())
            except (TypeError, ValueError, RuntimeError, ImportError) as problem:
                raise NotApplicable(f"implementation {name} was refused: {raised(problem)[:300]}") from problem
            self.cache[key] = other.to(self.dtype).eval()
        kept = self.model, self.config
        self.model = self.cache[key]
        self.config = self.model.config
        try:
            yield
        finally:
            self.model, self.config = kept

    def refused(self, name: str) -> str | None:
        """Why the model does not run under an implementation, or None."""
        key = ("refused", name)
        if key not in self.cache:
            try:
                with self.implementation(name):
                    self.cache[key] = None
            except NotApplicable as reason:
                self.cache[key] = str(reason)
        found: str | None = self.cache[key]
        return found

    @functools.cached_property
    def blocks(self) -> list[tuple[str, nn.Module]]:
        """The outermost modules in lists whose output is a hidden state [batch, length, width], by path."""
        from torch import nn

        found: list[tuple[str, nn.Module]] = []
        for path, module in self.model.named_modules():
            if isinstance(module, nn.ModuleList) and not any(path.startswith(f"{outer}.") for outer, _ in found):
                found += [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
        return found

    def run(self, inputs: Mapping[str, Any], *, exact: bool = False, model: Any = None, gradients: bool = False) -> Run:
        """A forward of the copy, of its twin (`exact`) or of another model with the same blocks. Raising is a violation."""
        import torch

        target = model if model is not None else self.twin if exact else self.model
        length = self.length(inputs)
        layers: list[Tensor] = []
        paths: list[str] = []

        def keep(path: str, module: nn.Module, arguments: Any, options: Any, output: Any) -> None:
            first, given = first_tensor(output), first_tensor(arguments)
            given = options.get("hidden_states") if given is None else given
            # a block makes a hidden state of a hidden state; rotary tables and others in lists do not
            if first is None or given is None or first.ndim != 3 or first.shape != given.shape:
                return
            if length is None or first.shape[1] == length:
                layers.append(first if gradients else first.detach().clone())
                paths.append(path)

        handles = [
            target.get_submodule(path).register_forward_hook(functools.partial(keep, path), with_kwargs=True) for path, _ in self.blocks
        ]
        if exact:
            inputs = {
                name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
                for name, value in inputs.items()
            }
        try:
            with torch.set_grad_enabled(gradients):
                result = target(**inputs)
        except (LawViolation, NotApplicable, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as problem:  # sys.exit() too: it would end the tests and not the search
            if exact:
                raise NotApplicable(f"the model does not run in float64: {raised(problem)[:200]}") from problem
            raise LawViolation(f"the model raised {raised(problem)[:300]}", "print(out)") from problem
        finally:
            for handle in handles:
                handle.remove()
        output = main_output(result)
        if length is not None and (output is None or output.ndim < 2 or output.shape[1] != length) and layers:
            output = layers[-1]
        if output is None:
            raise MeasurementError(f"{self.name} returned no tensor")
        return Run(output, tuple(layers), result, tuple(paths))

    def length(self, inputs: Mapping[str, Any]) -> int | None:
        """Length of the sequence that the output follows."""
        for name in ("decoder_input_ids", "input_ids") if self.encoder_decoder else ("input_ids",):
            if inputs.get(name) is not None:
                return int(inputs[name].shape[1])
        embeds = inputs.get("inputs_embeds")
        return None if embeds is None else int(embeds.shape[1])


def first_tensor(output: Any) -> Any:
    import torch

    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, list | tuple):
        return next((part for part in output if isinstance(part, torch.Tensor)), None)
    return None


def main_output(result: Any) -> Any:
    """Logits, the last hidden state, or the first tensor of whatever was returned."""
    for name in ("logits", "last_hidden_state"):
        found = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
        if found is not None:
            return found
    return first_tensor(list(result.values()) if isinstance(result, Mapping) else result)
