"""A series measured step by step: equal to measuring each checkpoint alone, one model at a time, cached by all of its files."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import attncheck
from attncheck.core.definitions import InputDefinition, PassKey, Request, SubjectDefinition
from attncheck.core.errors import AttncheckError, MeasurementError
from attncheck.core.evidence import SubjectSeries
from attncheck.engine import identity
from attncheck.engine.cache import Cache
from attncheck.engine.measure import measure
from attncheck.engine.run import Run, RunOptions
from attncheck.engine.series import joined, measure_series
from attncheck.engine.vocabulary import vocabulary
from attncheck.subjects import load_any

STEPS = (1, 4, 16)
WORDS = InputDefinition("words", "tokens", {"ids": "random"}, length=12)
ENTROPY = Request.of("attention.entropy", {"per": "head"})
NORM = Request.of("weights.norm", {"matrix": "k", "part": None})
LOSS = Request.of("training.loss", {"split": "train"})


def llama(layers: int = 2, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, vocab_size=260
    )
    return LlamaForCausalLM(config)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    vocabulary()
    model = llama()
    for step in STEPS:
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.q_proj.weight.mul_(3)
        model.save_pretrained(tmp_path / "project" / "run" / f"step{step}")
    return tmp_path / "project" / "run"


def whole(run: Path, **changes) -> PassKey:
    return PassKey(SubjectDefinition("run", "checkpoints", {"source": str(run), **changes}, device="cpu"), WORDS)


def norm_request() -> Request:
    from attncheck.core.observable import OBSERVABLES

    return Request.of("weights.norm", OBSERVABLES["weights.norm"].arguments(matrix="q").model_dump(mode="json"))


def test_each_step_is_what_its_checkpoint_gives_alone(run: Path) -> None:
    requests = [ENTROPY, norm_request()]
    measured = measure(whole(run), requests)
    assert not measured.faults
    for request in requests:
        found = measured.values[request.key]
        assert found["value"].dims[0] == "step"
        assert found["step"].values.tolist() == list(STEPS)
        for step in STEPS:
            alone = PassKey(SubjectDefinition("one", "pretrained", {"name": str(run / f"step{step}")}, device="cpu"), WORDS)
            one = measure(alone, [request]).values[request.key]
            np.testing.assert_array_equal(found["value"].sel(step=step).values, one["value"].values)
            assert one.attrs["unit"] == found.attrs["unit"]
            assert set(one.coords) | {"step"} == set(found.coords)


def test_one_model_is_alive_at_a_time(run: Path) -> None:
    series = load_any(whole(run).subject)
    assert isinstance(series, SubjectSeries)
    alive: list[weakref.ref[torch.nn.Module]] = []
    most = []
    real = series.open

    def counted(step: int):
        most.append(sum(one() is not None for one in alive))
        subject = real(step)
        alive.append(weakref.ref(subject.model))
        return subject

    series.open = counted
    from attncheck.core.evidence import Feed
    from attncheck.engine.measure import measure_fed

    measure_fed(series, Feed({"input_ids": torch.arange(12)[None]}), [ENTROPY])
    gc.collect()
    assert most == [0, 0, 0]
    assert sum(one() is not None for one in alive) == 0


def test_a_fault_names_its_step(run: Path) -> None:
    weights = run / "step4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(MeasurementError, match=r"run: step 4 \(.*step4\): .*could not be built: SafetensorError"):
        measure(whole(run), [ENTROPY])


def test_other_shapes_are_refused_with_both_steps(run: Path) -> None:
    llama(layers=3).save_pretrained(run / "step64")
    found = measure(whole(run), [ENTROPY])
    assert str(found.faults[ENTROPY.key]).startswith("run: step 64 (")
    assert "3 layers" in str(found.faults[ENTROPY.key])
    assert "2 layers" in str(found.faults[ENTROPY.key])


def test_the_log_is_read_without_a_model(run: Path) -> None:
    note = {"log_history": [{"step": step, "loss": 10.0 / step} for step in STEPS]}
    (run / "step16" / "trainer_state.json").write_text(json.dumps(note))
    for step in STEPS:
        (run / f"step{step}" / "model.safetensors").unlink()
    found = measure(PassKey(whole(run).subject), [LOSS]).values[LOSS.key]
    assert found["value"].dims == ("step",)
    np.testing.assert_allclose(found["value"].values, [10.0, 2.5, 0.625])


def test_a_log_that_lacks_a_step_is_an_error(run: Path) -> None:
    (run / "step16" / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 4, "loss": 2.0}]}))
    fault = measure(PassKey(whole(run).subject), [LOSS]).faults[LOSS.key]
    assert "run has no train.loss at step 1" in str(fault)
    fields = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 32}
    config = SubjectDefinition("tiny", "config", {**fields, "vocab_size": 64}, device="cpu")
    assert "tiny is not a training" in str(measure(PassKey(config), [LOSS]).faults[LOSS.key])


def test_joined_keeps_presence_intervals_and_what_varies() -> None:
    from attncheck.core.measurement import measurement

    def one(value: float, symbol: float, **parts):
        return measurement(
            np.full((2, 3), value), ("layer", "head"), coords={"layer": (("layer",), [0, 1])}, symbols={"N": ((), np.array(symbol))},
            attrs={"decided": parts.pop("decided", "exact"), "resolution": value, "notes": [f"n{value:g}"]}, **parts,
        )  # fmt: skip

    series = SubjectSeries(SubjectDefinition("s", "checkpoints", {}), [1, 2], open=lambda step: None)  # type: ignore[arg-type,return-value]
    holes = np.ones((2, 3), dtype=bool)
    holes[0, 0] = False
    found = joined(series, [one(1.0, 7), one(2.0, 8, present=holes, upper=np.full((2, 3), 2.5), decided="bracketed")])
    assert found["present"].values[0].all()
    assert not found["present"].values[1, 0, 0]
    np.testing.assert_array_equal(found["upper"].values[:, 1, 1], [1.0, 2.5])
    np.testing.assert_array_equal(found.coords["symbol_N"].values, [7, 8])
    assert found.coords["symbol_N"].dims == ("step",)
    assert found.attrs["decided"] == "bracketed"
    assert found.attrs["resolution"] == 2.0
    assert found.attrs["notes"] == ["n1", "n2"]


def test_the_cache_knows_every_file_and_every_step(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, opened = run.parent, []
    monkeypatch.setenv("ATTNCHECK_CACHE", str(project.parent / "cache"))
    monkeypatch.setenv("ATTNCHECK_CACHE_LIMIT", str(1 << 28))
    monkeypatch.setattr(identity, "loaded_code", lambda: "")
    monkeypatch.setattr(identity, "_trees", lambda root: [Path(root)])

    def fetched() -> list[int]:
        identity.content.cache_clear()
        identity.surroundings.cache_clear()
        one = Run(project / ".attncheck" / "runs" / str(len(opened)), options=RunOptions(project, cache=True))
        found = one.fetch(whole(run), ENTROPY)
        key = one.defaults.fill(whole(run))
        record = one.store.record(key)
        assert record is not None
        opened.append(record.cached)
        one.close()
        return [int(step) for step in found["step"].values]

    assert Cache.opened() is not None
    assert fetched() == [1, 4, 16]
    assert fetched() == [1, 4, 16]
    (run / "step16").rename(run / "step32")
    from attncheck.engine import measure as measuring

    measuring._held.clear()
    assert fetched() == [1, 4, 32]
    llama(seed=1).save_pretrained(run / "step4")
    assert fetched() == [1, 4, 32]
    assert opened == [0, 1, 0, 0]


def test_observe_takes_a_folder(run: Path) -> None:
    ids = torch.arange(12)[None]
    found = attncheck.observe(run, {"input_ids": ids}, ["attention.entropy", {"weights.norm": {"matrix": "q"}}])
    assert found["attention.entropy"].dims == ("step", "sample", "layer", "head")
    assert found["step"].values.tolist() == list(STEPS)
    for step in STEPS:
        model = LlamaForCausalLM.from_pretrained(run / f"step{step}").eval()
        alone = attncheck.observe(model, {"input_ids": ids}, ["attention.entropy"])
        np.testing.assert_allclose(found["attention.entropy"].sel(step=step), alone["attention.entropy"], rtol=1e-6)
    growth = found["weights.norm"].isel(step=-1) / found["weights.norm"].isel(step=0)
    np.testing.assert_allclose(growth, 9.0, rtol=1e-5)
    listed = attncheck.observe([run / "step4", {"step": 9, "source": str(run / "step1")}], {"input_ids": ids}, ["attention.entropy"])
    assert listed["step"].values.tolist() == [4, 9]
    with pytest.raises(AttncheckError, match="there is no folder"):
        attncheck.observe(run / "nowhere", {"input_ids": ids}, ["attention.entropy"])


def test_progress_tells_each_step(run: Path) -> None:
    said: list[str] = []
    series = load_any(whole(run).subject)
    assert isinstance(series, SubjectSeries)
    from attncheck.core.observable import OBSERVABLES
    from attncheck.engine.measure import Measured
    from attncheck.instruments.session import Wanted

    measure_series(series, [Wanted(ENTROPY, OBSERVABLES[ENTROPY.name])], lambda subject, wanted: Measured(), said.append)
    assert said == [f"run: step {step} ({number + 1} of 3)" for number, step in enumerate(STEPS)]
