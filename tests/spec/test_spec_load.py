"""Whole specs: what becomes of each word of the language."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.core.bounds import parse_expression
from attncheck.core.definitions import Request
from attncheck.core.errors import Place, SpecError
from attncheck.core.vocabulary import Vocabulary
from attncheck.spec.loader import load
from attncheck.spec.model import Bound, Property, Quota, Reduction, Relation, Selector, Spec, Tolerance

Load = Callable[[str], Spec]
Refused = Callable[[str], list[str]]

HEAD = """attncheck: 1
subjects:
  small: {pretrained: package:small, attn_implementation: [sdpa, eager]}
  twin: {like: small, weights: random, seed: 3}
  lm: {train: {recipe: bytes-lm}, seeds: [0, 1, 2]}
  other: {like: lm, attention: mqa}
inputs:
  manual: {corpus: python-manual, length: 64}
expect:
"""


def one(loaded: Load, body: str) -> Property:
    """The property of HEAD plus one property whose lines are `body`."""
    spec = loaded(HEAD + "  it:\n" + "".join(f"    {line}\n" for line in body.strip().splitlines()))
    return spec.properties["it"]


def wrong(refused: Refused, body: str) -> str:
    """The one problem of such a spec."""
    found = refused(HEAD + "  it:\n" + "".join(f"    {line}\n" for line in body.strip().splitlines()))
    assert len(found) == 1, found
    return found[0]


def test_a_whole_property(loaded: Load) -> None:
    made = one(
        loaded,
        """
why: because
source: arXiv:0000.00000
observe: {attention.observed_scores: {queries: 512.., keys: 4..511}}
where: [{layer: 1.., head: 0}, {stack: cross, layer: last quarter}]
reduce: {key: decades, step: {first_above: 0.5}, head: mean}
ratio_to: {subject: other}
between: [uniform_norm, sqrt(N)]
for: all layers in 2 of 3 seeds
tolerance: {rtol: 1e-6}
subjects: lm
inputs: manual
must_fail_on: other
level: warn
marks: [large]
unless: {subject: lm, because: later}
""",
    )
    assert made.request == Request.of("attention.observed_scores", {"queries": "512..", "keys": "4..511", "normalise": False})
    assert made.where == (
        {"layer": Selector(1, None, text="1.."), "head": Selector(0, 0, single=True, text="0")},
        {"stack": Selector(single=True, text="cross"), "layer": Selector(part=("last", 0.25), text="last quarter")},
    )
    assert made.reduce == (Reduction("key", "decades"), Reduction("step", "first_above", 0.5), Reduction("head", "mean"))
    assert made.relation == Relation("ratio", subject="other")
    assert made.demand.bound == Bound(parse_expression("uniform_norm"), parse_expression("sqrt(N)"))
    assert made.quantifier == (Quota("all", unit="layer"), Quota("count", 2, 3, "seed"))
    assert made.quantifier_text == "all layers in 2 of 3 seeds"
    assert made.tolerance == Tolerance("allclose", rtol=1e-6)
    assert (made.subjects, made.inputs, made.must_fail_on) == (("lm",), ("manual",), ("other",))
    assert (made.level, made.marks, made.why, made.source) == ("warn", ("large",), "because", "arXiv:0000.00000")
    assert made.unless[0].because == "later"
    assert made.place == Place("x.attn.yaml", 10, 3)
    assert made.places["where.0.head"] == Place("x.attn.yaml", 14, 26)
    assert made.places["between"] == Place("x.attn.yaml", 17, 5)
    assert made.text["reduce"] == {"key": "decades", "step": {"first_above": 0.5}, "head": "mean"}


def test_arguments_of_a_demand(loaded: Load) -> None:
    made = one(
        loaded,
        """
observe: attention.observed_scores
tracks:
  observable: {attention.expected_scores: {statistics: 0..5, future: 6..}}
  scale: log-log
  slope: {between: [0.6, 1.4]}
  mass_kept: {top: 50%, at_least: 0.7}
for: 80% of heads
subjects: small
""",
    ).demand
    assert made.kind == "tracks"
    assert made.arguments["observable"] == Request.of("attention.expected_scores", {"statistics": "0..5", "future": "6..", "keys": "0.."})
    assert made.arguments["slope"].bound == Bound(parse_expression(0.6), parse_expression(1.4))
    assert (made.arguments["mass_kept"].top, made.arguments["pearson"]) == (0.5, None)


def test_axes_directly_in_a_demand_and_in_its_argument(loaded: Load) -> None:
    direct = one(loaded, "observe: attention.entropy\nagrees_with: {attn_implementation: eager}\nsubjects: small")
    spelt = one(loaded, "observe: attention.entropy\nagrees_with: {other: {attn_implementation: eager}}\nsubjects: small")
    assert direct.demand == spelt.demand
    assert direct.demand.arguments == {"other": {"attn_implementation": "eager"}}


@pytest.mark.parametrize("value", ["", " {}"])
def test_a_demand_without_arguments(loaded: Load, value: str) -> None:
    assert one(loaded, f"observe: attention.entropy\nbaseline:{value}\nsubjects: small").demand.arguments == {"rtol": None}


def test_a_demand_that_observes_nothing(loaded: Load, refused: Refused) -> None:
    spec = loaded(HEAD + "  it: {laws: [causal], subjects: small}\n")
    assert spec.properties["it"].demand.arguments == {"only": ["causal"]}
    assert [(case.id, case.input) for case in spec.cases] == [("small/sdpa", None), ("small/eager", None)]
    assert "no observe: laws measures for itself" in wrong(refused, "observe: attention.entropy\nlaws: [causal]\nsubjects: small")


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        ("exact", Tolerance("exact")),
        ("vs_reference", Tolerance("vs_reference")),
        ("{rtol: 1e-5, atol: 0}", Tolerance(rtol=1e-5, atol=0.0)),
        ("{rms_ratio: 2}", Tolerance("rms_ratio", ratio=2.0)),
        ("{vs_reference: {factor: 3}}", Tolerance("vs_reference", factor=3.0)),
        ("{allclose: {atol: 1}}", Tolerance(atol=1.0)),
    ],
)
def test_tolerances(loaded: Load, text: str, tolerance: Tolerance) -> None:
    assert one(loaded, f"observe: attention.entropy\nequals: 1\ntolerance: {text}\nsubjects: small").tolerance == tolerance


@pytest.mark.parametrize(
    "text",
    [
        "near",
        "{rtol: -1}",
        "{rtol: x}",
        "{exact: 1}",
        "{rms_ratio: 1, rtol: 2}",
        "{}",
        "3",
        "{rms_ratio: {factor: 2}}",
        "{rtol: .nan}",
        "{rms_ratio: true}",
    ],
)
def test_bad_tolerances(refused: Refused, text: str) -> None:
    assert "tolerance" in wrong(refused, f"observe: attention.entropy\nequals: 1\ntolerance: {text}\nsubjects: small")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            "observe: attention.entropy\nat_least: 1\nsubjects: smal",
            "subjects: 'smal' is not defined; allowed: small, twin, lm, other; did you mean 'small'?",
        ),
        ("observe: attention.entropy\nat_least: 1\nsubjects: []", "an empty list"),
        ("observe: attention.entropy\nat_least: 1\nsubjects: [small, small]", "'small' twice"),
        ("observe: attention.entropy\nat_lest: 1\nsubjects: small", "unknown key 'at_lest'"),
        ("obsreve: attention.entropy\nat_least: 1\nsubjects: small", "unknown key 'obsreve'"),
        ("at_least: 1\nsubjects: small", "no observe"),
        ("observe: {attention.entropy: {}, logits: {}}\nat_least: 1", "2 names"),
        ("observe: [attention.entropy]\nat_least: 1", "a list"),
        ("observe: attention.entropy\nat_least:\nsubjects: small", "at_least is empty"),
        ("observe: attention.entropy\nwhere: {}\nat_least: 1\nsubjects: small", "an empty mapping"),
        ("observe: attention.entropy\nwhere: {layer: [0, 3]}\nat_least: 1\nsubjects: small", "which is a union"),
        ("observe: attention.entropy\nwhere: {head: 18.10}\nat_least: 1\nsubjects: small", "a head is {layer: 18, head: 10}"),
        ("observe: attention.entropy\nwhere: {stack: cros}\nat_least: 1\nsubjects: small", "did you mean 'cross'?"),
        ("observe: weights.alpha\nat_least: 1\nsubjects: small", "matrix is missing"),
        ("observe: {weights.alpha: {matrix: q, fit: first haf}}\nat_least: 1\nsubjects: small", "'first haf' is not a part"),
        ("observe: {weights.alpha: {matrix: q}}\nreduce: {layer: first_above}\nat_least: 1\nsubjects: small", "first_above of what?"),
        ("observe: attention.entropy\nreduce: {head: peak}\nat_least: 1\nsubjects: small", "peak over layer or step"),
        ("observe: attention.entropy\nreduce: {layer: {mean: 1}}\nat_least: 1\nsubjects: small", "mean takes no argument"),
        ("observe: attention.entropy\nreduce: {layer: {first_above: x}}\nat_least: 1\nsubjects: small", "{first_above: NUMBER}"),
        ("observe: attention.entropy\nratio_to: {}\nat_least: 1\nsubjects: small", "what differs"),
        ("observe: attention.entropy\nratio_to: twin\nat_least: 1\nsubjects: small", "a mapping with subject"),
        (
            "observe: attention.entropy\nratio_to: {observable: attention.entropy}\nat_least: 1\nsubjects: small",
            "another observable, subject or axis",
        ),
        ("observe: attention.entropy\nratio_to: {subject: mha}\nat_least: 1\nsubjects: small", "'mha' is not defined"),
        (
            "observe: attention.entropy\nratio_to: {subject: twin}\ndifference_to: {subject: twin}\nat_least: 1\nsubjects: small",
            "one of them",
        ),
        (
            "observe: {weights.alpha: {matrix: q}}\nratio_to: {observable: attention.entropy}\nat_least: 1\nsubjects: small",
            "keeps sample, head",
        ),
        ("observe: {weights.alpha: {matrix: q}}\nratio_to: {dtype: float32}\nat_least: 1\nsubjects: small", "reads no forward pass"),
        ("observe: attention.entropy\nbetween: [2, 1]\nsubjects: small", "the smaller side comes first"),
        ("observe: attention.entropy\nbetween: 1\nsubjects: small", "two sides: [a, b]"),
        ("observe: attention.entropy\nbetween: [1, 2, 3]\nsubjects: small", "a list of 3"),
        ("observe: attention.entropy\nat_least: [1]\nsubjects: small", "one value"),
        ("observe: attention.entropy\nat_least: .inf\nsubjects: small", "not a finite number"),
        ("observe: attention.entropy\nat_most: 9**9**9\nsubjects: small", "comes to inf"),
        ("observe: attention.entropy\nat_least: 1\nfor: 2 of 3 seeds\nsubjects: small", "'seed' is no dim"),
        ("observe: attention.entropy\nat_least: 1\nfor: 2 of 4 seeds\nsubjects: lm", "4 seeds, but lm has 3"),
        ("observe: {weights.alpha: {matrix: q}}\nat_least: 1\nfor: all heads\nsubjects: small", "'head' is no dim"),
        ("observe: attention.entropy\nat_least: 1\nfor: all queries\nsubjects: small", "'query' is no dim"),
        (
            "observe: attention.entropy\ntracks: {observable: attention.entropy, pearson: {at_least: 0}}\nfor: all keys\nsubjects: small",
            "'key' is no dim",
        ),
        (
            "observe: attention.entropy\ntracks: {observable: attention.entropy, pearson: {at_least: 0, at_most: 1}}\nsubjects: small",
            "exactly one of at_least",
        ),
        (
            "observe: attention.observed_scores\ntracks: {observable: attention.obsrved_scores}\nsubjects: small",
            "did you mean 'attention.observed_scores'?",
        ),
        (
            "observe: attention.observed_scores\ntracks: {observable: {attention.expected_scores: {statistics: 0.., future: x}}}",
            "'x' is not a range",
        ),
        (
            "observe: attention.observed_scores\ntracks: {observble: attention.observed_scores}\nsubjects: small",
            "unknown argument 'observble'",
        ),
        (
            "observe: attention.entropy\ntracks: {observable: attention.entropy, mass_kept: {top: 150%, at_least: 1}}\nsubjects: small",
            "'150%' is not a share",
        ),
        ("observe: attention.entropy\nagrees_with: {attn: eager}\nsubjects: small", "'attn' is no axis"),
        ("observe: attention.entropy\nagrees_with: {dtype: [a]}\nsubjects: small", "is not one value"),
        ("observe: attention.entropy\nat_least: 1\nmust_fail_on: small\nsubjects: small", "must both satisfy the property and fail it"),
        ("observe: attention.entropy\nat_least: 1\nlevel: wran\nsubjects: small", "did you mean 'warn'?"),
        ("observe: attention.entropy\nat_least: 1\nmarks: a-b\nsubjects: small", "a pytest mark"),
        ("observe: attention.entropy\nat_least: 1\nunless: {subject: small}\nsubjects: small", "because is missing"),
        ("observe: attention.entropy\nat_least: 1\nunless: {because: x}\nsubjects: small", "nothing that it applies to"),
        ("observe: attention.entropy\nat_least: 1\nunless: {subject: lm, because: x}\nsubjects: small", "unless matches no test"),
        (
            "observe: attention.entropy\nat_least: 1\nunless: [{dtype: float16, because: x}]",
            "unless matches no test",
        ),
    ],
)
def test_one_mistake_is_one_problem(refused: Refused, body: str, found: str) -> None:
    assert found in wrong(refused, body)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("attncheck: 1\n", ["no expect", "no subjects"]),
        ("[1]\n", ["no mapping"]),
        ("attncheck: true\nsubjects:\nexpect: {}\n", ["version True", "subjects is empty", "expect: an empty mapping"]),
        (HEAD, ["expect is empty"]),
        (HEAD.replace("attncheck: 1\n", "") + "  it: {observe: attention.entropy, at_least: 1}\n", ["no version"]),
        (
            HEAD.replace("inputs:\n  manual: {corpus: python-manual, length: 64}\n", "")
            + "  it: {observe: attention.entropy, at_least: 1, subjects: small}\n",
            ["its observable needs an input and small has none"],
        ),
        (
            HEAD.replace("expect:", "defaults: {for: all}\nexpect:") + "  it: {observe: attention.entropy, at_least: 1}\n",
            ["defaults: unknown key 'for'"],
        ),
        (HEAD + "  must-fail: {observe: attention.entropy, at_least: 1}\n", ["must-fail is taken"]),
        (HEAD + "  it: 5\n", ["it: '5'; allowed: a mapping"]),
        (HEAD.replace("[0, 1, 2]", "[0, 0]") + "  it: {observe: attention.entropy, at_least: 1}\n", ["seeds: 0 twice"]),
        (
            HEAD.replace("seed: 3}", "seed: 3, seeds: [1]}") + "  it: {observe: attention.entropy, at_least: 1, subjects: small}\n",
            ["seed and seeds"],
        ),
    ],
)
def test_mistakes_of_a_file(refused: Refused, text: str, found: list[str]) -> None:
    problems = refused(text)
    assert len(problems) == len(found), problems
    for part, problem in zip(found, problems, strict=True):
        assert part in problem


@pytest.mark.parametrize(
    ("subject", "found"),
    [
        ("{}", "no kind"),
        ("{pretraned: x}", "unknown key 'pretraned'"),
        ("{pretrained: x, operator: y}", "a second kind 'operator'"),
        ("{pretrained: {name: x}, name: y}", "given twice"),
        ("{pretrained: [x]}", "a valid string"),
        ("{pretrained: x, revison: y}", "did you mean 'revision'?"),
        ("{pretrained: x, layers: 3}", "unknown key 'layers'"),
        ("{like: nobody}", "'nobody' is not defined"),
        ("{like: it}", "like goes in a circle: it -> it"),
        ("{pretrained: x, dtype: []}", "an empty list"),
        ("{pretrained: x, dtype: [float32, float32]}", "'float32' twice"),
        ("{pretrained: x, seed: -1}", "a whole number from 0"),
        ("{pretrained: x, optional: yes}", "true, false"),
        ("{pretrained: x, attention_layers: 0}", "a whole number from 1"),
        ("{pretrained: x, inputs: none}", "'none' is not defined"),
        ("{pretrained: x, claims: 3}", "claims"),
        ("{train: {recipe: x, layers: true}}", "a number"),
        ("{pretrained: }", "name is missing"),
        ("{pretrained: x, marks: }", "marks is empty"),
        ("x", "a mapping with one of"),
        ("{train: {recipe: x, layers: 1.5}}", "layers: '1.5'"),
    ],
)
def test_mistakes_of_a_subject(refused: Refused, subject: str, found: str) -> None:
    problems = refused(
        f"attncheck: 1\nsubjects:\n  it: {subject}\nexpect:\n  p: {{observe: {{weights.alpha: {{matrix: q}}}}, at_least: 1}}\n"
    )
    assert len(problems) == 1, problems
    assert found in problems[0]


@pytest.mark.parametrize(
    ("fed", "found"),
    [
        ("{}", "no kind"),
        ("{text: hello, length: 0}", "a whole number from 1"),
        ("{text: hello, padding: {side: left}}", "amount is missing"),
        ("{text: hello, padding: left}", "a mapping with side, amount"),
        ("{text: hello, length: 4, padding: {side: left, amount: 4}}", "an amount below the length"),
        ("{txet: hello}", "did you mean 'text'?"),
        ("{corpus: shakespere}", "did you mean 'shakespeare'?"),
        ("{text: {a: {}}}", "text"),
    ],
)
def test_mistakes_of_an_input(refused: Refused, fed: str, found: str) -> None:
    problems = refused(
        f"attncheck: 1\nsubjects: {{s: {{pretrained: x}}}}\ninputs:\n  it: {fed}\n"
        "expect:\n  p: {observe: attention.entropy, at_least: 1}\n"
    )
    assert len(problems) == 1, problems
    assert found in problems[0]


def test_the_options_of_a_kind_stand_in_it_or_beside_it(loaded: Load) -> None:
    spec = loaded(
        """attncheck: 1
subjects:
  a: {train: bytes-lm, layers: 3, attention: {lrkv: {rank: 10}}}
  b: {train: {recipe: bytes-lm, layers: 3}, attention: {lrkv: {rank: 10}}}
  c: {operator: {polynomial: {power: 3}}}
  d: {operator: polynomial, arguments: {power: 3}}
  e: {config: {model_type: llama, hidden_size: 64}}
inputs:
  f: {qkv: normal, queries: 4, heads: 2, head_dim: 8}
  g: {text: [one, two], batch: 2, padding: {side: left, amount: 3}}
expect:
  p: {observe: {weights.norm: {matrix: k}}, at_least: 0}
"""
    )
    definition = {name: subject.definition for name, subject in spec.subjects.items()}
    assert definition["a"].key == definition["b"].key
    assert definition["a"].options["attention"] == {"lrkv": {"rank": 10}}
    assert definition["c"].options == definition["d"].options == {"name": "polynomial", "arguments": {"power": 3}}
    assert definition["e"].options == {"model_type": "llama", "hidden_size": 64}
    assert spec.inputs["f"].options == {"distribution": "normal", "queries": 4, "heads": 2, "head_dim": 8, "seed": 0}
    assert (spec.inputs["g"].options, spec.inputs["g"].batch) == ({"text": ["one", "two"]}, 2)
    assert spec.inputs["g"].padding == {"side": "left", "amount": 3}


def test_like_inherits_replaces_and_merges(loaded: Load) -> None:
    spec = loaded(
        """attncheck: 1
subjects:
  last: {like: middle, train: {layers: 9}, dtype: float16}
  first:
    train: {recipe: bytes-lm, layers: 3, heads: 8}
    attention: mha
    dtype: float32
    marks: large
    seeds: [0, 1]
    optional: true
    claims: {causal: true}
  middle: {like: first, attention: {lrkv: {rank: 10}}, marks: [slow], weights: random}
  changed: {like: first, pretrained: x}
expect:
  p: {observe: {weights.norm: {matrix: k}}, at_least: 0}
"""
    )
    first, middle, last, changed = (spec.subjects[name] for name in ("first", "middle", "last", "changed"))
    assert middle.definition.options == {**first.definition.options, "attention": {"lrkv": {"rank": 10}}}
    assert last.definition.options == {**middle.definition.options, "layers": 9}
    assert (middle.axes["dtype"], last.axes["dtype"]) == (("float32",), ("float16",))
    assert (first.marks, middle.marks, last.marks) == (("large",), ("slow",), ("slow",))
    assert (last.seeds, last.optional, last.definition.weights, last.claims) == ((0, 1), True, "random", {"causal": True})
    assert changed.definition.kind == "pretrained"
    assert changed.definition.options == {"name": "x", "revision": None}
    assert (changed.seeds, changed.place) == ((0, 1), Place("x.attn.yaml", 13, 3))


def test_a_mistake_is_told_of_the_subject_that_has_it_and_not_of_its_heirs(refused: Refused) -> None:
    problems = refused(
        HEAD.replace("recipe: bytes-lm", "recipe: bytes-lm, layers: x") + "  it: {observe: attention.entropy, at_least: 1}\n"
    )
    assert len(problems) == 1
    assert "subject lm" in problems[0]


def test_a_long_chain_of_likes_ends(refused: Refused) -> None:
    chain = "".join(f"  s{n}: {{like: s{n + 1}}}\n" for n in range(3000))
    problems = refused(
        f"attncheck: 1\nsubjects:\n{chain}  s3000: {{pretrained: x}}\nexpect:\n  p: {{observe: training.loss, at_least: 1}}\n"
    )
    assert "a chain of more than" in problems[0]


def test_paths_are_relative_to_the_spec(tmp_path: Path, vocabulary: Vocabulary) -> None:
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "a.attn.yaml").write_text(
        "attncheck: 1\nsubjects: {a: {pretrained: ./model}, b: {pretrained: org/model}}\n"
        "inputs: {f: {file: notes.txt}, t: {text: ./hello}}\nexpect: {p: {observe: attention.entropy, at_least: 1}}\n"
    )
    spec = load(folder / "a.attn.yaml", vocabulary, root=tmp_path)
    assert spec.subjects["a"].definition.options["name"] == str(folder / "model")
    assert spec.subjects["b"].definition.options["name"] == "org/model"
    assert spec.inputs["f"].options["path"] == str(folder / "notes.txt")
    assert spec.inputs["t"].options["text"] == "./hello"
    assert spec.properties["p"].place.path == "specs/a.attn.yaml"


def test_a_file_that_is_not_there(tmp_path: Path, vocabulary: Vocabulary) -> None:
    for path in (tmp_path / "no.attn.yaml", tmp_path):
        with pytest.raises(SpecError, match="cannot be read"):
            load(path, vocabulary)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("subjects: {m: {config: {model_type: llama}, dtype: floot32}}", "subject m: dtype: 'floot32'; allowed: float64, float32"),
        ("subjects: {m: {config: {model_type: llama}, dtype: [float32, 16]}}", "subject m: dtype: '16'; allowed: float64, float32"),
        ("subjects: {m: {config: {model_type: llama}, device: gpu}}", "subject m: device: 'gpu'; allowed: auto, cpu, cuda, cuda:N, mps"),
        ("subjects: {m: {config: {model_type: llama}}}\ndefaults: {dtype: half}", "defaults: dtype: 'half'; allowed: float64, float32"),
    ],
)
def test_an_axis_with_values_that_are_known_takes_no_other(refused: Refused, text: str, found: str) -> None:
    (problem,) = refused(f"attncheck: 1\n{text}\nexpect:\n  it: {{observe: {{weights.alpha: {{matrix: q}}}}, at_least: 0}}\n")
    assert found in problem
