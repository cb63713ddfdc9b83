"""`attncheck list`: the names that a spec may use."""

from __future__ import annotations

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


def command(what: Annotated[What | None, typer.Argument(help="Only these.")] = None) -> None:
    """List observables, demands, kinds of subjects and kinds of inputs, a line each. `attncheck explain NAME` tells more."""
    from attncheck.engine.vocabulary import vocabulary

    known = vocabulary()
    for section, entries in sections(known).items():
        if what in (None, section):
            if what is None:
                typer.echo(f"{section.value}:")
            for line in lines(entries):
                typer.echo(line)
            if what is None:
                typer.echo()


def sections(known: Vocabulary) -> dict[What, Mapping[str, Entry]]:
    return {
        What.observables: known.observables,
        What.demands: known.expectations,
        What.subjects: known.subject_kinds,
        What.inputs: known.input_kinds,
    }


def lines(entries: Mapping[str, Entry]) -> list[str]:
    """A name and the first sentence of its meaning on each line."""
    width = max(map(len, entries), default=0)
    return [f"  {name:{width}}  {entry.summary.split('. ')[0].rstrip('.')}" for name, entry in entries.items()]
