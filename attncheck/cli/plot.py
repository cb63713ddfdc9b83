"""`attncheck plot SPEC`: every property of a spec as a picture, whether it holds or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from attncheck.core.verdict import Picture
    from attncheck.spec.model import Case


def command(
    spec: Annotated[Path, typer.Argument(help="A spec, below the working directory.")],
    only: Annotated[str, typer.Option("--property", help="This property alone.")] = "",
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N, mps, where the spec names none.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float64, float32, bfloat16, float16, where the spec names none.")] = None,
) -> None:
    """Measure a spec and draw each property on each subject under .attncheck/plots, the other subjects' curves in grey beside it.
    Exit status 1 where something could not be measured."""
    from attncheck.core.errors import AttncheckError, DoesNotApply
    from attncheck.engine.plan import plan
    from attncheck.engine.run import Run, RunOptions
    from attncheck.engine.store import new_run
    from attncheck.engine.vocabulary import vocabulary
    from attncheck.report import picture_path
    from attncheck.report.pictures import draw, with_context
    from attncheck.spec.loader import load

    root = Path.cwd()
    loaded = load(spec, vocabulary(), root=root)
    if only and only not in loaded.properties:
        raise AttncheckError(f"{spec} has no property {only!r}; it has {', '.join(loaded.properties)}")
    cases = [case for case in loaded.cases if case.exemption is None and only in ("", case.property.name)]
    run = Run(new_run(root), plan(cases), RunOptions(root, device, dtype, False))
    drawn: dict[str, dict[str, tuple[Case, Picture]]] = {}
    wrong = False
    try:
        for case in cases:
            try:
                found = run.judge(case).picture
            except DoesNotApply:
                continue
            except AttncheckError as error:
                wrong = True
                typer.echo(f"{case.property.name}[{case.id}]: {str(error).splitlines()[0]}", err=True)
                continue
            if found is not None:
                drawn.setdefault(case.property.name, {})[case.id] = (case, found)
    finally:
        run.close()
    for several in drawn.values():
        for name, (case, picture) in several.items():
            others = {other: shown for other, (_, shown) in several.items() if other != name}
            typer.echo(draw(with_context(picture, others), picture_path(root, case)).relative_to(root.resolve()))
    if wrong:
        raise typer.Exit(1)
