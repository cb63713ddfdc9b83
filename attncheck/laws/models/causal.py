"""Which tokens reach which: nothing of the future, everything of the past, and each block just as far as its window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import LawViolation, NotApplicable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.model_claims import ModelClaims


@model_law("future", family="causal", needs=claims("causal=True"))
def future(trial: ModelTrial) -> None:
    """Later tokens change nothing at earlier places, after every block and in the output."""
    length = trial.ids.shape[1]
    if length < 2:
        raise NotApplicable("one token has no future")
    for cut in sorted({1, length // 2, length - 1}):
        other = trial.ids.clone()
        other[:, cut:] = trial.others(trial.ids)[:, cut:]
        found = trial.run({trial.main: other})
        where = trial.real.clone()
        where[:, cut:] = False
        step = (
            f"other = ids.clone(); other[:, {cut}:] = other[:, {cut}:].flip(0) + 1\n"
            f"changed = model(**{{**inputs, {trial.main!r}: other}})\nprint((changed[0] - out[0])[:, :{cut}].abs().max())"
        ).replace("ids.clone()", f"inputs[{trial.main!r}].clone()")
        trial.agree_everywhere(
            found, trial.plain, f"output before token {cut} after the tokens from there on changed", where=where, then=step
        )


@model_law("past", family="causal", needs=claims("causal=True"))
def past(trial: ModelTrial) -> None:
    """The last token's output depends on the token before it, and on itself."""
    length = trial.ids.shape[1]
    if length < 3 or trial.example.pad == "right":
        raise NotApplicable("needs three tokens that are no padding")
    for place in (length - 1, length - 2):
        other = trial.ids.clone()
        other[:, place] = trial.others(trial.ids)[:, place]
        found = trial.run({trial.main: other})
        moved = (found.output - trial.plain.output)[:, -1].abs().double() > trial.tolerance()
        if not bool(moved.any()):
            raise LawViolation(
                f"token {place} of {length} changes nothing in the last token's output",
                f"other = inputs[{trial.main!r}].clone(); other[:, {place}] += 1\n"
                f"changed = model(**{{**inputs, {trial.main!r}: other}})\nprint((changed[0] - out[0])[:, -1].abs().max())",
            )


@model_law("everywhere", family="causal", needs=claims("causal=False"))
def everywhere(trial: ModelTrial) -> None:
    """Where no causality is claimed, the last token reaches the first one's output, and the first the last one's."""
    if trial.subject.kind == "pixels" or trial.claims.window is not None or trial.example.pad != "none":
        raise NotApplicable("needs tokens, no padding and no window")
    length = trial.ids.shape[1]
    if length < 2:
        raise NotApplicable("one token has no other")
    for source, target in ((length - 1, 0), (0, length - 1)):
        other = trial.ids.clone()
        other[:, source] = trial.others(trial.ids)[:, source]
        found = trial.run({trial.main: other})
        if not bool(((found.output - trial.plain.output)[:, target].abs().double() > trial.tolerance()).any()):
            raise LawViolation(f"token {source} of {length} changes nothing in the output of token {target}")


def _reach(trial: ModelTrial, number: int, source: int) -> Tensor:
    """Places whose output of block `number` moves, as its input does at `source`: the largest change at each place [length]."""
    calls = 0
    noise: dict[str, Any] = {}
    subject = trial.subject
    length = trial.ids.shape[1]
    paths = trial.plain.paths
    path, before = paths[number], paths[:number].count(paths[number])
    import torch

    def poke(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        nonlocal calls
        name = None if arguments and isinstance(arguments[0], torch.Tensor) else "hidden_states"
        hidden = arguments[0] if name is None else options.get(name)
        if not isinstance(hidden, torch.Tensor) or hidden.ndim != 3 or hidden.shape[1] != length:
            return None
        calls += 1
        if calls - 1 != before:
            return None
        push = torch.randn(hidden.shape[0], hidden.shape[2], generator=trial.generator).to(hidden.dtype)
        other = hidden.clone()
        other[:, source] += 3 * hidden.std() * push
        noise["hit"] = True
        return ((other, *arguments[1:]), options) if name is None else (arguments, {**options, name: other})

    with trial.under():
        handle = subject.model.get_submodule(path).register_forward_pre_hook(poke, with_kwargs=True)
        try:
            found = trial.run()
        finally:
            handle.remove()
    if not noise or len(found.layers) <= number:
        raise NotApplicable("the input of its blocks is not a tensor that can be changed")
    return (found.layers[number] - trial.plain.layers[number]).double().abs()


def _either(claimed: ModelClaims) -> str | None:
    return "claims.causal is not claimed" if claimed.causal is None else None


@model_law("reach", family="causal", needs=_either)
def reach(trial: ModelTrial) -> None:
    """Each block alone lets a token reach just the places that the claims allow it: those after it, within the window where one is
    claimed, and each distance among them at least once."""
    if trial.subject.encoder_decoder or trial.subject.kind == "pixels" or trial.example.pad != "none":
        raise NotApplicable("needs one stack of tokens without padding")
    layers, length = len(trial.plain.layers), trial.ids.shape[1]
    if not layers or length < 3:
        raise NotApplicable("no blocks in a list were seen" if not layers else "needs three tokens")
    given = trial.claims.window
    windows = list(given) if isinstance(given, tuple) else [given] * layers
    if len(windows) != layers:
        raise NotApplicable(f"claims.window names {len(windows)} layers, {layers} blocks were seen")
    sources = sorted({0, length // 2, length - 1})
    for number in sorted({*range(min(layers, 6)), layers - 1}):
        tolerance = trial.tolerance(number)
        furthest: dict[int, bool] = {}
        for source in sources:
            moved = (_reach(trial, number, source) > tolerance).any(-1).any(0)
            for place in range(length):
                distance = place - source
                allowed = distance >= 0 if trial.claims.causal else True
                if windows[number] is not None:
                    allowed = allowed and abs(distance) < windows[number]
                if bool(moved[place]) and not allowed:
                    raise LawViolation(
                        f"block {number + 1} of {layers} lets token {source} reach token {place}"
                        + (f", further than a window of {windows[number]}" if abs(distance) and windows[number] else "")
                    )
                if allowed:
                    furthest[abs(distance)] = furthest.get(abs(distance), False) or bool(moved[place])
        missing = sorted(distance for distance, seen in furthest.items() if not seen)
        if missing and given is not None:
            raise LawViolation(f"block {number + 1} of {layers} lets no token reach one at a distance of {missing[0]}, which is allowed")
        if len(missing) == len(furthest) - 1 and len(furthest) > 1:
            raise LawViolation(f"block {number + 1} of {layers} lets no token reach any other")
