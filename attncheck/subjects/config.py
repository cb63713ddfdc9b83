"""`config: {model_type: llama, hidden_size: 64, ...}`: any architecture of transformers, freshly initialised."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

from attncheck.core.errors import MeasurementError, nearest
from attncheck.core.evidence import LoadedSubject
from attncheck.subjects.kinds import subject_kind
from attncheck.subjects.loading import Loading
from attncheck.subjects.tasks import Task


@subject_kind("config", steps=False, files=lambda arguments, root: [])
def config(loading: Loading, *, model_type: str, task: Task | None = None, tiny: bool = False, **fields: Any) -> LoadedSubject:
    """A transformers architecture with random weights from the subject's seed.

    `model_type` is transformers' own name (llama, gpt2, bert, gemma2, ...); every further key is a field of its configuration class, with
    that class's default where it is left out. `task` chooses the head: causal-lm, masked-lm, seq2seq-lm, base, ...; by default a
    language-model head where the type decodes, the bare model otherwise. `tiny: true` takes small widths, few layers of each kind, few
    experts and a small vocabulary for all that is left out. An unknown type or field is an error with the nearest name.
    """
    from attncheck.subjects.encoders import encoder_for
    from attncheck.subjects.models import finish, fresh
    from attncheck.subjects.tasks import model_class, part_for

    make = tiny_config if tiny else make_config
    configuration = make(loading.definition.name, model_type, fields, **({"task": task} if tiny else {}))
    kind = model_class(configuration, task)
    model = fresh(loading, kind, part_for(kind, configuration))
    return finish(loading, model, encoder_for(model, why_no_text="its weights are random"))


def make_config(subject: str, model_type: str, fields: dict[str, Any]) -> Any:
    """The configuration object. Raises MeasurementError for an unknown type or field and for values that the class refuses."""
    kind = _kind(subject, model_type, fields)
    try:
        return kind(**fields)
    except Exception as error:  # each class checks in its own way, and none of it is ours to explain
        raise _refused(subject, kind, error) from error


def tiny_config(subject: str, model_type: str, fields: dict[str, Any], task: Task | None = None) -> Any:
    """The same, small: the smallest of which a model can be built. Raises MeasurementError where there is none."""
    import torch

    from attncheck.subjects.models import quiet
    from attncheck.subjects.tasks import model_class, part_for
    from attncheck.subjects.tiny import MOST_PARAMETERS, fit_sections, tiny_configs

    kind = _kind(subject, model_type, fields)
    why = ""
    try:
        for made in tiny_configs(kind, fields):
            found = model_class(made, task)
            try:
                # Without memory: only to see whether it can be built, and how large it gets.
                with quiet(), torch.device("meta"):
                    model = (getattr(found, "_from_config", None) or found.from_config)(part_for(found, made))
            except Exception as error:
                why = why or f"{type(error).__name__}: {' '.join(str(error).split())}"
                continue
            size = sum(parameter.numel() for parameter in model.parameters())
            if size <= MOST_PARAMETERS:
                fit_sections(model, made)
                return made
            why = why or f"{size / 1e6:.0f} million parameters at its smallest"
    except MeasurementError:
        raise
    except Exception as error:
        raise _refused(subject, kind, error) from error
    raise MeasurementError(f"{subject}: {model_type!r} cannot be made tiny: {why}; give the fields that it needs, or leave `tiny` out")


def _kind(subject: str, model_type: str, fields: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        raise MeasurementError(_unknown(subject, "model_type", model_type, list(CONFIG_MAPPING.keys())))
    kind = CONFIG_MAPPING[model_type]
    known = config_fields(kind)
    for name in fields:
        if name not in known:
            raise MeasurementError(_unknown(subject, f"field of {kind.__name__}", name, known))
    return kind


def _refused(subject: str, kind: Any, error: Exception) -> MeasurementError:
    return MeasurementError(f"{subject}: {kind.__name__} refuses these values: {' '.join(str(error).split())}")


def config_fields(kind: Any) -> list[str]:
    """The names that a configuration class takes: its own and those of every configuration (is_decoder, pad_token_id, ...)."""
    names: list[str] = []
    for base in kind.__mro__:
        if not base.__module__.startswith("transformers"):
            continue
        names += list(getattr(base, "__annotations__", {}))
        with contextlib.suppress(TypeError, ValueError):
            names += [p.name for p in inspect.signature(base.__init__).parameters.values() if p.kind is not p.VAR_KEYWORD]
    names += list(getattr(kind, "attribute_map", {}) or {})
    hidden = {"self", "model_type", "args", "transformers_version", "attn_implementation"}
    return sorted({name for name in names if not name.startswith("_") and name not in hidden})


def _unknown(subject: str, what: str, name: str, known: list[str]) -> str:
    hint = nearest(name, known)
    from difflib import get_close_matches

    others = [other for other in get_close_matches(name, known, n=4, cutoff=0.5) if other != hint]
    text = f"{subject}: unknown {what} {name!r}"
    if hint:
        text += f"; did you mean {hint!r}?" + (f" (or {', '.join(others)})" if others else "")
    elif len(known) <= 40:
        text += f"; allowed: {', '.join(known)}"
    return text
