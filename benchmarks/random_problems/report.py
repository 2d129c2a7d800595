"""What came of all problems: by family, with everything that repeats what failed."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.random_problems.kinds import draw_kind
from benchmarks.random_problems.running import Draw

_EVERY = 5.0  # seconds between lines of progress


class Report:
    """Collects answers, prints progress and failures as they come."""

    def __init__(self, how: Draw, families: list[str], total: int) -> None:
        self.how, self.total, self.begin = how, total, time.monotonic()
        self.done, self.failed, self._told = 0, 0, 0.0
        self.families: dict[str, dict[str, Any]] = {
            name: {
                "problems": 0, "not taken": 0, "kernels": 0, "worst": 0.0, "seconds": 0.0,
                "configurations": Counter(), "failures": [],
            }
            for name in families
        }  # fmt: skip

    def tell(self, found: dict[str, Any]) -> None:
        """Take note of an answer."""
        self.done += 1
        family = self.families[found["family"]]
        family["seconds"] += found["seconds"]
        family["kernels"] += found.get("kernels", 0)
        if "not taken" in found:
            family["not taken"] += 1
        else:
            family["problems"] += 1
            family["configurations"][found.get("configuration", "")] += 1
            family["worst"] = max(family["worst"], found.get("worst", 0.0))
        if found.get("wrong"):
            self._failed(family, found)
        now = time.monotonic() - self.begin
        if now - self._told > _EVERY:
            self._told = now
            print(f"{now:6.0f} s  {self.done} of {self.total}, {self.failed} failed", flush=True)

    def _failed(self, family: dict[str, Any], found: dict[str, Any]) -> None:
        self.failed += 1
        small = " --small" * self.how.is_small
        backend = "--ahead" if self.how.backend == "ahead" else f"--backend {self.how.backend}"
        repeat = (
            f"python -m benchmarks.random_problems {backend} --seed {self.how.seed} --kinds "
            f"{self.how.kinds}{small} --family {found['family']!r} --only {found['number']}"
        )
        kind = draw_kind(found["family"], found["number"] % self.how.kinds, self.how.seed)
        family["failures"].append({**found, "kind": str(kind), "repeat": repeat})
        print(f"FAILED {found['family']} {found['number']}: {found['wrong']}\n  {found.get('problem', '')}\n  {repeat}")

    def to_dict(self, machine: dict[str, Any]) -> dict[str, Any]:
        """Return the report for a file."""
        families = {
            name: {**each, "seconds": round(each["seconds"], 1), "configurations": dict(each["configurations"])}
            for name, each in self.families.items()
        }
        seconds = round(time.monotonic() - self.begin, 1)
        return {
            "machine": machine, "draw": asdict(self.how), "seconds": seconds, "problems": self.done,
            "asked": self.total, "failed": self.failed, "families": families,
        }  # fmt: skip

    def write(self, path: Path, machine: dict[str, Any]) -> None:
        path.write_text(json.dumps(self.to_dict(machine), indent=1) + "\n")

    def show(self) -> None:
        """Print a line for each family."""
        for name, each in self.families.items():
            count = len([text for text in each["configurations"] if text])
            compiled = f", {each['kernels']} kernels" if each["kernels"] else f", {count} configurations"
            print(
                f"{name:20} {each['problems']:5} problems{compiled}, {each['not taken']} not taken, worst error "
                f"{each['worst']:.3f} of what is allowed, {len(each['failures'])} failed, {each['seconds']:.0f} s"
            )
