"""What is returned beside the output: weights that were applied, log-sum-exps that are true and merge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attncheck.core.claims import OperatorClaims
from attncheck.laws.registry import LawViolation, claimed, law
from attncheck.laws.trial import Trial, accepts, skip

if TYPE_CHECKING:
    from torch import Tensor

EXTRAS = ("return_lse", "return_weights", "need_weights", "output_attentions")
"""Keywords by which operators are asked for more than their output."""

_LSE = claimed("returns=output+lse")


def _pair(trial: Trial, *tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    import torch

    inputs = tensors or (trial.query, trial.key, trial.value)
    kind = "lse" in trial.claims.returns
    asked = {name: True for name in EXTRAS if accepts(trial.operator, name) and ("lse" in name) is kind}
    found = trial.returned(*inputs, **{**trial.options, **asked, **options})
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], torch.Tensor)):
        what = f"({', '.join(type(part).__name__ for part in found)})" if isinstance(found, tuple) else type(found).__name__
        raise LawViolation(f"the operator returned {what}, though claims.returns is {trial.claims.returns}", "print(out)")
    return found[0], found[1]


def _lse(trial: Trial, *tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output, lse = _pair(trial, *tensors, **options)
    if tuple(lse.shape) != tuple(output.shape[:-1]):
        raise LawViolation(f"the log-sum-exp has shape {list(lse.shape)}, not {list(output.shape[:-1])}", "print(out[1].shape)")
    return output, lse


@law("log_sum_exp", family="returns", needs=lambda claims: _LSE(claims) or claimed("lse", "reference")(claims))
def log_sum_exp(trial: Trial) -> None:
    """The returned log-sum-exp is that of the scores, in the claimed base."""
    _, lse = _lse(trial)
    wanted = trial.expected.lse / (math.log(2) if trial.claims.lse == "base2" else 1.0)
    limit = 1e-6 * (8 + 4 * trial.expected.sharpness)
    trial.agree(lse[..., None], wanted[..., None], limit, "returned log-sum-exp")


@law("splits_merge", family="returns", needs=lambda claims: _LSE(claims) or claimed("lse", "normalised")(claims), sweeps=True)
def splits_merge(trial: Trial) -> None:
    """Attention over parts of the keys, merged by log-sum-exp, is attention over all, for 2 and 3 parts."""
    import torch

    trial = trial.but(causal=False, mask="none", window=None, sinks=False, segments=False)
    if trial.claims.rotary:
        raise skip("claims.rotary takes as many queries as keys")
    M = trial.key.shape[-2]
    if M < 3 or trial.claims.causal is True or trial.example.bias or trial.claims.window == 1 or not bool(trial.visible.all()):
        raise skip("parts of the keys cannot be attended alone")
    base = 2.0 if trial.claims.lse == "base2" else math.e
    for parts in (2, 3):
        outputs, sums = [], []
        for key, value in zip(trial.key.tensor_split(parts, -2), trial.value.tensor_split(parts, -2), strict=True):
            output, lse = _lse(trial, trial.query, key, value)
            outputs.append(output.double())
            sums.append(lse.double() * math.log(base))
        share = torch.stack(sums).softmax(0)[..., None]
        limit = 2 * trial.tolerance() + 1e-6 * trial.expected.sharpness * float(trial.value.abs().max())
        trial.agree((share * torch.stack(outputs)).sum(0), trial.output, limit, f"{parts} parts merged by log-sum-exp")


@law("weights_reproduce", family="returns", needs=claimed("returns=output+weights"))
def weights_reproduce(trial: Trial) -> None:
    """The returned weights times the values are the output."""
    output, weights = _pair(trial)
    group = trial.query.shape[1] // trial.value.shape[1]
    shape = (*trial.query.shape[:-1], trial.key.shape[-2])
    if tuple(weights.shape) != shape:
        raise LawViolation(f"the weights have shape {list(weights.shape)}, not {list(shape)}", "print(out[1].shape)")
    again = weights.double() @ trial.value.double().repeat_interleave(group, 1)
    trial.agree(output, again, 2 * trial.tolerance(0.0), "output, against returned weights times values")


def _extras(claims: OperatorClaims) -> str | None:
    return "claims.returns is output" if claims.returns == "output" else None


@law("asking_changes_nothing", family="returns", needs=_extras)
def asking_changes_nothing(trial: Trial) -> None:
    """Asking for weights or log-sum-exp does not change the output, not in rows that see nothing either."""
    import torch

    kind = "lse" in trial.claims.returns
    names = [name for name in EXTRAS if accepts(trial.operator, name) and ("lse" in name) is kind]
    if not names:
        raise skip(f"the operator takes none of {', '.join(EXTRAS)}")
    every = torch.ones(trial.query.shape[:-1], dtype=torch.bool)
    for name in names:
        asked: dict[str, Any] = {name: True}
        refused: dict[str, Any] = {name: False}
        with_, without = trial.call(**asked).double(), trial.call(**refused).double()
        same = with_.isnan() & without.isnan()
        trial.agree(
            with_.masked_fill(same, 0),
            without.masked_fill(same, 0),
            2 * trial.tolerance(),
            f"output with {name}=True, against False",
            rows=every,
        )
