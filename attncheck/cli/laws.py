"""`attncheck laws`: the laws that `attncheck.verify` holds an operator against."""

from __future__ import annotations

from typing import Annotated

import typer


def command(family: Annotated[str, typer.Argument(help="Only the laws of this family, or one law by its id.")] = "") -> None:
    """List the laws of attention operators, by family, each with the sentence that a failure shows."""
    from attncheck.laws.registry import laws

    last = ""
    for entry in laws([family] if family else None):
        if entry.family != last:
            typer.echo(("\n" if last else "") + f"{entry.family}:")
            last = entry.family
        typer.echo(f"  {entry.id}\n    {entry.sentence}")
