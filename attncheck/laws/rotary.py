"""Rotary positions inside an operator: only differences enter, channels turn in the claimed pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.laws import rotation
from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial, skip

if TYPE_CHECKING:
    from torch import Tensor


def _told(trial: Trial) -> tuple[Trial, Tensor]:
    """The example with positions of its own, [batch, N, axes]."""
    trial = trial.but(places=True)
    places: Tensor = trial.options["position_ids"]
    return trial, places[..., None] if places.ndim == 2 else places


def _given(trial: Trial, places: Tensor) -> Tensor:
    return places if (trial.claims.rotary_axes or 1) > 1 else places[..., 0]


@law("shift", family="rotary", needs=claimed("rotary"))
def shift(trial: Trial) -> None:
    """The same number added to all positions along one axis changes nothing."""
    trial, places = _told(trial)
    for axis in range(places.shape[-1]):
        for step in (1, 40):
            moved = places.clone()
            moved[..., axis] += step
            limit = (2 + step / 8) * trial.tolerance()
            trial.agree(
                trial.call(position_ids=_given(trial, moved)), trial.output, limit, f"output with positions of axis {axis} moved by {step}"
            )


@law("one_place", family="rotary", needs=claimed("rotary"))
def one_place(trial: Trial) -> None:
    """Where all tokens have one position nothing is turned against anything: channels of query and key in another order give the same."""
    import torch

    trial, places = _told(trial)
    where = _given(trial, torch.full_like(places, 7))
    order = torch.randperm(trial.query.shape[-1], generator=trial.generator)
    trial.agree(
        trial.call(trial.query[..., order], trial.key[..., order], position_ids=where),
        trial.call(position_ids=where),
        4 * trial.tolerance(),
        "output at one position for all tokens, of queries and keys with channels in another order",
    )


@law("used", family="rotary", needs=claimed("rotary"))
def used(trial: Trial) -> None:
    """Positions that are given are used: a gap along any axis changes the output."""
    trial, places = _told(trial.but(magnitude=5.0, inputs="gaussian", mask="none", scale=None, segments=False))
    if trial.key.shape[-2] < 4 or not bool(trial.visible.any(-1).all()) or trial.example.window:
        raise skip("needs four tokens and no window")
    for axis in range(places.shape[-1]):
        other = places.clone()
        other[:, places.shape[1] // 2 :, axis] += 2
        moved = (trial.call(position_ids=_given(trial, other)) - trial.output).double().abs()
        if not bool((moved > trial.tolerance()).any()):
            raise LawViolation(f"a gap of 2 along axis {axis} changes nothing")


@law("pairs", family="rotary", needs=claimed("rotary"))
def in_pairs(trial: Trial) -> None:
    """A query of one channel meets those of a key that turn together with it, as claimed, and no other: what stands in them changes
    nothing."""
    import torch

    trial, _ = _told(trial.but(magnitude=1.0, inputs="gaussian", scale=None))
    width = trial.query.shape[-1]
    if trial.claims.qk_norm or width < 4:
        raise skip("a norm joins the channels, or there is one pair")
    for first, second in rotation.pairs(width, trial.claims.rotary_axes or 1, trial.claims.rotary or "half"):
        query, key = torch.zeros_like(trial.query), trial.key.clone()
        query[..., first] = 3.0
        other = torch.full_like(key, 7.0)
        other[..., [first, second]] = key[..., [first, second]]
        trial.agree(
            trial.call(query, other),
            trial.call(query, key),
            8 * trial.tolerance(),
            f"output of queries in channel {first} alone after keys changed in all channels but {first} and {second}",
        )
