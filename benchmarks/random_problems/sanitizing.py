"""Problems under compute-sanitizer: small ones, with arrays in allocations of their own and no bands around them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.random_problems.pool import ROOT, command_of, environment
from benchmarks.random_problems.running import Draw

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_USUAL = "/usr/local/cuda/bin/compute-sanitizer"
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
_LINES = 40  # of a log that are kept
_PATIENCE = 600


def find() -> str | None:
    """Return the program, on PATH or where CUDA's toolkit is usually installed."""
    return shutil.which("compute-sanitizer") or (_USUAL if Path(_USUAL).exists() else None)


def findings(log: str) -> int | None:
    """Return how many findings a log counts, None where it ends before it says so."""
    counts = [int(one or other) for one, other in _SUMMARY.findall(log)]
    return sum(counts) if counts else None


def run_under(program: str, tool: str, family: str, numbers: Sequence[int], how: Draw) -> dict[str, Any]:
    """Run problems of a family under one tool; return findings, answers that were wrong, and what the log says."""
    tasks = "".join(json.dumps({"family": family, "number": number}) + "\n" for number in numbers)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [program, "--tool", tool, "--log-file", str(log), *command_of(how, has_bands=False)]
        # Without PyTorch's pools each array is an allocation, and a read behind its end is seen.
        variables = {**environment(), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        try:
            done = subprocess.run(
                command, input=tasks, capture_output=True, text=True, cwd=ROOT, env=variables, timeout=_PATIENCE,
                check=False,
            )  # fmt: skip
            out, errors, status = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            out, errors, status = str(error.stdout or ""), f"no end within {_PATIENCE} s", -1
        text = log.read_text() if log.exists() else ""
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    wrong = [each for each in answers if each.get("wrong")]
    found = findings(text)
    return {
        "family": family, "tool": tool, "numbers": list(numbers), "answers": len(answers), "findings": found,
        "status": status, "wrong": wrong, "log": text.splitlines()[-_LINES:] if found != 0 else [],
        "errors": errors.splitlines()[-5:] if found is None else [],
    }  # fmt: skip


def sanitize(
    families: Sequence[str], numbers: Sequence[int], how: Draw, tools: Sequence[str], path: Path | None, seconds: float
) -> int:
    """Run samples under tools, print what each finds and name the problems; return 1 where something was found."""
    program = find()
    if program is None:
        print(f"compute-sanitizer is neither on PATH nor {_USUAL}")
        return 1
    end, small, results, failed = time.monotonic() + seconds, replace(how, is_small=True), [], False
    for tool in tools:
        for family in families:
            if time.monotonic() > end:
                break
            found = run_under(program, tool, family, numbers, small)
            is_clean = found["findings"] == 0 and not found["wrong"] and found["answers"] == len(numbers)
            if not is_clean and len(numbers) > 1:  # which of them?
                each = [run_under(program, tool, family, [number], small) for number in numbers]
                found["by number"] = [one for one in each if one["findings"] != 0 or one["wrong"]]
            failed |= not is_clean
            results.append(found)
            told = "silent" if is_clean else f"findings {found['findings']}, wrong {len(found['wrong'])}"
            print(f"{tool:10} {family:20} {found['answers']} of {len(numbers)} problems: {told}", flush=True)
            if path:
                path.write_text(json.dumps(results, indent=1) + "\n")
    return int(failed)
