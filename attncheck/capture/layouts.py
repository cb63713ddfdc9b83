"""How the projections of one attention module are laid out: which rows of which parameter belong to which head.

Separate projections are recognised by their names and by shapes that agree with each other. A fused parameter says nothing about the
order of its rows (GPT-2 stacks queries, keys and values, GPT-NeoX interleaves them head by head, CodeGen in four shards and with the
values before the keys), so it is sliced only for code whose order is known; everything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attncheck.core.errors import NotObservable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Projections:
    """query [H, d, d_model], key and value [H_kv, d or d_v, d_model], output [d_model, H, d_v]; None with a reason in `missing`."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    output: Tensor | None
    heads: int
    kv_heads: int
    missing: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """matrix letter -> part name -> tensor of that matrix's shape; they add up to it."""


SEPARATE = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("q_lin", "k_lin", "v_lin"),
    ("query_proj", "key_proj", "value_proj"),
    ("linear_q", "linear_k", "linear_v"),
    ("project_q", "project_k", "project_v"),
    ("to_q", "to_k", "to_v"),
    ("Wq", "Wk", "Wv"),
    ("wq", "wk", "wv"),
    ("W_q", "W_k", "W_v"),
    ("W_Q", "W_K", "W_V"),
)
OUTPUT = (
    "o_proj", "out_proj", "dense", "c_proj", "proj", "o", "out_lin", "projection", "projection_layer", "output", "output_proj",
    "Wo", "wo", "W_o", "W_O", "linear_out", "attention_out", "to_out", "proj_out",
)  # fmt: skip
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "num_query_heads", "heads")
HEAD_DIM = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size", "qk_head_dim", "d_head", "dim_head", "d_kv")

STACKED, BY_HEAD, SHARDED, FALCON, BIGCODE = "q|k|v", "head by head", "four shards of q|v|k", "falcon", "gpt_bigcode"
_VISION_QKV = (
    "blip", "blip_2", "cohere_compass", "ernie4_5_vl_moe", "exaone4_5", "glm4v", "glm4v_moe", "glm_image", "instructblip",
    "instructblipvideo", "qwen2_vl", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe", "sam", "sam_hq",
    "timesformer",
)  # fmt: skip
FUSED: Mapping[tuple[str, str], str] = {
    **{(family, "qkv"): STACKED for family in _VISION_QKV},
    **{(family, "c_attn"): STACKED for family in ("gpt2", "imagegpt", "openai")},
    ("dbrx", "Wqkv"): STACKED,
    ("modernbert", "Wqkv"): STACKED,
    ("mpt", "Wqkv"): STACKED,
    ("phi3", "qkv_proj"): STACKED,
    ("phi4_multimodal", "qkv_proj"): STACKED,
    ("timm", "qkv"): STACKED,
    ("gpt_neox", "query_key_value"): BY_HEAD,
    ("gpt_neox_japanese", "query_key_value"): BY_HEAD,
    ("bloom", "query_key_value"): BY_HEAD,
    ("persimmon", "query_key_value"): BY_HEAD,
    ("deberta", "in_proj"): BY_HEAD,
    ("codegen", "qkv_proj"): SHARDED,
    ("falcon", "query_key_value"): FALCON,
    ("gpt_bigcode", "c_attn"): BIGCODE,
}
"""(model family, parameter) -> order of the rows: only what the tests compare with what the model's own attention does (timm, which is
not installed there, excepted)."""

GATED_QUERY = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp")
"""Families whose q_proj holds [head][query, gate][d]."""

_NOT_SOFTMAX = re.compile(r"Linear|Delta|Lightning|Mamba|Deformable|Rwkv")
_ATTENTION = re.compile(r"Attention|Attn|MHA|MHSA")
_QUERY_LIKE = re.compile(
    r"(^|_)(w?q|w?k|w?v|w?qk|w?kv|w?qkv|query|key|value|querys?_key(_value)?|qkvz?|c_attn|q_attn|att_proj|attn_proj)(_|$)", re.I
)


def projections(module: nn.Module, parent: nn.Module | None = None) -> Projections | None:
    """The projections that `module` itself owns, or None if it is no attention module.

    `parent` is looked at for BERT's output projection, which is a sibling of the attention. Raises NotObservable for a module that
    is attention but whose layout is not known.
    """
    if callable(own := getattr(module, "projection_weights", None)):
        return _declared(module, own())
    if isinstance(module, nn.MultiheadAttention):
        return _multihead(module)
    if _NOT_SOFTMAX.search(type(module).__name__):
        return None
    names = set(dict(module.named_children())) | set(dict(module.named_parameters(recurse=False)))
    if "kv_b_proj" in names or "kv_a_proj_with_mqa" in names:
        return _latent(module)
    fused = [(family, name) for family in families(module) for name in sorted(names) if (family, name) in FUSED]
    if fused:
        return _fused(module, fused[0][1], FUSED[fused[0]])
    for triple in SEPARATE:
        if sum(name in names for name in triple) >= 2 and (triple[0] in names or _ATTENTION.search(type(module).__name__)):
            return _separate(module, triple, parent)
    if _owns_projections(module):
        raise NotObservable(refusal(module))
    return None


def refusal(module: nn.Module) -> str:
    """What is said of a layout that is not known."""
    shown = ", ".join(f"{name} {list(p.shape)}" for name, p in module.named_parameters()) or "none"
    kind = type(module)
    return (
        f"the layout of the projections in {kind.__module__}.{kind.__qualname__} is not known (parameters: {shown}); known are separate "
        "query, key and value projections and the fused ones of "
        f"{', '.join(sorted({family for family, _ in FUSED}))}; give the class a method projection_weights() that returns "
        "query [heads, d, d_model], key and value [kv_heads, d, d_model] and output [d_model, heads, d]"
    )


def families(module: nn.Module) -> list[str]:
    """Model families whose code a module's class comes from, subclasses included: 'gpt_neox', 'timm'."""
    found = []
    for kind in type(module).__mro__:
        match = re.match(r"transformers\.models\.(\w+)\.|(timm)\.", kind.__module__)
        if match:
            found.append(match[1] or match[2])
    return found


def matrix(module: Any, name: str, owner: nn.Module) -> Tensor | None:
    """The weight of a child projection as [out, in]; None where there is none. Raises NotObservable where it is no plain matrix."""
    child = _unwrapped(getattr(module, name, None))
    if child is None:
        return None
    weight = child if isinstance(child, torch.Tensor) else getattr(child, "weight", None)
    where = f"{name} of {type(owner).__qualname__}"
    if hasattr(child, "base_layer"):
        raise NotObservable(f"{where} is an adapter around its projection; merge it into the weights first")
    if isinstance(weight, torch.Tensor) and weight.dim() > 2 and all(side == 1 for side in weight.shape[2:]):
        weight = weight.flatten(1)  # a convolution with a kernel of one
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        held = f"{weight.dtype} of shape {list(weight.shape)}" if isinstance(weight, torch.Tensor) else "no weight"
        raise NotObservable(f"{where} is a {type(child).__qualname__} with {held}, not a floating-point matrix; dequantise the model first")
    if weight.device.type == "meta":
        raise NotObservable(f"{where} was never loaded (meta device)")
    # transformers' Conv1D multiplies from the left: its weight is [in, out].
    weight = weight.detach()
    return weight.T if type(child).__name__ == "Conv1D" else weight


def _unwrapped(child: Any) -> Any:
    """A projection inside a Sequential with its dropout."""
    return child[0] if isinstance(child, nn.Sequential) and len(child) else child


def _number(module: nn.Module, names: tuple[str, ...], *, config: bool) -> int | None:
    """The first of `names` that is a positive integer on the module or, if asked for, on its configuration."""
    for source in (module, getattr(module, "config", None)) if config else (module,):
        for name in names:
            value = getattr(source, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _declared(module: nn.Module, given: Mapping[str, Tensor]) -> Projections:
    """What `projection_weights` returned: query, key, value, output, and parts as 'key.shared'."""
    letters = {"query": "q", "key": "k", "value": "v", "output": "o"}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in given.items():
        whole, _, part = name.partition(".")
        if whole not in letters or not isinstance(tensor, torch.Tensor) or tensor.dim() != 3:
            raise NotObservable(
                f"{type(module).__qualname__}.projection_weights() gave {name!r}; allowed: query, key, value, output and parts such as "
                "'key.shared', each a tensor of three dims"
            )
        if part:
            parts.setdefault(letters[whole], {})[part] = tensor.detach()
    found = {whole: given[whole].detach() if whole in given else None for whole in letters}
    query, key, output = found["query"], found["key"], found["output"]
    heads = query.shape[0] if query is not None else output.shape[1] if output is not None else 0
    kv_heads = key.shape[0] if key is not None else heads
    missing = {letters[w]: f"projection_weights() gives no {w}" for w, tensor in found.items() if tensor is None}
    return Projections(query, key, found["value"], output, heads, kv_heads, missing, parts)


def _multihead(module: nn.MultiheadAttention) -> Projections:
    """torch's own: in_proj_weight stacks q|k|v, or three separate parameters where key and value have other widths."""
    if module.in_proj_weight is not None:
        query, key, value = module.in_proj_weight.detach().chunk(3)
    else:
        weights: list[Any] = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
        query, key, value = (w.detach() for w in weights)
    heads = module.num_heads
    output = _output(module.out_proj.weight.detach(), heads)
    return Projections(_by_head(query, heads), _by_head(key, heads), _by_head(value, heads), output, heads, heads)


def _by_head(weight: Tensor, heads: int) -> Tensor:
    return weight.reshape(heads, weight.shape[0] // heads, weight.shape[1])


def _output(weight: Tensor | None, heads: int) -> Tensor | None:
    return None if weight is None else weight.reshape(weight.shape[0], heads, weight.shape[1] // heads)


def _output_weight(module: nn.Module, width: int, parent: nn.Module | None) -> Tensor | None:
    """The output projection, [d_model, width]; BERT keeps it in the sibling module `output`."""
    for holder, names in ((module, OUTPUT), (getattr(module, "output", None), ("dense",)), (getattr(parent, "output", None), ("dense",))):
        for name in names if isinstance(holder, nn.Module) else ():
            child = _unwrapped(getattr(holder, name, None))
            if isinstance(getattr(child, "weight", None), torch.Tensor) and child.weight.dim() == 2:
                weight = matrix(holder, name, module)
                if weight is not None and weight.shape[1] == width:
                    return weight
    return None


def _shape(module: nn.Module, rows: int, key_rows: int | None) -> tuple[int, int]:
    """(heads, head_dim) from the module, else its configuration; they have to agree with the number of query rows."""
    heads, size = _number(module, HEADS, config=False), _number(module, HEAD_DIM, config=False)
    if heads is None and size is None:
        heads, size = _number(module, HEADS, config=True), None
    if heads is None and size is not None:
        heads = rows // size
    if heads is not None and size is None:
        size = rows // heads
    if heads is None or size is None:
        raise NotObservable(
            f"{type(module).__qualname__} does not say how many heads it has (none of {', '.join(HEADS + HEAD_DIM)} on the module, no "
            "configuration): " + refusal(module)
        )
    if heads * size != rows or (key_rows is not None and (key_rows % size or heads % (key_rows // size))):
        raise NotObservable(
            f"{heads} heads of {size} do not fit {rows} rows of queries"
            + (f" and {key_rows} of keys: " if key_rows else ": ")
            + refusal(module)
        )
    return heads, size


def _separate(module: nn.Module, names: tuple[str, str, str], parent: nn.Module | None) -> Projections | None:
    query, key, value = (matrix(module, name, module) for name in names)
    present = [w for w in (query, key) if w is not None]
    if not present:
        return None
    gated = query is not None and any(family in GATED_QUERY for family in families(module))
    rows = present[0].shape[0] // (2 if gated else 1)
    heads, size = _shape(module, rows, None if query is None or key is None else key.shape[0])
    kv_heads = key.shape[0] // size if key is not None else heads
    missing = {letter: f"no {name}" for letter, name, w in zip("qkv", names, (query, key, value), strict=True) if w is None}
    if value is not None and value.shape[0] % kv_heads:
        raise NotObservable(f"{value.shape[0]} rows of values do not fit {kv_heads} heads: " + refusal(module))
    width = heads * (value.shape[0] // kv_heads if value is not None else size)
    output = _output_weight(module, width, parent)
    if output is None:
        missing["o"] = f"no output projection of {width} columns"
        named = [n for n in OUTPUT if isinstance(getattr(module, n, None), nn.Linear)]
        if named and not gated and query is not None and value is not None:
            # An output projection of another width means that the heads are not what the names say, e.g. a gate inside q_proj.
            raise NotObservable(f"{named[0]} does not take {heads} heads of {width // heads}: " + refusal(module))
    if query is not None:
        query = _by_head(query, heads)[:, :size]
    return Projections(
        query,
        None if key is None else _by_head(key, kv_heads),
        None if value is None else _by_head(value, kv_heads),
        _output(output, heads), heads, kv_heads, missing,
    )  # fmt: skip


def _latent(module: nn.Module) -> Projections:
    """Multi-head latent attention: keys and values have no projection of their own, a norm sits between their two factors."""
    heads = _number(module, HEADS, config=True)
    query = matrix(module, "q_proj", module)
    output = matrix(module, "o_proj", module)
    if heads is None or (query is not None and query.shape[0] % heads) or (output is not None and output.shape[1] % heads):
        raise NotObservable(refusal(module))
    why = "latent attention: a norm sits between its two factors, so there is no single matrix"
    missing = {letter: why for letter, w in (("q", query), ("k", None), ("v", None)) if w is None}
    return Projections(None if query is None else _by_head(query, heads), None, None, _output(output, heads), heads, heads, missing)


def _fused(module: Any, name: str, order: str) -> Projections:
    weight = matrix(module, name, module)
    if weight is None:
        raise NotObservable(f"{name} is empty: " + refusal(module))
    heads = _number(module, HEADS, config=True)
    if heads is None:
        raise NotObservable(refusal(module))
    separate_query = matrix(module, "q_attn", module) if order in (STACKED, BIGCODE) else None
    if separate_query is not None:  # cross-attention of the GPT-2 family: c_attn holds keys and values only
        query, (key, value) = separate_query, weight.chunk(2)
        return _assemble(module, _by_head(query, heads), _by_head(key, heads), _by_head(value, heads))
    if order == FALCON:
        kv_heads = int(module.num_kv_heads)
        order = "groups" if module.new_decoder_architecture else STACKED if module.multi_query else BY_HEAD
    elif order == BIGCODE:
        kv_heads = 1 if module.multi_query else heads
        order = STACKED if module.multi_query else BY_HEAD
    else:
        kv_heads = _number(module, ("num_key_value_heads", "num_kv_heads"), config=True) or heads
        if order == STACKED and name == "qkv" and weight.shape[0] % (heads + 2 * kv_heads):
            kv_heads = heads
    rows = heads + 2 * kv_heads
    if weight.shape[0] % rows or (heads % kv_heads):
        raise NotObservable(f"{name} has {weight.shape[0]} rows, not a multiple of {heads} + 2 x {kv_heads} heads: " + refusal(module))
    size = weight.shape[0] // rows
    width = weight.shape[1]
    if order == STACKED:
        query, key, value = torch.split(weight, [heads * size, kv_heads * size, kv_heads * size])
        parts = _by_head(query, heads), _by_head(key, kv_heads), _by_head(value, kv_heads)
    elif order == BY_HEAD:
        blocks = weight.reshape(heads, 3, size, width)
        parts = blocks[:, 0], blocks[:, 1], blocks[:, 2]
    elif order == SHARDED:
        shards = weight.reshape(4, 3, heads * size // 4, width)
        query, value, key = (shards[:, i].reshape(heads * size, width) for i in range(3))
        parts = _by_head(query, heads), _by_head(key, heads), _by_head(value, heads)
    else:  # falcon's groups: [kv head][its queries, key, value]
        blocks = weight.reshape(kv_heads, heads // kv_heads + 2, size, width)
        parts = blocks[:, :-2].reshape(heads, size, width), blocks[:, -2], blocks[:, -1]
    return _assemble(module, *parts)


def _assemble(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Projections:
    heads, size, _ = query.shape
    output = _output_weight(module, heads * size, None)
    missing = {} if output is not None else {"o": "no output projection"}
    return Projections(query, key, value, _output(output, heads), heads, key.shape[0], missing)


def _owns_projections(module: nn.Module) -> bool:
    """An attention module by its class name, or by children called like queries and keys, with matrices of its own."""
    children: list[tuple[str, Any]] = list(module.named_children())
    own = [n for n, c in children if isinstance(getattr(c, "weight", None), torch.Tensor) and c.weight.dim() >= 2]
    own += [n for n, p in module.named_parameters(recurse=False) if p.dim() >= 2]
    by_class = re.search(r"(Attention|Attn|MHA|MHSA)$", type(module).__name__) is not None
    like = [n for n in own if isinstance(getattr(module, n), nn.Linear) and _QUERY_LIKE.search(n)]
    return bool(own) and (by_class or len(like) >= 2 or any("q" in n and ("k" in n or "v" in n) for n in like))
