"""Lengths, widths, strides: none of them changes what is computed."""

from __future__ import annotations

from collections.abc import Callable

from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial

LENGTHS = ((1, 1), (2, 2), (1, 64), (3, 65), (31, 33), (63, 63), (64, 64), (65, 65), (127, 129), (130, 1))


@law("lengths", family="shapes", needs=claimed("reference"), sweeps=True)
def lengths(trial: Trial) -> None:
    """Lengths of 1 and 2, around powers of two and around usual block sizes give what the formula gives."""
    for queries, keys in LENGTHS:
        small = trial.but(queries=queries, keys=keys, batch=min(trial.example.batch, 2), layout="contiguous")
        small.agree(small.output, small.expected.output, small.tolerance(), f"output at {queries} queries and {small.example.keys} keys")


@law("long", family="shapes", needs=claimed("normalised"), sweeps=True)
def long(trial: Trial) -> None:
    """In inputs of 513 and 1,025 tokens too, a normalised attention gives the value that all keys share, in each row that sees one."""
    import torch

    for tokens in (513, 1025):
        sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "width": 4, "value_width": 2, "mask": "none", "bias": False, "sinks": False}
        changed = trial.but(queries=tokens, keys=tokens, layout="contiguous", magnitude=1.0, **sizes)
        found = changed.call(value=torch.full_like(changed.value, 1 / 3))
        # a plain sum of so many terms may be off by a share of a unit for each
        limit = changed.tolerance(0.0, torch.ones_like(changed.value)) + torch.finfo(changed.query.dtype).eps * tokens / 4
        changed.agree(found, torch.full_like(found, 1 / 3), limit, f"output of {tokens} tokens with equal values")


@law("widths", family="shapes", needs=claimed("reference"), sweeps=True)
def widths(trial: Trial) -> None:
    """Odd head sizes, values wider or narrower than keys, and 1, 3 and 7 heads give what the formula gives."""
    for heads, width, value_width in ((3, 1, 3), (7, 3, 2), (1, 80, 12), (3, 9, 17)):
        changed = trial.but(heads=heads, kv_heads=heads, width=width, value_width=value_width, layout="contiguous")
        changed.agree(
            changed.output, changed.expected.output, changed.tolerance(), f"output of {heads} heads, d={width}, d_v={value_width}"
        )


@law("value_columns", family="shapes")
def value_columns(trial: Trial) -> None:
    """The output has the values' width, and each of its columns depends on that column of the values alone."""
    import torch

    narrow = trial.call(value=trial.value[..., :1].contiguous())
    wide = trial.call(value=torch.cat([trial.value, trial.value, trial.value[..., :1]], -1))
    for found, name in ((narrow, "alone"), (wide[..., :1], "in wider values"), (wide[..., -1:], "at the end of wider values")):
        trial.agree(found, trial.output[..., :1], 2 * trial.tolerance(), f"output's first column, {name}")


@law("strides", family="shapes", sweeps=True)
def strides(trial: Trial) -> None:
    """Transposed, sliced and strided views give what their contiguous copies give."""
    import torch

    q, k, v = (tensor.contiguous() for tensor in (trial.query, trial.key, trial.value))
    wanted = trial.call(q, k, v)
    limit = 2 * trial.tolerance()

    def sliced(t: torch.Tensor) -> torch.Tensor:
        return t.repeat_interleave(2, -2)[..., ::2, :]

    views: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "as they are": lambda t: t,
        "transposed from [batch, length, heads, d]": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
        "with the width's stride not 1": lambda t: t.mT.contiguous().mT,
        "every other position of a longer tensor": sliced,
        "part of a fused tensor": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    }
    for name, view in views.items():
        found = trial.call(view(trial.query), view(trial.key), view(trial.value))
        trial.agree(found, wanted, limit, f"output of inputs {name}, against contiguous copies")


@law("broadcast", family="shapes")
def broadcast(trial: Trial) -> None:
    """Keys and values that are one head, expanded by a stride of 0, give what their copies give."""
    for keys in (trial.example.keys, 33):
        changed = trial.but(layout="expanded", keys=keys)
        found = changed.call(key=changed.key.contiguous(), value=changed.value.contiguous())
        changed.agree(changed.output, found, 2 * changed.tolerance(), f"output of expanded inputs at {keys} keys, against copies")


@law("inputs_unchanged", family="shapes")
def inputs_unchanged(trial: Trial) -> None:
    """The operator writes into none of its inputs."""
    import torch

    given = [trial.query.clone(), trial.key.clone(), trial.value.clone()]
    mask = trial.options.get("attn_mask")
    kept = [tensor.clone() for tensor in given] + ([mask.clone()] if mask is not None else [])
    after = [*given]
    options = {}
    if mask is not None:
        options["attn_mask"] = mask.clone()
        after.append(options["attn_mask"])
    trial.call(*given, **options)
    for name, before, now in zip(("query", "key", "value", "attn_mask"), kept, after, strict=False):
        if not torch.equal(before, now):
            raise LawViolation(f"{name} was written into", f"print({name[0] if name != 'attn_mask' else 'options'})")
