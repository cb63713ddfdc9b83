"""What judging costs once a pass is measured: two thousand properties on one real model. Run: python benchmarks/judging.py

The pass is measured by the first verdict and left out of the figures; the others read it, select, reduce, compare and put their failure
into words, as under pytest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from attncheck.engine.plan import plan
from attncheck.engine.run import Run, RunOptions
from attncheck.engine.vocabulary import vocabulary
from attncheck.report import failure_text
from attncheck.spec.loader import load_bytes
from attncheck.spec.model import Case

KINDS = {
    "plain": "observe: attention.entropy, at_most: {bound}",
    "symbols": "observe: attention.frobenius_norm, between: [uniform_norm, sqrt(N) + {bound}]",
    "selected": "observe: attention.sink_mass, where: {{layer: 1.., head: 0}}, at_most: {bound}",
    "quantified": "observe: attention.largest_weight, at_most: {bound}, for: 80% of heads in every layer",
    "reduced": "observe: attention.mean_distance, reduce: {{head: mean, layer: spread}}, at_most: {bound}",
    "ratio": "observe: attention.entropy, ratio_to: {{observable: attention.mean_distance}}, at_most: {bound}",
    "per query": "observe: {{attention.entropy: {{per: query}}}}, at_most: {bound}",
}
BOUNDS = (0.001, 1, 1000)
"""One that hardly any value keeps, one in between, one that all keep: a failure has more to say than a pass."""


def cases(count: int, length: int) -> Sequence[Case]:
    kinds = list(KINDS.items())
    lines = []
    for number in range(count):
        name, text = kinds[number % len(kinds)]
        bound = BOUNDS[number // len(kinds) % len(BOUNDS)] * (1 + number / count)
        lines.append(f"  {name.replace(' ', '-')}-{number}: {{{text.format(bound=f'{bound:.6g}')}}}")
    subject, feed = "{glassllm: {pretrained: 'package:glassllm'}}", f"{{text: {{corpus: python-manual, length: {length}}}}}"
    head = f"attncheck: 1\nsubjects: {subject}\ninputs: {feed}\n"
    return load_bytes((head + "expect:\n" + "\n".join(lines) + "\n").encode(), Path("judging.attn.yaml"), vocabulary()).cases


def figures(each: list[float]) -> str:
    last = statistics.quantiles(each, n=100)[98] if len(each) > 1 else each[0]
    return f"{statistics.median(each):8.2f} {last:8.2f} {len(each):7d}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--properties", type=int, default=2000)
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    all_cases = cases(options.properties, options.length)
    milliseconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), plan(all_cases), RunOptions(Path(folder)))
        start = time.perf_counter()
        run.judge(all_cases[0])
        measuring = time.perf_counter() - start
        begun = time.perf_counter()
        for case in all_cases:
            start = time.perf_counter()
            verdict = run.judge(case)
            if not verdict.passed:
                failure_text(case, verdict, nodeid=case.id)
            spent = 1000 * (time.perf_counter() - start)
            milliseconds[case.property.name.rsplit("-", 1)[0], "passes" if verdict.passed else "fails"].append(spent)
        whole = time.perf_counter() - begun
        run.close()
    everything = [spent for each in milliseconds.values() for spent in each]
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; {options.threads} thread(s)")
    print(f"{len(all_cases)} properties on glassllm, N = {options.length}: the pass {measuring:.2f} s, all verdicts {whole:.2f} s")
    print("  ms each                 median     99th   count")
    for (kind, outcome), each in sorted(milliseconds.items()):
        print(f"  {kind:12s} {outcome:7s} {figures(each)}")
    print(f"  {'all':20s} {figures(everything)}")


if __name__ == "__main__":
    main()
