"""`tilewright info`: what is installed, which devices are there, and what is missing."""

from __future__ import annotations

from typing import Any

import click

from tilewright.cli.output import format_bytes, json_option, print_json


@click.command()
@json_option
def info(as_json: bool) -> None:
    """Show versions, devices and the cache, and what is missing with the command that installs it."""
    from tilewright.cli import system

    facts: dict[str, Any] = {
        "versions": system.versions(),
        "devices": system.devices(),
        "cache": system.cache(),
        "missing": system.missing(),
    }
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    width = max(len(name) for name in facts["versions"])
    for name, version in facts["versions"].items():
        click.echo(f"{name:{width}}  {version or 'not there'}")
    click.echo()
    if not facts["devices"]:
        click.echo("no GPU: kernels run on the simulator")
    for device in facts["devices"]:
        memory = format_bytes(device["memory_bytes"])
        click.echo(f"GPU {device['index']}: {device['name']}, {device['arch']}, {memory}")
    cache = facts["cache"]
    click.echo(f"cache: {cache['folder']}, {cache['kernels']} compiled kernels, {format_bytes(cache['bytes'])}")
    if "problem" in cache:
        click.echo(f"  {cache['problem']}")
    if facts["missing"]:
        click.echo("\nmissing:")
    for entry in facts["missing"]:
        click.echo(f"  {entry['what']}, for {entry['purpose']}\n    {entry['install']}")
