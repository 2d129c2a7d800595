"""The process that computes problems: it reads their numbers from its input, and writes a line about each.

    {"family": "hopper", "number": 17}  ->  {"family": ..., "number": ..., "worst": ..., "wrong": ..., ...}

A fault of a GPU ends everything that a process has there, so the process says what went wrong and ends, and another one
goes on behind the problem.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from typing import Any, TextIO

from benchmarks.random_problems.ahead import Compiler
from benchmarks.random_problems.memory import Memory, Nowhere, memory_of
from benchmarks.random_problems.running import Draw, run
from benchmarks.random_problems.trials import NotTaken

FAULT = 3  # the exit status behind a fault of the GPU


def answer(task: dict[str, Any], how: Draw, memory: Memory, compiler: Compiler) -> dict[str, Any]:
    """Compute a problem, or compile what it needs, and return what came of it."""
    family, number, begin = task["family"], task["number"], time.monotonic()
    found: dict[str, Any] = {"family": family, "number": number}
    try:
        if isinstance(memory, Nowhere):
            found["kernels"] = compiler.compile(family, number, how)
        else:
            trial = run(family, number, how, memory)
            found |= {"configuration": trial.configuration, "worst": trial.verdict.worst}
            if trial.verdict.wrong:
                found |= {"wrong": trial.verdict.wrong, "problem": trial.problem}
    except NotTaken as error:
        found["not taken"] = str(error)
    except Exception as error:
        found["wrong"] = f"{type(error).__name__}: {error}"
        found["problem"] = "".join(traceback.format_exception(error)[-6:])
        found["is_raised"] = True
    return found | {"seconds": round(time.monotonic() - begin, 4)}


def serve(tasks: TextIO, out: TextIO, how: Draw, *, has_bands: bool = True) -> None:
    """Answer tasks until there are no more."""
    memory, compiler = memory_of(how.backend), Compiler()
    if not has_bands:
        memory.band = 0
    for line in tasks:
        found = answer(json.loads(line), how, memory, compiler)
        if found.get("is_raised"):
            try:
                memory.finish()
            except Exception:
                found["is_fault"] = True
        out.write(json.dumps(found) + "\n")
        out.flush()
        if found.get("is_fault"):
            sys.exit(FAULT)


def main() -> None:
    """Serve the standard input; whatever else is printed goes to the standard error."""
    settings = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # performance remarks of the simulator
    has_bands = settings.pop("has_bands", True)
    serve(sys.stdin, out, Draw(**settings), has_bands=has_bands)


if __name__ == "__main__":
    main()
