"""Causality, where the triangle is anchored, and prefill in one piece or in many."""

from __future__ import annotations

from attncheck.laws.masks import pairs
from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial, skip


def _causal(trial: Trial, **changes: object) -> Trial:
    changed = trial.but(
        **{"causal": True, "mask": "none", "magnitude": 1.0, "inputs": "gaussian", "scale": None, "blocks": False, **changes}
    )
    if changed.claims.causal == "flag" and not changed.options.get("is_causal"):
        raise skip("is_causal does not go with this example")
    return changed


@law("future", family="causal", needs=claimed("causal"))
def future(trial: Trial) -> None:
    """Later keys, values and queries change nothing of earlier outputs."""
    trial = _causal(trial, mask=trial.example.mask, magnitude=trial.example.magnitude, inputs=trial.example.inputs)
    N, M = trial.query.shape[-2], trial.key.shape[-2]
    if N < 2 or N != M:
        raise skip("one query, or N ≠ M")
    cut = N // 2
    query, key, value = trial.query.clone(), trial.key.clone(), trial.value.clone()
    query[..., cut:, :] *= -2
    key[..., cut:, :] = key[..., cut:, :] * 5 + 3
    value[..., cut:, :] += 1e3
    found = trial.call(query, key, value)[..., :cut, :]
    trial.agree(
        found,
        trial.output[..., :cut, :],
        trial.tolerance()[..., :cut, :],
        f"output of queries below {cut} after later tokens changed",
        rows=trial.rows()[..., :cut],
    )


@law("flag_off", family="causal", needs=claimed("causal=flag"), sweeps=True)
def flag_off(trial: Trial) -> None:
    """Without the flag every query reads every key."""
    pairs(trial.but(causal=False, mask="none", magnitude=1.0, inputs="gaussian", window=None, scale=None, bias=False, segments=False))


@law("alignment", family="causal", needs=claimed("causal", "alignment"), sweeps=True)
def alignment(trial: Trial) -> None:
    """With more keys than queries, or fewer, the causal triangle is anchored in the claimed corner."""
    for queries, keys in ((3, 11), (1, 9), (11, 3), (5, 6)):
        pairs(_causal(trial, queries=queries, keys=keys, window=None, bias=False))


@law("chunked_prefill", family="causal", needs=claimed("causal", "normalised", "alignment=bottom_right"), sweeps=True)
def chunked_prefill(trial: Trial) -> None:
    """Prefill in chunks of 1, 2 and 5 against the keys so far gives what one prefill gives."""
    length = max(6, min(trial.example.queries, 20))
    trial = _causal(trial, queries=length, keys=length, segments=False, decay=False)
    if trial.claims.rotary:
        raise skip("claims.rotary takes as many queries as keys")
    for chunk in (1, 2, 5):
        for start in range(0, length, chunk):
            stop = min(start + chunk, length)
            options = dict(trial.options)
            if options.get("position_bias") is not None:
                options["position_bias"] = options["position_bias"][:, start:stop, :stop]
            found = trial.call(trial.query[..., start:stop, :], trial.key[..., :stop, :], trial.value[..., :stop, :], **options)
            trial.agree(
                found,
                trial.output[..., start:stop, :],
                2 * trial.tolerance()[..., start:stop, :],
                f"queries {start}..{stop - 1} of a prefill in chunks of {chunk}, against one prefill",
                rows=trial.rows()[..., start:stop],
            )


@law("decode_from_buffer", family="causal", needs=claimed("causal=flag", "mask", "normalised"), sweeps=True)
def decode_from_buffer(trial: Trial) -> None:
    """One query with a mask of the slots that are filled gives what it gives against those slots alone, whatever the others hold."""
    import torch

    M = max(4, min(trial.example.keys, 40))
    trial = trial.but(queries=1, keys=M, mask="none", causal=False, window=None, bias=False, magnitude=1.0)
    if trial.example.keys != M or trial.example.queries != 1:
        raise skip("claims.alignment is not claimed")
    if trial.claims.position_bias == "alibi" or isinstance(trial.claims.window, int):
        raise skip("the last position moves with the buffer's length")
    for filled in (1, M // 2 + 1, M - 1):
        keep = torch.arange(M) < filled
        for kind in trial.claims.mask or ():
            if kind == "bool":
                mask = (keep if trial.claims.mask_polarity == "keep" else ~keep)[None]
            else:
                mask = torch.zeros(1, M, dtype=trial.query.dtype).masked_fill(~keep, -torch.inf)
            key = trial.key.masked_fill(~keep[:, None], 1e4)
            value = trial.value.masked_fill(~keep[:, None], 1e4)
            found = trial.call(key=key, value=value, attn_mask=mask)
            wanted = trial.call(key=trial.key[..., :filled, :], value=trial.value[..., :filled, :])
            trial.agree(found, wanted, 2 * trial.tolerance(), f"one query over {filled} filled slots of {M}, against those slots alone")


@law("mask_and_flag", family="causal", needs=claimed("causal", "mask", "mask_with_causal=allowed"), sweeps=True)
def mask_and_flag(trial: Trial) -> None:
    """A mask that is given beside causality is combined with it: both hide."""
    for pattern in ("left", "random"):
        for kind in trial.claims.mask or ():
            changed = trial.but(
                causal=True,
                mask=kind,
                pattern=pattern,
                mask_shape="padding" if pattern == "left" else "full",
                magnitude=1.0,
                scale=None,
                inputs="gaussian",
                bias=False,
            )
            pairs(changed)
