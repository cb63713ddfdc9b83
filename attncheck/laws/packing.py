"""Segments packed into one row do not know of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncheck.laws.masks import pairs
from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial, skip

if TYPE_CHECKING:
    from torch import Tensor


def _packed(trial: Trial, **changes: Any) -> Trial:
    keys = max(trial.example.keys, 9)
    found = trial.but(segments=True, queries=keys, keys=keys, **changes)
    if "segment_ids" not in found.options:
        raise skip("segments do not go with this example")
    return found


def _part(tensor: Tensor, row: int, at: slice) -> Tensor:
    return tensor[row : row + 1, ..., at, :]


@law("alone", family="packing", needs=claimed("segments"))
def alone(trial: Trial) -> None:
    """A segment packed behind others gives what it gives alone."""
    trial = _packed(trial, mask="none", bias=False, blocks=False, places=False)
    if trial.claims.rotary and trial.claims.positional != "relative":
        raise skip("claims.positional is not relative")
    for row in range(trial.query.shape[0]):
        ids = trial.options["segment_ids"][row]
        for segment in ids.unique().tolist():
            places = (ids == segment).nonzero()[:, 0]
            at = slice(int(places[0]), int(places[-1]) + 1)
            options = dict(trial.options)
            if "decay" in options:
                options["decay"] = options["decay"][row : row + 1, :, at]
            found = trial.call(
                *(_part(tensor, row, at) for tensor in (trial.query, trial.key, trial.value)), without=("segment_ids",), **options
            )
            trial.agree(
                _part(trial.output, row, at),
                found,
                2 * _part(trial.tolerance(), row, at),
                f"output of segment {segment} of row {row}, packed, against alone",
                rows=trial.rows()[row : row + 1, :, at],
            )


@law("beside_mask", family="packing", needs=claimed("segments", "mask"), sweeps=True)
def beside_mask(trial: Trial) -> None:
    """Segments are told apart whatever mask stands beside them: of ones, of padding, or any other."""
    for kind in trial.claims.mask or ():
        for pattern, shape in (("ones", "padding"), ("left", "padding"), ("random", "full")):
            options = {"mask": kind, "pattern": pattern, "mask_shape": shape, "magnitude": 1.0, "inputs": "gaussian", "scale": None}
            pairs(_packed(trial, causal=trial.claims.mask_with_causal == "allowed", bias=False, **options))
