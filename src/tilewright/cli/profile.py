"""`tilewright profile SCRIPT`: run a script on the simulator and say what each line of its kernels costs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click
from rich.console import Console

from tilewright.arch import DEFAULT_GPU, GPUS, find_gpu
from tilewright.cli.output import json_option
from tilewright.cli.scripts import SCRIPT, run_script, script_arguments
from tilewright.profile.text import write


@click.command(context_settings=SCRIPT)
@script_arguments
@click.option("--html", metavar="FILE", help="Write the report with pictures to one HTML file.")
@click.option("--gpu", default=DEFAULT_GPU, show_default=True, help=f"The GPU whose limits count: {', '.join(GPUS)}.")
@click.option("--blocks", type=click.IntRange(min=1), help="Measure about so many blocks of a launch, and scale.")
@json_option
def profile(
    script: str, arguments: tuple[str, ...], html: str | None, gpu: str, blocks: int | None, as_json: bool
) -> None:
    """Run a Python script with its kernels on the simulator, and report what each line costs.

    The script runs unchanged, with the ARGUMENTS given. Options of the script that are spelled like ours go behind
    `--`. The exit status is the script's own.
    """
    find_gpu(gpu)  # refused before the script runs
    outcome = run_script(script, arguments, profile=True, quiet=as_json, blocks=blocks)
    console = Console(stderr=True)
    # Looking for layouts takes a while; a pipe or a log wants no spinner.
    with console.status("looking for layouts without conflicts") if console.is_terminal else nullcontext():
        report = outcome.run.profile.report(gpu)
        if html is not None:
            Path(html).write_text(report.html(), encoding="utf-8")
    if as_json:
        click.echo(report.json())
    elif sys.stdout.isatty():
        write(Console(), report.launches)
    else:
        click.echo(str(report))
    for finding in outcome.run.findings:
        click.echo(f"{finding.kind}: {finding.message}\n", err=True)
    if outcome.failure is not None:
        click.echo(outcome.failure, err=True)
    raise SystemExit(outcome.status)
