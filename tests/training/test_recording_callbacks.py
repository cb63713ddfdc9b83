"""The callbacks: a real Trainer of transformers, and Lightning's where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from zoo import VOCABULARY, build, tokens

import attncheck
from attncheck.recording.callback import Watch

SEEN = ["attention.entropy"]
PROBE = tokens(2, 12)


class Texts(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, VOCABULARY, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def trainer(folder: Path, *callbacks: Any, steps: int = 6, **options: Any) -> tf.Trainer:
    pytest.importorskip("accelerate")
    arguments = tf.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True, report_to=[],
        save_steps=3, learning_rate=1e-3, disable_tqdm=True, dataloader_pin_memory=False, **options,
    )  # fmt: skip
    return tf.Trainer(build("llama", attention_dropout=0.1), arguments, train_dataset=Texts(), callbacks=list(callbacks))


def callback(path: Path, **options: Any) -> Any:
    from attncheck.recording.trainer import AttentionCallback

    return AttentionCallback(SEEN, path=path, inputs=PROBE, **options)


def test_a_trainer_is_recorded_and_stays_the_same_training(tmp_path: Path) -> None:
    without = trainer(tmp_path / "without")
    without.train()
    watched = callback(tmp_path / "run.jsonl")
    with_it = trainer(tmp_path / "with", watched)
    with_it.train()
    assert attncheck.read_recording(tmp_path / "run.jsonl")["step"].values.tolist() == [0, 1, 2, 4, 6]
    for name, value in without.model.state_dict().items():
        assert torch.equal(value, with_it.model.state_dict()[name]), name
    assert watched.broken is None


def test_a_broken_bound_stops_a_trainer_and_says_why(tmp_path: Path) -> None:
    watched = callback(tmp_path / "run.jsonl", bounds={"entropy": ">= 100"}, on_break="stop", every=[2, 4])
    one = trainer(tmp_path / "out", watched)
    with pytest.warns(attncheck.AttentionWarning, match=r"the training is stopped: step 2: entropy \d.* < 100 at sample"):
        one.train()
    assert one.state.global_step == 2
    assert watched.broken.step == 2
    assert watched.broken.picture.exists()
    assert attncheck.read_recording(tmp_path / "run.jsonl")["step"].values.tolist() == [2]


def test_a_bound_that_is_broken_before_the_first_step_stops_it_too(tmp_path: Path) -> None:
    watched = callback(tmp_path / "run.jsonl", bounds={"entropy": ">= 100"}, on_break="stop")
    one = trainer(tmp_path / "out", watched)
    with pytest.warns(attncheck.AttentionWarning, match="the training is stopped: step 0"):
        one.train()
    assert one.state.global_step <= 1
    assert watched.broken.step == 0


def test_a_trainer_that_goes_on_from_a_checkpoint_goes_on_recording(tmp_path: Path) -> None:
    trainer(tmp_path / "out", callback(tmp_path / "run.jsonl"), steps=3).train()
    trainer(tmp_path / "out", callback(tmp_path / "run.jsonl"), steps=8).train(resume_from_checkpoint=True)
    assert attncheck.read_recording(tmp_path / "run.jsonl")["step"].values.tolist() == [0, 1, 2, 3, 4, 8]


def test_other_processes_than_the_first_record_nothing(tmp_path: Path) -> None:
    watched, control = callback(tmp_path / "run.jsonl"), tf.TrainerControl()
    state = tf.TrainerState(is_world_process_zero=False)
    watched.on_train_begin(None, state, control, model=build("llama"))
    watched.on_step_end(None, state, control)
    watched.on_train_end(None, state, control)
    assert not (tmp_path / "run.jsonl").exists()


def test_a_step_told_twice_is_one(tmp_path: Path) -> None:
    watch = Watch(SEEN, path=tmp_path / "run.jsonl", inputs=PROBE)
    watch.begin(build("llama"), 0, pytest.fail)
    for step in (0, 1, 1, 2, 2, 3):
        watch.step(step, pytest.fail)
    watch.end(whole=False)
    assert attncheck.read_recording(tmp_path / "run.jsonl")["step"].values.tolist() == [0, 1, 2]


def test_lightning_that_is_missing_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "from attncheck.recording.lightning import AttentionCallback\n"
        "AttentionCallback(['attention.entropy'], path='run.jsonl', inputs=None)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stderr
    assert "Unavailable: Lightning is not installed; pip install 'attncheck[lightning]'" in said


def test_lightning_is_recorded_and_stopped(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="the extra `lightning` is not installed")
    from attncheck.recording.lightning import AttentionCallback

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = build("llama", attention_dropout=0.1)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.network(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def run(*callbacks: Any) -> Any:
        lightning.seed_everything(0)
        module = Module()
        loop = lightning.Trainer(
            max_steps=6, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, callbacks=list(callbacks),
        )  # fmt: skip
        loop.fit(module.train(), torch.utils.data.DataLoader(Texts(), batch_size=2, shuffle=True))
        return module, loop

    def watched(name: str, **options: Any) -> Any:
        return AttentionCallback(SEEN, path=tmp_path / name, inputs=PROBE, model=lambda module: module.network, **options)

    without, _ = run()
    with_it, _ = run(watched("a.jsonl"))
    assert attncheck.read_recording(tmp_path / "a.jsonl")["step"].values.tolist() == [0, 1, 2, 4, 6]
    for name, value in without.state_dict().items():
        assert torch.equal(value, with_it.state_dict()[name]), name
    stopping = watched("b.jsonl", bounds={"entropy": ">= 100"}, on_break="stop", every=[2])
    with pytest.warns(attncheck.AttentionWarning, match="the training is stopped: step 2"):
        _, loop = run(stopping)
    assert loop.global_step == 2
    assert stopping.broken.step == 2
