"""`attncheck cache`: what is kept between runs."""

from __future__ import annotations

import typer

from attncheck.engine.cache import Cache


def command(clear: bool = typer.Option(False, "--clear", help="Remove all measurements that are kept.")) -> None:
    """Say where measurements are kept between runs, and how many; a measurement is used again where nothing that determines it changed."""
    cache = Cache.opened()
    if cache is None:
        typer.echo("measurements are not kept: ATTNCHECK_CACHE or ATTNCHECK_CACHE_LIMIT switches the cache off")
        return
    files, size = cache.size()
    typer.echo(
        f"{cache.place}: {files} measurement{'s' if files != 1 else ''}, {size / 2**20:.1f} MiB of at most {cache.limit / 2**20:.0f}"
    )
    if clear:
        typer.echo(f"removed {cache.shrink(0)}")
