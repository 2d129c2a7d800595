"""`tilewright demo`: a tour of one kernel, or all examples, checked and timed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli.output import json_option, print_json

if TYPE_CHECKING:
    from tilewright.demo import Backend

_INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended


@click.command()
@click.argument("names", nargs=-1, metavar="[EXAMPLE]...")
@click.option("--all", "runs_all", is_flag=True, help="Run every example and check each against NumPy.")
@click.option("--backend", type=click.Choice(["sim", "cuda"]), help="Default: the GPU where there is one.")
@click.option("--full", is_flag=True, help="Use the full sizes of the examples on the simulator too (slow).")
@click.option("--unpack", metavar="FOLDER", help="Write the example files into a new folder, to read and to change.")
@json_option
def demo(
    names: tuple[str, ...], runs_all: bool, backend: str | None, full: bool, unpack: str | None, as_json: bool
) -> None:
    """Show what Tilewright does, in some seconds: a kernel runs, its faults are found, its CUDA C++ is printed.

    With --all, run all example kernels instead and check each against NumPy; with EXAMPLE, those in the files whose
    names contain it. The exit status is 1 when something is not as it should be. Ctrl-C leaves what was done.
    """
    from tilewright.demo import pick_backend

    if unpack is not None:
        _unpack(unpack, as_json)
        return
    chosen, note = pick_backend(backend)
    if note is not None:
        click.echo(note, err=True)
    if names or runs_all or full:
        _examples(names, chosen, full, as_json)
    else:
        _tour(chosen, as_json)


def _unpack(folder: str, as_json: bool) -> None:
    import shutil

    from tilewright.demo.examples import examples_folder

    try:
        shutil.copytree(examples_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise click.BadParameter(
            f"cannot write into {folder}: {error.strerror or error}", param_hint="--unpack"
        ) from None
    if as_json:
        print_json({"folder": folder})
    else:
        click.echo(f"wrote the examples to {folder}")


def _tour(backend: Backend, as_json: bool) -> None:
    from rich.console import Console

    from tilewright.demo import tour

    console, done = Console(soft_wrap=True, highlight=False), []
    interrupted = False
    try:
        for number, stop in enumerate(tour.stops(backend), 1):
            done.append(stop())
            if not as_json:
                tour.show(done[-1], number, console)
    except KeyboardInterrupt:
        interrupted = True
    passed = all(stop.passed for stop in done)
    if as_json:
        found: list[dict[str, Any]] = [asdict(stop) for stop in done]  # Any: strings, numbers and dicts of them
        print_json({"backend": backend, "passed": passed, "interrupted": interrupted, "stops": found})
    elif not interrupted:
        click.echo("Next: `tilewright demo --all` runs every example; README.md and docs/ begin with a kernel.")
    if interrupted:
        click.echo(f"interrupted after {len(done)} stop{'s' * (len(done) != 1)} of the tour", err=True)
        raise SystemExit(_INTERRUPTED)
    if not passed:
        raise SystemExit(1)


def _examples(names: tuple[str, ...], backend: Backend, full: bool, as_json: bool) -> None:
    from tilewright.demo import collect_cases, example_files, run_cases, runner, with_parts

    files = with_parts(example_files())
    for name in names:
        if not any(name in file.stem for file in files):
            known = ", ".join(file.stem for file in files)
            raise click.BadParameter(f"no example is called {name!r}; there are {known}", param_hint="EXAMPLE")
    if names:
        files = [file for file in files if any(name in file.stem for name in names)]
    cases = collect_cases(files, backend, backend == "sim" and not full)
    reports, interrupted = run_cases(cases, backend, told=not as_json)
    if as_json:
        print_json({**runner.as_json(reports, backend), "interrupted": interrupted})
    else:
        runner.print_reports(reports, backend)
    if interrupted:
        click.echo(f"interrupted after {len(reports)} of {len(cases)} cases", err=True)
        raise SystemExit(_INTERRUPTED)
    # No case at all is a failure too: nothing was checked.
    if not reports or not all(report.passed for report in reports):
        raise SystemExit(1)
