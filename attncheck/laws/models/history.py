"""What was called before does not matter: a model gives the same again, after longer inputs, after training, in either mode."""

from __future__ import annotations

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import LawViolation, NotApplicable


@model_law("twice", family="history", needs=claims("deterministic=forward"))
def twice(trial: ModelTrial) -> None:
    """The same call gives the same bits again, and leaves its inputs as they were."""
    import torch

    before = {name: value.clone() for name, value in trial.inputs.items() if isinstance(value, torch.Tensor)}
    first, again = trial.run().output, trial.run().output
    for name, value in before.items():
        if not torch.equal(value, trial.inputs[name]):
            raise LawViolation(f"the call wrote into its argument {name}", f"print(inputs[{name!r}])")
    different = (first != again) & ~(first.isnan() & again.isnan())
    if bool(different.any()):
        raise LawViolation(
            f"{int(different.sum())} of {different.numel()} numbers differ between two equal calls, by up to "
            f"{float((first - again).abs().max()):.3g}",
            "print((model(**inputs)[0] - out[0]).abs().max())",
        )


@model_law("longer", family="history")
def longer(trial: ModelTrial) -> None:
    """A longer call before changes nothing in a shorter one after it."""
    subject = trial.subject
    if subject.kind == "pixels":
        raise NotApplicable("its inputs have one length")
    edges = [length for length in subject.edges if length > trial.example.length]
    most = min(subject.longest, max([2 * trial.example.length + 3, *edges]))
    if most <= trial.example.length:
        raise NotApplicable("there are no longer inputs")
    first = trial.run()
    trial.but(length=most, pad="none").run()
    trial.agree_everywhere(
        trial.run(),
        first,
        f"output after a call of {most} tokens, against before it",
        then=f"model(input_ids=torch.zeros(1, {most}, dtype=torch.long) + ids[:1, :1])\nprint((model(**inputs)[0] - out[0]).abs().max())",
    )


@model_law("trained", family="history", needs=claims("dropout=none"))
def trained(trial: ModelTrial) -> None:
    """A forward in training mode changes nothing in eval mode afterwards, and dropout is off there: two forwards give the same bits."""
    import torch

    first = trial.run().output
    with trial.under():
        trial.subject.model.train()
        try:
            trial.run()
        finally:
            trial.subject.model.eval()
    again = trial.run().output
    if not torch.equal(first.nan_to_num(), again.nan_to_num()):
        raise LawViolation(
            f"eval mode differs by up to {float((first - again).abs().max()):.3g} after a forward in training mode, or from itself",
            "model.train()(**inputs); print((model.eval()(**inputs)[0] - out[0]).abs().max())",
        )


@model_law("gradients", family="history")
def gradients(trial: ModelTrial) -> None:
    """The forward is the same whether gradients are recorded or not."""
    trial.agree_everywhere(trial.run(gradients=True), trial.plain, "output where gradients are recorded, against without")
