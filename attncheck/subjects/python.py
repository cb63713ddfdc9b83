"""`python: package.module:function`: a model that the project's own code builds."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attncheck.core.errors import AttncheckError, MeasurementError, nearest, raised
from attncheck.core.evidence import LoadedSubject
from attncheck.subjects.kinds import subject_kind
from attncheck.subjects.loading import Loading


@subject_kind("python", steps=False)
def python(loading: Loading, *, factory: str, arguments: dict[str, Any] | None = None) -> LoadedSubject:
    """A torch module that an importable function returns.

    `factory` is package.module:function, found from the project root; `arguments` are its keyword arguments. It returns an nn.Module, or
    a pair (module, encoder) where the encoder tells how text becomes ids (see core.evidence.Encoder). It runs under the subject's seed,
    and what it sets for the whole process is put back afterwards: random state, working directory, torch's default dtype, device and grad
    mode. `weights: random` is refused: the factory alone decides about weights.
    """
    from torch import nn

    from attncheck.subjects.encoders import encoder_for
    from attncheck.subjects.models import finish, seeded

    name = loading.definition.name
    if loading.random:
        raise MeasurementError(f"{name}: weights: random does not go with python: {factory}; let the factory take an argument for it")
    function = imported(name, factory, loading.root)
    given = dict(arguments or {})
    check_call(name, factory, function, given)
    try:
        with seeded(loading.definition.seed), undisturbed(), on_path(loading.root):
            made = function(**given)
    except (AttncheckError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() too: it would end the tests and not the measuring
        raise MeasurementError(f"{name}: {factory} raised {raised(error)}") from error
    module, encoder = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise MeasurementError(f"{name}: {factory} returned {type(module).__name__}; allowed: an nn.Module, or (nn.Module, encoder)")
    set_implementation(loading, module)
    return finish(loading, module, encoder if encoder is not None else encoder_for(module))


def set_implementation(loading: Loading, module: Any) -> None:
    """The attention implementation asked for, on a model that can switch it. Raises MeasurementError where it cannot."""
    from attncheck.subjects.models import building

    if loading.attn_implementation is None:
        return
    switch = getattr(module, "set_attn_implementation", None)
    if switch is None:
        raise MeasurementError(
            f"{loading.definition.name}: attn_implementation {loading.attn_implementation!r} was asked for, "
            f"but {type(module).__name__} has no set_attn_implementation"
        )
    with building(loading, type(module)):
        switch(loading.attn_implementation)


def imported(subject: str, target: str, root: Path) -> Callable[..., Any]:
    """The callable behind 'package.module:function'. Raises MeasurementError that says which part of it is wrong."""
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise MeasurementError(f"{subject}: {target!r} is not of the form package.module:function")
    try:
        with undisturbed(), on_path(root):
            found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise MeasurementError(f"{subject}: there is no module {module_name!r} (looked in {root} and the installed packages)") from None
        raise MeasurementError(f"{subject}: importing {module_name!r} needs the missing module {error.name!r}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a script without a guard ends with sys.exit()
        raise MeasurementError(f"{subject}: importing {module_name!r} raised {raised(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            hint = nearest(part, [name for name in dir(found) if not name.startswith("_")])
            raise MeasurementError(f"{subject}: {module_name} has no {path!r}" + (f"; did you mean {hint!r}?" if hint else ""))
        found = getattr(found, part)
    if not callable(found):
        raise MeasurementError(f"{subject}: {target} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def check_call(subject: str, target: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the function does not take, before it runs."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        allowed = ", ".join(signature.parameters) or "none"
        raise MeasurementError(f"{subject}: {target}: {error}; allowed: {allowed}") from None


@contextmanager
def undisturbed() -> Iterator[None]:
    """What a factory sets for the whole process ends with it: the working directory, torch's default dtype and device, its grad mode, its
    determinism."""
    import torch

    here, dtype, device, grad = os.getcwd(), torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        os.chdir(here)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device == torch.device("cpu") else device)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(strict, warn_only=warns)


@contextmanager
def on_path(root: Path) -> Iterator[None]:
    """The project root first on sys.path, for the block only."""
    entry = str(root.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
