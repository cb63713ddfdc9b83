"""`attncheck init MODEL`: a first spec, from what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="package:NAME, a directory, a hub name, or module:function of a factory or an operator.")],
    to: Annotated[Path | None, typer.Option(help="The spec to write, below the working directory.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="It is an attention operator, such as sdpa or module:function.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a spec that is there.")] = False,
    attn_implementation: Annotated[str | None, typer.Option(help="As in a spec: eager, sdpa, flex_attention, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="float64, float32, bfloat16, float16.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N, mps.")] = None,
) -> None:
    """Measure a model or an operator and write a commented spec of it that passes now, with its baselines recorded."""
    from attncheck.engine.starter_text import begin, label_of

    target = to or Path("specs", f"{label_of(model)}.attn.yaml")
    settings = {"attn_implementation": attn_implementation, "dtype": dtype, "device": device}
    made = begin(model, target, Path.cwd(), operator=operator, force=force, settings=settings)
    typer.echo(f"wrote {target}: {len(made.properties)} properties, {made.tests} tests, all passing")
    for name in made.properties:
        typer.echo(f"  {name}")
    for path in dict.fromkeys(made.recorded):
        typer.echo(f"recorded {path}")
    if made.laws:
        typer.echo(f"laws: {made.laws}")
    for text in made.left_out:
        typer.echo(f"left out: {text}")
    typer.echo(f"next: pytest --attn-spec {target}")
