"""`tilewright cache`: the folder of compiled kernels, its size, and clearing it."""

from __future__ import annotations

import click

from tilewright.cli.output import format_bytes, json_option, print_json


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def cache(ctx: click.Context, as_json: bool) -> None:
    """Show the size of the cache of compiled kernels, or clear it.

    The folder is TILEWRIGHT_CACHE_DIR where that is set.
    """
    if ctx.invoked_subcommand is None:
        _show(as_json)


@cache.command()
@json_option
def size(as_json: bool) -> None:
    """Show the folder, the number of compiled kernels and their size."""
    _show(as_json)


@cache.command()
@json_option
def clear(as_json: bool) -> None:
    """Remove all compiled kernels."""
    from tilewright.runtime.cache import default_cache

    disk_cache = default_cache()
    size = disk_cache.size()
    removed = disk_cache.clear()
    left = len(disk_cache.entries())
    if as_json:
        print_json({"folder": str(disk_cache.folder), "removed": removed, "left": left})
    else:
        click.echo(
            f"removed {removed} compiled kernels ({format_bytes(size - disk_cache.size())}) from {disk_cache.folder}"
        )
    if left:
        raise click.ClickException(f"{left} files could not be removed from {disk_cache.folder}")


def _show(as_json: bool) -> None:
    from tilewright.cli import system

    facts = system.cache()
    if as_json:
        print_json(facts)
    else:
        click.echo(f"{facts['folder']}: {facts['kernels']} compiled kernels, {format_bytes(facts['bytes'])}")
