"""`checkpoints:` which steps a folder, a glob or a list holds, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from attncheck.core.errors import MeasurementError, Unavailable
from attncheck.core.evidence import SubjectSeries
from attncheck.subjects import load, load_any
from attncheck.subjects.series import check, files_of, found_in, step_of


@pytest.fixture
def run(define, tiny, tmp_path: Path) -> Path:
    """Three checkpoints; the keys of each are scaled by its step."""
    import torch

    model = load(define("config", tiny)).model
    for step in (2, 10, 100):
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.k_proj.weight.fill_(step / 100)
        model.save_pretrained(tmp_path / "run" / f"checkpoint-{step}")
    return tmp_path / "run"


def series(define, source, root=None, **options) -> SubjectSeries:
    found = load_any(define("checkpoints", {"source": source, **options}), root=root)
    assert isinstance(found, SubjectSeries)
    return found


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-100", 100),
        ("step1000", 1000),
        ("step_000500", 500),
        ("global_step20", 20),
        ("llama-7b-step100", 100),
        ("step1000-tokens4B", 1000),
        ("checkpoint-100-final", 100),
        ("iter=40", 40),
        ("0010", 10),
        ("run.7", 7),
        ("final", None),
        ("pythia-160m", None),
        ("step5k", None),
        ("v2beta", None),
    ],
)
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_a_folder_in_the_order_of_its_steps(define, run: Path) -> None:
    found = series(define, str(run))
    assert list(found.steps) == [2, 10, 100]
    for step in found.steps:
        weight = found.open(step).model.model.layers[0].self_attn.k_proj.weight
        assert float(weight.mean()) == pytest.approx(step / 100)
        assert found.name_of(step) == str(run / f"checkpoint-{step}")


def test_a_glob_a_list_and_a_choice(define, run: Path) -> None:
    assert list(series(define, "run/checkpoint-1*", root=run.parent).steps) == [10, 100]
    listed = series(define, ["run/checkpoint-100", {"step": 7, "source": "run/checkpoint-2"}], root=run.parent)
    assert list(listed.steps) == [7, 100]
    assert float(listed.open(7).model.model.layers[0].self_attn.k_proj.weight.mean()) == pytest.approx(0.02)
    assert list(series(define, str(run), steps=[100, 2]).steps) == [2, 100]


def test_a_folder_without_a_step_is_left_out_of_a_folder_and_refused_in_a_glob(define, run: Path) -> None:
    shutil.copytree(run / "checkpoint-2", run / "final")
    (run / "logs").mkdir()
    found = series(define, str(run))
    assert list(found.steps) == [2, 10, 100]
    assert found.notes == ["'final' has no step in its name and is left out"]
    with pytest.raises(MeasurementError, match=r"'final'.* says no step; allowed: a name such as checkpoint-100"):
        series(define, f"{run}/[cf]*")


def test_what_is_refused(define, run: Path) -> None:
    with pytest.raises(Unavailable, match=r"there is no folder .*/nowhere"):
        series(define, "./nowhere", root=run)
    with pytest.raises(MeasurementError, match="no folder matches"):
        series(define, f"{run}/epoch-*")
    (run / "none").mkdir()
    with pytest.raises(MeasurementError, match=r"no checkpoint in .*none; allowed: folders with a name such as"):
        series(define, str(run / "none"))
    with pytest.raises(MeasurementError, match="no checkpoint of step 3; there are 2, 10, 100"):
        series(define, str(run), steps=[2, 3])
    with pytest.raises(MeasurementError, match="seed 1 changes nothing"):
        load_any(define("checkpoints", {"source": str(run)}, seed=1))
    (run / "checkpoint-200").mkdir()
    with pytest.raises(MeasurementError, match=r"checkpoint-200 has no config\.json: .* not yet complete"):
        series(define, str(run))
    shutil.rmtree(run / "checkpoint-200")
    shutil.copytree(run / "checkpoint-2", run / "step100")
    with pytest.raises(MeasurementError, match=r"checkpoint-100 and .*step100 are both of step 100"):
        series(define, str(run))


def test_a_list_is_checked_while_a_spec_is_read() -> None:
    def complaints(**arguments) -> list[str]:
        return [complaint.found for complaint in check({"revisions": None, **arguments})]

    assert complaints(source=["a/step1", {"step": 2, "source": "b"}]) == []
    assert complaints(source=["final"]) == ["checkpoints: 'final' says no step"]
    assert complaints(source=["step1", "checkpoint-1"]) == ["checkpoints: step 1 twice, 'step1' and 'checkpoint-1'"]
    assert complaints(source="owner/model", revisions=["step1", "main"]) == ["checkpoints: 'main' says no step"]
    assert complaints(source=[]) == ["checkpoints: an empty list"]
    assert complaints(source=["step1"], revisions=["step2"]) == ["checkpoints: revisions beside a list"]


def test_revisions_of_a_hub_name_are_checkpoints_of_their_steps() -> None:
    found, _ = found_in("s", Path.cwd(), {"source": "owner/model", "revisions": ["step1000", "step64"]})
    assert [(one.step, one.source, one.revision) for one in found] == [(64, "owner/model", "step64"), (1000, "owner/model", "step1000")]


def test_a_hub_name_that_is_not_here_is_unavailable_with_the_command(define) -> None:
    found = series(define, "attncheck-nobody/nothing", revisions=["step1"])
    with pytest.raises(Unavailable, match="hf download attncheck-nobody/nothing --revision step1"):
        found.open(1)


def test_one_model_is_needed_where_a_series_is_given(define, run: Path) -> None:
    with pytest.raises(MeasurementError, match="a series of 3 checkpoints, and one model is needed"):
        load(define("checkpoints", {"source": str(run)}))


def test_random_weights_are_the_seed_s_at_every_step(define, run: Path) -> None:
    found = load_any(define("checkpoints", {"source": str(run)}, weights="random", seed=3))
    weights = [found.open(step).model.model.layers[0].self_attn.k_proj.weight for step in found.steps]
    assert all(bool((weight == weights[0]).all()) for weight in weights)
    assert float(weights[0].std()) > 0.001


def test_the_files_of_all_checkpoints_decide(define, run: Path) -> None:
    files = files_of({"source": str(run)}, run)
    assert files is not None
    assert {(path.parent.name, path.name) for path in files} >= {
        (f"checkpoint-{step}", name) for step in (2, 10, 100) for name in ("config.json", "model.safetensors")
    }
    assert files_of({"source": str(run / "nowhere")}, run) is None


def test_the_losses_that_a_trainer_noted(define, run: Path) -> None:
    history = [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.0}, {"step": 9, "loss": 3.0}, {"step": 50, "eval_loss": 2.5}]
    (run / "checkpoint-100" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    log = series(define, str(run)).log
    assert log == {"train.loss": {2: 4.0, 10: 3.0, 100: 3.0}, "test.loss": {100: 2.5}}
    (run / "checkpoint-100" / "trainer_state.json").write_text("{")
    assert series(define, str(run)).log == {}
