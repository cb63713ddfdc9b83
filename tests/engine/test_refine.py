"""Decide, then refine: verdicts of estimates agree with exact ones, and no failure rests on an estimate."""

from __future__ import annotations

import random

import pytest

from attncheck.core.errors import MeasurementError, Undecided
from attncheck.core.verdict import Verdict
from attncheck.engine.plan import plan
from attncheck.engine.refine import decided
from attncheck.engine.run import Run, RunOptions
from attncheck.engine.vocabulary import vocabulary
from attncheck.spec.loader import load

MODEL = (
    "{model_type: llama, hidden_size: 48, intermediate_size: 64, num_hidden_layers: 3, num_attention_heads: 6, num_key_value_heads: 2, "
    "vocab_size: 64, initializer_range: 0.4}"
)
ESTIMATES = {
    "attention.frobenius_estimate": "attention.frobenius_norm",
    "attention.participation_ratio": "attention.participation_ratio (exact: True)",
}


def spec(folder, expect, *, length=96, subjects=None):
    path = folder / "x.attn.yaml"
    subjects = subjects or f"tiny: {{config: {MODEL}, dtype: float32, device: cpu}}"
    lines = "\n".join(f"  {line}" for line in subjects.splitlines())
    properties = "\n".join(f"  {name}: {{{text}}}" for name, text in expect.items())
    text = f"attncheck: 1\nsubjects:\n{lines}\ninputs:\n  words: {{tokens: random, length: {length}}}\nexpect:\n{properties}\n"
    path.write_text(text, encoding="utf-8")
    return load(path, vocabulary(), root=folder).cases


def run(folder, cases):
    return Run(folder / "run", plan(cases), RunOptions(folder))


def values(folder, name, **about):
    """What is measured, [layer, head]."""
    cases = spec(folder, {"all": f"observe: {name}, at_least: -1"}, **about)
    made = run(folder, cases)
    try:
        from attncheck.core.definitions import PassKey

        data = made.fetch(made.defaults.fill(PassKey(cases[0].variant, cases[0].input)), cases[0].property.request)
        return data.isel(sample=0, drop=True) if "sample" in data.dims else data
    finally:
        made.close()


def test_a_bound_inside_the_interval_is_decided_by_exact_rows(tmp_path):
    data = values(tmp_path, "attention.frobenius_estimate")
    low, high = (data[side].values[1, 2] for side in ("lower", "upper"))
    exact = float(values(tmp_path, "attention.frobenius_norm")["value"].values[1, 2])
    assert low < exact < high
    where = "observe: attention.frobenius_estimate, where: {layer: 1, head: 2}"
    bounds = {"holds": f"{where}, at_least: {(low + exact) / 2}", "fails": f"{where}, at_least: {(high + exact) / 2}"}
    cases = spec(tmp_path, bounds)
    made = run(tmp_path, cases)
    try:
        holds, fails = (made.judge(case) for case in cases)
    finally:
        made.close()
    assert (holds.passed, fails.passed) == (True, False)
    assert holds.decided == fails.decided == "exact"
    assert any(note.endswith("decided by attention.frobenius_norm") for note in holds.notes)


@pytest.mark.parametrize("name", ["attention.spectral_norm", "attention.stable_rank"])
def test_power_iteration_goes_on_until_it_decides(tmp_path, name):
    data = values(tmp_path, f"{{{name}: {{steps: 1}}}}")
    low, high = (float(data[side].values[1, 2]) for side in ("lower", "upper"))
    fine = values(tmp_path, f"{{{name}: {{steps: 200}}}}")
    true = float(fine["value"].values[1, 2])
    assert high - low > 4 * float((fine["upper"] - fine["lower"]).values[1, 2])
    where = f"observe: {{{name}: {{steps: 1}}}}, where: {{layer: 1, head: 2}}"
    cases = spec(tmp_path, {"holds": f"{where}, at_least: {(low + true) / 2}", "fails": f"{where}, at_least: {(high + true) / 2}"})
    made = run(tmp_path, cases)
    try:
        assert [made.judge(case).passed for case in cases] == [True, False]
    finally:
        made.close()


@pytest.mark.slow
def test_ten_thousand_verdicts_are_those_of_exact_rows(tmp_path):
    """Bounds from 1e-4 to 0.3 away from the truth, in either direction, on heads of ten models at a length at which both are estimates."""
    draw, wrong, refined, failed = random.Random(0), 0, 0, 0
    for seed in range(10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        about = {"length": 520 if seed < 2 else 200, "subjects": f"tiny: {{config: {MODEL}, seed: {seed}, dtype: float32, device: cpu}}"}
        names = list(ESTIMATES) if seed < 2 else ["attention.frobenius_estimate"]
        expect, truth = {}, {}
        for name in names:
            exact = "attention.frobenius_norm" if "frobenius" in name else "{attention.participation_ratio: {exact: true}}"
            true = values(folder, exact, **about)["value"].values
            for number in range(1000 // len(names)):
                layer, head = draw.randrange(3), draw.randrange(6)
                bound = true[layer, head] * (1 + draw.choice((-1, 1)) * 10 ** draw.uniform(-4, -0.5))
                word = draw.choice(("at_least", "at_most"))
                key = f"p{len(expect)}-{number}"
                expect[key] = f"observe: {name}, where: {{layer: {layer}, head: {head}}}, {word}: {float(bound)!r}"
                truth[key] = (true[layer, head] >= bound) == (word == "at_least")
        cases = spec(folder, expect, **about)
        made = run(folder, cases)
        try:
            for case in cases:
                verdict = made.judge(case)
                wrong += verdict.passed != truth[case.property.name]
                refined += any("decided by" in note for note in verdict.notes)
                if not verdict.passed:
                    failed += 1
                    assert not verdict.decided.startswith("estimated"), verdict
        finally:
            made.close()
    print(f"of 10,000 verdicts {wrong} are wrong, {refined} were refined, {failed} failed")
    assert wrong <= 3  # alpha is 1e-4 for each of those that an interval decides
    assert failed > 3000
    assert refined > failed


def verdict(passed, decided="exact"):
    return Verdict(passed, "", "", decided=decided, checked=1)


class Steps:
    """A judge that says or raises one thing after another."""

    def __init__(self, *told):
        self.told = list(told)

    def __call__(self, case):
        one = self.told.pop(0)
        if isinstance(one, Exception):
            raise one
        return one


@pytest.fixture
def case(tmp_path):
    return spec(tmp_path, {"x": "observe: attention.frobenius_estimate, at_least: 1"})[0]


def test_an_estimate_that_fails_is_confirmed(case):
    assert decided(case, Steps(verdict(False, "estimated(1e-4)"), verdict(True))).passed
    assert not decided(case, Steps(verdict(False, "estimated(1e-4)"), verdict(False))).passed


def test_an_estimate_that_passes_and_a_bracket_that_fails_stand(case):
    assert decided(case, Steps(verdict(True, "estimated(1e-4)"))).passed
    assert not decided(case, Steps(verdict(False, "bracketed"))).passed


def test_where_exact_rows_are_not_to_be_had(case):
    failed = decided(case, Steps(verdict(False, "estimated(1e-4)"), MeasurementError("no rows")))
    assert failed.notes == ["an estimate, not confirmed by exact rows: no rows"]
    with pytest.raises(Undecided, match="open"):
        decided(case, Steps(Undecided("open"), MeasurementError("no rows")))
    with pytest.raises(Undecided, match="still"):
        decided(case, Steps(Undecided("open"), Undecided("still")))
