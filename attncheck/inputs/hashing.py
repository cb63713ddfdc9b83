"""A hash of what is fed, the same on every device and in every dtype."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def content_hash(arrays: Mapping[str, Any]) -> str:
    """SHA-256 over names, shapes, dtypes and bytes (little-endian) of NumPy arrays, in the order of their names; 16 digits."""
    import numpy as np

    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
