"""How many blocks of a kernel a multiprocessor holds at once, and what limits it: the rules of CUDA's calculator.

The blocks are the least that a resource allows:

    blocks           the limit of the multiprocessor
    warps            floor(warps of a multiprocessor / warps of a block)
    shared memory    floor(bytes of a multiprocessor / (bytes of a block + reserved, rounded up to the unit))
    registers        floor(warps whose registers fit / warps of a block)

A warp takes its registers, rounded up to the unit of allocation, from one of the multiprocessor's partitions, so what
remains of a partition serves nobody. Of 96 threads with 136 registers each on sm_90, a warp takes 136 * 32 = 4352
registers; 16384 / 4352 leaves room for 3 warps in each of the 4 partitions, 12 warps in all, and so 4 blocks. The
registers of all four together, 65536 / (3 * 4352), would suggest 5.

Source: NVIDIA's cuda_occupancy.h and the CUDA programming guide, "Compute Capabilities". Limits and granularities
are those of `Arch`; on AMD's targets the partitions are the SIMDs of a compute unit.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch.targets import Arch
from tilewright.arguments import integer
from tilewright.errors import ArgumentError


@dataclass(frozen=True)
class Occupancy:
    """Blocks on a multiprocessor, the share of its threads that they fill, and the resource that limits them."""

    blocks: int
    share: float
    limits: tuple[str, ...]


def occupancy(arch: Arch | str, *, threads: int, registers: int | None, shared_bytes: int) -> Occupancy:
    """Return the occupancy of a kernel: blocks = min over resources of floor(available / taken by a block).

    `threads` of a block, `registers` of a thread as the compiler reports them, `shared_bytes` of a block, static and
    dynamic together. Raises `ArgumentError` for a block without threads.

    >>> occupancy("sm_90a", threads=256, registers=128, shared_bytes=16384)
    Occupancy(blocks=2, share=0.25, limits=('registers',))
    >>> occupancy("sm_90a", threads=96, registers=136, shared_bytes=0).blocks
    4
    """
    integer("occupancy", "threads", threads, minimum=1)
    if registers is not None:
        integer("occupancy", "registers", registers, minimum=0)
    integer("occupancy", "shared_bytes", shared_bytes, minimum=0)
    target = Arch.parse(arch)
    bounds = blocks_allowed(target, threads=threads, registers=registers, shared_bytes=shared_bytes)
    blocks = min(bounds.values())
    share = blocks * target.warps_of(threads) / target.warps_per_multiprocessor
    return Occupancy(blocks, share, tuple(name for name, bound in bounds.items() if bound == blocks))


def blocks_allowed(arch: Arch, *, threads: int, registers: int | None, shared_bytes: int) -> dict[str, int]:
    """Return how many blocks of so many threads each resource of a multiprocessor allows.

    `registers` are those of a thread as the compiler reports them, None where they are not known: they are not counted
    then. `shared_bytes` are those of a block, static and dynamic together; shared memory is left out where a block
    takes none. Raises `ArgumentError` for a block without threads.

    >>> blocks_allowed(Arch.parse("sm_90a"), threads=256, registers=128, shared_bytes=16384)
    {'blocks': 32, 'warps': 8, 'shared memory': 13, 'registers': 2}
    """
    if threads < 1:
        raise ArgumentError(f"a block has at least one thread, got {threads}")
    warps = arch.warps_of(threads)
    limits = {"blocks": arch.blocks_per_multiprocessor, "warps": arch.warps_per_multiprocessor // warps}
    if shared_bytes:
        taken = _round_up(shared_bytes + arch.shared_bytes_reserved, arch.shared_unit)
        limits["shared memory"] = arch.shared_bytes_per_multiprocessor // taken
    if registers is not None:
        of_warp = _round_up(max(registers, 1) * arch.warp_size, arch.register_unit)
        of_partition = arch.registers_per_multiprocessor // arch.partitions
        limits["registers"] = of_partition // of_warp * arch.partitions // warps
    return limits


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
