"""Sliding windows: how many keys, at the edges, and off."""

from __future__ import annotations

from attncheck.laws.masks import pairs
from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial


@law("edges", family="window", needs=claimed("window"), sweeps=True)
def edges(trial: Trial) -> None:
    """A window of w holds exactly w keys, itself included, if causal, and |i−j| < w otherwise, in inputs of w−1, w, w+1 and more."""
    claims = trial.claims
    width = claims.window if isinstance(claims.window, int) else (trial.example.window or 5)
    for length in (width - 1, width, width + 1, 2 * width + 3):
        if length < 1 or length > 260:
            continue
        for causal in (True, False):
            window = width if claims.window == "argument" else None
            pairs(
                trial.but(
                    queries=length,
                    keys=length,
                    causal=causal,
                    window=window,
                    mask="none",
                    magnitude=1.0,
                    inputs="gaussian",
                    bias=False,
                    scale=None,
                )
            )


@law("off", family="window", needs=claimed("window=argument"), sweeps=True)
def off(trial: Trial) -> None:
    """Without a window, or with one as long as the input, every key that causality allows is read."""
    for window in (None, trial.example.keys + trial.example.queries):
        pairs(trial.but(window=window, mask="none", magnitude=1.0, inputs="gaussian", bias=False, scale=None))
