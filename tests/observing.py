"""Observe a model and keep, beside what the session measured, the naive twin of every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import naive
import torch
from torch import Tensor

from attncheck.capture.observe import observe
from attncheck.core.definitions import Request
from attncheck.core.evidence import AttentionCall
from attncheck.core.observable import OBSERVABLES
from attncheck.engine.vocabulary import vocabulary
from attncheck.instruments.context import identity_weights
from attncheck.instruments.session import Session, Wanted

ROWS = (
    "attention.frobenius_norm",
    "attention.jacobian_norm",
    "attention.entropy",
    "attention.largest_weight",
    "attention.sink_mass",
    "attention.first_four_mass",
    "attention.mean_distance",
    "attention.previous_token",
    "logits.max",
    "attention.row_sum",
    "attention.future_mass",
)
PROBES = ("attention.row_sum", "attention.future_mass", "attention.padding_mass", "attention.outside_window_mass", "kernel.error")


def wanted(*requests: str | tuple[str, Mapping[str, Any]]) -> list[Wanted]:
    vocabulary()
    made = []
    for request in requests:
        name, arguments = (request, {}) if isinstance(request, str) else request
        entry = OBSERVABLES[name]
        made.append(Wanted(Request.of(name, entry.arguments(**arguments).model_dump(mode="json")), entry))
    return made


@dataclass
class Seen:
    """One call as the test sees it."""

    call: AttentionCall
    twin: naive.Naive | None
    through_kernel: Tensor | None
    """[B, H, N, M] in float64, from identity values."""
    values: dict[str, Any] = field(default_factory=dict)
    """Name of an observable -> numpy [B, H, ...]."""
    whole: dict[str, Any] = field(default_factory=dict)
    symbols: dict[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    output: Any
    session: Session
    observation: Any
    calls: list[Seen]


def run(
    model: torch.nn.Module,
    arguments: Mapping[str, Any],
    names: Sequence[str | tuple[str, Mapping[str, Any]]] = ROWS,
    *,
    kernel: bool = True,
    attention_layers: int | None = None,
    faults: bool = False,
    **session_options: Any,
) -> Run:
    """Observe one forward. Raises the first fault unless `faults`."""
    session = Session(wanted(*names), **session_options)
    calls: list[Seen] = []

    def on_call(call: AttentionCall) -> None:
        session.on_call(call)
        weights = identity_weights(call).double() if kernel and call.replay is not None else None
        calls.append(Seen(call, twin_of(call), weights))

    batch = next(int(v.shape[0]) for v in arguments.values() if isinstance(v, Tensor))
    output, observation = observe(model, arguments, on_call, batch=batch, attention_layers=attention_layers)
    if session.faults and not faults:
        raise next(iter(session.faults.values()))
    for seen, layer in zip(calls, session.layers, strict=True):
        seen.whole = {Request(key.partition("{")[0]).name: value for key, value in layer.values.items()}
        seen.values = {name: value.value for name, value in seen.whole.items()}
        seen.symbols = {name: value.value for name, value in layer.symbols.items()}
    return Run(output, session, observation, calls)


def twin_of(call: AttentionCall) -> naive.Naive | None:
    """From query and key; from the softmax's own input where only that is known."""
    if call.query.shape[-1]:
        return naive.attention(
            call.query,
            call.key,
            mask=call.mask,
            causal=call.is_causal,
            scale=call.scale,
            softcap=call.softcap,
            bias=call.bias,
            sinks=call.sinks,
        )
    if call.scores is None:
        return None
    scores = call.scores.double()
    visible = scores > -9.9e3
    weights = torch.where(visible.any(-1, keepdim=True), torch.softmax(scores, -1), 0.0)
    return naive.Naive(weights, scores.masked_fill(~visible, -torch.inf), visible)


def positions(valid: Tensor | None, batch: int, length: int) -> Tensor:
    """[B, length]: slots less the pads in front."""
    at = torch.arange(length)[None].expand(batch, -1)
    return at if valid is None else at - valid.int().argmax(-1)[:, None]


def check_rows(
    seen: Seen, names: Sequence[str], valid: Tensor | None = None, *, valid_keys: Tensor | None = None, atol: float = 3e-6
) -> None:
    """Every named observable of a call against its twin, folded over the queries that count."""
    twin, call = seen.twin, seen.call
    assert twin is not None
    batch, _, rows, columns = twin.weights.shape
    valid_keys = valid if valid_keys is None and call.stack != "cross" else valid_keys
    counts = twin.visible.any(-1).any(1) & (torch.ones(batch, rows, dtype=torch.bool) if valid is None else valid)
    at_queries, at_keys = positions(valid, batch, rows), positions(valid_keys, batch, columns)
    if valid_keys is not None:
        at_keys = torch.where(valid_keys | (at_keys < 0), at_keys, at_keys)  # right padding keeps its later positions
    expected = naive.per_row(twin, at_queries, at_keys)
    for name in names:
        want = naive.folded(name, expected[name], counts)
        found = torch.from_numpy(seen.values[name]).double()
        scale = max(1.0, float(want.abs().nan_to_num().max()))
        assert torch.allclose(found, want, atol=atol * scale, rtol=0, equal_nan=True), (
            f"{name} at {call.path} ({call.implementation}): off by {(found - want).abs().max():.3g}"
        )
