"""When a process of the suite collects its garbage, and what it may leave where it lies."""

from __future__ import annotations

import gc
import os
from pathlib import Path

_SYSTEM, _GROUP = Path("/proc"), Path("/sys/fs/cgroup")
_STEP = 256 << 20  # bytes that a process takes before it is worth looking for garbage once more


class Garbage:
    """The garbage of one of so many processes, which is collected where they hold more than half of the memory.

    What stays, kernels in caches for example, is left to no garbage collector. There come to be gigabytes of it: looking
    at them took a twelfth of the time of the suite.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._held = 0  # behind the last collection

    def tidy(self, *, is_file_over: bool) -> None:
        """Collect garbage if memory is short, all of it; behind the tests of a file leave what there is where it lies."""
        held = held_bytes()
        if held is None:  # the system does not tell: memory counts as short
            if is_file_over:
                gc.collect()
        elif held > self._held + _STEP and is_memory_short(held, self._workers):
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._held = held_bytes() or 0
        if is_file_over:
            gc.freeze()


def held_bytes(system: Path = _SYSTEM) -> int | None:
    """Return the bytes of memory that this process holds, None where the system does not tell."""
    try:
        return int((system / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def is_memory_short(held: int, workers: int, system: Path = _SYSTEM, group: Path = _GROUP) -> bool:
    """Say whether as many processes as this one hold half of the memory, or less than half of it is available.

    In a container the memory is what its group may take.
    """
    lines = (system / "meminfo").read_text().splitlines()
    # In kilobytes: MemAvailable:   18340308 kB
    sizes = {name: int(size.split()[0]) << 10 for name, _, size in (line.partition(":") for line in lines)}
    total = min(sizes["MemTotal"], _limit_of(group))
    return held > total / 2 / workers or sizes.get("MemAvailable", 0) < sizes["MemTotal"] / 2


def _limit_of(group: Path) -> float:
    """Return the bytes that the processes of a container may hold, by either version of control groups."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return float((group / name).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return float("inf")
