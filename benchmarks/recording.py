"""What `attncheck.record` costs a training, on a byte-level GPT-2. Run: python benchmarks/recording.py [--rounds N]

One training; in every round a plain step, one that is recorded each time, and one with the default spacing, in an order drawn anew. The
table gives the ratio to the round's plain step (median and quartiles), and of the default spacing, which records few steps, the ratio of
all steps together (with what a bootstrap over the rounds leaves open).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

import attncheck

SEEN = ["attention.entropy", "attention.sink_mass", "attention.frobenius_norm", "logits.max"]
BOUNDS = {"attention.entropy": ">= 0", "logits.max": "<= 1e4"}


def timed(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--probe", type=int, default=2, help="sequences of the fixed batch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_embd=options.width, n_layer=options.layers, n_head=options.width // 64, n_positions=options.tokens
    )
    model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    probe = {"input_ids": torch.randint(0, 256, (options.probe, options.tokens)), "use_cache": False}

    def step() -> None:
        tokens = torch.randint(0, 256, (options.batch, options.tokens))
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    sides: dict[str, list[float]] = {"plain": [], "every step": [], "default spacing": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:

        def recorder(name: str, every: int | None) -> Any:
            path = Path(folder, f"{name}.jsonl")
            return stack.enter_context(attncheck.record(model, SEEN, path=path, inputs=probe, every=every, bounds=BOUNDS, on_break="stop"))

        always, seldom = recorder("always", 1), recorder("seldom", None)
        told = {"plain": lambda n: None, "every step": always.step, "default spacing": seldom.step}

        def side(name: str, n: int) -> None:
            step()
            told[name](n)

        for name in sides:  # what happens once: imports, the first measurement
            side(name, 0)
        shuffled = list(sides)
        for n in range(1, options.rounds + 1):
            random.shuffle(shuffled)
            for name in shuffled:
                sides[name].append(timed(lambda name=name, n=n: side(name, n)))  # type: ignore[misc]
        size, recorded = os.path.getsize(always.path) / len(always.steps), len(seldom.steps) - 1
        seldom.step(1 << 20)
        idle = timed(lambda: [seldom.step((1 << 20) + n) for n in range(1, 1001)]) / 1000
    report(sides, options, idle, size, recorded)


def report(sides: dict[str, list[float]], options: argparse.Namespace, idle: float, size: float, recorded: int) -> None:
    plain = sides["plain"]
    print(
        f"torch {torch.__version__}, {options.threads} thread(s), {options.rounds} rounds; {options.layers} layers, width {options.width}"
    )
    print(f"a plain step of {options.batch} x {options.tokens} tokens: {statistics.median(plain):.3f} s; fixed batch of {options.probe}")
    for name in ("plain", "every step"):
        ratios = [b / a for a, b in zip(plain if name != "plain" else plain[1:], sides[name], strict=False)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"  {name:44s} {middle:6.3f}  ({low:.3f} to {high:.3f})")
    differences = [b - a for a, b in zip(plain, sides["every step"], strict=True)]
    print(f"  one recorded step                            {statistics.median(differences):6.3f} s, {size:.0f} bytes")
    draws = []
    for _ in range(2000):
        chosen = random.choices(range(options.rounds), k=options.rounds)
        draws.append(sum(sides["default spacing"][i] for i in chosen) / sum(plain[i] for i in chosen))
    cuts = statistics.quantiles(draws, n=20)
    whole = sum(sides["default spacing"]) / sum(plain)
    name = f"default spacing, {recorded} of {options.rounds} steps recorded"
    print(f"  {name:44s} {whole:6.3f}  ({cuts[0]:.3f} to {cuts[-1]:.3f})")
    print(f"  a step that is not recorded                  {1e6 * idle:6.2f} us")


if __name__ == "__main__":
    main()
