"""`tilewright demo`: run the examples, check them, and show their times."""

from __future__ import annotations

import click

from tilewright.cli.output import json_option, print_json


@click.command()
@click.argument("names", nargs=-1, metavar="[EXAMPLE]...")
@click.option("--backend", type=click.Choice(["sim", "cuda"]), help="Default: the GPU where there is one.")
@click.option("--full", is_flag=True, help="Use the full sizes on the simulator too (slow).")
@json_option
def demo(names: tuple[str, ...], backend: str | None, full: bool, as_json: bool) -> None:
    """Run the example kernels and check each against NumPy.

    With EXAMPLE, run only the files whose names contain it. The exit status is 1 when a check fails.
    """
    from tilewright.demo import collect_cases, example_files, pick_backend, run_cases, runner, with_parts

    chosen, note = pick_backend(backend)
    if note is not None:
        click.echo(note, err=True)
    files = with_parts(example_files())
    for name in names:
        if not any(name in file.stem for file in files):
            known = ", ".join(file.stem for file in files)
            raise click.BadParameter(f"no example is called {name!r}; there are {known}", param_hint="EXAMPLE")
    if names:
        files = [file for file in files if any(name in file.stem for name in names)]
    quick = chosen == "sim" and not full
    reports = run_cases(collect_cases(files, chosen, quick), chosen)
    if as_json:
        print_json(runner.as_json(reports, chosen))
    else:
        runner.print_reports(reports, chosen)
    # No case at all is a failure too: nothing was checked.
    if not reports or not all(report.passed for report in reports):
        raise SystemExit(1)
