"""`tilewright bench`: the ladder of matmul kernels, and other measurements that everyone can repeat."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from tilewright.cli.failures import demand_writable, users_code
from tilewright.cli.output import json_option, print_json, terminal_width
from tilewright.tables import print_table

if TYPE_CHECKING:
    from tilewright.suites.report import Report

_Command = TypeVar("_Command", bound=Callable[..., object])
_INTERRUPTED = 130  # what a shell reports for Ctrl-C


class _Targets(click.Group):
    """A group whose unknown commands are targets in files: `tilewright bench file.py:function`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            if ":" not in args[0]:
                known = ", ".join(sorted(self.commands))
                raise click.UsageError(f"{args[0]!r} is neither FILE:FUNCTION nor one of {known}", ctx)
            return args[0], file, args  # its name in "Usage:", which can be typed as it stands there
        return super().resolve_command(ctx, args)


def _outputs(command: _Command) -> _Command:
    """Add the options that every suite has."""
    command = click.option(
        "--plot",
        "plot_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Draw bars to an SVG, PNG or PDF file.",
    )(command)
    command = click.option(
        "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON to a file, too."
    )(command)
    return json_option(command)


_backend = click.option("--backend", type=click.Choice(["sim", "cuda"]), help="Default: the GPU where there is one.")


@click.group(cls=_Targets)
def bench() -> None:
    """Measure kernels: sgemm, transpose, multi, launch, compile, simulate, or FILE.py:FUNCTION.

    Every figure comes with what it depends on: versions, clocks and power stand in the JSON (--json, or -o FILE), and
    the machine's own ceilings are measured in the same run. FILE.py:FUNCTION is a kernel with an example_KERNEL()
    beside it, or a function without parameters that does the work or returns candidates by name.
    """


@bench.command()
@click.option("--rungs", metavar="1-12", help="Numbers and ranges; default: all.")
@click.option("--size", "sizes", multiple=True, metavar="N|MxNxK", help="Default: 4096, on the simulator 128.")
@click.option("--dtype", default="float32", show_default=True, help="float32, tfloat32, float16, bfloat16, float64.")
@_backend
@click.option("--check", is_flag=True, help="Check the results only, time nothing.")
@_outputs
def sgemm(
    rungs: str | None,
    sizes: tuple[str, ...],
    dtype: str,
    backend: str | None,
    check: bool,
    as_json: bool,
    output: Path | None,
    plot_file: Path | None,
) -> None:
    """Measure the ladder of matmul kernels against cuBLAS.

    Each rung is checked, then all are timed, interleaved. On the simulator each is checked and its instructions, bytes,
    sectors and bank conflicts are counted.
    """
    from tilewright.suites import sgemm as suite
    from tilewright.suites.products import DTYPES, Shape, check_memory

    chosen = _pick(backend)
    if dtype not in DTYPES:
        raise click.BadParameter(f"{dtype!r} is not one of {', '.join(DTYPES)}", param_hint="--dtype")
    shapes = [Shape.parse(text) for text in sizes or (("4096",) if chosen == "cuda" else ("128",))]
    numbers = None if rungs is None else suite.parse_rungs(rungs)
    for shape in shapes:
        check_memory(shape, dtype, chosen)
    found = suite.find_rungs(numbers)
    _run(
        suite.new_report(chosen, dtype, shapes),
        lambda report: suite.measure(report, found, shapes, dtype, chosen, check_only=check),
        as_json,
        output,
        plot_file,
    )


@bench.command()
@click.option("--size", type=int, help="Rows and columns; default: 8192, on the simulator 512.")
@_backend
@_outputs
def transpose(
    size: int | None, backend: str | None, as_json: bool, output: Path | None, plot_file: Path | None
) -> None:
    """Measure transposes against a copy."""
    from tilewright.suites import transposing as suite

    chosen = _pick(backend)
    wanted = (8192 if chosen == "cuda" else 512) if size is None else size
    _run(suite.new_report(chosen, wanted), suite.measure, as_json, output, plot_file)


@bench.command()
@click.option("--ranks", type=click.IntRange(1), help="Default: a rank for each GPU, on the simulator 2.")
@click.option(
    "--size", "sizes", multiple=True, metavar="N|MxNxK", help="Default: four sizes, on the simulator 32x16x24."
)
@_backend
@_outputs
def multi(
    ranks: int | None,
    sizes: tuple[str, ...],
    backend: str | None,
    as_json: bool,
    output: Path | None,
    plot_file: Path | None,
) -> None:
    """Measure products over several GPUs, with their communication.

    The whole product of each size is divided by columns (all-gather) and by K (reduce-scatter). The time of
    tw.torch.all_gather_matmul and tw.torch.matmul_reduce_scatter stands beside that of the product and the
    communication alone, of one after the other, and of torch's fused operation. `torchrun --no-python tilewright bench
    multi` measures over several machines; rank 0 prints. On the simulator results are checked, over gloo.
    """
    from tilewright.suites import multi as suite

    chosen = _pick(backend)
    report = suite.new_report(chosen, suite.ranks_here(chosen, ranks), sizes)
    if suite.is_first():
        _run(report, suite.measure, as_json, output, plot_file)
    else:
        suite.measure(report)


@bench.command()
@_outputs
def launch(as_json: bool, output: Path | None, plot_file: Path | None) -> None:
    """Measure the host's time of a launch; needs a GPU."""
    from tilewright.suites import launching as suite

    _pick("cuda")
    _run(suite.new_report(), suite.measure, as_json, output, plot_file)


@bench.command(name="compile")
@click.option("--arch", default="sm_90a", show_default=True, help="What to compile for.")
@_outputs
def compile_(arch: str, as_json: bool, output: Path | None, plot_file: Path | None) -> None:
    """Measure the way from a Python function to machine code; needs no GPU."""
    from tilewright.arch import Arch
    from tilewright.suites import compiling as suite

    try:
        target = Arch.parse(arch)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--arch") from None
    _run(suite.new_report(target.name), suite.measure, as_json, output, plot_file)


@bench.command()
@_outputs
def simulate(as_json: bool, output: Path | None, plot_file: Path | None) -> None:
    """Measure the simulator on the cases of the examples; needs no GPU."""
    from tilewright.suites import simulating as suite

    _run(suite.new_report(), suite.measure, as_json, output, plot_file)


@click.command(name="FILE.py:FUNCTION")
@click.argument("target", metavar="")
@click.option("--grid", metavar="X[,Y[,Z]]", help="Blocks of the grid, for a kernel without an example.")
@click.option("--block", metavar="X[,Y[,Z]]", help="Threads of a block.")
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="float32[2048,2048] or a Python value.")
@_backend
@_outputs
def file(
    target: str,
    grid: str | None,
    block: str | None,
    arguments: tuple[str, ...],
    backend: str | None,
    as_json: bool,
    output: Path | None,
    plot_file: Path | None,
) -> None:
    """Measure a kernel or a function of a file."""
    from tilewright.cli import kernels
    from tilewright.launch import Kernel
    from tilewright.suites import userfile as suite

    path, _, name = target.rpartition(":")
    module = kernels.load_file(path)
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        raise click.BadParameter(f"{path} has no function or kernel {name!r}", param_hint="FILE:FUNCTION")
    if not isinstance(value, Kernel) and (grid or block or arguments):
        raise click.UsageError(f"{name} is not a kernel: it takes no --grid, --block or --arg")
    chosen = _pick(backend)

    def measure(report: Report) -> None:
        with users_code(path):
            measure_value(report)

    def measure_value(report: Report) -> None:
        if not isinstance(value, Kernel):
            suite.measure_function(report, name, value)
            return
        extents = kernels.dimensions(grid, "--grid"), kernels.dimensions(block, "--block")
        found = kernels.launch_of(module, value, name, arguments, *extents)
        if found.target is value:
            raise click.UsageError(f"{name} needs a block: pass --block, or define example_{name}() in {path}")
        suite.measure_kernel(report, name, found.target, found.args)  # type: ignore[arg-type]  # with its grid and block

    _run(suite.new_report(target, chosen), measure, as_json, output, plot_file)


def _pick(backend: str | None) -> Any:  # Any: "sim" or "cuda"
    from tilewright.demo import pick_backend

    chosen, note = pick_backend(backend)
    if note is not None:
        click.echo(note, err=True)
    return chosen


def _run(
    report: Report, measure: Callable[[Report], None], as_json: bool, output: Path | None, plot_file: Path | None
) -> None:
    """Measure, print, and write the files; what was measured is printed also where it ends early."""
    from tilewright.suites.files import check_plot, plot, write_json

    demand_writable(output)
    if plot_file is not None:
        check_plot(plot_file)
    demand_writable(plot_file)
    try:
        measure(report)
    except KeyboardInterrupt:
        _print(report, sys.stderr if as_json else sys.stdout)
        click.echo("stopped; what was measured so far stands above, and no file was written", err=True)
        raise SystemExit(_INTERRUPTED) from None
    except Exception:
        if report.rows:
            _print(report, sys.stderr if as_json else sys.stdout)
        raise
    if as_json:
        print_json(report.as_json())
        _print_failures(report)
    else:
        _print(report, sys.stdout)
    if output is not None:
        write_json(output, report.as_json())
    if plot_file is not None:
        plot(report, plot_file)
    if not report.passed:
        raise SystemExit(1)


def _print(report: Report, stream: TextIO) -> None:
    from rich.console import Console

    # A pipe or a log has no width to fit: do not cut the cells.
    print_table(Console(file=stream, width=terminal_width(stream) or 240), report.table())
    for note in report.notes:
        click.echo(note, file=stream)
    _print_failures(report)


def _print_failures(report: Report) -> None:
    for failure in report.failures():
        click.echo(failure, err=True)
