"""The Hopper kernel for a product whose rows lie on several GPUs: it sends its own, and multiplies others as they come.

Device code, traced into kernels. The pieces of a tile are those of the Hopper kernel of `tw.matmul`. Blocks compute the
rank's own rows first, then those of the ranks behind it in the ring. Where no copy engine does it, three warps of each
block, which have no other work, copy the rank's rows to the other ranks meanwhile, a part at a time; whoever is done
last with a part tells all readers. The thread that fills the ring of stages waits for the part in which the tile ends.

Copies never wait for other ranks, so ranks that wait for each other's parts get them.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._hopper_kernel import (
    bring_columns,
    consume,
    meet,
    memory_of,
    once_if_shared,
    tile_of,
)
from tilewright.kernels._hopper_results_kernel import Results, sleep
from tilewright.kernels._ring_kernel import Parts, count_arrival, works_in_ring
from tilewright.kernels.hopper_plan import CONSUMER_REGISTERS, PRODUCER_REGISTERS, WARPGROUP

SENDER_REGISTERS, BESIDE_SENDERS = 56, 224  # those that copy take more than the one thread of other kernels
WARP = 32
SENDERS = WARPGROUP // WARP - 1  # warps of a block that copy
_VECTORS = 4  # of 16 bytes, that a thread reads before it writes them
STEP_BYTES = SENDERS * WARP * _VECTORS * 16  # that a block copies between two pauses


@tw.kernel
def matmul_gathered(
    D, A, B, bias, arrived, slots, flags, told, counters, rank, part, pause, number, plan: tw.constexpr
):
    """Compute D[m, n, r] = sum over k of A_r[m, k] * B[n, k] + bias for each rank r, where A_r are the rows of rank r.

    A are the own rows, `arrived[m, k, r]` those that rank r writes to this one. The own ones go to `slots`, matrices in
    the memory of the other ranks; where none is, copy engines send them. `part` is the extent (rows, K) of what is told
    at once. `flags` are what the other ranks wait for, and `told` what this one waits for: [r, i] of it becomes
    `number` when part i of rank r has come. `counters` has a zero for each part. Who sends rests between stores for
    `pause` nanoseconds, if that is given, so that operands are not kept waiting.
    """
    m, _, k = plan.tile
    B = once_if_shared(B)
    sA, sB, sD, ring, order = memory_of(plan, A, B, D)
    meet(plan)  # the barriers are there
    place = tw.block_rank_in_cluster() if plan.cluster > 1 else 0
    works = works_in_ring(plan, D.shape, A.shape[1], rank)
    sends = len(slots) > 0

    if tw.warpgroup_id() == 0:
        tw.set_registers(SENDER_REGISTERS if sends else PRODUCER_REGISTERS)
        if tw.thread_idx.x == 0:
            state, parts = ring.producer(), Parts(A.shape, part)
            for row, column, sender, _split in works:
                rows = plan.cluster * row + place
                if sender == rank:  # outside of the loop, which is all that small tiles wait for
                    for k_tile in range(works.k_tiles):
                        with state.fill() as (stage, full):
                            tile = tw.local_tile(A, (m, k), (rows, k_tile), guard=True)
                            tw.copy(tw.atoms.SM90_TMA_LOAD, tile, sA[:, :, stage], barrier=full)
                            bring_columns(plan, B, sB[:, :, stage], (column, k_tile, sender), full, place)
                else:
                    arrival = Arrival(told, sender, number, parts.of(rows * m, 0), part[1])
                    for k_tile in range(works.k_tiles):
                        arrival.wait(tw.minimum((k_tile + 1) * k, A.shape[1]) - 1)
                        with state.fill() as (stage, full):
                            tile = tile_of(plan, arrived, (m, k), (rows, k_tile, sender))
                            tw.copy(tw.atoms.SM90_TMA_LOAD, tile, sA[:, :, stage], barrier=full)
                            bring_columns(plan, B, sB[:, :, stage], (column, k_tile, sender), full, place)
            if plan.cluster > 1:
                state.drain()  # the other block still arrives here
        elif sends and tw.thread_idx.x >= WARP:
            send(A, slots, flags, counters, part, rank, pause, number)
    else:
        tw.set_registers(BESIDE_SENDERS if sends else CONSUMER_REGISTERS)
        results = Results(plan, plan.epilogue, sD, D, bias, 1, 0)
        consume(plan, works, ring, order, None, sA, sB, results, (), place)


class Arrival:
    """How much of the rows of a tile has come from their rank: the parts from `part` on, each of so many columns."""

    __tilewright_state__ = True  # `part` and `known` change on the device

    def __init__(self, told, sender, number, part, columns):
        self.told, self.sender, self.number = told, sender, number
        self.part, self.columns = part, columns
        self.known = tw.int32(0)  # so many columns are known to be there

    @tw.function
    def wait(self, column):
        """Wait until a column is there, for the bulk copies that follow."""
        while self.known <= column:  # a tile of K may reach over several parts
            while tw.load(self.told, (self.sender, self.part), sem="acquire", scope="sys") < self.number:
                pass
            tw.fence_proxy_async("global")  # other GPUs wrote by ordinary stores
            self.part += 1
            self.known += self.columns


@tw.function
def send(A, slots, flags, counters, part, rank, pause, number):
    """Copy the rank's rows to the slots of the other ranks, and tell all of them of every part."""
    # By words: of a vector of smaller elements each would take a register.
    source, targets, width = A.recast(tw.uint32), [slot.recast(tw.uint32) for slot in slots], 4
    parts = Parts(source.shape, (part[0], part[1] * A.dtype.bytes // 4))
    threads = tw.grid_dim.x * SENDERS * WARP
    thread = tw.block_idx.x * (SENDERS * WARP) + tw.thread_idx.x - WARP
    for i in range(parts.down):
        for j in range(parts.across):
            first = i * parts.extent[0], j * parts.extent[1]
            rows = tw.minimum(parts.extent[0], source.shape[0] - first[0])
            across = tw.minimum(parts.extent[1], source.shape[1] - first[1]) // width
            copy_part(source, targets, first, (rows, across), width, thread, threads, pause)
            tw.sync_warp()
            if tw.lane_id() == 0:
                one, goal = i * parts.across + j, tw.grid_dim.x * SENDERS
                count_arrival(counters, (0, one), goal, flags, None, (rank, one), number)


@tw.function
def copy_part(source, targets, first, extent, width, thread, threads, pause):
    """Copy the vectors of a part of a matrix that are this thread's to each of the targets."""
    rows, across = extent
    down, right = threads // across, threads % across
    held = [tw.registers(source.dtype, (1, width)) for _ in range(_VECTORS)]
    row, column = thread // across, thread % across
    while row < rows:
        places = steps_from((row, column), _VECTORS, down, right, across)
        for v in tw.static_range(_VECTORS):
            if places[v][0] < rows:
                tw.copy(tw.local_tile(source, (1, width), where_in(first, places[v], width)), held[v])
        for v in tw.static_range(_VECTORS):
            if places[v][0] < rows:
                for target in targets:
                    tw.copy(held[v], tw.local_tile(target, (1, width), where_in(first, places[v], width)))
        row, column = places[_VECTORS]
        if pause is not None:
            sleep(pause)


def steps_from(place, count, down, right, across):
    """Return a place (row, column) and those after each of so many steps, in rows of `across`, without a division."""
    places = [place]
    for _ in range(count):
        row, column = places[-1][0] + down, places[-1][1] + right
        is_next = column >= across
        places.append((tw.where(is_next, row + 1, row), tw.where(is_next, column - across, column)))
    return places


def where_in(first, place, width):
    """Return the place of a vector in its matrix, of that in the part that begins at `first`."""
    return first[0] + place[0], first[1] // width + place[1]
