"""Runs many generated kernels and compares: by Python, on the simulator, and on a GPU where one is.

    python -m tests.fuzz.run --count 2000 --backend gpu --json fuzz.json

A program that the language refuses is counted by its message. A difference does not stop the run: it is written down with
the text of the program and its seed; `--seed N --count 1` runs that program alone.
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
from tests.fuzz.programs import write_program

import tilewright as tw


def judge(seed: int, backend: str, loose: bool = False) -> dict[str, Any]:
    """Run one program: agreed, refused, different, or failed, with what there is to say."""
    try:
        program = write_program(Random(seed), loose=loose)
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


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--backend", choices=("sim", "gpu"), default="sim")
    parser.add_argument(
        "--loose", action="store_true", help="fused multiply-adds too: the simulator against the GPU only"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(given)
    start, verdicts = time.monotonic(), Counter[str]()
    refusals: dict[str, list[int]] = {}
    others: list[dict[str, Any]] = []
    jobs = [(seed, options.backend, options.loose) for seed in range(options.seed, options.seed + options.count)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for found in pool.imap_unordered(_judge, jobs):
            verdicts[found["verdict"]] += 1
            if found["verdict"] == "refused":
                refusals.setdefault(kind_of(found["message"]), []).append(found["seed"])
            elif found["verdict"] != "agreed":
                others.append(found)
                print(f"{found['seed']}: {found['verdict']}: {found['message'][-700:]}", file=sys.stderr, flush=True)
    result = {
        "programs": options.count,
        "first_seed": options.seed,
        "backends": [
            "simulator",
            *([] if options.loose else ["python"]),
            *(["gpu"] if options.backend == "gpu" else []),
        ],
        "verdicts": dict(verdicts),
        "refused_share": round(verdicts["refused"] / options.count, 4),
        "refusals": {
            kind: {"count": len(seeds), "seeds": sorted(seeds)[:5]}
            for kind, seeds in sorted(refusals.items(), key=lambda entry: -len(entry[1]))
        },
        "seconds": round(time.monotonic() - start, 1),
        "differences": sorted(others, key=lambda f: f["seed"]),
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    print(json.dumps({k: v for k, v in result.items() if k != "differences"}, indent=1))
    return 1 if others else 0


def _judge(job: tuple[int, str, bool]) -> dict[str, Any]:
    return judge(*job)


if __name__ == "__main__":
    sys.exit(main())
