"""`qkv:` queries, keys and values for an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attncheck.core.evidence import Feed
from attncheck.inputs.building import Building
from attncheck.inputs.hashing import content_hash
from attncheck.inputs.kinds import input_kind
from attncheck.inputs.randomness import random_state

if TYPE_CHECKING:
    import numpy as np

Distribution = Literal["normal", "outliers", "sink"]
DEFAULT_QUERIES = 64
OUTLIER_FACTOR = 20.0
SINK_SCORE = 12.0


@input_kind("qkv", files=lambda arguments, root: [])
def qkv(
    building: Building,
    *,
    distribution: Distribution,
    queries: int | None = None,
    keys: int | None = None,
    heads: int = 4,
    kv_heads: int | None = None,
    head_dim: int = 32,
    value_dim: int | None = None,
    seed: int = 0,
    scale: float = 1.0,
    causal: bool = False,
) -> Feed:
    """Queries [batch, heads, N, d], keys [batch, kv_heads, M, d] and values [batch, kv_heads, M, d_v], drawn from `seed`.

    normal: independent N(0, 1) entries. outliers: normal, with one channel in sixteen of the keys (at least one) 20 times larger, as
    the keys of trained models have them. sink: normal queries shifted along one direction and the first key laid along it, so that
    its score lies about 12 above the others'. `scale` multiplies queries and keys. N is `queries`, else `length`, else 64; M is
    `keys`, else N; `value_dim` is `head_dim`. `causal` passes is_causal; fewer kv_heads than heads pass enable_gqa. Padding hides keys by
    a boolean attn_mask.
    """
    import numpy as np

    if building.encoder is not None:
        raise building.error("qkv is for operators, and the subject is a model; feed it text, corpus, tokens or images")
    length = building.definition.length
    if queries is not None and length is not None and queries != length:
        raise building.error(f"queries {queries} and length {length} disagree; give one of them")
    n = queries or length or DEFAULT_QUERIES
    m = keys or n
    shared = kv_heads or heads
    d_v = value_dim or head_dim
    sizes = {"queries": n, "keys": m, "heads": heads, "kv_heads": shared, "head_dim": head_dim, "value_dim": d_v}
    for name, value in sizes.items():
        if value < 1:
            raise building.error(f"{name} {value}; allowed: a whole number from 1 on")
    if heads % shared:
        raise building.error(f"{heads} heads do not divide among {shared} kv_heads")
    rows = [
        _row(random_state(building, seed, row), distribution, n, m, heads, shared, head_dim, d_v, scale) for row in range(building.batch)
    ]
    arrays: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in ("query", "key", "value")}
    valid = None
    side, pads = building.pads()
    if any(pads):
        if max(pads) >= m:
            raise building.error(f"padding amount {max(pads)} leaves none of the {m} keys")
        if n != m:
            raise building.error(f"padding needs as many queries as keys; found {n} and {m}")
        seen = np.ones((building.batch, m), dtype=bool)
        for row, pad in enumerate(pads):
            seen[row, :pad] = side != "left" or pad == 0
            seen[row, m - pad :] = side == "left"
        arrays["attn_mask"] = np.broadcast_to(seen[:, None, None, :], (building.batch, 1, n, m)).copy()
        if causal:
            arrays["attn_mask"] &= np.tril(np.ones((n, m), dtype=bool))
        valid = building.tensor(seen)
    arguments: dict[str, Any] = {name: building.tensor(array) for name, array in arrays.items()}
    if causal and valid is None:
        arguments["is_causal"] = True
    if shared != heads:
        arguments["enable_gqa"] = True
    labels = [[str(position) for position in range(n)]] * building.batch
    flags = {"causal": np.array(causal)}
    return Feed(arguments=arguments, valid=valid, labels=labels, content_hash=content_hash(arrays | flags))


def _row(
    state: np.random.RandomState, distribution: Distribution, n: int, m: int, heads: int, kv_heads: int, d: int, d_v: int, scale: float
) -> dict[str, Any]:
    """One sample: the three arrays in float32, computed in float64."""
    import numpy as np

    query, key, value = (
        state.standard_normal((heads, n, d)),
        state.standard_normal((kv_heads, m, d)),
        state.standard_normal((kv_heads, m, d_v)),
    )
    if distribution == "outliers":
        channels = state.permutation(d)[: max(1, d // 16)]
        key[..., channels] *= OUTLIER_FACTOR
    elif distribution == "sink":
        direction = state.standard_normal(d)
        direction /= np.linalg.norm(direction)
        query += direction * np.sqrt(SINK_SCORE) * d**0.25
        key[:, 0] = direction * np.sqrt(SINK_SCORE) * d**0.25
    made = {"query": query * scale, "key": key * scale, "value": value}
    return {name: array.astype(np.float32) for name, array in made.items()}
