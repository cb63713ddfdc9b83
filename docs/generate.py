"""Writes docs/observables.md and docs/variants.md from the registries, and the parts of README.md and docs/*.md that come from files
or from commands.

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
    "log": "no forward",
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


def variants() -> str:
    """docs/variants.md."""
    from attncheck.cli.explain import argument_lines
    from attncheck.variants.catalogue import SHIPPED
    from attncheck.variants.registry import VARIANTS

    def entries() -> Iterator[str]:
        for name in SHIPPED:
            entry = VARIANTS[name]
            others = [other for other, entry in VARIANTS.items() if entry.about["is"] == name and other != name]
            yield f"\n### {name}\n\n{entry.doc}\n"
            yield f"- source: {entry.about['source']}"
            if others:
                yield f"- also called {', '.join(others)}"
            arguments = argument_lines(entry)
            yield "\n".join(f"- argument `{line.partition(':')[0]}`:{line.partition(':')[2]}" for line in arguments) or "- no arguments"

    origin = "<!-- Written by docs/generate.py from the docstrings and signatures of attncheck/variants/. Do not edit. -->"
    return f"# Attention variants\n\n{origin}\n{VARIANTS_HEAD}" + "\n".join(entries()) + "\n"


VARIANTS_HEAD = """
The attention of a model, under test or to be trained, in one form for both: a **module**, which projects hidden states, keeps a cache and
can decode, and an **operator**, with the signature of `torch.nn.functional.scaled_dot_product_attention`, which is what a module calls in
its middle. A definition is a name, or one name with its arguments; specs and Python write it alike. `attncheck list variants` and
`attncheck explain NAME` print the same from the command line, with those that other packages add.

## In a spec

`operator:` takes a definition. Arguments that are not the variant's own are bound to each call of the operator.

```yaml
attncheck: 1
about: A cube scaled by 1/sqrt(N) is the cube over 14, and only softmax stays within sqrt(N).
subjects:
  softmax: {operator: {softmax: {is_causal: true}}}
  cubic: {operator: {polynomial: {power: 3, factor: 1}}}
  scaled: {operator: {polynomial: {power: 3, factor: 1/sqrt(N)}}}
inputs:
  normal: {qkv: normal, length: 196}
expect:
  divided-by-fourteen:
    observe: attention.frobenius_norm
    ratio_to: {subject: cubic}
    between: [0.9999999 / 14, 1.0000001 / 14]
    subjects: scaled
  between-its-bounds:
    observe: attention.frobenius_norm
    between: [uniform_norm, ceiling_norm]
    subjects: softmax
    must_fail_on: cubic
```

## In Python

```python
import torch
from attncheck import variants

layer = variants.module({"lrkv": {"rank": 10}}, width=96, heads=4, causal=True, rotary=True, qk_norm=True)
hidden = torch.randn(2, 30, 96)
cache = layer.cache()
steps = [layer(hidden[:, i : i + 1], cache=cache) for i in range(30)]
assert torch.allclose(torch.cat(steps, 1), layer(hidden), atol=1e-5)
assert cache.allocated_bytes == 2 * 2 * 30 * (24 + 4 * 10) * 4  # batch, keys and values, tokens, d + heads * rank, bytes

cubic = variants.operator({"polynomial": {"power": 3, "factor": "1/sqrt(N)"}})
query, key, value = (torch.randn(2, 4, 30, 24) for _ in range(3))
output = cubic(query, key, value, is_causal=True)

assert variants.check({"lrkv": {"rnk": 10}}) == [
    "lrkv needs 'rank'",
    "lrkv takes no 'rnk'; did you mean 'rank'?; allowed: rank, residual",
]
```

What all modules share: linear maps without bias, heads of width / heads, rotary embeddings of base 10000 in halves (`rotary`), x / rms(x)
on queries and keys before the rotation (`qk_norm`), the causal mask by positions. `positions` of a forward are those of its tokens; they
default to 0, 1, 2, ..., on from what the cache holds. A cache keeps, for each token:

| variant | numbers a token | rebuilt at each step |
|---|---|---|
| softmax and those with its projections | 2 heads d | nothing |
| gqa, mqa | 2 kv_heads d | nothing |
| mla | rank + rope_dim | keys and values, by their maps; the shared tail is rotated |
| lrkv | 2 (d + heads rank) | keys and values, from shared parts and latents; keys are normalised and rotated |

## An attention of your own, seen in a running model

A softmax leaves traces that capture finds. Other operators do not: announce them. A module that calls its operator through
`attncheck.variants.attend` is observed like any other attention, counted, and its weights are read off the operator itself, with values of
attncheck's own (up to 512 keys). When nobody observes, `attend` is the call and nothing else.

```python
import torch
from torch import nn
import attncheck
from attncheck.variants import attend


def squared(query, key, value):
    return (query @ key.mT).square() @ value


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, hidden):
        query, key, value = (p(hidden).unflatten(-1, (4, 8)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return attend(self, squared, query, key, value).transpose(1, 2).flatten(-2)


found = attncheck.observe(nn.Sequential(Mine(), Mine()), {"input": torch.randn(1, 20, 32)}, ["attention.frobenius_norm"])
assert found["attention.frobenius_norm"].sizes["layer"] == 2
```

The operator must be linear in its values, which is checked. Where it is softmax attention with `scale`, `softcap`, `position_bias`,
`attn_mask`, `is_causal` or `sinks` among its arguments, `attend(..., rows="formula")` gives rows by the formula, logits included and at any
length, and the operator is held to them.

A definition of your own is one function under `attncheck.variants.variant`, which returns an `attncheck.variants.Variant`: see any file of
`attncheck/variants/`.

## The variants
"""


def write(check: bool) -> list[str]:
    """Bring everything up to date; returns what differed. With `check`, nothing is written."""
    wanted = {ROOT / "docs" / "observables.md": observables(), ROOT / "docs" / "variants.md": variants()}
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
