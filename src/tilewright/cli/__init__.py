"""The command line: `tilewright demo`, `bench`, `check`, `profile`, `show`, `draw`, `layout`, `info` and `cache`.

Commands are imported when they are called, so that `tilewright --help` and `tilewright cache` start fast.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from tilewright._version import __version__
from tilewright.cli.failures import errors_in_words, warnings_in_words
from tilewright.cli.output import prepare_streams

# Name -> the module that has a command of that name, and its one-line help: given here so that listing the commands
# imports none of them.
_COMMANDS = {
    "bench": ("bench", "Measure the matmul ladder and other kernels, or a function of a file."),
    "cache": ("system", "Show the size of the cache of compiled kernels, or clear it."),
    "check": ("scripts", "Run a script or a kernel on the simulator; report faults."),
    "demo": ("demo", "Run the example kernels and check each against NumPy."),
    "draw": ("layouts", "Draw a layout to an SVG, PNG, PDF or Typst file, or as a table."),
    "info": ("system", "Show versions, devices and the cache, and what is missing."),
    "layout": ("layouts", "Work out an expression of layouts and show the result as a table."),
    "profile": ("scripts", "Run a script on the simulator; report what each line costs."),
    "show": ("kernels", "Show the CUDA C++, PTX or machine code of a kernel, and what it uses."),
}


class _LazyGroup(click.Group):
    """A group whose commands are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"tilewright.cli.{module}"), cmd_name)
        assert isinstance(command, click.Command), command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(_COMMANDS.items())])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # Any: as click's
        prepare_streams()
        with errors_in_words():  # of --help and --version, which print while the arguments are read
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> object:
        with errors_in_words(), warnings_in_words():
            return super().invoke(ctx)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tilewright")
def main() -> None:
    """Write GPU kernels as tiles and layouts."""
