"""Decoding with a cache gives what one forward without a cache gives."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attncheck.laws.models.registry import claims, model_law
from attncheck.laws.models.trial import ModelTrial
from attncheck.laws.registry import LawViolation, NotApplicable

if TYPE_CHECKING:
    from torch import Tensor


def decode(trial: ModelTrial, sizes: Sequence[int], cache: Any = None, *, begin: int = 0) -> tuple[Tensor, Any]:
    """Outputs of the tokens from `begin` on, given in pieces of these sizes with a cache carried on, and the cache."""
    import torch

    name_of = trial.subject.cache_name
    if not trial.subject.takes(name_of):
        raise NotApplicable("the model takes no cache")
    inputs, found, at = trial.inputs, [], begin
    for size in sizes:
        piece: dict[str, Any] = {trial.main: trial.ids[:, at : at + size], "use_cache": True}
        if cache is not None:
            piece[name_of] = cache
        if not trial.subject.encoder_decoder:
            for name, stop in (("attention_mask", at + size), ("position_ids", at + size)):
                if name in inputs:
                    piece[name] = inputs[name][:, (at if name == "position_ids" else 0) : stop]
        run = trial.run(piece)
        cache = trial.subject.cache_of(run.result)
        if cache is None:
            raise LawViolation("a cache was asked for and none came", "print(model(**{**inputs, 'use_cache': True}).keys())")
        found.append(run.output)
        at += size
    return torch.cat(found, 1), cache


def _step(trial: ModelTrial, sizes: Sequence[int], make: str = "None") -> str:
    pads = trial.example.pad != "none" or trial.example.ones
    masked = ", attention_mask=mask[:, :at + n]" if pads and not trial.subject.encoder_decoder else ""
    placed = ", position_ids=inputs['position_ids'][:, at:at + n]" if "position_ids" in trial.inputs else ""
    called = trial.subject.cache_name
    encoder = "input_ids=ids, " if trial.subject.encoder_decoder else ""
    return (
        f"cache, at, parts = {make}, 0, []\nfor n in {list(sizes)}:\n"
        f"    piece = model({encoder}{trial.main}=inputs[{trial.main!r}][:, at:at + n], use_cache=True, {called}=cache{masked}{placed})\n"
        f"    cache, at = piece.{called}, at + n\n    parts.append(piece.logits)\n"
        "print((torch.cat(parts, 1) - out[0]).abs().amax((0, 2)))"
    )


def _pieces(trial: ModelTrial, sizes: Sequence[int]) -> list[int]:
    """The sizes, with all padding on the left in the first of them: nobody decodes padding."""
    pads = max(trial.example.pads(row) for row in range(trial.example.batch)) if trial.example.pad == "left" else 0
    first, rest = 0, list(sizes)
    while rest and (first < pads or not first):
        first += rest.pop(0)
    return [first, *rest]


def _compare(trial: ModelTrial, sizes: Sequence[int], how: str, cache: Any = None, make: str = "None") -> None:
    sizes = _pieces(trial, sizes)
    found, _ = decode(trial, sizes, cache)
    trial.agree(
        found, trial.plain.output, f"output of tokens given {how}, against all at once", where=trial.real, then=_step(trial, sizes, make)
    )


def _whole(trial: ModelTrial, least: int = 2) -> ModelTrial:
    trial = trial.but(cache=False, ask=False)
    if trial.ids.shape[1] < least:
        raise NotApplicable(f"needs {least} tokens")
    return trial


@model_law("stepwise", family="cache", needs=claims("cache=dynamic"))
def stepwise(trial: ModelTrial) -> None:
    """Tokens given one by one with a cache give what they give all at once without one."""
    trial = _whole(trial)
    _compare(trial, [1] * trial.ids.shape[1], "one by one")


@model_law("chunks", family="cache", needs=claims("cache=dynamic"))
def chunks(trial: ModelTrial) -> None:
    """Tokens given in chunks with a cache give what they give all at once without one: a prompt and one token, halves, uneven parts."""
    trial = _whole(trial, 3)
    length = trial.ids.shape[1]
    for sizes in ([length - 1, 1], [1, length - 1], [length // 2, 1, length - length // 2 - 1], [2, length - 2]):
        if min(sizes) > 0:
            _compare(trial, sizes, f"in chunks of {', '.join(map(str, sizes))}")


def static(trial: ModelTrial, room: int) -> Any:
    """A StaticCache with room for so many tokens. NotApplicable where the model or transformers has none."""
    if trial.subject.encoder_decoder or trial.subject.config is None:
        raise NotApplicable("a static cache is tried on decoders of transformers only")
    try:
        from transformers import StaticCache

        return StaticCache(config=trial.subject.config, max_cache_len=room)
    except (ImportError, ValueError, KeyError, AttributeError) as problem:
        raise NotApplicable(f"no static cache: {problem}") from problem


@model_law("static", family="cache", needs=claims("cache=static"))
def static_cache(trial: ModelTrial) -> None:
    """A preallocated cache, just large enough or larger, gives what a forward without one gives."""
    trial = _whole(trial)
    length = trial.ids.shape[1]
    for room in (length, length + 9):
        for sizes in ([length - 1, 1], [1] * length, [length]):
            make = f"transformers.StaticCache(config=model.config, max_cache_len={room})"
            _compare(trial, sizes, f"{sizes[0]} at first, with a static cache of {room}", static(trial, room), make)


@model_law("unwritten", family="cache", needs=claims("cache=static"))
def unwritten(trial: ModelTrial) -> None:
    """What stands in slots of a preallocated cache that no token has filled changes nothing."""
    trial = _whole(trial, 4)
    length = trial.ids.shape[1]
    half, *_ = _pieces(trial, [length // 2, *[1] * (length - length // 2)])
    _, cache = decode(trial, [half], static(trial, length + 4))
    touched = False
    for layer in getattr(cache, "layers", ()):
        # a window's layer rolls its slots: all of them are read once it is full
        if type(layer).__name__ == "StaticLayer" and getattr(layer, "is_initialized", False):
            layer.keys[:, :, half:] = 1e4
            layer.values[:, :, half:] = -1e4
            touched = True
    if not touched:
        raise NotApplicable("the cache has no preallocated layer without a window")
    rest, _ = decode(trial, [1] * (length - half), cache, begin=half)
    trial.agree(
        rest,
        trial.plain.output[:, half:],
        "output after unwritten slots of the cache were filled with 1e4",
        where=trial.real[:, half:],
        first=half,
    )


@model_law("beams", family="cache", needs=claims("cache=dynamic"))
def beams(trial: ModelTrial) -> None:
    """A cache reordered for beam search goes on as the reordered rows would."""
    import torch

    trial = _whole(trial, 4).but(pad="none", batch=max(trial.example.batch, 3))
    half, rows = trial.ids.shape[1] // 2, torch.arange(trial.example.batch).roll(1)
    _, cache = decode(trial, [half])
    if not hasattr(cache, "reorder_cache"):
        raise NotApplicable("the cache cannot be reordered")
    try:
        cache.reorder_cache(rows)
    except NotImplementedError as problem:
        raise NotApplicable(f"the cache cannot be reordered: {problem}") from problem
    moved = ModelTrial(trial.subject, trial.claims, trial.example, trial.trail)
    moved.inputs = {name: value[rows] if isinstance(value, torch.Tensor) else value for name, value in trial.inputs.items()}
    found, _ = decode(moved, [1] * (trial.ids.shape[1] - half), cache, begin=half)
    trial.agree(found, trial.plain.output[rows, half:], "output after the cache was reordered, against the reordered rows", first=half)


@model_law("quantised", family="cache", needs=claims("cache=quantised"))
def quantised(trial: ModelTrial) -> None:
    """A quantised cache gives finite outputs, near to those of its contents before quantisation, whatever size later keys have."""
    import torch

    trial = _whole(trial, 6).but(pad="none")
    length, half = trial.ids.shape[1], trial.ids.shape[1] // 2
    for backend in _backends():
        try:
            from transformers import QuantizedCache

            cache: Any = QuantizedCache(
                backend=backend, config=trial.subject.config, **({} if backend == "fp8" else {"residual_length": 1})
            )
        except (ImportError, ValueError, TypeError) as problem:
            raise NotApplicable(f"no quantised cache: {problem}") from problem
        # one token fixes the scale of what is kept; the rest must fit into it
        for begin in (1, half):
            found, _ = decode(trial, [begin, *[1] * (length - begin)], cache)
            step = _step(trial, [begin, *[1] * (length - begin)], f"transformers.QuantizedCache({backend!r}, config=model.config)")
            if not bool(torch.isfinite(found).all()):
                token = int((~torch.isfinite(found)).flatten(2).any(-1).any(0).nonzero()[0])
                raise LawViolation(f"output is not finite from token {token} on, with the {backend} cache begun by {begin} tokens", step)
            # eight bits keep a number to a sixteenth: outputs may move as far as half of their own spread, not further
            off = (found - trial.plain.output).double().norm() / trial.plain.output.double().norm()
            if float(off) > 0.5:
                raise LawViolation(
                    f"outputs move by {float(off):.2g} of their size, with the {backend} cache begun by {begin} tokens", step
                )
            cache = QuantizedCache(backend=backend, config=trial.subject.config, **({} if backend == "fp8" else {"residual_length": 1}))


def _backends() -> list[str]:
    """Quantisation backends that are installed; fp8 comes with transformers since 5.2x."""
    import inspect

    from transformers import cache_utils

    found = [name for name, module in (("quanto", "optimum.quanto"), ("hqq", "hqq")) if _installed(module)]
    if "fp8" in inspect.getsource(cache_utils.QuantizedCache):
        found.append("fp8")
    if not found:
        raise NotApplicable("no backend of a quantised cache is installed; pip install optimum-quanto")
    return found


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
