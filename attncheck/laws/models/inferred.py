"""Claims that a model's class and configuration make by themselves, where its author states none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from attncheck.core.model_claims import ModelClaims
from attncheck.laws.models.subject import Subject

SHIFTABLE = ("default", "linear", "llama3", "yarn")
"""Rotary kinds whose angles depend on positions alone, not on the length of the input."""


def claimed(subject: Subject, given: ModelClaims | Mapping[str, Any] | None) -> ModelClaims:
    """All that is claimed: a ModelClaims as it is; a mapping is laid over what is found, which gives way where it contradicts."""
    if isinstance(given, ModelClaims):
        return given
    said, found = dict(given or {}), inferred(subject)
    ModelClaims.of(said)
    if said.get("causal", True) is not True:
        found = found.but(cache=None, window=None)
    if said.get("positional", found.positional) == "none":
        found = found.but(rotary=None)
    return ModelClaims.of({**{entry.name: getattr(found, entry.name) for entry in fields(found)}, **said})


def inferred(subject: Subject) -> ModelClaims:
    """What is declared: causality by attention modules, windows by layer types, positions by the rotary fields, the rest by arguments.

    Nothing is measured here, so a wrong declaration is found by the laws, not copied. Packing is left out: no field declares it.
    """
    if subject.config is None or not hasattr(subject.model, "save_pretrained"):
        return ModelClaims(batch=True, deterministic=("forward",), dropout="none")
    causal = _causal(subject)
    told = subject.takes("position_ids")
    cached = bool(causal) and subject.takes("use_cache")
    padding = ("right", "left") if causal and told and not subject.encoder_decoder else ("right",)
    rope = _rope(subject)
    kinds = {str(part.get("rope_type", "default")) for part in rope}
    static = cached and not subject.encoder_decoder and getattr(subject.model, "_can_compile_fullgraph", False)
    return ModelClaims(
        causal=causal,
        window=_window(subject) if causal and not subject.encoder_decoder else None,
        padding=padding if subject.takes("attention_mask") and subject.kind == "tokens" else None,
        batch=True,
        cache=("dynamic", *(("static",) if static else ())) if cached else None,
        implementations=("eager", "sdpa") if getattr(subject.model, "_supports_sdpa", False) else None,
        positional="relative" if rope and kinds <= set(SHIFTABLE) else "absolute" if told and not rope and not _offset(subject) else None,
        rotary=bool(rope) or None,
        deterministic=("forward",),
        dropout="none",
        returns=("eager_attentions", "hidden_states"),
    )


def _causal(subject: Subject) -> bool | None:
    if subject.encoder_decoder:
        return True
    if subject.kind == "pixels":
        return False
    declared = {bool(m.is_causal) for m in subject.model.modules() if isinstance(getattr(m, "is_causal", None), bool)}
    if declared == {True}:
        return True
    if declared == {False}:
        # said of the kernel's flag alone, as by text encoders that bring a causal mask; of a masked language model it says what it means
        return False if _masked(subject) else None
    generates = getattr(subject.model, "can_generate", None)
    return True if not declared and generates is not None and generates() else None


def _masked(subject: Subject) -> bool:
    """Whether masked language models are of this kind, which read in both directions."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return getattr(subject.config, "model_type", None) in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _offset(subject: Subject) -> bool:
    """Whether positions begin behind the padding's index, as in RoBERTa's kin: 0, 1, 2, ... are not what such a model takes."""
    named = ((path, getattr(module, "padding_idx", None)) for path, module in subject.model.named_modules())
    return any(path.endswith("position_embeddings") and index is not None for path, index in named)


def _window(subject: Subject) -> tuple[int | None, ...] | int | None:
    size = getattr(subject.text, "sliding_window", None)
    kinds = getattr(subject.text, "layer_types", None)
    if not isinstance(size, int) or size < 1 or getattr(subject.text, "use_sliding_window", True) is False:
        return None
    if not kinds:
        return size
    if not set(kinds) <= {"sliding_attention", "full_attention"} or "sliding_attention" not in kinds:
        return None
    return tuple(size if kind == "sliding_attention" else None for kind in kinds)


def _rope(subject: Subject) -> list[Mapping[str, Any]]:
    given = getattr(subject.text, "rope_parameters", None)
    if not isinstance(given, Mapping) or not given:
        return []
    return [part for part in given.values() if isinstance(part, Mapping)] or [given]
