"""Peak memory of measuring against the plain forward, on a GPT-2-small-shaped body. Run: python benchmarks/memory.py [N ...]

Every side runs in a process of its own; the figure is the peak resident memory of the process, in MiB, and its ratio to the plain one.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

SIDES = ("plain", "rows", "rows + probe", "eager")


def peak(side: str, length: int) -> float:
    """MiB, measured in a fresh interpreter."""
    done = subprocess.run([sys.executable, __file__, "--side", side, str(length)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def run(side: str, length: int) -> None:
    import torch
    import transformers
    from overhead import PROBES, ROWS, eager_statistics, measured, plain
    from transformers import GPT2Config, GPT2Model

    from attncheck.engine.vocabulary import vocabulary

    transformers.logging.set_verbosity_error()
    vocabulary()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(n_positions=max(length, 1024))
    model = GPT2Model._from_config(config, attn_implementation="eager" if side == "eager" else "sdpa").eval()
    tokens = torch.randint(0, config.vocab_size, (1, length))
    if side == "plain":
        plain(model, tokens)
    elif side == "eager":
        eager_statistics(model, tokens)
    else:
        measured(model, tokens, ROWS + (PROBES if "probe" in side else []), check="probe" in side)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lengths", nargs="*", type=int, default=[512, 1024, 2048, 4096])
    parser.add_argument("--side", choices=SIDES, help="measure this side in this process (used by the script itself)")
    options = parser.parse_args()
    if options.side:
        run(options.side, options.lengths[0])
        return
    for length in options.lengths:
        found = {side: peak(side, length) for side in SIDES}
        print(
            f"N = {length}: " + ", ".join(f"{side} {mib:.0f} MiB ({mib / found['plain']:.2f})" for side, mib in found.items()), flush=True
        )


if __name__ == "__main__":
    main()
