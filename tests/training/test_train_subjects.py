"""A training is done once for all that determines it, is the same each time, and its checkpoints are the subject."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attncheck.core.definitions import InputDefinition, PassKey, Request, SubjectDefinition
from attncheck.core.errors import MeasurementError
from attncheck.engine.measure import measure
from attncheck.subjects import load_any
from attncheck.training.loop import loss_of, recorded


def states(series) -> list[dict[str, torch.Tensor]]:
    return [{name: p.clone() for name, p in series.open(step).model.state_dict().items()} for step in series.steps]


def same(one, other) -> bool:
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def test_recorded_steps() -> None:
    assert recorded(250, None) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 250]
    assert recorded(8, None) == [0, 1, 2, 4, 8]
    assert recorded(1, None) == [0, 1]
    assert recorded(25, 10) == [0, 10, 20, 25]


def test_a_training_is_done_once_and_read_after(trained, cache: Path) -> None:
    said: list[str] = []
    first = trained(said.append, steps=4)
    assert first.steps == [0, 1, 2, 4]
    assert [line for line in said if "step 4 of 4" in line]
    (folder,) = [path for path in cache.iterdir() if path.is_dir()]
    assert sorted(path.name for path in folder.iterdir()) == [
        "complete", "log.json", "run.json", *(f"step-{step:06d}.safetensors" for step in (0, 1, 2, 4))
    ]  # fmt: skip
    said.clear()
    again = trained(said.append, steps=4)
    assert said == []
    assert same(states(first), states(again))
    told = json.loads((folder / "log.json").read_text())
    assert first.log["test.loss"] == {int(step): noted["test.loss"] for step, noted in told.items()}


def test_one_seed_is_one_course_and_another_seed_another(trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = trained(steps=4)
    losses, weights = first.log, states(first)
    other = trained(steps=4, seed=1)
    assert not same(weights, states(other))
    monkeypatch.setenv("ATTNCHECK_CACHE", str(tmp_path / "elsewhere"))
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # the number of threads must not matter
    try:
        anew = trained(steps=4)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert anew.log == losses
    assert same(weights, states(anew))


@pytest.mark.parametrize(
    "change",
    [
        {"attention": "mqa"}, {"seed": 3}, {"steps": 3}, {"record_every": 1}, {"rate": 0.01}, {"optimiser": "adamw"}, {"batch": 3},
    ],
    ids=str,
)  # fmt: skip
def test_whatever_determines_it_is_another_training(trained, cache: Path, change: dict[str, object]) -> None:
    trained(steps=4)
    trained(**{"steps": 4, **change})
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 2


def test_names_of_one_variant_share_a_training(trained, cache: Path) -> None:
    trained(steps=2, attention={"polynomial": {"power": 3}})
    trained(steps=2, attention={"polynomial": {"power": 3, "factor": "1/sqrt(N)"}})
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_the_loss_falls_and_is_that_of_the_weights(trained, optimiser: str) -> None:
    from attncheck.training import RECIPES

    found = trained(steps=32, optimiser=optimiser, width=32)
    losses = list(found.log["test.loss"].values())
    assert losses[0] == pytest.approx(torch.tensor(256.0).log().item(), abs=0.3)
    assert losses[-1] < losses[0] - 1
    recipe = RECIPES["bytes-lm"].function(layers=1, width=32, heads=2, tokens=16, batch=2, optimiser=optimiser)
    inputs, targets = recipe.held("test")
    model = found.open(32).model
    with torch.no_grad():
        logits = model(inputs).double()
    naive = -torch.stack([logits[b, n].log_softmax(-1)[targets[b, n]] for b in range(len(inputs)) for n in range(16)]).mean()
    assert losses[-1] == pytest.approx(float(naive), rel=1e-5)
    assert float(loss_of(logits, targets)) == pytest.approx(float(naive))
    accuracy = float((logits.argmax(-1) == targets).double().mean())
    assert found.log["test.accuracy"][32] == pytest.approx(accuracy)


def test_random_weights_are_the_model_before_its_first_step(trained, cache: Path) -> None:
    untrained = trained(steps=4, weights="random")
    assert not cache.exists()
    assert untrained.steps == [0, 1, 2, 4]
    states_ = states(untrained)
    assert same(states_[:1] * 4, states_)
    assert same(states_[:1], states(trained(steps=4))[:1])


def test_the_text_held_out_is_not_trained_on() -> None:
    from attncheck.training import RECIPES

    recipe = RECIPES["bytes-lm"].function(tokens=64)
    held = {bytes(row.tolist()) for row in recipe.held("test")[0]}
    for step in range(1, 20):
        drawn, targets = recipe.batch(0, step)
        assert not held & {bytes(row.tolist()) for row in drawn}
        assert torch.equal(drawn[:, 1:], targets[:, :-1])


def test_epochs_go_through_all_images_once() -> None:
    from attncheck.training import RECIPES

    recipe = RECIPES["vit-digits"].function(tokens=16, batch=500)
    assert recipe.steps_per_epoch == 6
    rows = torch.cat([recipe.batch(3, step)[0].flatten(1) for step in range(1, 7)])
    assert len(rows) == 3000
    assert len(torch.unique(rows, dim=0)) == 3000
    again = torch.cat([recipe.batch(3, step)[1] for step in range(7, 13)])
    assert sorted(again.tolist()) == sorted(torch.cat([recipe.batch(3, step)[1] for step in range(1, 7)]).tolist())
    assert not torch.equal(recipe.batch(3, 1)[1], recipe.batch(3, 7)[1])


def test_a_vision_transformer_over_epochs(trained, cache: Path) -> None:
    options = {"recipe": "vit-digits", "layers": 1, "width": 16, "heads": 2, "tokens": 16, "batch": 1000}
    found = trained(**options, epochs=2)
    assert found.steps == [0, 1, 2, 4, 6]
    assert trained(**options, epochs=2, record_every=1).steps == [0, 3, 6]
    model = found.open(6)
    assert model.encoder.image_size == 8
    assert model.model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_scikit_learn_s_scans_are_skipped_with_their_install_line(trained) -> None:
    from attncheck.core.errors import Unavailable

    options = {"recipe": "vit-digits", "data": "scikit-learn", "layers": 1, "width": 16, "heads": 2, "tokens": 16, "batch": 8}
    try:
        import sklearn  # noqa: F401
    except ImportError:
        with pytest.raises(Unavailable, match=r"pip install 'attncheck\[training\]'"):
            trained(**options, steps=1)
    else:
        assert trained(**options, steps=1).steps == [0, 1]


def test_measured_along_the_steps(trained) -> None:
    subject = SubjectDefinition("tiny", "train", trained(steps=2).definition.options, device="cpu")
    from attncheck.core.observable import OBSERVABLES

    def ask(name: str, **arguments: object) -> Request:
        return Request.of(name, OBSERVABLES[name].arguments(**arguments).model_dump(mode="json"))

    requests = [ask("attention.row_sum"), ask("weights.norm", matrix="k"), ask("training.loss"), ask("training.accuracy", split="train")]
    measured = measure(PassKey(subject, InputDefinition("manual", "corpus", {"name": "python-manual"}, length=16)), requests)
    assert not measured.faults
    assert [measured.values[request.key]["value"].sizes["step"] for request in requests] == [3, 3, 3, 3]


def test_a_cut_file_is_named_with_what_to_do(trained, cache: Path) -> None:
    found = trained(steps=2)
    (path,) = cache.glob("*/step-000002.safetensors")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(MeasurementError, match=r"step-000002\.safetensors cannot be read .*remove the folder"):
        found.open(2)


def test_weights_of_another_model_are_refused(trained, cache: Path) -> None:
    found, other = trained(steps=1), trained(steps=1, width=32)
    ours, theirs = (Path(series.name_of(1)) for series in (found, other))
    ours.write_bytes(theirs.read_bytes())
    with pytest.raises(MeasurementError, match="the weights are of another model"):
        found.open(1)


def test_a_training_that_diverges_is_an_error_with_the_step(trained) -> None:
    with pytest.raises(MeasurementError, match=r"tiny: the loss is (nan|inf) at step \d+ of 50: the training diverged; lower its `rate`"):
        trained(steps=50, optimiser="adamw", rate=1e30, attention={"polynomial": {"power": 3, "factor": 1}})


def test_without_a_cache_it_is_trained_in_a_folder_of_the_process(trained, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNCHECK_CACHE", "off")
    assert trained(steps=1).open(1).model is not None
    assert not cache.exists()


def test_an_implementation_does_not_go_with_a_variant(trained) -> None:
    definition = SubjectDefinition("tiny", "train", trained(steps=1).definition.options, attn_implementation="eager", device="cpu")
    with pytest.raises(MeasurementError, match="attn_implementation 'eager' does not go with train"):
        load_any(definition)
