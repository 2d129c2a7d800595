"""`tilewright check SCRIPT` and `profile SCRIPT`: run a user's script on the simulator, unchanged.

`check` reports what is wrong with its kernels, `profile` what each of their lines costs. `check FILE:KERNEL` launches
one kernel of a file, as `tilewright show` finds it.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from tilewright.arch import DEFAULT_GPU, GPUS, find_gpu
from tilewright.backends.sim import Finding, teller
from tilewright.cli.failures import demand_writable, from_file, raised_in, users_code
from tilewright.cli.kernels import TARGET, dimensions, find_kernel, launch_of, load_file
from tilewright.cli.output import json_option, print_json, terminal_width
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.frames import hide_frames
from tilewright.profile import Run, simulate
from tilewright.profile.run import with_data
from tilewright.profile.text import write
from tilewright.runtime.options import is_simulator_chosen

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


class Orders:
    """In how many other orders of agents launches are run, from which seed on; tells on stderr how far it has come."""

    def __init__(self, count: int = 0, seed: int = 0) -> None:
        self._count, self._seed = count, seed
        self._start = self._told = time.monotonic()

    @contextmanager
    def simulate(self, **options: Any) -> Iterator[Run]:
        """Simulate launches; findings do not stop them."""
        told = teller.set(self._blocks)
        ours = {"schedules": self._count, "seed": self._seed, "progress": self._progress}
        try:
            with simulate(raise_errors=False, **ours, **options) as run:  # type: ignore[arg-type]  # options of several types
                yield run
        finally:
            teller.reset(told)

    def _progress(self, number: int) -> None:
        self._tell(number == 0, f"order {number + 1} of {self._count} (seed {self._seed + number})")

    def _blocks(self, kernel: str, done: int, total: int) -> None:
        self._tell(done == 0 and not self._count, f"{kernel}: {done:,} of {total:,} blocks")

    def _tell(self, is_first: bool, what: str) -> None:
        now = time.monotonic()
        if is_first:
            self._start = self._told = now
        if now - self._told >= _QUIET_SECONDS:
            self._told = now
            click.echo(f"{what}, {now - self._start:.0f} s", err=True)


_QUIET_SECONDS = 2.0


def run_kernel(target: str, texts: Sequence[str], *, quiet: bool, orders: Orders) -> Outcome:
    """Launch a kernel of a file, FILE:KERNEL, with the arguments that `tilewright show` would take."""
    match = TARGET.fullmatch(target)
    assert match is not None and match["kernel"], target
    path, name = match["file"], match["kernel"]
    with _kernel_options.make_context("check FILE:KERNEL", list(texts)) as context:
        options = context.params
    with _as_program(path, ()):
        module = load_file(path)
        kernel = find_kernel(module, name)
        grid, block = dimensions(options["grid"], "--grid"), dimensions(options["block"], "--block")
        with users_code(path):
            launch = launch_of(module, kernel, name, options["texts"], grid, block)
        if launch.target is kernel:
            raise ArgumentError(f"{name} needs a block", help="pass --block 256, or define example_" + name)
        with orders.simulate() as run:
            try:
                with redirect_stdout(sys.stderr if quiet else sys.stdout):
                    launch.target(*[with_data(argument) for argument in launch.args])  # type: ignore[operator]  # called as it is
            except Exception as error:
                text = raised_in(error, path)
                if text is None and not isinstance(error, TilewrightError):
                    raise
                return Outcome(run, 1, text or f"{type(error).__name__}: {error}")
    return Outcome(run, 0, None)


@click.command()
@click.option("--arg", "texts", multiple=True)
@click.option("--grid")
@click.option("--block")
def _kernel_options(texts: tuple[str, ...], grid: str | None, block: str | None) -> None:
    """Take the options that say how FILE:KERNEL is launched."""


def run_script(
    script: str,
    arguments: Sequence[str],
    *,
    profile: bool,
    quiet: bool,
    blocks: int | None = None,
    orders: Orders | None = None,
) -> Outcome:
    """Run a script as `python script arguments...` with every launch on the simulator.

    Findings do not stop it. With `quiet`, what it prints goes to stderr, so that stdout is for JSON alone.
    """
    orders = orders or Orders()
    with (
        _as_program(script, arguments),
        orders.simulate(profile=profile, profile_blocks=blocks) as run,
    ):
        try:
            if quiet:
                with redirect_stdout(sys.stderr):
                    runpy.run_path(script, run_name="__main__")
            else:
                runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            return Outcome(run, _status(end), None)
        except Exception as error:
            return Outcome(run, 1, _traceback(error, script))
    return Outcome(run, 0, None)


def _traceback(error: Exception, script: str) -> str:
    """Return the traceback of what a script raised, as Python would print it for `python script`."""
    hide_frames(error)
    return "".join(traceback.format_exception(from_file(error, script)))


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
        try:
            runpy.run_path(script, run_name="__main__")
        except Exception as error:
            click.echo(
                f"the run on the GPU failed, of which {len(found)} launches were timed\n{_traceback(error, script)}",
                err=True,
            )
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


def _summary(outcome: Outcome) -> str:
    """Return how many findings there are, and where that means little, why."""
    count, launched = len(outcome.run.findings), len(outcome.run.launched)
    found = f"{count} finding{'' if count == 1 else 's'}"
    if launched == 0:
        why = "the script failed before it launched a kernel" if outcome.failure else "the script launched no kernel"
        return f"{found}: {why}"
    of = f"{found} in {launched} launch{'' if launched == 1 else 'es'}"
    if outcome.run.options.schedules:
        first, count = outcome.run.options.seed, outcome.run.options.schedules
        of += f", each in the order without a seed and in those of the seeds {first} to {first + count - 1}"
    return f"{of}; then the script failed" if outcome.failure else of


def _titled(finding: Finding) -> str:
    """Return the message of a finding, after its kind where it does not begin with that, in words or as it is."""
    titles = (f"{finding.kind}: ", f"{finding.kind.replace('-', ' ')}: ")
    return finding.message if finding.message.startswith(titles) else titles[0] + finding.message


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
        is_simulator_chosen()  # a value that is none of its is told of, and not put aside
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
@click.argument("script", metavar="SCRIPT|FILE:KERNEL")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--schedules", type=click.IntRange(min=0), metavar="N", help="Run each launch in N more orders of agents."
)
@click.option("--seed", metavar="S", help="The seed of the first of them; the next ones follow. [default: 0]")
@json_option
def check(script: str, arguments: tuple[str, ...], schedules: int | None, seed: str | None, as_json: bool) -> None:
    """Run a Python script with its kernels on the simulator, and report what is wrong with them.

    The script runs unchanged, with the ARGUMENTS given; every launch goes to the simulator, and findings do not stop
    it. With FILE:KERNEL that kernel alone is launched, with `--arg`, `--grid` and `--block` or example_KERNEL as
    `tilewright show` has them; arrays without data hold numbers if they are floats, else zeros.

    With --schedules each launch runs again with its blocks, warps and lanes in other orders, which a seed gives, and
    findings name the seed that shows them. Options of the script that are spelled like ours go behind `--`. The exit
    status is 1 when something was found, else the script's own.
    """
    if schedules is None and seed is not None:  # it is the script's
        arguments, seed = (*arguments, "--seed", seed), None
    if seed is not None and not (seed.isascii() and seed.isdigit() and len(seed) < 19):
        raise click.BadParameter(f"{seed!r} is not a whole number from 0 on", param_hint="--seed")
    orders = Orders(schedules or 0, int(seed or 0))
    target = TARGET.fullmatch(script)
    if os.path.isfile(script):
        outcome = run_script(script, arguments, profile=False, quiet=as_json, orders=orders)
    elif target is not None and target["kernel"] is not None:
        outcome = run_kernel(script, arguments, quiet=as_json, orders=orders)
    else:
        what = "is a directory" if os.path.isdir(script) else "does not exist"
        raise click.BadParameter(f"File {script!r} {what}.", param_hint="SCRIPT")
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
                        "seed": finding.seed,
                    }
                    for finding in findings
                ],
                "launches": len(outcome.run.launched),
                "schedules": schedules or 0,
                "notes": outcome.run.notes,
                "script_status": outcome.status,
                "script_failure": outcome.failure,
            }
        )
    else:
        for finding in findings:
            click.echo(f"{_titled(finding)}\n")
        for note in outcome.run.notes:
            click.echo(note)
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
    from tilewright.suites.files import write_bytes

    find_gpu(gpu)  # refused before the script runs
    page = None if html is None else Path(html).absolute()  # the script may change the folder
    demand_writable(page)
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
    elif (width := terminal_width()) is not None:
        write(Console(width=width), report.launches)
    else:
        click.echo(str(report))
    for finding in outcome.run.findings:
        click.echo(f"{_titled(finding)}\n", err=True)
    if outcome.failure is not None:
        click.echo(outcome.failure, err=True)
    raise SystemExit(outcome.status)
