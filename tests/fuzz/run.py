"""Runs many generated kernels and compares: by Python, on the simulator, and on a GPU where one is.

    python -m tests.fuzz.run --count 2000 --backend gpu --json fuzz.json

A program that the language refuses is counted by its message. A difference does not stop the run: it is written down with
the text of the program and its seed; `--seed N --count 1` runs that program alone.

    python -m tests.fuzz.run --hopper --count 500 --backend gpu

draws kernels of bulk copies and warpgroup products instead, compared with NumPy; each is compiled for sm_90a, too, and what
ptxas serialises there is told as such.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.conformance.harness import Gpu, Simulator
from tests.fuzz.hopper import HopperProgram, write_hopper_program
from tests.fuzz.programs import write_program

import tilewright as tw

PROGRAMS_OF_A_PROCESS = 100  # then a new one: an error of the GPU leaves its process unusable
MOST_SECONDS = 120  # without any verdict


def judge(seed: int, backend: str, loose: bool = False, hopper: bool = False) -> dict[str, Any]:
    """Run one program: agreed, refused, different, serialised or failed, with what there is to say."""
    try:
        random = Random(seed)
        program = write_hopper_program(random) if hopper else write_program(random, loose=loose)
    except Exception:
        return {"seed": seed, "verdict": "not written", "message": traceback.format_exc()}
    found = {"seed": seed, "verdict": "agreed", "message": "", "text": str(program)}
    try:
        simulated = program.run(Simulator())
    except tw.LanguageError as error:
        return found | {"verdict": "refused", "message": str(error)}
    except Exception:
        return found | {"verdict": "failed", "message": "simulator: " + traceback.format_exc(limit=-3)}
    try:
        if not loose:
            program.assert_agree(("the simulator", "its text"), simulated, program.meaning())
        if backend == "gpu":
            program.assert_agree(("the simulator", "the GPU"), simulated, program.run(Gpu()))
        if isinstance(program, HopperProgram) and (advice := program.compile()):
            return found | {"verdict": "serialised", "message": advice}
    except AssertionError as error:
        return found | {
            "verdict": "different",
            "message": str(error).splitlines()[0] if str(error) else traceback.format_exc(),
        }
    except Exception:
        return found | {"verdict": "failed", "message": traceback.format_exc(limit=-3)}
    return found


def kind_of(message: str) -> str:
    """Return a message without names and numbers."""
    line = next((x for x in message.splitlines() if x.strip()), "")
    line = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "_", line)
    return re.sub(r"<[^>]*>|\b\w*\d+\w*\b", "_", line)[:160]


class Tally:
    """Counts verdicts, and writes them down as it goes: what a run that is cut off has found is there."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.start = time.monotonic()
        self.verdicts = Counter[str]()
        self.refusals: dict[str, list[int]] = {}
        self.others: list[dict[str, Any]] = []

    def add(self, found: dict[str, Any]) -> None:
        self.verdicts[found["verdict"]] += 1
        if found["verdict"] == "refused":
            self.refusals.setdefault(kind_of(found["message"]), []).append(found["seed"])
        elif found["verdict"] != "agreed":
            self.others.append(found)
            self.say(f"{found['seed']}: {found['verdict']}: {found['message'][-700:]}")
        if self.verdicts.total() % 100 == 0:
            self.say(f"{dict(self.verdicts)} after {time.monotonic() - self.start:.0f} s")
            self.write()

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def report(self) -> dict[str, Any]:
        count = self.verdicts.total()
        return {
            "programs": count,
            "first_seed": self.options.seed,
            "run": ["simulator"] + ["python"] * (not self.options.loose) + ["gpu"] * (self.options.backend == "gpu"),
            "verdicts": dict(self.verdicts),
            "refused_share": round(self.verdicts["refused"] / max(count, 1), 4),
            "refusals": {
                kind: {"count": len(seeds), "seeds": sorted(seeds)[:5]}
                for kind, seeds in sorted(self.refusals.items(), key=lambda entry: -len(entry[1]))
            },
            "seconds": round(time.monotonic() - self.start, 1),
        }

    def write(self) -> None:
        if self.options.json:
            found = self.report() | {"differences": sorted(self.others, key=lambda f: f["seed"])}
            self.options.json.write_text(json.dumps(found, indent=1))


def run_all(options: argparse.Namespace, tally: Tally) -> None:
    """Judge all programs in several processes. Where none comes to an end any more, those under way are given up."""
    context = multiprocessing.get_context("spawn")
    seeds = list(range(options.seed, options.seed + options.count))
    while seeds:
        left = dict.fromkeys(seeds)
        with context.Pool(options.processes, maxtasksperchild=PROGRAMS_OF_A_PROCESS) as pool:
            found = pool.imap_unordered(
                _judge, [(seed, options.backend, options.loose, options.hopper) for seed in seeds]
            )
            try:
                while left:
                    verdict = found.next(MOST_SECONDS)
                    del left[verdict["seed"]]
                    tally.add(verdict)
            except multiprocessing.TimeoutError:
                under_way = list(left)[: options.processes]
            pool.terminate()
        for seed in under_way if left else ():
            del left[seed]
            tally.add({"seed": seed, "verdict": "stalled", "message": "it, or one beside it, did not come to an end"})
        seeds = list(left)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--backend", choices=("sim", "gpu"), default="sim")
    parser.add_argument("--loose", action="store_true", help="fused multiply-adds too, which Python does not know")
    parser.add_argument("--hopper", action="store_true", help="bulk copies and warpgroup products (sm_90a), by NumPy")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(given)
    tally = Tally(options)
    run_all(options, tally)
    tally.write()
    print(json.dumps(tally.report(), indent=1))
    return 1 if tally.others else 0


def _judge(job: tuple[int, str, bool, bool]) -> dict[str, Any]:
    return judge(*job)


if __name__ == "__main__":
    sys.exit(main())
