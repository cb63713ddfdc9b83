"""`attncheck diff A B`: what moved between two recorded runs, or between the baselines of two git revisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SHOWN = 3
"""Places of one quantity that are printed."""


def command(
    old: Annotated[str, typer.Argument(help="A file that --attn-json wrote, or a git revision.")],
    new: Annotated[str, typer.Argument(help="Another of the same kind; by default the baselines of the working tree.")] = "",
    rtol: Annotated[float | None, typer.Option(help="Relative tolerance; by default that of the pair of environments.")] = None,
    atol: Annotated[float | None, typer.Option(help="Absolute tolerance; by default that of the pair of environments.")] = None,
) -> None:
    """Say which quantities moved, the most changed first, and which tests came out otherwise. Exit status 1 where anything differs."""
    from attncheck.engine.diff import diff
    from attncheck.expectations.bound import number
    from attncheck.expectations.field import spell

    found = diff(old, new, Path.cwd(), rtol=rtol, atol=atol)
    total = found.compared
    typer.echo(f"{len(found.moved)} of {total} quantities moved" + (", the most changed first" if len(found.moved) > 1 else ""))
    for one in found.moved:
        typer.echo(f"\n{one.quantity}")
        rule = f"rtol {one.tolerance[0]:g}, atol {one.tolerance[1]:g}"
        typer.echo(f"  {len(one.changes)} of {one.places} places beyond {rule}" + (f"; {one.note}" if one.note else ""))
        shown = [(spell(change.where) or "the value", change) for change in one.changes[:SHOWN]]
        wide = max(len(where) for where, _ in shown)
        for where, change in shown:
            told = f"{change.old:.6g} then, {change.new:.6g} now, {change.new - change.old:+.3g}"
            typer.echo(f"    {where:<{wide}}  {told}  ({number(change.units)} tolerances)")
        if len(one.changes) > SHOWN:
            typer.echo(f"    and {len(one.changes) - SHOWN} more")
    for name, why in found.not_comparable:
        typer.echo(f"\nnot comparable: {name}: {why}")
    for test, before, after in found.outcomes:
        typer.echo(f"\n{test}: {before} then, {after} now")
    for side, names in zip((old, new or "the working tree"), found.only, strict=True):
        if names:
            typer.echo(f"\nonly in {side}:\n  " + "\n  ".join(names))
    if not found.same:
        raise typer.Exit(1)
