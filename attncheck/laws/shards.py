"""An operator computed on several ranks is the operator."""

from __future__ import annotations

from attncheck.laws.registry import claimed, law
from attncheck.laws.trial import Trial, skip

HEADS = ((8, 2), (6, 6), (6, 3), (7, 7), (5, 1))
"""Head counts: powers of two and others, grouped and not, some that few numbers divide."""


def numbers(heads: int, kv_heads: int, claim: str) -> list[int]:
    """Numbers of ranks that a claim allows, from 2 on."""
    if claim == "any":
        return list(range(2, heads + 1))
    return [n for n in range(2, heads + 1) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]


@law("ranks", family="shards", needs=claimed("shards"), sweeps=True)
def ranks(trial: Trial) -> None:
    """On any claimed number of ranks, more than there are key heads and uneven ones with them, the output is that of one."""
    tried = 0
    for heads, kv_heads in (*HEADS, (trial.example.heads, trial.example.kv_heads)):
        changed = trial.but(heads=heads, kv_heads=kv_heads if trial.claims.gqa else heads)
        for count in numbers(changed.example.heads, changed.example.kv_heads, trial.claims.shards or "even"):
            tried += 1
            changed.agree(
                changed.call(ranks=count),
                changed.output,
                4 * changed.tolerance(),
                f"output of {changed.example.heads} query and {changed.example.kv_heads} key heads on {count} ranks, against one",
                then=f"print((operator(q, k, v, **options, ranks={count}) - out).abs().max())",
            )
    if not tried:
        raise skip("no number of ranks goes with these heads")


@law("gradients", family="shards", needs=claimed("shards", "differentiable"), sweeps=True)
def gradients(trial: Trial) -> None:
    """On several ranks the gradients are those of one."""
    import torch

    changed = trial.but(heads=6, kv_heads=3 if trial.claims.gqa else 6, magnitude=1.0, inputs="gaussian", layout="contiguous")
    if not bool(changed.rows().all()):
        raise skip("rows are empty")
    weight = torch.randn(changed.output.shape, generator=changed.generator)
    found = []
    for count in (1, 3):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (changed.query, changed.key, changed.value)]
        output = changed.call(*leaves, ranks=count)
        found.append(torch.autograd.grad((output * weight).sum(), leaves))
    for name, one, several in zip(("query", "key", "value"), *found, strict=True):
        every = torch.ones(one.shape[:-1], dtype=torch.bool)
        limit = 1e-4 * float(one.abs().max()) + 1e-6
        changed.agree(several, one, limit, f"gradient of {name} on 3 ranks, against one", rows=every)
