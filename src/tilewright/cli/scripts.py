"""`tilewright check SCRIPT` and `profile SCRIPT`: run a user's script on the simulator, unchanged.

`check` reports what is wrong with its kernels, `profile` what each of their lines costs.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from rich.console import Console

from tilewright.arch import DEFAULT_GPU, GPUS, find_gpu
from tilewright.backends.sim import Finding
from tilewright.cli.output import json_option, print_json
from tilewright.frames import hide_frames
from tilewright.profile import Run, simulate
from tilewright.profile.text import write

if TYPE_CHECKING:
    from tilewright.bench.device import Stopwatch
    from tilewright.bench.timing import TimedLaunch

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
        except Exception as error:
            hide_frames(error)
            return Outcome(run, 1, "".join(traceback.format_exception(_from_script(error, script))))
    return Outcome(run, 0, None)


def measure_script(
    script: str, arguments: Sequence[str], *, quiet: bool, stopwatch: Stopwatch | None = None
) -> list[TimedLaunch]:
    """Run a script on the GPU, and return what each of its launches took; as `run_script` of what it prints."""
    from tilewright.bench.timing import time_launches

    with (
        _as_program(script, arguments, backend=None),
        time_launches(stopwatch) as found,
        redirect_stdout(sys.stderr) if quiet else nullcontext(),
        suppress(SystemExit),
    ):
        runpy.run_path(script, run_name="__main__")
    return found


def seconds_of(run: Run, timed: Sequence[TimedLaunch]) -> list[float | None]:
    """Return the seconds of each launch of a simulated run: of the one that came as the same one of its kernel.

    None for launches that the other run did not make, or with another grid or block.
    """
    waiting: dict[str, list[TimedLaunch]] = {}
    for each in timed:
        waiting.setdefault(each.kernel, []).append(each)
    found: list[float | None] = []
    for launch in run.launches:
        rest = waiting.get(launch.kernel)
        other = rest.pop(0) if rest else None
        is_same = other is not None and (other.grid, other.block) == (launch.grid, launch.block)
        found.append(other.seconds if other is not None and is_same else None)
    return found


def _from_script(error: Exception, script: str) -> Exception:
    """Return the error without the frames that ran the script, where it has frames of the script."""
    frame, own = error.__traceback__, os.path.abspath(script)
    while frame is not None and os.path.abspath(frame.tb_frame.f_code.co_filename) != own:
        frame = frame.tb_next
    return error if frame is None else error.with_traceback(frame)


def _summary(outcome: Outcome) -> str:
    """Return how many findings there are, and where that means little, why."""
    count, launched = len(outcome.run.findings), len(outcome.run.launched)
    found = f"{count} finding{'' if count == 1 else 's'}"
    if launched == 0:
        why = "the script failed before it launched a kernel" if outcome.failure else "the script launched no kernel"
        return f"{found}: {why}"
    of = f"{found} in {launched} launch{'' if launched == 1 else 'es'}"
    return f"{of}; then the script failed" if outcome.failure else of


def _titled(finding: Finding) -> str:
    title = f"{finding.kind}: "
    return finding.message if finding.message.startswith(title) else title + finding.message


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1


@contextmanager
def _as_program(script: str, arguments: Sequence[str], backend: str | None = "sim") -> Iterator[None]:
    """Give the script its arguments, its folder to import from, and the backend; None leaves that as it is."""
    argv, path = sys.argv, list(sys.path)
    before = os.environ.get("TILEWRIGHT_BACKEND")
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    if backend is not None:
        os.environ["TILEWRIGHT_BACKEND"] = backend
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        if before is None:
            os.environ.pop("TILEWRIGHT_BACKEND", None)
        else:
            os.environ["TILEWRIGHT_BACKEND"] = before


@click.command(context_settings=SCRIPT)
@script_arguments
@json_option
def check(script: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """Run a Python script with its kernels on the simulator, and report what is wrong with them.

    The script runs unchanged, with the ARGUMENTS given; every launch goes to the simulator, and findings do not stop
    it. Options of the script that are spelled like ours go behind `--`. The exit status is 1 when something was
    found, else the script's own.
    """
    outcome = run_script(script, arguments, profile=False, quiet=as_json)
    findings = outcome.run.findings
    if as_json:
        print_json(
            {
                "findings": [
                    {
                        "kind": finding.kind,
                        "file": finding.file,
                        "line": finding.line,
                        "message": finding.message,
                        "buffer": finding.buffer,
                        "block": finding.block,
                        "thread": finding.thread,
                        "count": finding.count,
                    }
                    for finding in findings
                ],
                "launches": len(outcome.run.launched),
                "script_status": outcome.status,
                "script_failure": outcome.failure,
            }
        )
    else:
        for finding in findings:
            click.echo(f"{_titled(finding)}\n")
        click.echo(_summary(outcome))
    if outcome.failure is not None:
        click.echo(outcome.failure, err=True)
    raise SystemExit(1 if findings else outcome.status)


@click.command(context_settings=SCRIPT)
@script_arguments
@click.option("--html", metavar="FILE", help="Write the report with pictures to one HTML file.")
@click.option("--gpu", default=DEFAULT_GPU, show_default=True, help=f"The GPU whose limits count: {', '.join(GPUS)}.")
@click.option("--measure", is_flag=True, help="Run the script on the GPU too, and report what is achieved there.")
@click.option("--blocks", type=click.IntRange(min=1), help="Measure about so many blocks of a launch, and scale.")
@json_option
def profile(
    script: str,
    arguments: tuple[str, ...],
    html: str | None,
    gpu: str,
    measure: bool,
    blocks: int | None,
    as_json: bool,
) -> None:
    """Run a Python script with its kernels on the simulator, and report what each line costs.

    The script runs unchanged, with the ARGUMENTS given. Options of the script that are spelled like ours go behind
    `--`. With `--measure` it runs a second time, on the GPU, where each launch is timed once. The exit status is the
    script's own.
    """
    from tilewright.bench.device import Gpu
    from tilewright.suites.files import check_target, write_bytes

    find_gpu(gpu)  # refused before the script runs
    page = None if html is None else Path(html).absolute()  # the script may change the folder
    if page is not None:
        check_target(page)
    watch = Gpu() if measure else None  # refused before the script runs, too
    outcome = run_script(script, arguments, profile=True, quiet=as_json, blocks=blocks)
    seconds = [] if watch is None else seconds_of(outcome.run, measure_script(script, arguments, quiet=as_json))
    console = Console(stderr=True)
    # Looking for layouts takes a while; a pipe or a log wants no spinner.
    with console.status("looking for layouts without conflicts") if console.is_terminal else nullcontext():
        report = outcome.run.profile.report(gpu, seconds)
        if page is not None:
            write_bytes(page, report.html().encode())
    if as_json:
        click.echo(report.json())
    elif sys.stdout.isatty():
        write(Console(), report.launches)
    else:
        click.echo(str(report))
    for finding in outcome.run.findings:
        click.echo(f"{_titled(finding)}\n", err=True)
    if outcome.failure is not None:
        click.echo(outcome.failure, err=True)
    raise SystemExit(outcome.status)
