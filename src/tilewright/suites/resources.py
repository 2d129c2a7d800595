"""Registers, shared memory and occupancy of what was launched."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tilewright.arch import occupancy
from tilewright.errors import TilewrightError
from tilewright.recording import Recorded
from tilewright.runtime import driver


def resources_of(launches: Sequence[Recorded]) -> list[dict[str, Any]]:
    """Return what each launch takes of the hardware, as plain data, one entry for each kernel.

    On a GPU registers and occupancy are those of the loaded code. Elsewhere they come from NVRTC, where it is there,
    and from the rules of `arch.occupancy`.
    """
    found: dict[str, dict[str, Any]] = {}
    for launch in launches:
        entry = found.get(launch.kernel)
        if entry is None:
            found[launch.kernel] = _entry(launch)
        else:
            entry["launches"] += 1
    return list(found.values())


def summary(kernels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures for a row: those of the kernel with the most blocks."""
    if not kernels:
        return {}
    main = max(kernels, key=lambda k: k["blocks"] or 0)
    return {name: main[name] for name in ("registers", "shared_bytes", "occupancy", "spills")}


def _entry(launch: Recorded) -> dict[str, Any]:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    grid = launch.grid
    entry: dict[str, Any] = {
        "kernel": launch.kernel,
        "launches": 1,
        "grid": grid,
        "block": launch.block,
        "blocks": None if grid is None else grid[0] * grid[1] * grid[2],
        "arch": launch.lowered.arch.name,
        **dict.fromkeys(("registers", "spills", "shared_bytes", "blocks_per_multiprocessor", "occupancy", "limits")),
    }
    try:
        resources = launch.lowered.module.resources
    except TilewrightError:
        return entry  # no compiler here
    shared = resources.static_shared_bytes + (launch.dynamic_shared_bytes or launch.lowered.cuda.dynamic_shared_bytes)
    arch = launch.lowered.arch
    fitting = occupancy(arch, threads=threads, registers=resources.registers, shared_bytes=shared)
    blocks = fitting.blocks if launch.function is None else _blocks_on_device(launch.function, threads, launch)
    return {
        **entry,
        "registers": resources.registers,
        "spills": resources.spills,
        "shared_bytes": shared,
        "blocks_per_multiprocessor": blocks,
        "occupancy": blocks * arch.warps_of(threads) / arch.warps_per_multiprocessor,
        "limits": list(fitting.limits),
    }


def _blocks_on_device(function: driver.Function, threads: int, launch: Recorded) -> int:
    count = ctypes.c_int()
    with driver.device_context(function.ordinal):
        status = driver.library().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(count), function.handle, threads, ctypes.c_size_t(launch.dynamic_shared_bytes)
        )
    driver.check(status, "asking for a kernel's occupancy")
    return count.value
