"""Asking for extras changes nothing, and what is asked for comes, in the shape and with the sums that it must have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import LawViolation, NotApplicable

if TYPE_CHECKING:
    from attncheck.core.model_claims import ModelClaims

OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")
"""Names of a layer's output projection beside v_proj."""


def _asked(claimed: ModelClaims) -> str | None:
    """Attentions, under whichever implementation, must be claimed."""
    return None if {"attentions", "eager_attentions"} & set(claimed.returns or ()) else f"claims.returns is {claimed.returns}"


def _between(name: str) -> bool:
    """Whether a part of an attention layer stands on the way of queries and keys, or at its ends, and not between values and output."""
    return name in OUTPUTS or name[:2] in ("q_", "k_") or name.startswith(("query", "key", "rotary")) or name == "v_proj"


def _learns(part: Any) -> bool:
    return any(True for _ in part.parameters())


@model_law("attentions", family="extras", needs=_asked)
def attentions(trial: ModelTrial) -> None:
    """Asking for attentions changes nothing, and they come where they are claimed."""
    trial = trial.but(ask=False)
    found = trial.run(output_attentions=True)
    step = "asked = model(**inputs, output_attentions=True)\nprint((asked[0] - out[0]).abs().max())"
    trial.agree_everywhere(found, trial.plain, "output with attentions asked for, against without", then=step)
    implementation = trial.example.implementation or getattr(trial.subject.config, "_attn_implementation", None)
    due = "attentions" in (trial.claims.returns or ()) or implementation == "eager"
    if due and not _attentions(found.result):
        raise LawViolation("attentions were asked for and none came", "print(model(**inputs, output_attentions=True).keys())")


def _attentions(result: object) -> list[object]:
    given = getattr(result, "attentions", None) or getattr(result, "decoder_attentions", None)
    return [part for part in given or () if part is not None]


@model_law("weights", family="extras", needs=_asked)
def weights(trial: ModelTrial) -> None:
    """Returned attention weights are never negative, sum to at most 1 in each row of a real token, and are 0 where no key may be seen."""
    import torch

    trial = trial.but(ask=True)
    mask = None if trial.subject.encoder_decoder else trial.inputs.get("attention_mask")
    given = _attentions(trial.plain.result)
    if not given:
        raise NotApplicable("no attentions came")
    for number, part in enumerate(given):
        if not isinstance(part, torch.Tensor) or part.ndim != 4 or part.shape[-2] != trial.real.shape[1]:
            raise NotApplicable("attentions are not [batch, head, query, key]")
        rows = trial.real[:, None, :].expand(part.shape[:3])
        sums = part.double().sum(-1)[rows]
        slack = 1e-4 if part.dtype == torch.float32 else 2e-2
        if bool((part[rows] < 0).any()) or bool((sums > 1 + slack).any()):
            raise LawViolation(
                f"weights of layer {number}: rows sum to {float(sums.min()):.6g} to {float(sums.max()):.6g}, at most 1 is right"
            )
        if trial.claims.causal and part.shape[-1] == part.shape[-2]:
            leak = part.double().triu(1)[rows].sum(-1).max()
            if float(leak) > 0:
                raise LawViolation(f"weights of layer {number}: a row has {float(leak):.3g} on later keys")
        if mask is not None and part.shape[-1] == mask.shape[-1]:
            padded = part.double().masked_fill(mask[:, None, None, :].bool(), 0)[rows].sum(-1).max()
            if float(padded) > 0:
                raise LawViolation(f"weights of layer {number}: a row of a real token has {float(padded):.3g} on padded keys")


@model_law("weights_output", family="extras", needs=_asked)
def weights_output(trial: ModelTrial) -> None:
    """Returned attention weights, applied to the values, give what each layer hands to its output projection."""
    import torch

    trial = trial.but(ask=True, cache=False)
    values: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    with trial.under():
        handles = []
        for module in trial.subject.model.modules():
            value, output = getattr(module, "v_proj", None), next((getattr(module, n) for n in OUTPUTS if hasattr(module, n)), None)
            if isinstance(value, torch.nn.Linear) and isinstance(output, torch.nn.Linear):
                others = [name for name, part in module.named_children() if not _between(name) and ("norm" in name or _learns(part))]
                others += [name for name, _ in module.named_parameters(recurse=False) if name != "sinks"]
                query = getattr(module, "q_proj", None)
                if isinstance(query, torch.nn.Linear) and query.out_features != output.in_features:
                    others.append("a gate within q_proj")
                if others:
                    raise NotApplicable(f"values or outputs go through {', '.join(others)} as well")
                handles.append(value.register_forward_hook(lambda _, __, made: values.append(made.detach())))
                handles.append(output.register_forward_pre_hook(lambda _, given: outputs.append(given[0].detach())))
        try:
            found = trial.run()
        finally:
            for handle in handles:
                handle.remove()
    given = _attentions(found.result)
    if not given or trial.subject.encoder_decoder or not len(given) == len(values) == len(outputs):
        raise NotApplicable("no attentions came, or its layers have no v_proj and output projection of their own")
    for number, (part, value, output) in enumerate(zip(given, values, outputs, strict=True)):
        if not isinstance(part, torch.Tensor) or output.ndim != 3 or output.shape[-1] % part.shape[1]:
            raise NotApplicable("attentions are not [batch, head, query, key], or heads are laid out in another way")
        width = output.shape[-1] // part.shape[1]
        if value.shape[-1] % width or part.shape[1] % (value.shape[-1] // width) or part.shape[-1] != value.shape[1]:
            raise NotApplicable("values are laid out in another way")
        heads = value.reshape(*value.shape[:2], -1, width).transpose(1, 2).double()
        wanted = part.double() @ heads.repeat_interleave(part.shape[1] // heads.shape[1], 1)
        off = ((wanted.transpose(1, 2).flatten(2) - output.double()).abs() / output.double().abs().amax().clamp(min=1e-30))[trial.real]
        if float(off.max()) > 100 * torch.finfo(output.dtype).eps * part.shape[-1]:
            raise LawViolation(
                f"weights of layer {number} applied to its values differ from what enters its output projection by {float(off.max()):.3g} "
                "of the largest number"
            )


@model_law("hidden_states", family="extras", needs=claims("returns=hidden_states"))
def hidden_states(trial: ModelTrial) -> None:
    """Asking for hidden states changes nothing, and they come."""
    found = trial.run(output_hidden_states=True)
    trial.agree_everywhere(found, trial.plain, "output with hidden states asked for, against without")
    if not (getattr(found.result, "hidden_states", None) or getattr(found.result, "decoder_hidden_states", None)):
        raise LawViolation("hidden states were asked for and none came", "print(model(**inputs, output_hidden_states=True).keys())")


@model_law("cache", family="extras", needs=claims("cache"))
def cache(trial: ModelTrial) -> None:
    """Asking for a cache changes nothing in a forward that has none yet."""
    if not trial.subject.takes("use_cache"):
        raise NotApplicable("the model takes no use_cache")
    trial = trial.but(cache=False)
    trial.agree_everywhere(
        trial.run(use_cache=True),
        trial.plain,
        "output with use_cache=True, against False",
        then="cached = model(**{**inputs, 'use_cache': True})\nprint((cached[0] - out[0]).abs().max())",
    )


@model_law("embeddings", family="extras")
def embeddings(trial: ModelTrial) -> None:
    """Given the embeddings of its tokens instead of them, a model gives the same."""
    import torch

    subject = trial.subject
    if subject.kind == "pixels" or subject.encoder_decoder or not subject.takes("inputs_embeds"):
        raise NotApplicable("the model takes no inputs_embeds")
    whole: Any = subject.model
    table = whole.get_input_embeddings()
    if table is None:
        raise NotApplicable("the model has no table of embeddings")
    embeds, wanted = table(trial.ids), trial.plain
    if not isinstance(embeds, torch.Tensor):
        raise NotApplicable("its table of embeddings makes no tensor")
    try:
        found = trial.run(without=("input_ids",), inputs_embeds=embeds.detach())
    except LawViolation as problem:
        raise NotApplicable(f"the model takes no embeddings alone: {problem}") from problem
    trial.agree_everywhere(found, wanted, "output from embeddings, against from tokens")
