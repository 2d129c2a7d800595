"""Processes that compute problems side by side. One that ends or hangs is replaced, and its problem is a failure."""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.random_problems.running import Draw

ROUNDS = 4  # in which each kind has its turn, so that a run that is cut short has seen all kinds
ROOT = Path(__file__).resolve().parents[2]
Task = tuple[str, int]
Tell = Callable[[dict[str, Any]], None]


def environment() -> dict[str, str]:
    """Return the environment of a process that finds the library and these modules."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def command_of(how: Draw, **settings: Any) -> list[str]:
    """Return the command of a process that computes problems."""
    return [sys.executable, "-m", "benchmarks.random_problems.worker", json.dumps({**asdict(how), **settings})]


def shared_out(families: Sequence[str], numbers: Sequence[int], kinds: int, workers: int) -> list[list[Task]]:
    """Return the tasks of each process: whole kinds, whose kernels it keeps, in rounds."""
    units = [(family, kind) for kind in range(kinds) for family in families]
    found: list[list[Task]] = [[] for _ in range(workers)]
    for turn in range(ROUNDS):
        for place, (family, kind) in enumerate(units):
            of_kind = [number for number in numbers if number % kinds == kind]
            found[place % workers] += [(family, number) for number in of_kind[turn::ROUNDS]]
    return found


class Worker:
    """A process with its tasks; `patience` is how many seconds a problem may take."""

    def __init__(self, how: Draw, patience: float) -> None:
        self.how, self.patience = how, patience
        self.process: subprocess.Popen[str] | None = None

    def ask(self, task: Task) -> dict[str, Any]:
        """Return what came of a problem."""
        family, number = task
        process = self.process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps({"family": family, "number": number}) + "\n")
            process.stdin.flush()
            readable, _, _ = select.select([process.stdout], [], [], self.patience)
            line = process.stdout.readline() if readable else None
        except BrokenPipeError:
            line = ""
        if line:
            found: dict[str, Any] = json.loads(line)
            if found.get("is_fault"):
                self.end()
            return found
        status = process.poll() if line is None else process.wait()
        self.end()
        wrong = f"no answer within {self.patience:.0f} s" if line is None else f"the process ended with status {status}"
        return {"family": family, "number": number, "wrong": wrong, "seconds": 0.0}

    def _start(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            command_of(self.how), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment(),
        )  # fmt: skip
        return self.process

    def end(self) -> None:
        """End the process, where there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def compute(how: Draw, tasks: Sequence[Sequence[Task]], tell: Tell, *, seconds: float, patience: float) -> None:
    """Compute all tasks, each list by one process; begin none after so many seconds. `tell` gets what came of each."""
    end, answers = time.monotonic() + seconds, queue.Queue[dict[str, Any] | None]()

    def serve(mine: Sequence[Task]) -> None:
        worker = Worker(how, patience)
        try:
            for task in mine:
                if time.monotonic() > end:
                    break
                answers.put(worker.ask(task))
        finally:
            worker.end()
            answers.put(None)

    threads = [threading.Thread(target=serve, args=(mine,), daemon=True) for mine in tasks]
    for thread in threads:
        thread.start()
    left = len(threads)
    while left:
        found = answers.get()
        if found is None:
            left -= 1
        else:
            tell(found)
