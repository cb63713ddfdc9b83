"""How an observable is written down: one decorated function per name.

    @observable("attention.entropy", reads="rows", dims=("sample", "layer", "head"), unit="nats", over_queries="mean")
    def entropy(tile: Tile) -> Tensor:
        '''Mean Shannon entropy of the attention rows. ...'''

What the function is given and returns depends on `reads`:

- "rows":    (tile, **arguments) -> [rows], one number per query row of an instruments.rows.Tile. The instrument puts the rows
             together and folds them over the queries that count by `over_queries` (mean, max, min, sum, root_sum; mean_where_known
             leaves NaN rows out); the argument `per: query` keeps them (dims gain "query").
- "columns": (tile, **arguments) -> [M] sum over the tile's counted rows (use tile.scatter), or ([M] sum, number of rows that went in)
             where only some rows are meant. The instrument adds the tiles up and divides by the rows; `finish(means, context,
             **arguments)`, where given, gets the means as [B, H, M] and returns them as they shall be, NaN where a key is left out.
             Dims end in "key".
- "probe":   (probe, **arguments) -> [batch, heads, N], from an instruments.probes.Probe: what the model's own kernel made of
             fixed value columns. `packs(**arguments)` says which columns it needs beyond ones, first keys and random signs, as fields
             of an instruments.probes.ProbeRequest. `over_queries` and `per` as for rows.
- "call":    (context, **arguments) -> CallValue, from an instruments.context.CallContext (query, key, value, rotary, rows on demand).
- "weights": (layer, **arguments) -> WeightValue | float | array, from a LayerWeights, no forward pass. With `whole_model=True` the
             function gets the list of all LayerWeights and returns one value per layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from attncheck.core.definitions import Request
from attncheck.core.registry import Entry, Registry

Reads = Literal["rows", "columns", "probe", "call", "weights", "hidden", "log"]
OverQueries = Literal["mean", "max", "min", "sum", "root_sum", "mean_where_known"]
F = TypeVar("F", bound=Callable[..., Any])

OBSERVABLES: Registry[Entry] = Registry("observable")


@dataclass
class Value:
    """One layer's worth of an observable; numpy arrays or floats over `dims` (without layer)."""

    value: Any
    dims: Sequence[str] = ()
    stderr: Any = None
    lower: Any = None
    upper: Any = None
    present: Any = None
    """False where there is no such place (a padding query), so that its NaN is no fault; None where every place exists."""
    coords: Mapping[str, tuple[Sequence[str], Any]] = field(default_factory=dict)
    """Extra coordinates by name: (dims, values); also companions such as r_squared or the null beside alpha."""
    notes: Sequence[str] = ()


def observable(
    name: str,
    *,
    reads: Reads,
    dims: Sequence[str],
    unit: str = "",
    source: str = "",
    over_queries: OverQueries | None = None,
    whole_model: bool = False,
    whole_head: bool = False,
    finish: Callable[..., Any] | None = None,
    packs: Callable[..., Mapping[str, Any]] | None = None,
    finer: Callable[..., Request | None] | None = None,
) -> Callable[[F], F]:
    """Register an observable. Its docstring's first sentence is what `attncheck explain` prints; formula, shapes and source follow.

    `whole_head`: needs all rows of a head at once (an SVD), so it is priced apart and refused for long inputs. `finer(**arguments)`: of
    one that gives intervals, what decides where they do not, or None where nothing finer is to be had.
    """

    def register(function: F) -> F:
        extra: dict[str, Any] = {}
        if over_queries is not None:
            extra["per"] = (Literal["head", "query"], "head")
        OBSERVABLES.add(
            Entry(
                name,
                function,
                {
                    "reads": reads,
                    "dims": tuple(dims),
                    "unit": unit,
                    "source": source,
                    "over_queries": over_queries,
                    "whole_model": whole_model,
                    "whole_head": whole_head,
                    "finish": finish,
                    "packs": packs,
                    "finer": finer,
                    "extra_parameters": extra,
                },
            )
        )
        return function

    return register
