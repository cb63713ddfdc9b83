"""Nothing passes vacuously: all attention that ran was seen, and as many layers as there are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attncheck.capture.state import Observation
from attncheck.core.errors import NotObservable

if TYPE_CHECKING:
    from torch import nn

_ATTENTION = re.compile(r"Attention|Attn|MHA|MHSA")
_NOT_SOFTMAX = re.compile(r"Linear|Delta|Lightning|Mamba|Rwkv|Retention|Hyena|Fourier|LSTM|TTT")
_PARTS = ({"q", "wq", "query", "queries"}, {"k", "wk", "key", "keys"}, {"v", "wv", "value", "values"})
_WORDS = {"q", "k", "v", "qk", "kv", "qkv", "wq", "wk", "wv", "wqkv", "query", "key", "value", "queries", "keys", "values"}
_FUSED = {"qkv", "wqkv"}
_NAMED_JUST_SO = re.compile(r"(Attention|Attn|MHA|MHSA)(\d?[dD])?$")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
SHOWN = 5


def check_census(model: nn.Module, observation: Observation, attention_layers: int | None) -> None:
    """Raise NotObservable unless all attention that ran was seen, and as many layers as there are.

    `attention_layers`, where given, is the exact number, of calls or of modules that made any; it then settles what only looks like
    attention: modules that ran and made no call, softmax results that met no values. Without it a transformers config sets the least.
    """
    seen = len(observation.calls)
    counts = {seen, len({path.partition("#")[0] for path in observation.calls})}
    unseen = observation.unseen
    if attention_layers in counts and observation.doubtful:
        observation.notes.append(f"by `attention_layers` this is no attention: {listed(observation.doubtful, '; ')}")
    else:
        unseen = [*unseen, *observation.doubtful]
    if unseen:
        settle = (
            f". If this is no attention, say how many layers there are: `attention_layers: {seen}`"
            if seen and not observation.unseen
            else ""
        )
        raise NotObservable(f"attention ran that cannot be observed ({_others(seen)}): {listed(unseen, '; ')}{settle}")
    silent = silent_modules(observation)
    promised = layers_by_config(model)
    if observation.outside:
        _judge_outside(observation, counts, attention_layers if attention_layers is not None else promised)
    if seen == 0:
        raise NotObservable(
            f"no attention call was seen in {type(model).__name__}: neither transformers' attention interface, nor a fused attention "
            "operator, nor a softmax applied to values ran; kernels of other libraries need to be called as an `operator:` subject"
            + (f". These modules look like attention: {listed(silent)}" if silent else "")
        )
    if attention_layers is not None and attention_layers not in counts:
        raise NotObservable(_miscounted(seen, "attention_layers", attention_layers, silent, observation))
    if attention_layers is None and promised is not None and seen < promised:
        raise NotObservable(_miscounted(seen, "the model's config", promised, silent, observation))
    idle = idle_modules(observation) if attention_layers is None and promised is None else []
    if idle:
        raise NotObservable(
            f"of attention modules that are numbered some ran and some did not ({_others(seen)}): {listed(idle)} never ran. "
            f"If that is meant, say how many attention layers run: `attention_layers: {seen}`"
        )
    settled = [name for name in silent if not any(text.startswith(f"{name}: ") for text in observation.doubtful)]
    if attention_layers is not None and settled:
        observation.notes.append(f"by `attention_layers` this is no attention, or none to be measured: {listed(settled)}")
    if attention_layers is None and silent:
        raise NotObservable(
            f"attention ran that no route saw ({_others(seen)}): {listed(silent)}. If it is attention, let it call its operator through "
            "`attncheck.variants.attend`; if it is none, or is not to be measured, say how many attention layers there are: "
            f"`attention_layers: {seen}`"
        )


def _judge_outside(observation: Observation, counts: set[int], expected: int | None) -> None:
    """A teacher beside the model is none of ours where all layers that there should be were seen; else these may be the layers."""
    names = listed(observation.outside)
    if expected in counts:
        observation.notes.append(f"{names} ran inside the model but is no part of it: attention in it was not measured")
        return
    seen = len(observation.calls)
    raise NotObservable(
        f"attention ran in {names}, which the model runs but which is no part of it ({_others(seen)} seen): modules in a plain "
        "list or dict are not registered, put them into an nn.ModuleList or nn.ModuleDict"
        + (f". If they are not to be measured, say how many layers there are: `attention_layers: {seen}`" if seen else "")
    )


def _others(seen: int) -> str:
    return "1 other call was" if seen == 1 else f"{seen} other calls were"


def _miscounted(seen: int, source: str, expected: int, silent: list[str], observation: Observation) -> str:
    missed = f"; these ran and were not: {listed(silent)}" if silent else ""
    return f"{seen} attention calls were seen where {source} says {expected}: {listed(observation.calls)}{missed}"


def listed(names: list[str], between: str = ", ") -> str:
    return between.join(names[:SHOWN]) + (f"{between}and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def silent_modules(observation: Observation) -> list[str]:
    """Modules that look like attention and ran more often than calls were seen in them, the innermost of a nest."""
    bases = [path.partition("#")[0] for path in observation.calls]
    found = {}
    for path, times in observation.ran.items():
        beneath = sum(_within(base, path) for base in bases)
        inside_another = any(
            path != base and _within(path, base) and (base in observation.ran or path in observation.unnamed) for base in bases
        )
        if beneath < times and not (beneath == 0 and inside_another):
            found[path] = path if beneath == 0 else f"{path} (ran {times} times, seen {beneath} times)"
    return [text for path, text in found.items() if not any(other != path and _within(other, path) for other in found)]


def idle_modules(observation: Observation) -> list[str]:
    """Modules that look like attention and did not run, while others of the same path but for its numbers did."""
    ran = {_NUMBER.sub("#", path) for path in observation.ran}
    return sorted(path for path in observation.attention - observation.ran.keys() if _NUMBER.sub("#", path) in ran)


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")


def like_attention(module: nn.Module) -> bool:
    """Whether a module is built like softmax attention: its class or a base of it is named so and it has a projection named like queries,
    keys or values; its class is named just so and it has any projection; or, whatever its name, it has one for each of the three."""
    if other_mixer(module):
        return False
    own = [*(child for child, _ in module.named_children()), *(p for p, _ in module.named_parameters(recurse=False))]
    if not named_attention(module):
        words = {word for part in own for word in part.lower().split("_")}
        return all(words & part for part in _PARTS) or bool(words & _FUSED) or "c_attn" in own
    if _NAMED_JUST_SO.search(type(module).__name__) and any(map(_projects, module.children())):
        return True
    return any(part in ("c_attn", "in_proj") or part.startswith("in_proj_") or _WORDS & set(part.lower().split("_")) for part in own)


def _projects(module: nn.Module) -> bool:
    """Whether it is a linear map or the like: no parts, and a weight of two dims or more."""
    weight = getattr(module, "weight", None)
    return next(module.children(), None) is None and getattr(weight, "ndim", 0) >= 2


def other_mixer(module: nn.Module) -> bool:
    """Whether its class or a base of it is named like a mixer of tokens that has no softmax, or it has a state space's decay."""
    return any(map(_NOT_SOFTMAX.search, _names(module))) or (hasattr(module, "A_log") and not named_attention(module))


def named_attention(module: nn.Module) -> bool:
    """Whether its class or a base of it is named like attention."""
    return any(map(_ATTENTION.search, _names(module)))


def _names(module: nn.Module) -> list[str]:
    return [base.__name__ for base in type(module).__mro__]


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
