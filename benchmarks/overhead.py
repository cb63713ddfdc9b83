"""What measuring costs, against the plain forward, on a GPT-2-small-shaped body. Run: python benchmarks/overhead.py [N ...]

All sides alternate in one process, each right after a plain SDPA forward; the table gives the median and the quartiles of the ratios to it.
`rows` are all row statistics of all queries; `rows + probe` adds the kernel check and the zero-mass thresholds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import transformers
from transformers import GPT2Config, GPT2Model

from attncheck.capture.observe import observe
from attncheck.core.definitions import Request
from attncheck.core.observable import OBSERVABLES
from attncheck.engine.vocabulary import vocabulary
from attncheck.instruments.session import Session, Wanted

ROWS = [
    "attention.frobenius_norm",
    "attention.entropy",
    "attention.largest_weight",
    "attention.sink_mass",
    "attention.first_four_mass",
    "attention.mean_distance",
    "logits.max",
]
PROBES = ["attention.row_sum", "attention.future_mass", "kernel.error"]
DEARER = [
    "attention.jacobian_norm",
    "attention.previous_token",
    "attention.column_mass",
    "attention.spectral_norm",
    "attention.participation_ratio",
]


def wanted(names: list[str]) -> list[Wanted]:
    made = []
    for name in names:
        arguments = OBSERVABLES[name].arguments().model_dump(mode="json")
        made.append(Wanted(Request.of(name, arguments), OBSERVABLES[name]))
    return made


def measured(model: torch.nn.Module, tokens: torch.Tensor, names: list[str], *, check: bool) -> None:
    session = Session(wanted(names), tokens=tokens, check_kernel=check)
    observe(model, {"input_ids": tokens, "use_cache": False}, session.on_call)
    if session.faults:
        raise next(iter(session.faults.values()))


def eager_statistics(model: torch.nn.Module, tokens: torch.Tensor, *, logits: bool = False) -> None:
    """The row statistics from whole matrices, as one would write them; the largest logit is in no returned weight and asks for q and k."""
    projected: list[torch.Tensor] = []
    hooks = [block.attn.c_attn.register_forward_hook(lambda *given: projected.append(given[-1])) for block in model.h if logits]
    with torch.no_grad():
        attentions = model(input_ids=tokens, use_cache=False, output_attentions=True).attentions
        for hook in hooks:
            hook.remove()
        for qkv in projected:
            heads = model.config.n_head
            q, k, _ = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
            future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
            (q @ k.mT * q.shape[-1] ** -0.5).masked_fill_(future, -torch.inf).amax(-1)
        positions = torch.arange(tokens.shape[1], dtype=torch.float32)
        for a in attentions:
            a.square().sum((-1, -2)).sqrt()
            -torch.special.xlogy(a, a).sum(-1).mean(-1)
            a.sum(-1), a.amax(-1).mean(-1), a[..., 0].mean(-1), a[..., :4].sum(-1).mean(-1)
            positions - a @ positions


def plain(model: torch.nn.Module, tokens: torch.Tensor) -> None:
    with torch.no_grad():
        model(input_ids=tokens, use_cache=False)


def alternated(sides: dict[str, Callable[[], None]], base: Callable[[], None], rounds: int) -> dict[str, list[float]]:
    """Each side right after the base, round by round: the ratios."""
    for side in (base, *sides.values()):
        side()
    ratios: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        base()
        for name, side in sides.items():
            start = time.perf_counter()
            base()
            between = time.perf_counter()
            side()
            ratios[name].append((time.perf_counter() - between) / (between - start))
    return ratios


def compare(length: int, rounds: int, dearer: bool) -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_positions=max(length, 1024))
    sdpa = GPT2Model._from_config(config, attn_implementation="sdpa").eval()
    tokens = torch.randint(0, config.vocab_size, (1, length))
    sides: dict[str, Callable[[], None]] = {
        "plain SDPA forward": lambda: plain(sdpa, tokens),
        "rows": lambda: measured(sdpa, tokens, ROWS, check=False),
        "rows + probe": lambda: measured(sdpa, tokens, ROWS + PROBES, check=True),
    }
    if dearer:
        for name in DEARER:
            sides[f"{name} alone"] = lambda name=name: measured(sdpa, tokens, [name], check=False)  # type: ignore[misc]
    show(alternated(sides, lambda: plain(sdpa, tokens), rounds))
    if length <= 4096:
        # By itself and last: whole attention matrices leave the allocator in a state that slows down whatever runs beside them.
        eager = GPT2Model._from_config(config, attn_implementation="eager").eval()
        eager.load_state_dict(sdpa.state_dict())
        theirs = {
            "eager + output_attentions + same, but logit": lambda: eager_statistics(eager, tokens),
            "eager + output_attentions + same statistics": lambda: eager_statistics(eager, tokens, logits=True),
        }
        show(alternated(theirs, lambda: plain(sdpa, tokens), rounds))


def show(ratios: dict[str, list[float]]) -> None:
    for name, each in ratios.items():
        low, _, high = statistics.quantiles(each, n=4) if len(each) > 1 else (each[0], each[0], each[0])
        print(f"  {name:44s} {statistics.median(each):6.2f}  ({low:.2f} to {high:.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lengths", nargs="*", type=int, default=[512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dearer", action="store_true", help="also each dearer observable on its own")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    vocabulary()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {options.threads} thread(s), {options.rounds} rounds")
    for length in options.lengths:
        print(f"\nN = {length}: ratio to the plain forward, median (quartiles)", flush=True)
        compare(length, options.rounds, options.dearer)


if __name__ == "__main__":
    main()
