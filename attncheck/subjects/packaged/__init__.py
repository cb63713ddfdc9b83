"""Trained models that ordinary packages ship: one file a package here, found by their decorator, listed without torch."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError, nearest
from attncheck.subjects.packaged.package import PACKAGES, Package

if TYPE_CHECKING:
    from attncheck.core.evidence import LoadedSubject
    from attncheck.subjects.loading import Loading

__all__ = ["Package", "known_packages", "load_packaged"]


@cache
def known_packages() -> dict[str, Package]:
    """Every package by the name that specs use after `package:`."""
    for found in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{found.name}")
    return dict(sorted(PACKAGES.items()))


def load_packaged(loading: Loading, name: str, variant: str | None) -> LoadedSubject:
    """The model `package:name`. Raises MeasurementError for an unknown name or variant, Unavailable for what is not installed."""
    subject, packages = loading.definition.name, known_packages()
    if name not in packages:
        hint = nearest(name, packages)
        raise MeasurementError(
            f"{subject}: unknown package:{name}" + (f"; did you mean package:{hint}?" if hint else "") + f"; allowed: {', '.join(packages)}"
        )
    package = packages[name]
    if variant is not None and variant not in package.variants:
        allowed = ", ".join(package.variants) or "none, it holds one model"
        raise MeasurementError(f"{subject}: package:{name} has no variant {variant!r}; allowed: {allowed}")
    package.require()
    loaded = package.loader(loading, package, variant or (package.variants[0] if package.variants else ""))
    loaded.notes.extend(package.version_note())
    return loaded
