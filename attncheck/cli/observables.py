"""`attncheck observables`: what can be measured, a line each."""

from __future__ import annotations

import typer


def command() -> None:
    """List the observables, a line each; `attncheck explain NAME` tells more."""
    from attncheck.cli.list import lines
    from attncheck.engine.vocabulary import vocabulary

    for line in lines(vocabulary().observables):
        typer.echo(line)
