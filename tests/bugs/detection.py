"""Which law catches which mutant, beside what one comparison of outputs on ordinary numbers sees.

python tests/bugs/detection.py > docs/detection.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(ROOT / "tests"))

import kind_mutants  # noqa: E402, F401
import model_detection  # noqa: E402
import torch  # noqa: E402
from mutants import MUTANTS, Mutant  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import attncheck  # noqa: E402

EXAMPLES = 4


def caught(mutant: Mutant, seed: int = 0, *, reference: bool = True) -> str | None:
    """The first law that a new instance of the mutant breaks, with or without the claim of a reference."""
    claims = mutant.claims if reference else {**mutant.claims, "reference": None}
    report = attncheck.verify(mutant.kernel(), claims, seed=seed, examples=EXAMPLES, first=True)
    return report.violations[0][0] if report.violations else None


def plainly(mutant: Mutant) -> bool:
    """Whether assert_close tells the mutant from the right kernel, torch's own if it can, on Gaussian numbers, [2, 4, 128, 64], causal."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 128, 64, generator=generator) for _ in range(3))
    kernel = mutant.kernel()
    bias = (
        kernel.slopes(4)[:, None, None] * (torch.arange(128) - torch.arange(128)[:, None])
        if kernel.alibi and mutant.right is None
        else None
    )
    options: dict[str, Any] = {"is_causal": True}
    if mutant.right is not None:
        wanted = mutant.right()(query, key, value, **options)
    elif bias is None:
        wanted = scaled_dot_product_attention(query, key, value, **options)
    else:
        causal = torch.ones(128, 128, dtype=torch.bool).tril()
        wanted = scaled_dot_product_attention(query, key, value, attn_mask=bias.masked_fill(~causal, -torch.inf))
    try:
        torch.testing.assert_close(kernel(query, key, value, **options), wanted, rtol=1e-4, atol=1e-4)
    except AssertionError:
        return True
    return False


HEAD = """# Detection

<!-- Written by tests/bugs/detection.py. Do not edit. -->

Reported attention bugs, each as one changed step of a correct kernel (`tests/bugs/mutants.py`; from cm-12 on `kind_mutants.py`), held
against the laws (`attncheck.verify`, seed 0) and against what most test suites do: `torch.testing.assert_close` with torch's own kernel,
or with the right one where it does more than torch's, on one ordinary shape, Gaussian numbers, causal. No law knows of any of these
mutants. A bug that users meet in half precision is emulated on CPU.
The laws were developed beside these mutants, so the share below says nothing about bugs of other kinds.
The first run caught two fewer: a law on the range of half precision was added and two mutants were rewritten after it was seen.
The laws of the kinds that `kind_mutants.py` has, from packing to converted layouts, were written at the same time as it.
Some rows are emulated by what has the same effect: cp-01 by a step that matches the unmasked case instead of a compiler's pass, kv-08 by
blocks that are found within one batch, kc-04 by weights summed over the queries instead of moments of their distribution, tw-04 by numbers
of 16 bits instead of 8, the rows of ranks (rb-02, qn-02, tw-01, tw-05) by ranks that one process computes one after the other.
The plain comparison misses many rows by construction, since its one shape has no mask, softcap, sinks or gradients.

| bug | what goes wrong | first law broken | first law broken, no reference claimed | plain comparison |
|---|---|---|---|---|
"""


def page() -> str:
    rows, seen, blind, plain = [], 0, 0, 0
    for mutant in MUTANTS:
        law, other, visible = caught(mutant), caught(mutant, reference=False), plainly(mutant)
        seen, blind, plain = seen + bool(law), blind + bool(other), plain + visible
        shown = " | ".join([law or "**missed**", other or "**missed**", "seen" if visible else "missed"])
        rows.append(f"| {mutant.row} | {mutant.what} | {shown} |")
    total = len(MUTANTS)
    foot = (
        f"\n\nCaught: {seen} of {total} by the laws, {blind} of {total} by those that need no reference, {plain} of {total} by the plain "
        "comparison.\n"
    )
    return HEAD + "\n".join(rows) + foot + model_detection.section()


if __name__ == "__main__":
    sys.stdout.write(page())
