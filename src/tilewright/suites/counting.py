"""What the simulator counts of a launch, where time means nothing."""

from __future__ import annotations

from typing import Any

from tilewright.profile import Run
from tilewright.suites.report import Column

COLUMNS = (
    Column("instructions", "instructions", "{:,}"),
    Column("global_bytes", "global MB", "{:,.2f}", 1e-6),
    Column("touched_bytes", "touched MB", "{:,.2f}", 1e-6),
    Column("sectors_per_request", "sectors/request", "{:.2f}"),
    Column("sector_use", "use of sectors", "{:.0f} %", 100),
    Column("shared_bytes_moved", "shared MB", "{:,.2f}", 1e-6),
    Column("bank_conflicts", "bank conflicts", "{:,}"),
    Column("barriers", "barriers", "{:,}"),
)


def counted(run: Run) -> dict[str, Any]:
    """Return the figures of all launches inside `simulate(profile=True)`, as plain data.

    `global_bytes` is what warps ask of global memory, `touched_bytes` the sectors that a launch touches at all: the
    least that DRAM moves. `bank_conflicts` are the passes of shared memory beyond the fewest that its requests need.
    """
    total = run.profile.total
    return {
        "instructions": sum(total.instructions.values()),
        "instructions_by_class": dict(total.instructions),
        "operations": dict(total.operations),
        "global_requests": total.global_requests,
        "global_bytes": total.global_bytes,
        "global_sectors": total.global_sectors,
        "global_sectors_least": total.global_sectors_ideal,
        "sectors_per_request": total.sectors_per_request,
        "sector_use": total.sector_use,
        "touched_bytes": sum(launch.touched_bytes for launch in run.profile.launches),
        "shared_requests": total.shared_requests,
        "shared_bytes_moved": total.shared_bytes,
        "shared_wavefronts": total.shared_wavefronts,
        "bank_conflicts": total.shared_conflicts,
        "barriers": total.barriers,
    }
