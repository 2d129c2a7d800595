"""`tilewright show FILE:KERNEL`: the code generated from a kernel, and the resources it uses."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from typing import Any

import click

from tilewright.cli.kernels import Kernel, dimensions, find_kernel, kernel_names, launch_of, load_file
from tilewright.cli.output import json_option, print_json
from tilewright.errors import TilewrightError

# The kernel is an identifier, so that the colon of a Windows drive stays part of the file.
_TARGET = re.compile(r"(?P<file>.+?)(:(?P<kernel>[^\W\d][\w.]*))?")


def _arch(context: click.Context, parameter: click.Parameter, name: str) -> str:
    from tilewright.arch import Arch

    try:
        return Arch.parse(name).name
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


@click.command()
@click.argument("target", metavar="FILE[:KERNEL]")
@click.option("--arch", default="sm_90a", show_default=True, callback=_arch, help="The target to compile for.")
@click.option("--ptx", "form", flag_value="ptx", help="Show PTX instead of C++.")
@click.option("--sass", "form", flag_value="sass", help="Show machine code instead of C++.")
@click.option(
    "--arg",
    "texts",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument: an array as float32[2048,2048] or float32[:,:], or a Python expression in FILE's names.",
)
@click.option("--grid", help="The grid, as 64 or 64,32.")
@click.option("--block", help="The threads of a block, as 256 or 32,8.")
@json_option
def show(
    target: str, arch: str, form: str | None, texts: tuple[str, ...], grid: str | None, block: str | None, as_json: bool
) -> None:
    """Show the CUDA or HIP C++, PTX or machine code of a kernel, and what it uses. No GPU is needed.

    FILE is run, so that it defines its kernels. The arguments come from `--arg`, or from a function of FILE called
    example_KERNEL that returns (grid, block, args). Without KERNEL, the kernels of FILE are listed.
    """
    match = _TARGET.fullmatch(target)
    assert match is not None, target
    path, name = match["file"], match["kernel"]
    module = load_file(path)
    if name is None:
        _list(kernel_names(module), as_json)
        return
    kernel = find_kernel(module, name)
    launch = launch_of(module, kernel, name, texts, dimensions(grid, "--grid"), dimensions(block, "--block"))
    form = form or "source"
    text = str(getattr(launch.target, form)(*launch.args, arch=arch))
    resources, problem = _resources(launch.target, launch.args, arch)
    if as_json:
        print_json({"kernel": name, "arch": arch, form: text, "resources": resources, "problem": problem})
        return
    _print_code(text, form)
    for key, value in resources.items():
        click.echo(f"// {key.replace('_', ' ')}: {value}")
    if problem is not None:
        click.echo(problem, err=True)


def _list(names: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"kernels": names})
    else:
        click.echo("\n".join(names) if names else "No kernel is defined there.")


def _resources(kernel: Kernel, args: tuple[Any, ...], arch: str) -> tuple[dict[str, Any], str | None]:
    """Return the resources, and where the compiler is missing or refuses, the reason instead."""
    try:
        found = kernel.resources(*args, arch=arch)
    except TilewrightError as error:
        # The text is there and is what was asked for; without a compiler there are no resources to tell.
        return {}, f"resources are not known: {error}"
    if isinstance(found, Mapping):
        return dict(found), None
    assert dataclasses.is_dataclass(found) and not isinstance(found, type), found
    return dataclasses.asdict(found), None


def _print_code(text: str, form: str) -> None:
    if form != "source" or not sys.stdout.isatty():
        click.echo(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(text.rstrip("\n"), "cuda", background_color="default"))
