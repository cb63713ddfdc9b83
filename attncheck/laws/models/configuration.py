"""Relatives of a model: the same class with small sizes, other head counts, and fields at other than their default values."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attncheck.laws.models.example import PLAIN, ModelExample, fitted
from attncheck.laws.models.gradients import LARGEST
from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.subject import Subject
from attncheck.laws.models.trial import ModelTrial, lines
from attncheck.laws.registry import LawViolation, NotApplicable

HEADS: tuple[dict[str, Any], ...] = (
    {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48, "head_dim": 8},
    {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 24, "head_dim": 8},
    {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 40, "head_dim": 8},
    {"num_attention_heads": 10, "num_key_value_heads": 5, "hidden_size": 80, "head_dim": 8},
    {"n_head": 6, "n_embd": 48, "hidden_size": 48},
    {"n_head": 3, "n_embd": 24, "hidden_size": 24},
)
"""No count is the square of another. Only the fields that a configuration has are set."""
FIELDS: tuple[dict[str, Any], ...] = (
    {"attn_logit_softcapping": 0.7},
    {"attn_logit_softcapping": None},
    {"query_pre_attn_scalar": 3},
    {"attention_multiplier": 0.9},
    {"scale_attn_by_inverse_layer_idx": True},
    {"scale_attn_weights": False},
    {"sliding_window": 5, "use_sliding_window": True},
    {"sliding_window": 2},
    {"partial_rotary_factor": 0.5},
    {"rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
        }
    },
    {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
)
SMALL = {"num_hidden_layers": 2, "n_layer": 2, "intermediate_size": 64}
"""Beside a head count, for relatives of a large model."""
WEIGHTS = 3
"""Seed of a relative's weights."""
MATTER = (
    "attn_logit_softcapping",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
)
"""Fields whose value must show in the output."""


def _config(config: Any, changes: Mapping[str, Any]) -> Any | None:
    """A copy with the changes that it has fields for; None where it lacks the first of them, or only a list by layer type applies."""
    if not hasattr(config, next(iter(changes), "__class__")):
        return None
    changed, hit = copy.deepcopy(config), False
    for name, value in changes.items():
        if getattr(config, name, None) is None and name not in MATTER:
            continue
        if name == "num_key_value_heads" and hasattr(config, "kv_lora_rank"):
            value = changes["num_attention_heads"]  # latent attention has a key of its own for every head
        # latent attention calls the width of its rotated part head_dim
        if not hasattr(config, name) or (name == "head_dim" and hasattr(config, "qk_rope_head_dim")):
            continue
        if name == "rope_parameters":
            before = getattr(config, name)
            if not isinstance(before, Mapping) or any(isinstance(part, Mapping) for part in before.values()):
                continue
            value = {**{key: before[key] for key in ("rope_theta", "partial_rotary_factor") if key in before}, **value}
        if getattr(config, name) != value:
            try:
                setattr(changed, name, value)
            except Exception:  # a property that follows from other fields, or a value of another type than this class wants
                continue
            hit = True
    return changed if hit else None


def relative(trial: ModelTrial, changes: Mapping[str, Any]) -> Any | None:
    """A model of the same class with random weights, large enough that attention is not uniform. None where it cannot be built."""
    config = _config(trial.subject.model.config, changes)
    return None if config is None else _built(trial, config, changes)


def _built(trial: ModelTrial, config: Any, changes: Mapping[str, Any]) -> Any | None:
    """A model of that configuration, of small sizes where the subject is large."""
    import torch

    model: Any = trial.subject.model
    if sum(p.numel() for p in model.parameters()) > LARGEST:
        small = {name: value for name, value in {**HEADS[0], **SMALL}.items() if name not in changes}
        config = _config(config, small) or config
        if isinstance(getattr(config, "layer_types", None), list):
            config.layer_types = config.layer_types[:2]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(WEIGHTS)
        try:
            found = type(model)(config)
        except Exception:  # a configuration that its class refuses says nothing of attention
            return None
        with torch.no_grad():
            for parameter in found.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4)
    return found.to(trial.subject.dtype).eval()


def _needed(trial: ModelTrial) -> None:
    if trial.subject.config is None or not hasattr(trial.subject.model, "save_pretrained"):
        raise NotApplicable("the model has no configuration")


_WITHOUT = (
    f"torch.manual_seed({WEIGHTS}); other = type(model)(own).eval()\n[p.data.mul_(4) for p in other.parameters() if p.dim() > 1]\n"
    "print((other(**inputs)[0] - out[0]).abs().max())"
)
"""The model of the unchanged configuration, beside that of the changed one."""


def _laws() -> list[tuple[str, Callable[[ModelTrial], None]]]:
    """What relatives are held to, where the claims bring it: laws that read the fields, not those about saving."""
    from attncheck.laws.models.registry import MODEL_LAWS

    names = (
        "model-causal-future", "model-padding-none", "model-batch-alone", "model-implementations-agree", "model-cache-stepwise",
        "model-cache-chunks", "model-cache-static", "model-positions-rotary_table", "model-extras-attentions",
        "model-configuration-scale",
    )  # fmt: skip
    return [(name, MODEL_LAWS[name].check) for name in names]


def _held(trial: ModelTrial, changes: Mapping[str, Any], other: Any) -> int:
    from attncheck.laws.models.registry import MODEL_LAWS

    subject, held = Subject(other), 0
    for name, check in _laws():
        if MODEL_LAWS[name].needs(trial.claims) or name in trial.claims.exceptions:
            continue
        for example in (PLAIN.but(length=17), PLAIN.but(pad="left", length=9)):
            trial_of: list[ModelExample] = []
            try:
                check(ModelTrial(subject, trial.claims, fitted(example.but(seed=trial.example.seed), trial.claims, subject), trial_of))
                held += 1
            except NotApplicable:
                continue
            except LawViolation as found:
                script = _script(other, changes, subject, trial_of[-1], found.then)
                raise LawViolation(f"with {_said(trial, changes)}, {name} is broken: {found}", script, found.picture) from found
    return held


def _script(other: Any, changes: Mapping[str, Any], subject: Subject, example: ModelExample, then: str | None) -> str:
    """All of it, from the model of another configuration on."""
    fields = [f"config.{key} = {getattr(other.config, key)!r}" for key in changes if hasattr(other.config, key)]
    use = [f"model.set_attn_implementation({example.implementation!r})"] if example.implementation else []
    return "\n".join(
        [
            "#alone",
            "own = model.config; config = type(own)(**own.to_dict())",
            *fields,
            f"torch.manual_seed({WEIGHTS}); model = type(model)(config).eval()",
            "[p.data.mul_(4) for p in model.parameters() if p.dim() > 1]",
            *use,
            *lines(example, subject),
            "out = model(**inputs)",
            then or "print(out)",
        ]
    )


def _said(trial: ModelTrial, changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in changes.items() if hasattr(trial.subject.config, name))


@model_law("heads", family="configuration", once=True)
def heads(trial: ModelTrial) -> None:
    """With other head counts, where no count is the square of another, the same laws hold."""
    _needed(trial)
    held = [_held(trial, changes, other) for changes, other in _relatives(trial, HEADS)]
    if not sum(held):
        raise NotApplicable("no relative with other head counts could be built")


@model_law("fields", family="configuration", once=True)
def fields(trial: ModelTrial) -> None:
    """With scale, softcap, window or rope scaling at other than their default values, the same laws hold."""
    _needed(trial)
    held = [_held(trial, changes, other) for changes, other in _relatives(trial, FIELDS)]
    if not sum(held):
        raise NotApplicable("the configuration has none of these fields")


@model_law("scale", family="configuration", needs=claims("scale"), once=True)
def scale(trial: ModelTrial) -> None:
    """Scores are multiplied with what the configuration says, in every layer."""
    from attncheck.laws.models.scaling import check

    check(trial)


@model_law("matter", family="configuration", once=True)
def matter(trial: ModelTrial) -> None:
    """A configuration field of the scale or the softcap changes the output, under every claimed implementation."""
    import torch

    _needed(trial)
    tried = 0
    base = _built(trial, copy.deepcopy(trial.subject.model.config), {})
    for changes in FIELDS:
        (name, *_) = changes
        one = relative(trial, changes) if name in MATTER and base is not None else None
        if base is None or one is None:
            continue
        missing = one.load_state_dict(base.state_dict(), strict=False)
        if missing.missing_keys or missing.unexpected_keys:
            continue
        inputs = {key: value for key, value in trial.inputs.items() if key != "output_attentions"}
        for implementation in trial.claims.implementations or (None,):
            runs, subjects = [], [Subject(base), Subject(one)]
            for subject in subjects:
                with subject.implementation(implementation), torch.no_grad():
                    runs.append(subject.run(inputs).output)
            tried += 1
            if torch.equal(runs[0], runs[1]):
                script = _script(one, changes, subjects[1], trial.example.but(implementation=implementation, ask=False), _WITHOUT)
                raise LawViolation(f"{name}={changes[name]} changes nothing under {implementation or 'the default implementation'}", script)
    if not tried:
        raise NotApplicable("the configuration has no field of scale or softcap")


def _relatives(trial: ModelTrial, several: tuple[dict[str, Any], ...]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Those that can be built and that run at all: a configuration that its class does not serve says nothing of attention."""
    plain = fitted(PLAIN.but(seed=trial.example.seed), trial.claims, trial.subject)
    for changes in several:
        other = relative(trial, changes)
        if other is None:
            continue
        subject = Subject(other)
        with contextlib.suppress(LawViolation):
            subject.run(ModelTrial(subject, trial.claims, plain).inputs)
            yield changes, other
