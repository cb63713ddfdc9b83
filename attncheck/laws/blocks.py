"""Blocks of tokens, as those of an image, that see each other among causal ones."""

from __future__ import annotations

from attncheck.laws.masks import pairs
from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial, skip


@law("pairs", family="blocks", needs=claimed("blocks"), sweeps=True)
def both_ways(trial: Trial) -> None:
    """Tokens of one block see each other both ways, and nothing of a later block or of later tokens that are in none."""
    for length in (3, 7, 14, 22):
        changed = trial.but(
            blocks=True, causal=True, queries=length, keys=length, mask="none", magnitude=1.0, inputs="gaussian", bias=False, scale=None
        )
        if "block_ids" not in changed.options:
            raise skip("blocks do not go with this example")
        pairs(changed)
