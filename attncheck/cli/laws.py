"""`attncheck laws`: the laws that `attncheck.verify` holds an operator or a model against."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def command(family: Annotated[str, typer.Argument(help="Only the laws of this family, or one law by its id.")] = "") -> None:
    """List the laws of attention operators, then those of models, by family, each with the sentence that a failure shows."""
    from attncheck.laws.models.registry import model_laws
    from attncheck.laws.registry import laws

    last = ""
    wanted = [family] if family else None
    of_models = family.startswith("model-")
    entries: list[Any] = [*([] if of_models else laws(wanted)), *(model_laws(wanted) if of_models or not family else [])]
    for entry in entries:
        name = entry.id.removesuffix(f"-{entry.name}")
        if name != last:
            typer.echo(("\n" if last else "") + f"{name}:")
            last = name
        typer.echo(f"  {entry.id}\n    {entry.sentence}")
