"""Heads do not know of each other, and grouped heads are repeated ones."""

from __future__ import annotations

from attncheck.core.claims import OperatorClaims
from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial, skip


def _alike(claims: OperatorClaims) -> str | None:
    return "claims.position_bias is alibi, which tells heads apart" if claims.position_bias == "alibi" else None


def _apart(claims: OperatorClaims) -> str | None:
    return "claims.qk_norm is width, which joins heads" if claims.qk_norm == "width" else None


@law("independence", family="heads", needs=_apart)
def independence(trial: Trial) -> None:
    """Changing one head's keys and values changes only the query heads that read them."""
    if trial.key.shape[1] < 2:
        raise skip("one head")
    group = trial.query.shape[1] // trial.key.shape[1]
    key, value = trial.key.clone(), trial.value.clone()
    key[:, -1], value[:, -1] = key[:, -1] * -0.5 + 1, value[:, -1] + 50
    found = trial.call(key=key, value=value)
    trial.agree(
        found[:, :-group],
        trial.output[:, :-group],
        2 * trial.tolerance()[:, :-group],
        "output of other heads after the last key head changed",
        rows=trial.rows()[:, :-group],
    )
    rows = trial.rows()[:, -group:]
    moved = (found - trial.output)[:, -group:].abs().amax(-1)
    if trial.claims.normalised and trial.options.get("sinks") is None and bool((rows & ~(moved > 1)).any()):
        trial.agree(moved[..., None], moved[..., None] * 0 + 50, 49.0, "move of the heads that read the changed head", rows=rows)


@law("permutation", family="heads", needs=_alike)
def permutation(trial: Trial) -> None:
    """Heads in another order give the same outputs in that order."""
    import torch

    kv = trial.key.shape[1]
    if kv < 2:
        raise skip("one key head")
    group = trial.query.shape[1] // kv
    order = torch.arange(kv).roll(1)
    queries = (order[:, None] * group + torch.arange(group)).flatten()
    options = dict(trial.options)
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
        options["attn_mask"] = mask[:, queries]
    for name in ("sinks", "position_bias"):
        if options.get(name) is not None:
            options[name] = options[name][queries]
    if options.get("decay") is not None:
        options["decay"] = options["decay"][:, queries]
    found = trial.call(trial.query[:, queries], trial.key[:, order], trial.value[:, order], **options)
    trial.agree(
        found, trial.output[:, queries], 2 * trial.tolerance()[:, queries], "output of permuted heads", rows=trial.rows()[:, queries]
    )


@law("grouped_is_repeated", family="heads", needs=claimed("gqa"))
def grouped_is_repeated(trial: Trial) -> None:
    """Grouped key heads give what the same heads give when each is repeated for its queries, one after the other."""
    if trial.query.shape[1] == trial.key.shape[1]:
        trial = trial.but(heads=6, kv_heads=3)
    group = trial.query.shape[1] // trial.key.shape[1]
    key, value = trial.key.repeat_interleave(group, 1), trial.value.repeat_interleave(group, 1)
    found = trial.call(key=key, value=value, without=("enable_gqa",))
    trial.agree(trial.output, found, 2 * trial.tolerance(), "output of grouped heads, against repeated ones")
