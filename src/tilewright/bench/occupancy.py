"""How many blocks of a kernel a multiprocessor holds at once, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch import Arch
from tilewright.arguments import integer
from tilewright.profile.bounds import blocks_allowed


@dataclass(frozen=True)
class Occupancy:
    """Blocks on a multiprocessor, the share of its threads that they fill, and what allows no more."""

    blocks: int
    share: float
    limits: tuple[str, ...]


def occupancy(arch: Arch | str, *, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return the occupancy of a kernel: blocks = min over resources of floor(available / taken by a block).

    `threads` of a block, `registers` of a thread as the compiler reports them, `shared_bytes` of a block, static and
    dynamic together; `tilewright.profile.bounds` has the rules. Raises `ArgumentError` for a block without threads.

    >>> occupancy("sm_90a", threads=256, registers=128, shared_bytes=16384)
    Occupancy(blocks=2, share=0.25, limits=('registers',))
    """
    target = Arch.parse(arch)
    integer("occupancy", "threads", threads, minimum=1)
    integer("occupancy", "registers", registers, minimum=0)
    integer("occupancy", "shared_bytes", shared_bytes, minimum=0)
    warps = -(-threads // target.warp_size)
    bounds = blocks_allowed(target, warps=warps, registers=registers, shared_bytes=shared_bytes)
    blocks = min(bounds.values())
    share = blocks * warps * target.warp_size / target.threads_per_multiprocessor
    return Occupancy(blocks, share, tuple(name for name, bound in bounds.items() if bound == blocks))
