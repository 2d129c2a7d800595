"""The command: which families, how many problems, where they run, and what is written."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.random_problems.pool import compute, shared_out
from benchmarks.random_problems.report import Report
from benchmarks.random_problems.running import Draw
from benchmarks.random_problems.sanitizing import TOOLS, sanitize
from benchmarks.random_problems.subjects import SUBJECTS


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        "benchmarks.random_problems", description="Random products of every family of kernels, against float64."
    )
    parser.add_argument("--family", nargs="+", default=list(SUBJECTS), choices=list(SUBJECTS), metavar="NAME")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "sim", "cpu"))
    parser.add_argument("--problems", type=int, default=2000, help="of each family")
    parser.add_argument("--only", type=int, nargs="+", help="problems of these numbers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", type=int, default=24, help="of each family: problems of one share kernels")
    parser.add_argument("--small", action="store_true", help="small problems, as the simulator has them")
    parser.add_argument("--repeats", type=int, default=0, help="more runs of each problem, which have the same bits")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no problem after so many")
    parser.add_argument("--patience", type=float, default=300, help="seconds that a problem may take")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--ahead", action="store_true", help="compile for sm_90a what the problems launch, and run none"
    )
    parser.add_argument("--sanitize", nargs="+", choices=TOOLS, metavar="TOOL", help="run under compute-sanitizer")
    return parser


def main() -> int:
    """Run what is asked for; return 1 where something failed."""
    options = arguments().parse_args()
    numbers = options.only if options.only is not None else list(range(options.problems))
    how = Draw(
        "ahead" if options.ahead else options.backend, options.seed, options.kinds, options.small, options.repeats
    )
    if options.sanitize:
        return sanitize(options.family, numbers, how, options.sanitize, options.json, options.seconds)
    workers = min(options.workers, max(len(options.family) * min(options.kinds, len(numbers)), 1))
    report = Report(how, options.family, len(options.family) * len(numbers))
    tasks = shared_out(options.family, numbers, options.kinds, workers)
    compute(how, tasks, report.tell, seconds=options.seconds, patience=options.patience)
    report.show()
    if options.json:
        report.write(options.json, machine() if how.backend == "cuda" else {})
    return 1 if report.failed else 0


def machine() -> dict[str, Any]:
    """Return what the GPU and the versions are."""
    import tilewright as tw

    return dict(tw.bench.machine())


if __name__ == "__main__":
    sys.exit(main())
