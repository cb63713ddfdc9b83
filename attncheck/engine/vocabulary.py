"""Everything that a spec may say here: the registered observables, demands, subject kinds and input kinds. Free of torch."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import warnings
from importlib import metadata
from importlib.abc import InspectLoader

from attncheck.core.expectation import EXPECTATIONS
from attncheck.core.observable import OBSERVABLES
from attncheck.core.vocabulary import Vocabulary

PACKAGES = {
    "attncheck.observables": "@observable(",
    "attncheck.expectations": "@expectation(",
    "attncheck.subjects": "@subject_kind(",
    "attncheck.inputs": "@input_kind(",
    "attncheck.training": "@subject_kind(",
    "attncheck.laws": "@expectation(",
}
"""Where names are registered, and by which decorator. Variants have a catalogue of their own, which their package imports."""
GROUP = "attncheck"
"""Entry points of other packages: a module that registers something when imported, or a function that does when called."""

SYMBOLS = {
    "N": "query positions that count, without padding",
    "M": "key positions that count, without padding",
    "d": "width of a query or key of one head",
    "d_v": "width of a value of one head",
    "H": "query heads of the layer",
    "H_kv": "key and value heads of the layer",
    "L": "attention layers of the stack",
    "uniform_norm": "least Frobenius norm under the true mask: sqrt(sum of r_i^2 / n_i) over rows, r_i row sum, n_i visible keys",
    "ceiling_norm": "largest Frobenius norm of rows that sum to one: the square root of the number of rows that see anything",
}


def vocabulary() -> Vocabulary:
    """The vocabulary as registered by now, third parties included. Imports what registers; what is registered later is in the next call."""
    _register()
    from attncheck.inputs.kinds import INPUT_KINDS
    from attncheck.subjects.kinds import SUBJECT_KINDS
    from attncheck.training.recipes import RECIPES
    from attncheck.variants.registry import VARIANTS

    return Vocabulary(
        observables=dict(sorted(OBSERVABLES.items())),
        expectations=dict(EXPECTATIONS.items()),
        subject_kinds=dict(SUBJECT_KINDS.items()),
        input_kinds=dict(INPUT_KINDS.items()),
        variants=dict(VARIANTS.items()),
        recipes=dict(RECIPES.items()),
        symbols=SYMBOLS,
    )


@functools.cache
def _register() -> None:
    for name, decorator in PACKAGES.items():
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            if not module.ispkg and decorator in (_source(module.name) or decorator):
                importlib.import_module(module.name)
    for point in metadata.entry_points(group=GROUP):
        try:
            found = point.load()
            if callable(found):
                found()
        except Exception as error:  # a broken plug-in must not take the language away from every spec
            warnings.warn(f"the entry point {point.name} ({point.value}) was not loaded: {type(error).__name__}: {error}", stacklevel=2)


def _source(module: str) -> str | None:
    """A module's text, read without running it: helpers that register nothing would pull in numpy, 0.1 s at every collection."""
    found = importlib.util.find_spec(module)
    loader = found.loader if found is not None else None
    return loader.get_source(module) if isinstance(loader, InspectLoader) else None
