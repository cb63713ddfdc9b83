"""Random inputs that stay the same across versions of the libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from attncheck.inputs.building import Building


def random_state(building: Building, seed: int, row: int) -> np.random.RandomState:
    """NumPy's frozen legacy generator, one stream a row: unlike torch's and Generator's, its draws are promised never to change."""
    import numpy as np

    if not 0 <= seed < 2**32:
        raise building.error(f"seed {seed}; allowed: 0 to {2**32 - 1}")
    return np.random.RandomState(np.array([seed, row], dtype=np.uint32))
