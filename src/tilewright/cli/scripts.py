"""Run a user's script under the simulator, unchanged, and keep what the simulator says of its kernels."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from tilewright.profile import Run, simulate

_Command = TypeVar("_Command", bound=Callable[..., object])

# Options of ours may stand before or behind the script; what we do not know is the script's.
SCRIPT = {"ignore_unknown_options": True}


def script_arguments(command: _Command) -> _Command:
    """Add SCRIPT and its arguments to a command."""
    command = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(command)
    return click.argument("script", type=click.Path(exists=True, dir_okay=False))(command)


@dataclass(frozen=True)
class Outcome:
    """How a script ended: its exit status, and the traceback where it failed."""

    run: Run
    status: int
    failure: str | None


def run_script(
    script: str, arguments: Sequence[str], *, profile: bool, quiet: bool, blocks: int | None = None
) -> Outcome:
    """Run a script as `python script arguments...` with every launch on the simulator.

    Findings do not stop it. With `quiet`, what it prints goes to stderr, so that stdout is for JSON alone.
    """
    with _as_program(script, arguments), simulate(profile=profile, raise_errors=False, profile_blocks=blocks) as run:
        try:
            if quiet:
                with redirect_stdout(sys.stderr):
                    runpy.run_path(script, run_name="__main__")
            else:
                runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            return Outcome(run, _status(end), None)
        except Exception:
            return Outcome(run, 1, traceback.format_exc())
    return Outcome(run, 0, None)


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1


@contextmanager
def _as_program(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Give the script its arguments, its folder to import from, and the simulator."""
    argv, path = sys.argv, list(sys.path)
    backend = os.environ.get("TILEWRIGHT_BACKEND")
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    os.environ["TILEWRIGHT_BACKEND"] = "sim"
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        if backend is None:
            del os.environ["TILEWRIGHT_BACKEND"]
        else:
            os.environ["TILEWRIGHT_BACKEND"] = backend
