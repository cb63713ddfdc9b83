"""What a user gets wrong: the message has its place, what was found and what is allowed, and costs no other file its tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from acceptance_project import Acceptance, outcomes

GOOD = """attncheck: 1
subjects: {glassllm: {pretrained: 'package:glassllm'}}
inputs: {text: {corpus: python-manual, length: 24}}
expect:
  rows: {observe: attention.row_sum, equals: 1, tolerance: {atol: 1e-5}}
"""
FACTORIES = """
import torch
from attncheck.core.definitions import SubjectDefinition
from attncheck.subjects import load

def glass():
    loaded = load(SubjectDefinition("own", "pretrained", {"name": "package:glassllm"}))
    return loaded.model, loaded.encoder

def poisoned():
    model, encoder = glass()
    with torch.no_grad():
        model.model.layers[2].self_attn.k_proj.weight[5, 7] = float("nan")
    return model, encoder

def raising():
    model, encoder = glass()
    def forward(*given, **named):
        raise RuntimeError("no forward today")
    model.model.layers[1].mlp.forward = forward
    return model, encoder

def number():
    return 3
"""
SUBJECT = "m: {pretrained: 'package:glassllm'}"
INPUT = "text: {corpus: python-manual, length: 24}"
EXPECT = "p: {observe: attention.entropy, at_most: 9}"
AT_SUBJECT, AT_INPUT, AT_PROPERTY = 3, 5, 7


def spec(*, subject: str = SUBJECT, feed: str = INPUT, expect: str = EXPECT) -> str:
    return f"attncheck: 1\nsubjects:\n  {subject}\ninputs:\n  {feed}\nexpect:\n  {expect}\n"


def observing(rest: str) -> str:
    return spec(expect=f"p: {{observe: attention.entropy, {rest}}}")


def bomb(depth: int = 9) -> str:
    """A few lines that are 8 to the power of `depth` values once their aliases are followed."""
    anchors = "abcdefghijklmnop"
    lines = [f"x{n}: &{anchors[n]} [{', '.join([f'*{anchors[n - 1]}'] * 8)}]" for n in range(1, depth)]
    return "\n".join(["attncheck: 1", "x0: &a [l, l, l, l, l, l, l, l]", *lines]) + "\n"


REFUSED: dict[str, tuple[str, list[str]]] = {
    "an-unknown-observable": (
        spec(expect="p: {observe: attention.entrophy, at_most: 9}"),
        ["bad.attn.yaml:7:16: *unknown observable 'attention.entrophy'; allowed: *did you mean 'attention.entropy'?"],
    ),
    "a-bound-that-does-not-parse": (
        observing("at_most: log(N"),
        ["bad.attn.yaml:7:47: *'log(N' is not an arithmetic expression; allowed: numbers, symbols, *"],
    ),
    "a-bound-that-is-python": (
        observing("at_most: \"__import__('os').system('true')\""),
        ["bad.attn.yaml:7:*__import__* is not allowed in a bound; allowed: numbers, symbols, *"],
    ),
    "a-power-tower": (observing("at_most: 9**9**9**9"), ["bad.attn.yaml:7:47: *comes to inf, not to a finite number*"]),
    "an-alias-bomb": (bomb(), ["bad.attn.yaml:*: more than 100000 values, aliases counted in full; allowed: a smaller spec"]),
    "a-key-twice": (
        observing("at_most: 9, at_most: 1"),
        ["bad.attn.yaml:7:*the key 'at_most' again; it was given at line 7; allowed: each key once"],
    ),
    "no-properties": (
        "attncheck: 1\nsubjects: {m: {pretrained: 'package:glassllm'}}\n",
        ["bad.attn.yaml:1:1: no expect; allowed: expect: with at least one *"],
    ),
    "no-properties-below-expect": (spec(expect="{}"), ["bad.attn.yaml:7:3: expect: an empty mapping; allowed: at least one *"]),
    "an-empty-file": ("", ["bad.attn.yaml:1:1: an empty file; allowed: a spec, which begins with `attncheck: 1`"]),
    "a-list": ("- a\n- b\n", ["bad.attn.yaml:1:1: no mapping; allowed: a spec with the keys *"]),
    "a-tab": ("attncheck: 1\nsubjects:\n\tm: 3\n", ["bad.attn.yaml:3:1: not YAML: *allowed: spaces: a tab cannot indent"]),
    "broken-yaml": ("attncheck: 1\nsubjects: {a: [}\n", ["bad.attn.yaml:2:*: not YAML: *"]),
    "a-ratio-to-nobody": (
        observing("ratio_to: {subject: mha}, at_most: 9"),
        ["bad.attn.yaml:7:*: p: ratio_to: subject: 'mha' is not defined; allowed: m"],
    ),
    "two-kinds-of-subject": (
        spec(subject="m: {pretrained: 'package:glassllm', python: 'mine:glass'}"),
        ["bad.attn.yaml:3:*: subject m: a second kind 'python' beside 'pretrained'; allowed: exactly one of *"],
    ),
    "a-layer-without-a-number": (
        observing("where: {layer: first}, at_most: 9"),
        ["bad.attn.yaml:7:*: p: where: layer: 'first' selects nothing; allowed: an index (0, -1), *"],
    ),
    "an-unknown-dtype": (
        spec(subject="m: {pretrained: 'package:glassllm', dtype: float23}"),
        ["bad.attn.yaml:3:*: subject m: dtype: 'float23'; allowed: float64, float32, *; did you mean 'float32'?"],
    ),
    "an-unknown-device": (
        spec(subject="m: {pretrained: 'package:glassllm', device: tpu}"),
        ["bad.attn.yaml:3:*: subject m: device: 'tpu'; allowed: auto, cpu, cuda, cuda:N, mps*"],
    ),
    "an-unknown-symbol": (observing("at_most: log(T)"), ["bad.attn.yaml:7:*: p: at_most: 'T' is no symbol *allowed: N, M, d, *"]),
    "an-unknown-package": (
        spec(subject="m: {pretrained: 'package:glasslm'}"),
        ["bad.attn.yaml:3:19: subject m: unknown package:glasslm; allowed: glassllm, *; did you mean 'glassllm'?"],
    ),
    "an-unknown-variant-of-a-package": (
        spec(subject="m: {pretrained: 'package:glassllm', variant: ep}"),
        ["bad.attn.yaml:3:*: subject m: package:glassllm has no variant 'ep'; allowed: en, pt"],
    ),
    "an-unknown-corpus": (
        spec(feed="text: {corpus: python-manul, length: 24}"),
        ["bad.attn.yaml:5:18: input text: unknown corpus 'python-manul'; allowed: python-manual, *; did you mean 'python-manual'?"],
    ),
}
UNMEASURED: dict[str, tuple[str, int, list[str]]] = {
    "a-head-that-is-not-there": (
        observing("where: {head: 12}, at_most: 9"),
        AT_PROPERTY,
        ["*bad.attn.yaml:7:43: head 12 of 4; allowed: 0 to 3, or -4 to -1"],
    ),
    "a-selection-of-nothing": (
        observing("where: {layer: 7..}, at_most: 9"),
        AT_PROPERTY,
        ["*bad.attn.yaml:7:43: layer 7 of 4; allowed: 0 to 3, or -4 to -1"],
    ),
    "weights-that-are-no-numbers": (
        spec(subject="m: {python: 'mine:poisoned'}"),
        AT_SUBJECT,
        ["m: parameter model.layers.2.self_attn.k_proj.weight holds 1 of 8192 values that are not finite"],
    ),
    "a-forward-that-raises": (
        spec(subject="m: {python: 'mine:raising'}"),
        AT_PROPERTY,
        ["the forward pass raised RuntimeError in model.layers.1.mlp: no forward today (mine.py:*)", "RuntimeError: no forward today"],
    ),
    "an-input-longer-than-the-model": (
        spec(feed="text: {corpus: python-manual, length: 4096}"),
        AT_INPUT,
        ["input text: length 4096 is more than the 128 positions of the subject"],
    ),
    "a-path-that-leaves-the-project": (
        spec(feed="text: {file: ../secret.txt}"),
        AT_INPUT,
        ["input text: ../secret.txt leaves the project root *; allowed: a path inside it, or an absolute one"],
    ),
    "a-file-that-is-not-there": (
        spec(feed="text: {file: nothing.txt}"),
        AT_INPUT,
        ["input text: there is no file nothing.txt (looked in *)"],
    ),
    "a-binary-file": (spec(feed="text: {file: noise.bin}"), AT_INPUT, ["input text: noise.bin is not UTF-8 text: byte 128 is 0x80"]),
    "a-text-of-no-tokens": (spec(feed="text: {text: '  '}"), AT_INPUT, ["input text: the text is empty"]),
    "a-text-outside-the-vocabulary": (
        spec(subject="m: {pretrained: 'package:microformer-mgm'}", feed="text: {text: the quick brown fox}"),
        AT_INPUT,
        ["input text: 'the' is no genus of microformer-mgm's vocabulary of 9669*"],
    ),
    "a-text-that-is-too-short": (
        spec(feed="text: {text: hello, length: 90}"),
        AT_INPUT,
        ["input text: the text is too short: it has 3 tokens, and length 90 needs 90"],
    ),
    "pictures-for-a-model-that-reads-text": (
        spec(feed="text: {images: {name: flower}}"),
        AT_INPUT,
        ["input text: the subject reads no images; feed it text, corpus, tokens or file"],
    ),
    "an-unknown-implementation": (
        spec(subject="m: {pretrained: 'package:glassllm', attn_implementation: spda}"),
        AT_SUBJECT,
        ["m: unknown attn_implementation 'spda'; did you mean 'sdpa'?; allowed: *eager*"],
    ),
    "a-factory-in-no-module": (
        spec(subject="m: {python: 'myne:glass'}"),
        AT_SUBJECT,
        ["m: there is no module 'myne' (looked in * and the installed packages)"],
    ),
    "a-factory-that-is-not-there": (
        spec(subject="m: {python: 'mine:glas'}"),
        AT_SUBJECT,
        ["m: mine has no 'glas'; did you mean 'glass'?"],
    ),
    "a-factory-of-numbers": (
        spec(subject="m: {python: 'mine:number'}"),
        AT_SUBJECT,
        ["m: mine:number returned int; allowed: an nn.Module, or (nn.Module, encoder)"],
    ),
    "a-claim-about-padding-without-any": (
        spec(expect="p: {observe: attention.padding_mass, at_most: 0}"),
        AT_PROPERTY,
        ["the input has no padding, so a claim about padding says nothing; give the input `padding: {side, amount}`"],
    ),
}
MISSING: dict[str, tuple[str, str]] = {
    "on-no-hub": (
        "m: {pretrained: nobody/no-such-model}",
        "m: nobody/no-such-model is not in the cache, *hf download nobody/no-such-model",
    ),
    "in-no-directory": (
        "m: {pretrained: ./checkpoints/last}",
        "m: there is no directory *checkpoints/last; put the checkpoint there, or correct the path",
    ),
    "on-no-device": ("m: {pretrained: 'package:glassllm', device: 'cuda:63'}", "*device cuda:63 is not here: *"),
}
TRACE_OF_OURS = re.compile(r'File "[^"]*/attncheck/(?!capture/)')


def project(acceptance: Acceptance, bad: str) -> None:
    acceptance.write("specs/good.attn.yaml", GOOD)
    acceptance.write("specs/bad.attn.yaml", bad)
    acceptance.write("mine.py", FACTORIES)
    (acceptance.path / "noise.bin").write_bytes(bytes(range(256)) * 8)


def good_and_bad(told: dict[str, str]) -> tuple[set[str], set[str]]:
    """How the tests of the good file and those of the bad one came out."""
    sides = [{outcome for test, outcome in told.items() if f"{side}.attn.yaml" in test} for side in ("good", "bad")]
    return sides[0], sides[1]


@pytest.mark.parametrize("name", REFUSED)
def test_a_spec_is_refused_at_its_place(acceptance: Acceptance, name: str) -> None:
    bad, lines = REFUSED[name]
    project(acceptance, bad)
    result = acceptance.run("--attn-spec", "-rA")
    assert good_and_bad(outcomes(result)) == ({"PASSED"}, {"ERROR"})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"*specs/{line}" for line in lines])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize("name", UNMEASURED)
def test_what_cannot_be_measured_is_an_error_at_its_place(acceptance: Acceptance, name: str) -> None:
    bad, line, texts = UNMEASURED[name]
    project(acceptance, bad)
    result = acceptance.run("--attn-spec", "-rA")
    assert good_and_bad(outcomes(result)) == ({"PASSED"}, {"ERROR"})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [texts[0], "specs/bad.attn.yaml:7: p[[]*[]]", f"*at  *specs/bad.attn.yaml:{line}", "*again  *pytest *", *texts[1:]]
    )
    assert not TRACE_OF_OURS.search(result.stdout.str())


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_skips_with_the_remedy_and_fails_when_strict(acceptance: Acceptance, name: str) -> None:
    subject, text = MISSING[name]
    project(acceptance, spec(subject=subject))
    result = acceptance.run("--attn-spec", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED * specs/bad.attn.yaml:7: {text}"])
    strict = acceptance.run("--attn-spec", "--attn-strict")
    strict.assert_outcomes(passed=1, failed=1)
    strict.stdout.fnmatch_lines([f"not available: {text}", "*--attn-strict is set, and subject m is not optional"])


def test_a_package_that_is_not_installed_skips_with_the_line_that_installs_it(
    acceptance: Acceptance, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import metadata

    real = metadata.distribution

    def absent(name: str) -> metadata.Distribution:
        if name == "microformer-mgm":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    project(acceptance, spec(subject="m: {pretrained: 'package:microformer-mgm'}"))
    result = acceptance.run("--attn-spec", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED * specs/bad.attn.yaml:7: *microformer-mgm is not installed; pip install --no-deps microformer-mgm==*"]
    )


def test_twenty_five_mistakes_are_told_at_once(acceptance: Acceptance) -> None:
    """The file of tests/spec, through pytest and with the vocabulary of the whole product."""
    malformed = (Path(__file__).parents[1] / "spec" / "malformed.yaml").read_text(encoding="utf-8")
    project(acceptance, malformed)
    result = acceptance.run("--attn-spec", "-rA")
    assert good_and_bad(outcomes(result)) == ({"PASSED"}, {"ERROR"})
    text = result.stdout.str()
    told = re.search(r"^(\d+) problems:$", text, flags=re.MULTILINE)
    assert told is not None
    assert int(told[1]) >= 25
    lines = re.findall(r"^specs/bad\.attn\.yaml:(\d+):\d+: .+$", text, flags=re.MULTILINE)
    assert len(lines) == int(told[1])
    planted = {number for number, line in enumerate(malformed.splitlines(), 1) if "#!" in line}
    # Which corpora and recipes exist is known where they are loaded, so those two mistakes may come later.
    loaded_later = {number for number, line in enumerate(malformed.splitlines(), 1) if "corpus:" in line or "train:" in line}
    assert planted - loaded_later <= set(map(int, lines))


def test_a_text_file_that_is_not_utf8_is_refused(acceptance: Acceptance) -> None:
    project(acceptance, "")
    (acceptance.path / "specs" / "bad.attn.yaml").write_bytes(b"attncheck: 1\nabout: \xff\xfe\n")
    result = acceptance.run("--attn-spec")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["specs/bad.attn.yaml:2:8: byte 0xff is not UTF-8; allowed: UTF-8 text"])
