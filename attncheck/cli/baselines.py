"""`attncheck baselines`: what is recorded, what belongs to no test any more, and, on request only, the removal of that."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    orphans: Annotated[bool, typer.Option("--orphans", help="Only those of no test; exit status 1 where there are any.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete those that belong to no test for certain.")] = False,
) -> None:
    """List the baselines of the project in the working directory, with their environments, and which belong to no test."""
    from attncheck.engine.orphans import held
    from attncheck.engine.vocabulary import vocabulary
    from attncheck.spec.loader import load

    root, known = Path.cwd(), vocabulary()
    found = held(root, lambda path: load(path, known, root=root))
    for one in found:
        if orphans and not one.orphan:
            continue
        recordings = one.baseline.recordings if one.baseline is not None else ()
        typer.echo(f"{one.path.as_posix()}{f'  ({one.why})' if one.why else ''}")
        for recording in recordings if not (orphans or prune) else ():
            typer.echo(f"  {recording.environment}")
    loose = [one for one in found if one.orphan]
    if prune:
        for one in loose:
            (root / one.path).unlink()
        typer.echo(f"{len(loose)} baseline{'s' if len(loose) != 1 else ''} deleted")
    elif loose:
        typer.echo(f"{len(loose)} of {len(found)} belong to no test; attncheck baselines --prune deletes them")
        if orphans:
            raise typer.Exit(1)
    else:
        typer.echo(f"{len(found)} baseline{'s' if len(found) != 1 else ''}, each of a test")
