"""Whether a process of the suite may leave its garbage where it lies."""

from __future__ import annotations

import os
from pathlib import Path

_MOST = 3 << 30  # bytes that one process holds before it collects garbage: two workers fit into 8 GB


def is_memory_short(system: Path = Path("/proc")) -> bool:
    """Say whether this process holds gigabytes, or less than half of the machine's memory is available.

    Where the system does not tell, memory counts as short.
    """
    try:
        held = int((system / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        lines = (system / "meminfo").read_text().splitlines()
    except OSError:
        return True
    # In kilobytes: MemAvailable:   18340308 kB
    sizes = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
    return held > _MOST or sizes.get("MemAvailable", 0) < sizes["MemTotal"] / 2
