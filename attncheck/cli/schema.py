"""`attncheck schema`: the JSON Schema of specs, for completion in editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT = Path("specs/attncheck.schema.json")


def command(
    path: Annotated[Path, typer.Argument(help="Where --write puts it.")] = DEFAULT,
    write: Annotated[bool, typer.Option("--write", help="Write it to PATH instead of printing it.")] = False,
) -> None:
    """Print the JSON Schema of specs, third-party names included, or write it for the first line of a spec to point at."""
    text = schema_text()
    if not write:
        typer.echo(text, nl=False)
        return
    from attncheck.core.paths import inside

    target = inside(Path.cwd(), path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {path}")


def schema_text() -> str:
    """The schema as the file holds it."""
    import json

    from attncheck.engine.vocabulary import vocabulary
    from attncheck.spec.schema import json_schema

    return json.dumps(json_schema(vocabulary()), indent=1, ensure_ascii=False) + "\n"
