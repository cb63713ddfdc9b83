"""`attncheck doctor [MODEL]`: what this machine can run, and how a model would be captured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="package:NAME, a directory, a hub name, or module:function of a factory.")] = "",
    attn_implementation: Annotated[str | None, typer.Option(help="As in a spec: eager, sdpa, flex_attention, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="float64, float32, bfloat16, float16.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N, mps.")] = None,
) -> None:
    """Say what this machine can run; with a model, run it once and say how each of its attention calls is seen. Exit status 1 where
    measurements on the model would be errors."""
    from attncheck.engine.doctor import diagnose, machine

    if not model:
        told = list(machine())
        wide = max(len(what) for what, _ in told)
        for what, how in told:
            typer.echo(f"{what:<{wide}}  {how}")
        return
    found = diagnose(model, Path.cwd(), attn_implementation=attn_implementation, dtype=dtype, device=device)
    typer.echo(f"{found.name}: {found.kind}, fed {found.fed}")
    # Layers of one kind are told once: what differs is what one looks for.
    rows: dict[tuple[str, ...], list[str]] = {}
    for number, call in enumerate(found.calls):
        about = (call.stack, call.route, call.implementation, call.shape, call.rules, call.probe)
        rows.setdefault(about, []).append(str(number))
    for (stack, route, implementation, shape, rules, probe), numbers in rows.items():
        first = found.calls[int(numbers[0])].path
        typer.echo(f"\n{'layer' if len(numbers) == 1 else 'layers'} {_spans([int(n) for n in numbers])}  ({stack}; the first is {first})")
        for what, how in (("seen by", f"{route}, {implementation}"), ("shape", shape), ("keys hidden", rules), ("kernel asked", probe)):
            typer.echo(f"  {what:<13} {how}")
    typer.echo(f"\n{len(found.calls)} attention calls: " + ", ".join(f"{count} by {route}" for route, count in found.routes.items()))
    typer.echo(f"weights: {found.weights}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    if found.refused:
        typer.echo(f"\nmeasurements would be errors: {found.refused}")
        raise typer.Exit(1)
    typer.echo("all attention that ran is seen")


def _spans(numbers: list[int]) -> str:
    """'0..3, 5'."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in spans)
