"""The check of what all threads of a warp have to do together: matrix instructions, shuffles and votes."""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.values import Array, Mask, fill
from tilewright.ir.core import Op


def demand_whole_warps(op: Op, what: str, mask: Mask, machine: Machine, full: bool) -> None:
    """Report a warp of which only some threads reach the op; the hardware then does anything or hangs.

    `full` demands all lanes; without it, threads that a block's last warp lacks are not missed.
    """
    lanes = machine.warp
    if not machine.observers or (mask is None and (not full or machine.threads % lanes == 0)):
        return
    active = np.ones((1, machine.threads), np.bool_) if mask is None else fill(mask, mask.shape[0], machine.threads)
    warps = _by_warps(active, full, lanes)
    split = warps.any(axis=-1) & ~warps.all(axis=-1)
    if not split.any():
        return
    row, warp = (int(n) for n in np.argwhere(split)[0])
    size = lanes if full else min(lanes, machine.threads - warp * lanes)
    here = int(warps[row, warp, :size].sum())
    first = warp * lanes + int(np.argmax(warps[row, warp]))
    help = "let whole warps reach it: branches that are the same in a warp"
    if full:
        help = (
            f"let whole warps reach it: blocks of a multiple of {lanes} threads, and branches that are the same "
            "in a warp"
        )
    fault = Fault(
        op, "warp-divergence", f"{what} of the warp is reached by {here} of its {size} threads",
        machine.block_coordinate(row), machine.thread_coordinate(first),
        notes=("the first thread that is there:",),
        help=help,
        count=int(split.sum()) * (machine.blocks if split.shape[0] == 1 else 1),
    )  # fmt: skip
    machine.collector.report(fault)


def _by_warps(active: Array, full: bool, warp: int) -> Array:
    """Return (blocks, threads) as (blocks, warps, lanes); a last warp's missing threads are absent, or as its first."""
    lanes = np.arange(-(-active.shape[1] // warp) * warp)
    there = lanes < active.shape[1]
    taken = active[:, np.where(there, lanes, lanes // warp * warp)] & (there | (not full))
    split: Array = taken.reshape(active.shape[0], -1, warp)
    return split
