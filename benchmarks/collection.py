"""What the plugin costs where it has nothing to do, and what collecting a large spec costs. Run: python benchmarks/collection.py

Every figure is from whole `pytest --collect-only` processes: with the plugin and without it (`-p no:attncheck`) by turns in an empty
project, so that whatever else the machine does meets both sides alike; then a spec of two thousand tests. Wall seconds are what a user
waits; processor seconds (user and system) are the steadier figure on a machine that is busy.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUIET = ("-q", "--collect-only", "-p", "no:cacheprovider")


def collect(folder: Path, *arguments: str) -> tuple[float, float, str]:
    """(wall seconds, processor seconds, output) of one collection in a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", *QUIET, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTEST_ADDOPTS": ""}, check=False)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stdout + done.stderr


def spread(values: list[float], unit: str = "s", scale: float = 1.0) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles([value * scale for value in values], n=4)
    return f"{middle:8.2f} {unit}  ({low:.2f} to {high:.2f})"


def empty_project(rounds: int, *, quick: bool) -> None:
    """By turns with and without; the order within a pair changes, since the second of two finds warmer caches."""
    others = ("-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:syrupy", "-p", "no:xdist") if quick else ()
    sides = {"with": others, "without": (*others, "-p", "no:attncheck")}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        for arguments in sides.values():
            collect(folder, *arguments)
        for number in range(rounds):
            for side in sorted(sides, reverse=bool(number % 2)):
                wall, processor, _ = collect(folder, *sides[side])
                seconds[side].append((wall, processor))
    print(f"\nan empty project, {rounds} pairs" + (", other plugins off" if quick else ", all installed plugins"))
    for kind, at in (("wall", 0), ("processor", 1)):
        pairs = list(zip(seconds["with"], seconds["without"], strict=True))
        print(f"  {kind:10s} without attncheck   {spread([without[at] for _, without in pairs], 'ms', 1000)}")
        print(f"  {kind:10s} with it adds        {spread([own[at] - without[at] for own, without in pairs], 'ms', 1000)}")


def large_spec(rounds: int, tests: int) -> None:
    properties = "\n".join(f"  p-{number}: {{observe: attention.entropy, at_most: {number}}}" for number in range(tests // 2))
    subject = "  glassllm: {pretrained: 'package:glassllm', attn_implementation: [eager, sdpa]}"
    text = f"attncheck: 1\nsubjects:\n{subject}\ninputs:\n  text: {{corpus: python-manual, length: 32}}\nexpect:\n{properties}\n"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "specs").mkdir()
        (folder / "specs" / "large.attn.yaml").write_text(text)
        seconds = []
        for _ in range(rounds):
            wall, processor, output = collect(folder, "--attn-spec")
            if f"{tests} tests collected" not in output:
                raise SystemExit(f"{tests} tests were to be collected:\n{output[-2000:]}")
            seconds.append((wall, processor))
    print(f"\na spec of {tests} tests, {rounds} runs, starting pytest included")
    print(f"  wall       {spread([wall for wall, _ in seconds])}")
    print(f"  processor  {spread([processor for _, processor in seconds])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tests", type=int, default=2000)
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; median (quartiles)")
    empty_project(options.rounds, quick=False)
    empty_project(options.rounds, quick=True)
    large_spec(max(5, options.rounds // 3), options.tests)


if __name__ == "__main__":
    main()
