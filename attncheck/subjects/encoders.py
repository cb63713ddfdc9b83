"""What an input must know of a subject: its tokenizer, special tokens, sizes, and what its forward takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import MeasurementError

if TYPE_CHECKING:
    from torch import nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass
class SubjectEncoder:
    """An Encoder (core.evidence) with what `inputs.build` reads beyond the protocol: every extra has a harmless default."""

    vocabulary_size: int | None = None
    bos_token: int | None = None
    pad_token: int | None = None
    max_positions: int | None = None
    image_size: int | None = None
    channels: int = 3
    encode_plain: Callable[[str], list[int]] | None = None
    """Text -> ids without special tokens; None where the subject has no tokenizer."""
    token_text: Callable[[int], str] | None = None
    prefix: tuple[int, ...] = ()
    """Special tokens before every text, as the model was trained ([CLS], <bos>)."""
    suffix: tuple[int, ...] = ()
    special_tokens: frozenset[int] = frozenset()
    """Ids that random tokens must not hit."""
    forward_parameters: frozenset[str] = frozenset()
    """Names that model.forward takes."""
    first_parameter: str | None = None
    """The first of them: what a forward of other names is fed through."""
    causal: bool = False
    """A decoder: left padding must shift its positions."""
    decoder_start: int | None = None
    """First decoder token of an encoder-decoder model."""
    patch_size: int | None = None
    image_prefix: tuple[str, ...] = ()
    """Labels of the tokens before the patches."""
    image_mean: tuple[float, ...] = IMAGENET_MEAN
    image_std: tuple[float, ...] = IMAGENET_STD
    why_no_text: str = ""
    """Why `encode` cannot work, for its error."""
    notes: list[str] = field(default_factory=list)

    def encode(self, text: str) -> list[int]:
        """The subject's own ids, special tokens included. Raises MeasurementError where the subject reads no text."""
        if self.encode_plain is None:
            raise MeasurementError(
                f"the subject has no tokenizer{self.why_no_text and ': ' + self.why_no_text}; "
                "feed it ids (tokens: ...) or name another tokenizer (tokenizer: bytes)"
            )
        return [*self.prefix, *self.encode_plain(text), *self.suffix]

    def decode(self, tokens: Sequence[int]) -> list[str]:
        """One readable text a token."""
        if self.token_text is None:
            return [str(token) for token in tokens]
        return [self.token_text(int(token)) for token in tokens]


def encoder_for(model: nn.Module, **known: Any) -> SubjectEncoder:
    """The facts that a model's configuration and forward give, overridden by what the loader knows better."""
    config = getattr(model, "config", None)
    facts: dict[str, Any] = {
        "forward_parameters": frozenset(forward_parameters(model)),
        "first_parameter": next(iter(forward_parameters(model)), None),
        "causal": any(getattr(module, "is_causal", False) is True for module in model.modules()),
    }
    if "pixel_values" in facts["forward_parameters"]:
        facts["image_prefix"] = _tokens_before_patches(model)
    if config is not None:
        facts |= _from_config(config, facts["forward_parameters"])
    else:
        facts["vocabulary_size"] = _size_of_the_only_table(model)
    return SubjectEncoder(**(facts | known))


def forward_parameters(model: nn.Module) -> list[str]:
    """Names of the arguments of model.forward, in their order; empty where they cannot be read."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _size_of_the_only_table(model: nn.Module) -> int | None:
    """Rows of the one embedding that a model without a configuration has; of several nobody knows which one reads the ids."""
    from torch import nn

    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return tables[0].num_embeddings if len(tables) == 1 else None


def _tokens_before_patches(model: nn.Module) -> tuple[str, ...]:
    """Labels of the class, register and distillation tokens, as the embeddings' parameters of these names tell."""
    found = {name.rpartition(".")[2]: parameter for name, parameter in model.named_parameters()}
    labels: list[str] = ["[CLS]"] if {"cls_token", "class_embedding"} & set(found) else []
    if "register_tokens" in found:
        labels += [f"[REG{number}]" for number in range(found["register_tokens"].shape[1])]
    return (*labels, "[DIST]") if "distillation_token" in found else tuple(labels)


def _from_config(config: Any, parameters: frozenset[str]) -> dict[str, Any]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    facts: dict[str, Any] = {
        "vocabulary_size": getattr(text, "vocab_size", None),
        "bos_token": getattr(text, "bos_token_id", None),
        "pad_token": getattr(text, "pad_token_id", None),
        "max_positions": _max_positions(text),
    }
    eos = getattr(text, "eos_token_id", None)
    eos = eos[0] if isinstance(eos, (list, tuple)) and eos else eos
    if facts["pad_token"] is None:
        facts["pad_token"] = eos
    if getattr(config, "is_encoder_decoder", False):
        start = getattr(config, "decoder_start_token_id", None)
        facts |= {"causal": False, "decoder_start": start if start is not None else facts["pad_token"] or 0}
    size = facts["vocabulary_size"]
    if isinstance(facts["bos_token"], int) and isinstance(size, int) and not 0 <= facts["bos_token"] < size:
        facts["bos_token"] = None  # some default configurations keep another vocabulary's number
    facts["special_tokens"] = frozenset(t for t in (facts["bos_token"], facts["pad_token"], eos) if isinstance(t, int) and t >= 0)
    if "pixel_values" in parameters:
        image = getattr(config, "vision_config", config)
        size = getattr(image, "image_size", None)
        patch = getattr(image, "patch_size", None)
        facts |= {
            "image_size": size[0] if isinstance(size, (list, tuple)) else size,
            "patch_size": patch[0] if isinstance(patch, (list, tuple)) else patch,
            "channels": getattr(image, "num_channels", 3),
        }
        if "input_ids" not in parameters:
            facts |= {"vocabulary_size": None, "max_positions": None}
    return facts


def _max_positions(config: Any) -> int | None:
    """The longest input that the position table holds; RoBERTa's table starts at the pad token's id plus one."""
    kind = str(getattr(config, "model_type", ""))
    if kind in ("t5", "mt5", "umt5", "switch_transformers", "bloom", "mpt"):
        return None
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "max_source_positions"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            if kind in (
                "roberta",
                "xlm-roberta",
                "xlm-roberta-xl",
                "camembert",
                "roberta-prelayernorm",
                "longformer",
                "data2vec-text",
                "esm",
            ):
                return value - (getattr(config, "pad_token_id", None) or 0) - 1
            return value
    return None


def from_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Encoder facts of a transformers tokenizer: ids without special tokens, and which ones it puts around a text."""

    def plain(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def shown(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))

    prefix, suffix = special_tokens_around(plain, lambda text: list(tokenizer(text)["input_ids"]))
    facts: dict[str, Any] = {
        "encode_plain": plain,
        "token_text": shown,
        "prefix": prefix,
        "suffix": suffix,
        "special_tokens": frozenset(int(token) for token in tokenizer.all_special_ids),
    }
    for ours, theirs in (("bos_token", "bos_token_id"), ("pad_token", "pad_token_id")):
        if getattr(tokenizer, theirs, None) is not None:
            facts[ours] = int(getattr(tokenizer, theirs))
    return facts


def special_tokens_around(plain: Callable[[str], list[int]], full: Callable[[str], list[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a tokenizer adds before and after a text, found by comparing its two encodings of one word."""
    bare, whole = plain("a"), full("a")
    for start in range(len(whole) - len(bare) + 1):
        if bare and whole[start : start + len(bare)] == bare:
            return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    return (), ()
