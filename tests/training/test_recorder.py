"""`attncheck.record`: it leaves a training as it was, measures when it is due, and tells a bound that breaks."""

from __future__ import annotations

import math
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import attncheck
from attncheck.core.errors import AttncheckError
from attncheck.recording.schedule import Schedule

SEEN = ["attention.entropy", "logits.max"]
PROBE = {"x": torch.randn(2, 10, 16, generator=torch.Generator().manual_seed(1))}


class Counting(nn.Module):
    """Does in every forward what a measurement must not leave behind: changes buffers, draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("noise", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().mean()
        self.noise = torch.rand(1)
        random.random()
        np.random.rand()
        return x + 0.01 * self.seen + 0.01 * self.noise


class Net(nn.Module):
    """Attention with all that hangs on a mode, a generator or a buffer."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(16, 48), nn.Linear(16, 16)
        self.drop, self.norm, self.counting = nn.Dropout(0.2), nn.BatchNorm1d(16), Counting()
        self.frozen = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).requires_grad_(False)
        self.table = nn.Embedding(3, 16, max_norm=0.5)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.frozen(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(self.scale * query, key, value, dropout_p=0.1 if self.training else 0.0)
        hidden = self.drop(self.out(mixed.transpose(1, 2).flatten(-2))) + self.table(torch.tensor(1))
        return self.counting(self.norm(hidden.transpose(1, 2)).transpose(1, 2))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def trained(path: Path | None, *, autocast: bool = False, **options: Any) -> dict[str, Tensor]:
    """Twelve steps of two backward passes, with a recorder where there is a path. Under autocast it is told before the weights are cast."""
    model = net().train()
    model.frozen.eval()
    random.seed(0), np.random.seed(0)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)

    def run(step: Any) -> None:
        step(0)
        for n in range(1, 13):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                if autocast:
                    step(n)
                for _ in range(2):
                    x = torch.randn(4, 6, 16) * (1 + random.random() + np.random.rand())
                    model(x).float().square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()
            if not autocast:
                step(n)

    if path is None:
        run(lambda n: None)
    else:
        with attncheck.record(model, SEEN, path=path, inputs=PROBE, every=1, **options) as recorder:
            run(recorder.step)
    drawn = {"torch": torch.rand(3), "numpy": torch.tensor(np.random.rand(3)), "python": torch.tensor([random.random()])}
    return {**model.state_dict(), **drawn}


@pytest.mark.parametrize("autocast", [False, True])
def test_a_training_is_the_same_to_the_bit(tmp_path: Path, autocast: bool) -> None:
    without, with_it = trained(None, autocast=autocast), trained(tmp_path / "run.jsonl", autocast=autocast)
    assert without.keys() == with_it.keys()
    for name, value in without.items():
        assert torch.equal(value, with_it[name]), name
    assert attncheck.read_recording(tmp_path / "run.jsonl").sizes["step"] == 13


def test_the_model_is_as_it_was(tmp_path: Path) -> None:
    model = net().train()
    model.frozen.eval()
    model(torch.randn(4, 6, 16)).square().mean().backward()
    hooked: list[int] = []
    model.out.register_forward_hook(lambda *given: hooked.append(1))

    def state() -> Any:
        modes = {name: module.training for name, module in model.named_modules()}
        grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        asked = {name: p.requires_grad for name, p in model.named_parameters()}
        hooks = {name: [len(module._forward_hooks), len(module._forward_pre_hooks)] for name, module in model.named_modules()}
        return modes, grads, asked, hooks, {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()

    before, gradients = state(), torch.is_grad_enabled()
    buffers = dict(model.named_buffers())
    with attncheck.record(model, SEEN, path=tmp_path / "run.jsonl", inputs=PROBE) as recorder:
        recorder.step(0)
    after = state()
    assert hooked == [1], "the fixed batch costs one forward"
    assert (before[0], before[2], before[3]) == (after[0], after[2], after[3])
    assert torch.is_grad_enabled() == gradients
    assert torch.equal(before[5], after[5])
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    for one, other in ((before[1], after[1]), (before[4], after[4])):
        assert all(value is other[name] is None or torch.equal(value, other[name]) for name, value in one.items())


def test_what_is_recorded_is_what_observe_gives(tmp_path: Path) -> None:
    model = net().eval()
    asked: list[Any] = [*SEEN, {"attention.key_mass": {"keys": "0..3"}}, {"attention.entropy": {"per": "query"}}]
    expected = attncheck.observe(model, PROBE, asked)
    model.counting.seen.zero_()
    with attncheck.record(model.train(), asked, path=tmp_path / "run.jsonl", inputs=PROBE) as recorder:
        for n in range(3):
            recorder.step(n)
    found = attncheck.read_recording(tmp_path / "run.jsonl")
    assert set(found.data_vars) == set(expected.data_vars)
    for name in expected.data_vars:
        assert found[name].dims == ("step", *expected[name].dims)
        for step in range(3):
            assert np.array_equal(found[name].sel(step=step).values, expected[name].values, equal_nan=True)
        assert found[name].attrs["unit"] == expected[name].attrs["unit"]
    assert found["layer"].equals(expected["layer"])
    assert found.attrs["model"] == "Net"
    assert found.attrs["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("every", "told", "recorded"),
    [
        (None, range(101), [0, 1, 2, 4, 8, 16, 32, 64, 100]),
        (None, range(0, 101, 10), [0, 10, 20, 40, 70, 100]),
        (None, range(1000, 1030), [1000, 1024, 1029]),
        (40, range(101), [0, 40, 80, 100]),
        (np.int64(50), range(1, 101), [1, 50, 100]),
        ([3, 7, 200], range(101), [3, 7]),
        ([3, 7], range(5, 10), [5, 7]),
    ],
)
def test_when_it_is_due(every: Any, told: range, recorded: list[int]) -> None:
    schedule, found, before = Schedule.of(every), [], -1
    for step in told:
        if schedule.due(before, step):
            found.append(step)
        before = step
    if schedule.ends_with_the_last and before not in found:
        found.append(before)
    assert found == recorded


def test_the_schedule_is_that_of_recipes() -> None:
    from attncheck.training.loop import recorded

    for steps in (1, 2, 8, 100, 129):
        told = [n for n in range(steps + 1) if Schedule().due(n - 1, n)]
        assert sorted({*told, steps}) == recorded(steps, None)


def test_the_last_step_is_recorded_unless_the_training_failed(tmp_path: Path) -> None:
    for name, fails, expected in (("a", False, [0, 1, 2, 4, 5]), ("b", True, [0, 1, 2, 4])):
        try:
            with attncheck.record(net(), SEEN, path=tmp_path / name, inputs=PROBE) as recorder:
                for n in range(6):
                    recorder.step(n)
                if fails:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        assert recorder.steps == attncheck.read_recording(tmp_path / name)["step"].values.tolist() == expected


def exploding(path: Path, bounds: Any, on_break: Any, steps: int = 6, **options: Any) -> Any:
    """Queries that triple at every step: logits grow, entropy falls."""
    model = net()
    with attncheck.record(model, SEEN, path=path, inputs=PROBE, every=1, bounds=bounds, on_break=on_break, **options) as recorder:
        for n in range(steps):
            model.scale = 3.0**n
            recorder.step(n)
    return recorder


def test_a_broken_bound_warns_once(tmp_path: Path) -> None:
    with pytest.warns(attncheck.AttentionWarning) as caught:
        recorder = exploding(tmp_path / "run.jsonl", {"entropy": ">= 1", "logits.max": "<= 1e9"}, "warn")
    assert recorder.steps == [0, 1, 2, 3, 4, 5]
    (one,) = caught
    assert one.filename == __file__, "the warning points at the line that called step"
    text = str(one.message)
    assert re.match(r"step (\d): entropy 0\.\d+ < 1 at sample \d, layer 0, head \d \(\d of 4 places hold\)\n", text), text
    assert "claim     attention.entropy of Net >= 1 for all" in text
    picture = Path(text.rpartition("picture   ")[2])
    assert picture == tmp_path / "run.attention.entropy.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_broken_bound_stops(tmp_path: Path) -> None:
    with pytest.raises(attncheck.BoundBroken) as caught:
        exploding(tmp_path / "run.jsonl", {"logits.max": "<= 1e3"}, "stop", steps=20)
    broken = caught.value
    assert broken.quantity == "logits.max"
    assert broken.step == attncheck.read_recording(tmp_path / "run.jsonl")["step"].values[-1] < 19
    assert broken.verdict is not None
    assert not broken.verdict.passed
    worst = broken.verdict.offenders[0]
    assert worst.observed > 1e3
    assert worst.limit == "<= 1e3"
    assert {"layer", "head"} <= worst.where.keys()
    assert broken.picture is not None
    assert broken.picture.exists()


def test_of_two_that_break_one_stops_and_one_warns(tmp_path: Path) -> None:
    bounds = {"logits.max": "<= 1e-3", "attention.entropy": ">= 100"}
    with pytest.warns(attncheck.AttentionWarning, match="entropy"), pytest.raises(attncheck.BoundBroken, match=r"logits\.max"):
        exploding(tmp_path / "run.jsonl", bounds, "stop")


def test_a_broken_bound_calls_a_function(tmp_path: Path) -> None:
    told: list[attncheck.BoundBroken] = []
    exploding(tmp_path / "run.jsonl", {"logits.max": "<= 50"}, told.append)
    (broken,) = told
    assert str(broken).splitlines()[1] == f"{tmp_path / 'run.jsonl'}: logits.max"


def test_a_bound_on_the_course(tmp_path: Path) -> None:
    told: list[attncheck.BoundBroken] = []
    bound = {"at_most": 100, "reduce": {"sample": "max", "head": "max", "step": "growth"}, "for": "all layers", "why": "it triples"}
    exploding(tmp_path / "run.jsonl", {"max": bound}, told.append)
    (broken,) = told
    assert broken.step == 5
    assert str(broken).splitlines() == [
        "step 5: logits.max growth 243 > 100 at layer 0",
        f"{tmp_path / 'run.jsonl'}: logits.max",
        "",
        "  claim     logits.max (sample max, head max, step growth) of Net <= 100 for all layers",
        "  why       it triples",
        "  observed  it does not hold                                                   (exact, float32, cpu)",
        "              layer 0  243",
        "  steps     6 recorded, up to 5",
        f"  picture   {tmp_path / 'run.logits.max.png'}",
    ]


def turning_into_nan(path: Path) -> None:
    model = net()
    with attncheck.record(model, SEEN, path=path, inputs=PROBE, every=1, bounds={"entropy": ">= 0"}) as recorder:
        recorder.step(0)
        recorder.step(1)
        nn.init.constant_(model.qkv.weight, math.nan)
        recorder.step(2)
        recorder.step(3)


def test_what_is_not_a_number_breaks_a_bound(tmp_path: Path) -> None:
    with pytest.warns(attncheck.AttentionWarning) as caught:
        turning_into_nan(tmp_path / "run.jsonl")
    texts = [str(one.message) for one in caught]
    assert len(texts) == 2, texts
    assert "step 2: logits.max could not be measured and is missing" in texts[0]
    why = "the query holds values that are not numbers, so its attention is none: at layer 0, head 0, sample 0"
    assert texts[1].splitlines()[0].startswith(f"step 2: {why}")
    assert texts[1].splitlines()[1:] == [
        f"{tmp_path / 'run.jsonl'}: attention.entropy",
        "",
        "  claim     attention.entropy of Net >= 0 for all",
        "  observed  it could not be judged, and what is not known to hold counts as broken",
        "  steps     3 recorded, up to 2",
        f"  picture   {tmp_path / 'run.attention.entropy.png'}",
    ]
    assert (tmp_path / "run.attention.entropy.png").exists()
    found = attncheck.read_recording(tmp_path / "run.jsonl")
    assert np.isnan(found["attention.entropy"].values).reshape(4, -1).all(axis=1).tolist() == [False, False, True, True]
    assert any("first at step 2" in note for note in found.attrs["notes"])


def test_what_cannot_be_measured_at_first_is_an_error(tmp_path: Path) -> None:
    model = net()
    nn.init.constant_(model.qkv.weight, math.nan)
    with (
        pytest.raises(attncheck.MeasurementError, match="not numbers"),
        attncheck.record(model, SEEN, path=tmp_path / "run.jsonl", inputs=PROBE) as recorder,
    ):
        recorder.step(0)


def test_a_bound_that_cannot_be_judged_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(attncheck.MeasurementError, match="layer 7"):
        exploding(tmp_path / "run.jsonl", {"entropy": {"at_least": 0, "where": {"layer": 7}}}, "warn")


def test_the_recording_is_judged_over_steps(tmp_path: Path) -> None:
    exploding(tmp_path / "run.jsonl", None, "warn")
    grows, late, impossible = attncheck.check_recording(
        tmp_path / "run.jsonl",
        {
            "logits.max": {"between": [200, 300], "reduce": {"sample": "max", "head": "max", "step": "growth"}},
            "attention.entropy": {"at_least": 1, "where": {"step": "last half"}, "for": "any step"},
        },
    ) + attncheck.check_recording(tmp_path / "run.jsonl", {"entropy": {"at_least": 1, "where": {"step": 99}}})
    assert grows.passed
    assert not late.passed
    assert "claim     attention.entropy at step last half of Net >= 1 for any step" in str(late)
    assert not impossible.passed
    assert impossible.decided == "not measured"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"observables": []}, r"observables is a list"),
        ({"observables": "attention.entropy"}, r"observables is a list"),
        ({"observables": ["attention.entrpy"]}, r"unknown observable .*did you mean 'attention\.entropy'"),
        ({"observables": ["logits.max", "logits.max"]}, r"logits\.max \(per: head\) twice; allowed: each once"),
        ({"observables": ["training.loss"]}, r"training\.loss is noted by a training"),
        ({"model": torch.nn.functional.scaled_dot_product_attention}, r"allowed: an nn\.Module"),
        ({"inputs": "text"}, r"inputs must be a tensor or a mapping"),
        ({"path": "nowhere/run.jsonl"}, r"there is no folder nowhere; make it first"),
        ({"every": 0}, r"every: 0; allowed: None for"),
        ({"every": True}, r"every: True; allowed"),
        ({"every": [4, 2]}, r"every: \[4, 2\]; allowed: .*a list of steps that increase"),
        ({"every": []}, r"every: \[\]; allowed"),
        ({"every": "10"}, r"every: '10'; allowed"),
        ({"on_break": "raise"}, r"on_break: 'raise'; allowed: 'warn', 'stop', or a function"),
        ({"bounds": ["entropy"]}, r"bounds: .*allowed: a mapping"),
        ({"bounds": {"entrpy": ">= 1"}}, r"'entrpy' is not recorded; recorded: attention\.entropy, logits\.max"),
        ({"bounds": {"attention.entrpy": ">= 1"}}, r"did you mean 'attention\.entropy'"),
        ({"bounds": {"entropy": 0.1}}, r"attention\.entropy: 0\.1 is no bound; allowed: '>= 0\.1'"),
        ({"bounds": {"entropy": "> 0.1"}}, r"'> 0\.1' is no bound; allowed: '>= 0\.1'"),
        ({"bounds": {"entropy": ">= log(Q)"}}, r"'Q' is no symbol that a bound may use; allowed: N, M"),
        ({"bounds": {"entropy": ">= 1", "attention.entropy": "<= 5"}}, r"two bounds on attention\.entropy; allowed: one"),
        ({"bounds": {"entropy": {"at_lest": 1}}}, r"unknown key 'at_lest'; allowed: at_least, .*did you mean 'at_least'"),
        ({"bounds": {"entropy": {"where": {"layer": 0}}}}, r"no demand; allowed: exactly one of at_least"),
        ({"bounds": {"entropy": {"at_least": 1, "reduce": {"query": "mean"}}}}, r"'query' is no dim of attention\.entropy"),
        ({"bounds": {"entropy": {"at_least": 1, "where": {"step": "10.."}}}}, r"where: step: a live bound holds at every recorded step"),
        ({"bounds": {"entropy": {"at_least": 1, "for": "2 of 3 steps"}}}, r"for: steps: a live bound"),
    ],
)
def test_mistakes_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"model": net(), "observables": SEEN, "path": "run.jsonl", "inputs": PROBE, **changes}
    model, observables = given.pop("model"), given.pop("observables")
    with pytest.raises(AttncheckError, match=said):
        attncheck.record(model, observables, **given)
    assert list(tmp_path.iterdir()) == []


def test_steps_are_whole_and_increase_inside_of_with(tmp_path: Path) -> None:
    recorder = attncheck.record(net(), SEEN, path=tmp_path / "run.jsonl", inputs=PROBE)
    with pytest.raises(AttncheckError, match="not open"):
        recorder.step(0)
    with recorder:
        recorder.step(0)
        recorder.step(torch.tensor(3))
        for wrong, said in (
            (3, "step 3 after step 3"),
            (2, "step 2 after step 3"),
            (-1, "step -1"),
            (4.0, r"step: 4\.0"),
            (True, "step: True"),
        ):
            with pytest.raises(AttncheckError, match=said):
                recorder.step(wrong)
        with pytest.raises(AttncheckError, match="being recorded already"):
            recorder.__enter__()
    with pytest.raises(AttncheckError, match="not open"):
        recorder.step(9)


def test_a_forward_that_changes_weights_is_an_error(tmp_path: Path) -> None:
    model = net()
    model.out.register_forward_pre_hook(lambda module, given: (module.weight.mul_(0.9), None)[1])
    with (
        pytest.raises(attncheck.MeasurementError, match=r"changes out\.weight in place, in eval mode too"),
        attncheck.record(model, SEEN, path=tmp_path / "run.jsonl", inputs=PROBE) as recorder,
    ):
        recorder.step(0)


def test_the_fixed_batch_stays_what_it_was(tmp_path: Path) -> None:
    x = PROBE["x"].clone()
    with attncheck.record(net().eval(), SEEN, path=tmp_path / "run.jsonl", inputs={"x": x}) as recorder:
        recorder.step(0)
        x.zero_()
        recorder.step(1)
    found = attncheck.read_recording(tmp_path / "run.jsonl")["logits.max"].values
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile, lambda model: torch.compile(nn.DataParallel(model))])
def test_a_model_is_measured_inside_its_wrappers(tmp_path: Path, wrap: Any) -> None:
    with attncheck.record(wrap(net()), SEEN, path=tmp_path / "run.jsonl", inputs=PROBE) as recorder:
        recorder.step(0)
    assert attncheck.read_recording(tmp_path / "run.jsonl").attrs["model"] == "Net"


def test_it_is_silent_where_all_is_well(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(tmp_path / "run.jsonl", bounds={"entropy": ">= 0", "logits.max": "in [-1e4, 1e4]"}, on_break="stop")
