"""Whether a process of the suite may leave its garbage where it lies."""

from __future__ import annotations

import os
from pathlib import Path

# Bytes that one process holds before it collects garbage, or a quarter of the memory if that is more: two workers fit
# into 8 GB.
_MOST = 3 << 30


def is_memory_short(system: Path = Path("/proc"), group: Path = Path("/sys/fs/cgroup")) -> bool:
    """Say whether this process holds gigabytes, or less than half of the machine's memory is available.

    Where the system does not tell, memory counts as short. In a container the memory is what its group may take.
    """
    try:
        held = int((system / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        lines = (system / "meminfo").read_text().splitlines()
    except OSError:
        return True
    # In kilobytes: MemAvailable:   18340308 kB
    sizes = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
    total = min(sizes["MemTotal"] << 10, _limit_of(group))
    return held > max(_MOST, total / 4) or sizes.get("MemAvailable", 0) < sizes["MemTotal"] / 2


def _limit_of(group: Path) -> float:
    """Return the bytes that the processes of a container may hold, by either version of control groups."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return float((group / name).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return float("inf")
