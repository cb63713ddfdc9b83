"""Whole attention matrices in float64, written the obvious way: the twin that every clever path is held against."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Naive:
    """weights and scores [B, H, N, M] in float64, visible bool alike; rows that see nothing hold zeros."""

    weights: Tensor
    scores: Tensor
    visible: Tensor


def attention(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Naive:
    """softmax(mask + bias + cap(scale q k^T)) with a sink of logit sinks[h] that has no value. query [B, H, N, d], key [B, H_kv, M, d]."""
    batch, heads, rows, width = query.shape
    columns = key.shape[2]
    group = heads // key.shape[1]
    weights = torch.zeros(batch, heads, rows, columns, dtype=torch.float64)
    scores = torch.full_like(weights, -math.inf)
    shape = (batch, heads, rows, columns)
    hidden = torch.zeros(shape, dtype=torch.bool)
    added = torch.zeros(shape, dtype=torch.float64)
    if mask is not None and mask.dtype == torch.bool:
        hidden |= ~mask
    elif mask is not None:
        hidden |= mask.double() <= -9.9e3
        added += mask.double()
    if causal:
        hidden |= torch.arange(columns)[None, :] > torch.arange(rows)[:, None]
    if bias is not None:
        added += bias.double()
    for b in range(batch):
        for h in range(heads):
            score = query[b, h].double() @ key[b, h // group].double().T * (width**-0.5 if scale is None else scale)
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            score = (score + added[b, h]).masked_fill(hidden[b, h], -math.inf)
            scores[b, h] = score
            logits = score
            if sinks is not None:
                sink = sinks[h].expand(rows) if sinks.dim() == 1 else sinks[b, h]
                logits = torch.cat([logits, sink.double()[:, None]], 1)
            sees = ~hidden[b, h].all(-1)
            weights[b, h][sees] = torch.softmax(logits[sees], -1)[:, :columns]
    return Naive(weights, scores, ~hidden)


def entropy(weights: Tensor) -> Tensor:
    return -torch.where(weights > 0, weights * weights.clamp(min=1e-300).log(), 0.0).sum(-1)


def jacobian_square(rows: Tensor) -> Tensor:
    """|diag(p) - p p^T|_F^2 for rows [n, M], with the matrices written out."""
    return (torch.diag_embed(rows) - rows[:, :, None] * rows[:, None, :]).square().sum((1, 2))


def per_row(twin: Naive, query_positions: Tensor, key_positions: Tensor) -> dict[str, Tensor]:
    """Every row observable, [B, H, N]. Positions [B, N] and [B, M], negative on left padding."""
    a = twin.weights
    at_keys, at_queries = key_positions[:, None, None, :], query_positions[:, None, :, None]
    real = (at_keys >= 0).expand_as(a)
    found = {
        "attention.frobenius_norm": a.square().sum(-1),
        "attention.entropy": entropy(a),
        "attention.largest_weight": a.amax(-1),
        "logits.max": twin.scores.amax(-1),
        "attention.sink_mass": torch.where(at_keys == 0, a, 0.0).sum(-1),
        "attention.first_four_mass": torch.where(real & (at_keys < 4), a, 0.0).sum(-1),
        "attention.mean_distance": (a * (at_keys - at_queries).abs()).sum(-1),
        "attention.row_sum": a.sum(-1),
        "attention.future_mass": torch.where(at_keys > at_queries, a, 0.0).sum(-1),
        "attention.previous_token": torch.where(at_keys == at_queries - 1, a, 0.0).sum(-1),
    }
    heads = a.flatten(0, 1)
    found["attention.jacobian_norm"] = torch.stack([jacobian_square(rows) for rows in heads]).view(a.shape[:-1])
    found["attention.previous_token"] = torch.where(query_positions[:, None, :] >= 1, found["attention.previous_token"], torch.nan)
    return found


FOLDS = {
    "attention.frobenius_norm": "root_sum",
    "attention.jacobian_norm": "root_sum",
    "logits.max": "max",
    "attention.previous_token": "mean_where_known",
}


def folded(name: str, rows: Tensor, counts: Tensor) -> Tensor:
    """[B, H, N] to [B, H] over the queries that count, one number at a time."""
    how = FOLDS.get(name, "mean")
    out = torch.empty(rows.shape[:2], dtype=torch.float64)
    for b in range(rows.shape[0]):
        for h in range(rows.shape[1]):
            kept = rows[b, h][counts[b]]
            if how == "mean_where_known":
                kept = kept[~kept.isnan()]
            out[b, h] = (
                kept.sum().sqrt()
                if how == "root_sum"
                else (kept.max() if len(kept) else torch.tensor(torch.nan))
                if how == "max"
                else kept.mean()
            )
    return out
