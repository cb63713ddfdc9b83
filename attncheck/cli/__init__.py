"""The command line: `attncheck COMMAND`. Each command is the function `command` of one file here, imported when it is asked for."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from attncheck.core.errors import AttncheckError


class _Commands(TyperGroup):
    """The files of this package as commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name)(importlib.import_module(f"{__name__}.{cmd_name}").command)
        return typer.main.get_command(single)


app = typer.Typer(cls=_Commands, add_completion=False, no_args_is_help=True, rich_markup_mode=None)


def _version(wanted: bool) -> None:
    if wanted:
        from attncheck import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _attncheck(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and leave."),
) -> None:
    """Regression tests for the behaviour of attention. Specs are run by `pytest --attn-spec`; this looks at what goes into them."""


def main() -> None:
    """The console script. An error that attncheck raises on purpose is one message on stderr and exit status 2."""
    try:
        app()
    except AttncheckError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
