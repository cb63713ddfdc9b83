"""An encoder and a decoder: the decoder reads all of the encoder's output, and nothing goes the other way."""

from __future__ import annotations

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import LawViolation, NotApplicable


def _needed(trial: ModelTrial) -> None:
    if not trial.subject.encoder_decoder:
        raise NotApplicable("the model is no encoder with a decoder")


@model_law("read", family="encoder_decoder")
def read(trial: ModelTrial) -> None:
    """Every token of the encoder reaches the decoder's output."""
    _needed(trial)
    trial = trial.but(pad="none")
    ids = trial.inputs["input_ids"]
    for place in range(ids.shape[1]):
        other = ids.clone()
        other[:, place] = trial.others(ids)[:, place]
        moved = (trial.run(input_ids=other).output - trial.plain.output).double().abs() > trial.tolerance()
        if not bool(moved.any()):
            raise LawViolation(
                f"token {place} of the encoder's {ids.shape[1]} changes nothing in the decoder",
                f"other = ids.clone(); other[:, {place}] += 1\nprint((model(**{{**inputs, 'input_ids': other}})[0] - out[0]).abs().max())",
            )


@model_law("one_way", family="encoder_decoder")
def one_way(trial: ModelTrial) -> None:
    """The decoder's tokens change nothing in the encoder."""
    _needed(trial)
    before = getattr(trial.plain.result, "encoder_last_hidden_state", None)
    if before is None:
        raise NotApplicable("the encoder's hidden state is not returned")
    after = trial.run(decoder_input_ids=trial.others(trial.ids)).result.encoder_last_hidden_state
    difference = float((after - before).abs().max())
    if difference > 1e-5 * float(before.abs().max()):
        raise LawViolation(f"the encoder's output moves by {difference:.3g} as the decoder's tokens change")


@model_law("given", family="encoder_decoder")
def given(trial: ModelTrial) -> None:
    """Given the encoder's output instead of its tokens, the decoder gives the same."""
    _needed(trial)
    before = getattr(trial.plain.result, "encoder_last_hidden_state", None)
    if before is None or not trial.subject.takes("encoder_outputs"):
        raise NotApplicable("the encoder's output is not returned, or not taken")
    found = trial.run(without=("input_ids",), encoder_outputs=(before,))
    trial.agree_everywhere(found, trial.plain, "output from the encoder's output, against from its tokens")


@model_law("longer", family="encoder_decoder", needs=claims("cache=dynamic"))
def longer(trial: ModelTrial) -> None:
    """A decoder behind an encoder's input that is many times longer decodes with a cache as without."""
    import torch

    from attncheck.laws.models.cache import decode

    _needed(trial)
    trial = trial.but(pad="none", cache=False, ask=False, batch=1, length=min(trial.example.length, 6))
    if trial.subject.longest < 40:
        raise NotApplicable("the encoder takes no 40 tokens")
    ids = trial.inputs["input_ids"]
    inner = ModelTrial(trial.subject, trial.claims, trial.example, trial.trail)
    inner.inputs = {**trial.inputs, "input_ids": torch.cat([ids] * (40 // ids.shape[1] + 1), 1)[:, :40]}
    wanted = inner.run().output
    found, _ = decode(inner, [1] * inner.ids.shape[1])
    trial.agree(found, wanted, "output of tokens given one by one behind 40 tokens of the encoder, against all at once")
