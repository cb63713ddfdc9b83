"""Decay, as of a forget gate: between key and query, by what lies between them, and not by padding."""

from __future__ import annotations

from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial, skip


@law("none", family="decay", needs=claimed("decay"))
def none(trial: Trial) -> None:
    """A decay of 0 everywhere is none."""
    import torch

    trial = trial.but(decay=True, mask="none")
    zero = torch.zeros(*trial.query.shape[:2], trial.key.shape[-2], dtype=trial.query.dtype)
    found, wanted = trial.call(decay=zero), trial.call(without=("decay",))
    trial.agree(found, wanted, 2 * trial.tolerance(), "output with a decay of 0, against without")


@law("first_step", family="decay", needs=claimed("decay"))
def first_step(trial: Trial) -> None:
    """The first token's decay acts on nothing, since there is no key before it."""
    trial = trial.but(decay=True, mask="none")
    decay = trial.options["decay"].clone()
    decay[..., 0] -= 5
    trial.agree(trial.call(decay=decay), trial.output, 2 * trial.tolerance(), "output after the first token's decay changed")


@law("padding", family="decay", needs=claimed("decay", "mask=bool"))
def padding(trial: Trial) -> None:
    """Tokens that a mask of padding hides, also between others, can be taken out, and the others give the same."""
    import torch

    # position_bias and window tell places apart, segments may be hidden as a whole
    trial = trial.but(decay=True, mask="bool", mask_shape="padding", pattern="random", window=None, bias=False, segments=False)
    if "decay" not in trial.options or "attn_mask" not in trial.options:
        raise skip("decay and a mask do not go together")
    if trial.claims.rotary or trial.claims.position_bias == "alibi" or isinstance(trial.claims.window, int):
        raise skip("taking tokens out moves positions")
    mask = trial.options["attn_mask"]
    keep = mask[:, 0, 0] if trial.claims.mask_polarity == "keep" else ~mask[:, 0, 0]
    for row in range(trial.query.shape[0]):
        at = keep[row].nonzero()[:, 0]
        part = slice(row, row + 1)
        inputs = (tensor[part][..., at, :] for tensor in (trial.query, trial.key, trial.value))
        found = trial.call(*inputs, without=("attn_mask",), decay=trial.options["decay"][part][..., at])
        limit = (2 * trial.tolerance())[part][..., at, :]
        every = torch.ones(found.shape[:-1], dtype=torch.bool)
        trial.agree(trial.output[part][..., at, :], found, limit, f"output of row {row} with hidden tokens, against without", rows=every)
