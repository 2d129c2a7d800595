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
    from tilewright.cli import system
    from tilewright.runtime.cache import default_cache

    disk_cache = default_cache()
    size = disk_cache.size()
    removed = disk_cache.clear()
    facts = system.cache()
    left, folder, problem = facts["kernels"], facts["folder"], facts.get("problem")
    if as_json:
        print_json(
            {"folder": folder, "removed": removed, "left": left, **({} if problem is None else {"problem": problem})}
        )
    else:
        click.echo(f"removed {removed} compiled kernels ({format_bytes(size - facts['bytes'])}) from {folder}")
        _tell(problem)
    if left:
        raise click.ClickException(f"{left} files could not be removed from {folder}")


def _show(as_json: bool) -> None:
    from tilewright.cli import system

    facts = system.cache()
    if as_json:
        print_json(facts)
    else:
        click.echo(f"{facts['folder']}: {facts['kernels']} compiled kernels, {format_bytes(facts['bytes'])}")
        _tell(facts.get("problem"))


def _tell(problem: str | None) -> None:
    if problem is not None:
        click.echo(f"warning: {problem}", err=True)
