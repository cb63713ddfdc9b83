"""Writes docs/observables.md from the registry, and the parts of README.md and docs/*.md that come from files or from commands.

    <!-- file: docs/examples/kernel/kernel.attn.yaml -->             the fenced block after it is that file
    <!-- output: pytest --attn-spec docs/examples/kernel -->         the fenced block after it is what that command prints
    <!-- output: COMMAND | from: TEXT | to: TEXT -->                 ... from the line that begins with TEXT up to another, without it

Run from anywhere: python docs/generate.py [--check]. With --check nothing is written, and the exit status is 1 where something differs.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = {
    "docs/images/kernel.png": ".attncheck/plots/kernel/nothing-from-the-future-glassllm-manual.png",
}
"""Shipped picture -> where a run that a document shows has drawn it."""
BLOCK = re.compile(r"<!-- (?P<kind>file|output): (?P<what>.+?) -->\n```(?P<language>\w+)\n(?P<text>.*?)```\n", re.DOTALL)
_VARYING = re.compile(r"\bin \d+\.\d+s(?: \(\d+:\d\d:\d\d\))?")


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def refreshed(text: str, fill: Callable[[re.Match[str]], str]) -> str:
    """The document with every marked block filled anew."""

    def block(match: re.Match[str]) -> str:
        head = match[0][: match.start("text") - match.start()]
        return f"{head}{fill(match)}```\n"

    return BLOCK.sub(block, text)


def from_file(match: re.Match[str]) -> str:
    """A block's text where a file gives it; as it stands where a command does."""
    return (ROOT / match["what"]).read_text(encoding="utf-8") if match["kind"] == "file" else match["text"]


def from_anything(match: re.Match[str]) -> str:
    return from_file(match) if match["kind"] == "file" else output(match["what"])


def output(what: str) -> str:
    """What a command prints, cut to the part that is asked for."""
    command, *cuts = (part.strip() for part in what.split(" | "))
    lines = run(command).splitlines()
    for cut in cuts:
        side, _, text = cut.partition(": ")
        at = next(number for number, line in enumerate(lines) if line.startswith(text))
        lines = lines[at:] if side == "from" else lines[:at]
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def run(command: str) -> str:
    """Standard output and error of one of our commands, in a terminal of 80 columns, without a network."""
    program, *arguments = shlex.split(command)
    programs = {"pytest": ["-m", "pytest"], "attncheck": ["-c", "import attncheck.cli; attncheck.cli.main()"], "python": []}
    environment = {**os.environ, "COLUMNS": "80", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "CI"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, *programs[program], *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


def comparable(text: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"={3,}", "===", _VARYING.sub("in 1.00s", text))


COSTS = {
    "rows": "tiles",
    "columns": "tiles",
    "probe": "one kernel call",
    "call": "its own",
    "weights": "no forward",
}
DEARER = {
    "attention.spectral_norm": "3.5 calls a step",
    "attention.stable_rank": "3.5 calls a step",
    "attention.participation_ratio": "dense to 512",
    "attention.effective_rank": "SVD, to 512",
    "queries.frobenius_norm": "nothing",
    "keys.frobenius_norm": "nothing",
    "values.frobenius_norm": "nothing",
    "attention.expected_scores": "d x d per key",
}


def observables() -> str:
    """docs/observables.md."""
    from attncheck.cli.explain import argument_lines
    from attncheck.core.observable import OBSERVABLES
    from attncheck.engine.vocabulary import vocabulary

    known = {
        name: entry for name, entry in vocabulary().observables.items() if OBSERVABLES[name].function.__module__.startswith("attncheck.")
    }
    spaces: dict[str, list[str]] = {}
    for name in known:
        spaces.setdefault(name.partition(".")[0], []).append(name)

    def page() -> Iterator[str]:
        yield "# Observables\n"
        yield "<!-- Written by docs/generate.py from the docstrings and signatures of attncheck/observables/. Do not edit. -->\n"
        yield HEAD
        yield "| observable | dims | unit | reads | cost |\n|---|---|---|---|---|"
        for name, entry in known.items():
            about = entry.about
            cost = DEARER.get(name, COSTS[about["reads"]])
            dims = ", ".join(about["dims"])
            yield f"| [{name}](#{name.replace('.', '')}) | {dims} | {about['unit'] or '-'} | {about['reads']} | {cost} |"
        for space, names in spaces.items():
            yield f"\n## {space}"
            for name in names:
                entry = known[name]
                yield f"\n### {name}\n\n{entry.doc}\n"
                facts = [("dims", ", ".join(entry.about["dims"])), ("unit", entry.about["unit"]), ("source", entry.about["source"])]
                yield "\n".join(f"- {label}: {value}" for label, value in facts if value)
                arguments = argument_lines(entry)
                yield "\n".join(f"- argument `{line.partition(':')[0]}`:{line.partition(':')[2]}" for line in arguments) or "- no arguments"

    return "\n".join(page()).replace("\n\n\n", "\n\n") + "\n"


HEAD = """
What a spec may write after `observe:`, and Python after `attncheck.observe(model, inputs, [...])`. `attncheck list observables` and
`attncheck explain NAME` print the same from the command line, with those that other packages add.

How to read the table:

- **dims** are what is left before `where` and `reduce`. `per: query` keeps the queries instead of folding them.
- **rows**, **columns**: from exact rows, all queries, in float32. All of them share one walk over the tiles of a pass.
- **probe**: from the model's own kernel with values of our choosing. All of them share one more kernel call a layer, or a few.
- **call**: from the query, key and value of a call. **weights**: from the parameters, without a forward pass and without an input.
- Queries and keys that are padding never count, nor do rows that see no key.
"""


def write(check: bool) -> list[str]:
    """Bring everything up to date; returns what differed. With `check`, nothing is written."""
    wanted = {ROOT / "docs" / "observables.md": observables()}
    for path in documents():
        if path not in wanted:
            wanted[path] = refreshed(path.read_text(encoding="utf-8"), from_anything)
    differing = []
    for path, text in wanted.items():
        if not path.exists() or comparable(path.read_text(encoding="utf-8")) != comparable(text):
            differing.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(text, encoding="utf-8")
    if not check:
        for target, drawn in PICTURES.items():
            (ROOT / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / drawn, ROOT / target)
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something is out of date")
    options = parser.parse_args()
    differing = write(options.check)
    for name in differing:
        print(("out of date: " if options.check else "wrote ") + name)
    sys.exit(1 if options.check and differing else 0)


if __name__ == "__main__":
    main()
