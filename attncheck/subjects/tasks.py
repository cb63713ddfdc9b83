"""Which class of transformers a checkpoint or configuration is loaded as."""

from __future__ import annotations

from typing import Any, Literal

from attncheck.core.errors import MeasurementError

Task = Literal["base", "causal-lm", "masked-lm", "seq2seq-lm", "image-classification", "sequence-classification", "image-text-to-text"]

AUTO_CLASSES: dict[str, str] = {
    "base": "AutoModel",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-text-to-text": "AutoModelForImageTextToText",
}
_DEFAULT_ORDER = ("causal-lm", "seq2seq-lm", "base")
"""Tried for a configuration that names no class. Encoders whose causal form only decodes (BERT) are taken as base."""


def model_class(config: Any, task: str | None) -> Any:
    """The class for a task; without one, the class that the configuration names, else the first of causal, seq2seq, base.

    Raises MeasurementError where the model type has no such task, with those that it has.
    """
    import transformers

    kind = type(config)
    if task is not None:
        mapping = _mapping(task)
        if kind not in mapping:
            raise MeasurementError(
                f"model type {config.model_type!r} has no task {task!r}; allowed: {', '.join(tasks_of(config)) or 'none'}"
            )
        return _single(mapping[kind])
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    for choice in _DEFAULT_ORDER:
        mapping = _mapping(choice)
        if kind in mapping and not (choice == "causal-lm" and _is_encoder(config)):
            try:
                return _single(mapping[kind])
            except (ValueError, AttributeError) as error:  # a table of transformers names a class that it does not export
                raise MeasurementError(
                    f"transformers names a class for model type {config.model_type!r} that it does not have: {' '.join(str(error).split())}"
                ) from error
    raise MeasurementError(f"transformers has no model class for model type {config.model_type!r}")


def part_for(found: Any, config: Any) -> Any:
    """The configuration that a class takes: of a composite model's, that of its text where the class is of the text alone."""
    wanted = getattr(found, "config_class", None)
    if wanted is None or isinstance(config, wanted):
        return config
    text = config.get_text_config(decoder=True)
    return text if isinstance(text, wanted) else config


def tasks_of(config: Any) -> list[str]:
    """The tasks that a model type has."""
    return [task for task in AUTO_CLASSES if type(config) in _mapping(task)]


def _mapping(task: str) -> Any:
    import transformers

    return getattr(transformers, AUTO_CLASSES[task])._model_mapping


def _single(found: Any) -> Any:
    return found[0] if isinstance(found, (list, tuple)) else found


def _is_encoder(config: Any) -> bool:
    """Types with a masked-LM head that decode only when their configuration says so, and encoder-decoders."""
    decodes = getattr(config, "is_decoder", False) is True
    return (type(config) in _mapping("masked-lm") and not decodes) or bool(getattr(config, "is_encoder_decoder", False))
