"""A configuration of any architecture, made small: for trying what holds of an architecture and not of a model.

All widths are divided by one number, so that whatever had to divide another still does, and heads keep their count and layout; depth,
experts and vocabulary are cut. Which fields those are is told by their names and sizes: no list of architectures is kept here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

EXPERTS = 4
VOCABULARY = 512
LEAST_WIDTH = 32
"""Smaller numbers are counts, kernels, ratios and not widths."""
MOST_PARAMETERS = 300_000_000
FACTORS = (16, 8, 4, 2, 1)

WIDTHS = re.compile(r"(size|dim|dims|rank|width|channels|d_model|d_ff|d_kv|d_inner|d_head|n_embd|n_inner|heads_dim|_dim_.*)$")
NO_WIDTH = re.compile(
    r"(vocab|patch|image|window|kernel|chunk|batch|block_size|pool|stride|resolution|step|codebook|position|group|type|max_|num_|mel|"
    r"token|scale_|_layers|feature_size|input_size|conv_kernel|rate|sample|crop|frame|ctx|context|grid|spatial)"
)
DEPTH = re.compile(r"(num_hidden_layers|n_layers?|num_layers|layers|num_blocks|depth|(num_)?(en|de)coder_(num_)?layers|num_hidden_groups)$")
EXPERT = re.compile(r"(moe_num_experts|num_experts|num_local_experts|n_routed_experts|n_experts|num_routed_experts|ffn_num_experts)$")
CHOSEN = re.compile(r"(experts_per_tok|num_experts_per_tok|moe_k|moe_topk|moe_top_k|top_k_experts|num_selected_experts|topk_experts)$")
INDICES = re.compile(r"(index(es)?|idxs?|indices|_layers|features|blocks)$")
ONCE = re.compile(r"first_k_dense_replace|num_dense_layers|num_kv_shared_layers|n_group|topk_group|num_nextn_predict_layers")
TOKEN = re.compile(r"token_(id|index)$")


def tiny_fields(kind: Any, given: Mapping[str, Any], factor: int, cut: bool = True) -> dict[str, Any]:
    """The fields of a configuration class, with what is `given` as it is and all else small. Raises whatever the class raises.

    `factor` divides the widths; `cut` leaves away layers of which there are others of their kind.
    """
    return {**_smaller(kind(**given).to_dict(), factor, cut, frozenset(given)), **given}


def tiny_configs(kind: Any, given: Mapping[str, Any]) -> Iterator[Any]:
    """Configurations from the smallest on; the first of which a model can be built is the one to take.

    Raises what the class raises where it refuses all of them.
    """
    refused: Exception | None = None
    none = True
    for cut in (True, False):
        for factor in FACTORS:
            try:
                made = kind.from_dict(tiny_fields(kind, given, factor, cut))
            except Exception as error:  # each class checks in its own way; the next is larger
                refused = refused or error
                continue
            none = False
            yield made
    if none and refused is not None:
        raise refused


def fit_sections(model: Any, config: Any) -> None:
    """Sections of rotary dims that stand in a model's code and not in its configuration, written into that in its own size."""
    for module in model.modules():
        sections, frequencies = getattr(module, "mrope_section", None), getattr(module, "inv_freq", None)
        if not isinstance(sections, (list, tuple)) or frequencies is None or sum(sections) == frequencies.shape[-1]:
            continue
        size, text = frequencies.shape[-1], config.get_text_config()
        parts = [max(1, part * size // sum(sections)) for part in sections[:-1]]
        text.rope_parameters = {**(text.rope_parameters or {}), "mrope_section": [*parts, max(size - sum(parts), 0)]}
        return


def _smaller(fields: Mapping[Any, Any], factor: int, cut: bool, keep: frozenset[str] = frozenset()) -> dict[Any, Any]:
    depths = {name: value for name, value in fields.items() if DEPTH.fullmatch(str(name)) and _count(value)}
    depth = depths.get("num_hidden_layers", max(depths.values(), default=0))
    layers = _layers(fields, depth) if cut else depth
    made = {
        name: value if name in keep else _field(str(name), value, factor, layers=layers, depth=depth, cut=cut)
        for name, value in fields.items()
    }
    heads, width = made.get("num_attention_heads"), made.get("hidden_size")
    # Left to the class by most, but some read it as it is.
    if made.get("head_dim", 0) is None and isinstance(heads, int) and isinstance(width, int):
        made["head_dim"] = width // heads
    if made.get("num_key_value_heads", 0) is None and heads:
        made["num_key_value_heads"] = heads
    for name in made:
        if made[name] is None and EXPERT.fullmatch(str(name)):
            made[name] = EXPERTS
        elif made[name] is None and CHOSEN.fullmatch(str(name)):
            made[name] = 2
    return made


def _layers(fields: Mapping[Any, Any], depth: int) -> int:
    """As many as show every kind of layer once."""
    needed = min(depth, 2)
    for name, value in fields.items():
        if isinstance(value, (list, tuple)) and len(value) == depth:
            needed = max(needed, *(list(value).index(kind) + 1 for kind in value))
        if re.search(r"(interval|pattern|frequency|every|period|step)$", str(name)) and _count(value) and value <= 12:
            needed = max(needed, value)
    return min(depth, max(needed, 2), 12)


def _field(name: str, value: Any, factor: int, *, layers: int, depth: int, cut: bool) -> Any:
    if isinstance(value, Mapping):
        if name == "per_layer_config":
            return {key: _smaller(item, factor, cut) for key, item in value.items() if int(key) < layers}
        return _smaller(value, factor, cut) if "model_type" in value or "hidden_size" in value else _rope(value, factor)
    if isinstance(value, (list, tuple)) and value:
        return _list(name, value, factor, layers=layers, depth=depth, cut=cut)
    if not _count(value):
        return value
    if name.endswith("vocab_size") or name.startswith("vocab_size"):
        return min(value, VOCABULARY)
    if TOKEN.search(name):
        return value if 0 <= value < VOCABULARY else VOCABULARY - 1 - value % 50
    if cut and ONCE.fullmatch(name):
        return min(value, 1)
    if cut and DEPTH.fullmatch(name):
        return min(value, layers)
    if EXPERT.fullmatch(name):
        return min(value, EXPERTS)
    if CHOSEN.fullmatch(name):
        return min(value, 2)
    return value // factor if _width(name, value) and value % factor == 0 else value


def _list(name: str, value: Any, factor: int, **about: Any) -> Any:
    kind, layers, depth = type(value), about["layers"], about["depth"]
    if len(value) == depth > layers:
        value = kind(value[:layers])
    elif depth > layers and INDICES.search(name) and all(_count(item) for item in value):
        return kind(index for index in value if index < layers) or kind([layers - 1])
    if all(_width(name, item) and item % factor == 0 for item in value):
        return kind(item // factor for item in value)
    return value


def _rope(value: Mapping[str, Any], factor: int) -> dict[str, Any]:
    """Sections of rotary dims add up to the head's, and shrink with it."""
    made: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            made[name] = _rope(item, factor)
        elif str(name).endswith("section") and isinstance(item, (list, tuple)):
            made[name] = type(item)(max(1, part // factor) for part in item)
        else:
            made[name] = item
    return made


def _width(name: str, value: Any) -> bool:
    if not _count(value) or value < LEAST_WIDTH or NO_WIDTH.search(name.removeprefix("num_attention_")):
        return False
    return bool(WIDTHS.search(name))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
