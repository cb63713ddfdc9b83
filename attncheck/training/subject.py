"""`train: {recipe: bytes-lm, attention: mha, steps: 250}`: a training that attncheck runs once, and its checkpoints as the subject."""

from __future__ import annotations

import atexit
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck import variants
from attncheck.core.arguments import checked_arguments
from attncheck.core.errors import MeasurementError, nearest
from attncheck.core.evidence import LoadedSubject, SubjectSeries
from attncheck.core.registry import Complaint
from attncheck.subjects.kinds import subject_kind
from attncheck.subjects.loading import Loading
from attncheck.training import RECIPES
from attncheck.training.folder import Folder, content_of, kept_in
from attncheck.training.recipes import Recipe
from attncheck.variants.fields import Count, VariantArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN = ("recipe", "attention", "steps", "epochs", "record_every")
"""Arguments of the kind; all others are the recipe's."""


def check(arguments: Mapping[str, Any]) -> Iterator[Complaint]:
    """What is wrong with a training, told while a spec is read, without torch."""
    name, options = arguments["recipe"], {key: value for key, value in arguments.items() if key not in OWN}
    if name not in RECIPES:
        yield Complaint("recipe", f"unknown recipe {name!r}", tuple(RECIPES), name)
        return
    wrong = list(_options(name, options))
    yield from wrong
    lengths = [key for key in ("steps", "epochs") if arguments.get(key) is not None]
    if len(lengths) != 1:
        yield Complaint("recipe", f"train: {' and '.join(lengths) or 'neither steps nor epochs'}", "one of steps, epochs")
    if wrong or len(lengths) != 1:
        return
    found: Recipe = RECIPES[name].function(**options)
    if "epochs" in lengths and found.steps_per_epoch is None:
        yield Complaint("epochs", f"train: {name} draws its data without end and has no epochs", "steps")
    for option, problem in found.problems:
        yield Complaint(option, f"train: {problem}")
    fits = {"width": found.width, "heads": found.heads, "rotary": found.rotary, "qk_norm": found.qk_norm}
    for problem in variants.check(arguments["attention"], tokens=found.tokens, **fits):  # type: ignore[arg-type]
        yield Complaint("attention", f"train: attention: {problem}")


def _options(name: str, options: Mapping[str, Any]) -> Iterator[Complaint]:
    from pydantic import ValidationError

    entry = RECIPES[name]
    try:
        entry.arguments(**options)
    except ValidationError as error:
        said = set()
        for item in error.errors():
            option = str(item["loc"][0])
            if option in said:
                continue
            said.add(option)
            if item["type"] == "extra_forbidden":
                yield Complaint(option, f"train: {name} takes no {option!r}", (*OWN, *entry.parameters), option)
            else:
                allowed = item["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
                yield Complaint(option, f"train: {option}: {item['input']!r}", allowed)


def files(arguments: Mapping[str, Any], root: Path) -> list[Path] | None:
    """No file beside attncheck's own code decides about a recipe of our own."""
    name = arguments["recipe"]
    return [] if name in RECIPES and RECIPES[name].function.__module__.startswith("attncheck.") else None


@subject_kind("train", check=check, files=files)
def train(
    loading: Loading,
    *,
    recipe: str,
    attention: VariantArgument = "mha",
    steps: Count | None = None,
    epochs: Count | None = None,
    record_every: Count | None = None,
    **options: Any,
) -> SubjectSeries:
    """A small training by a recipe, with an attention variant of your choosing; its checkpoints are measured along the dim `step`.

    `recipe` is bytes-lm, vit-digits, or one that another package registers; every further key is an option of it. `attention` is an
    attention variant (`attncheck list variants`). The length is `steps`, or `epochs` where the recipe's data has an end. Weights are kept
    at steps 0, 1, 2, 4, 8, ... and the last, or at every `record_every` steps (epochs where the length is in epochs). Trained once for
    each seed, in float32, and kept in the user's cache folder by the hash of everything that determines it; an interrupted training goes on
    where it was. training.loss and training.accuracy are noted at each checkpoint. `weights: random` is the model before its first step,
    at every step.
    """
    name, arguments = loading.definition.name, {"recipe": recipe, "attention": attention, "steps": steps, "epochs": epochs}
    complaints = list(check({**arguments, "record_every": record_every, **options}))
    if complaints:
        raise MeasurementError(f"{name}: {'; '.join(f'{one.found}{_allowed(one)}' for one in complaints)}")
    if loading.attn_implementation is not None:
        raise MeasurementError(
            f"{name}: attn_implementation {loading.attn_implementation!r} does not go with train, whose variants choose their operator"
        )
    entry = RECIPES[recipe]
    filled = checked_arguments(name, entry, options)
    made: Recipe = entry.function(**filled)
    from attncheck.training.loop import recorded

    unit = (made.steps_per_epoch or 1) if epochs is not None else 1
    total = (steps or epochs or 1) * unit
    record = recorded(total, None if record_every is None else record_every * unit)
    seed = loading.definition.seed
    if loading.random:
        return _series(loading, made, attention, record, lambda step: None, {}, "it was not trained")
    content = content_of(
        {"recipe": recipe, "options": filled, "attention": attention, "steps": total, "record": record, "seed": seed},
        function=None if files({"recipe": recipe}, loading.root) is not None else inspect.getfile(entry.function),
        libraries=tuple(made.libraries),
        machine=machine(loading.device),
    )
    folder = Folder.of(kept_in() or _temporary(), recipe, content)
    ensure(folder, made, attention, seed=seed, steps=total, record=record, device=loading.device, name=_shown(name, seed),
           progress=loading.progress)  # fmt: skip
    log: dict[str, dict[int, float]] = {}
    for step, noted in folder.log.items():
        for key, value in noted.items():
            log.setdefault(key, {})[step] = value
    found = _series(loading, made, attention, record, folder.read_weights, log, "it was not noted")
    found.name_of = lambda step: str(folder.weights(step))
    return found


def ensure(
    folder: Folder,
    recipe: Recipe,
    attention: Any,
    *,
    seed: int,
    steps: int,
    record: Sequence[int],
    device: str,
    name: str,
    progress: Callable[[str], None] | None = None,
) -> bool:
    """Train unless it was done; one process does, others wait for it. Whether this one did."""
    import filelock

    from attncheck.training.loop import train as run

    if folder.complete:
        return False
    lock = filelock.FileLock(str(folder.lock))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        if progress is not None:
            progress(f"training {name}: another process is at it, waiting")
        lock.acquire()
    try:
        if folder.complete:
            return False
        run(recipe, attention, seed=seed, steps=steps, record=record, device=device, folder=folder, name=name, progress=progress)
        return True
    finally:
        lock.release()


def _series(
    loading: Loading,
    recipe: Recipe,
    attention: Any,
    record: Sequence[int],
    weights: Callable[[int], Mapping[str, Any] | None],
    log: Mapping[str, Mapping[int, float]],
    log_missing: str,
) -> SubjectSeries:
    def opened(step: int) -> LoadedSubject:
        from attncheck.subjects.encoders import encoder_for
        from attncheck.subjects.models import finish
        from attncheck.training.loop import fresh

        model = fresh(recipe, attention, loading.definition.seed)
        found = weights(step)
        if found is not None:
            try:
                model.load_state_dict(found)
            except RuntimeError as error:
                raise MeasurementError(f"{loading.definition.name}: the weights are of another model: {error}") from error
        return finish(loading, model, encoder_for(model, **recipe.facts))

    return SubjectSeries(loading.definition, list(record), opened, name_of=lambda step: "untrained", log=log, log_missing=log_missing)


def machine(device: str) -> str:
    """What decides about a device's kernels: the processor's instruction set, or the card."""
    import torch

    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)} {torch.version.cuda}"
    return f"{device} {torch.backends.cpu.get_cpu_capability()}" if device == "cpu" else device


@cache
def _temporary() -> Path:
    """Where trainings go while the cache is switched off: gone with the process."""
    folder = tempfile.TemporaryDirectory(prefix="attncheck-trained-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _shown(name: str, seed: int) -> str:
    return f"{name} (seed {seed})" if seed else name


def _allowed(complaint: Complaint) -> str:
    allowed = complaint.allowed if isinstance(complaint.allowed, str) else ", ".join(complaint.allowed)
    hint = nearest(complaint.like, complaint.allowed) if complaint.like and not isinstance(complaint.allowed, str) else ""
    return (f"; allowed: {allowed}" if allowed else "") + (f"; did you mean {hint!r}?" if hint else "")
