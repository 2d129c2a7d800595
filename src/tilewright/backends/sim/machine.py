"""The machine that a launch runs on: its geometry, its memory, the blocks that run now, and who watches them.

`Observer` is the seam between execution and the checkers of memory, races and waits, and the meter. Handlers of
ops that reach memory or synchronise tell the machine's observers what the threads do, before they do it. Without
observers they are compiled without the calls, so watching costs nothing when off.

`demand_whole_warps` checks what all threads of a warp have to do together (matrix instructions, shuffles and votes), or
all threads of a warpgroup.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from tilewright.backends.sim.aliases import AddressSpace, GlobalView, PartedRegisters, PointedStorage, Reachable
from tilewright.backends.sim.findings import Collector, Fault
from tilewright.backends.sim.interleaving import Interleaving
from tilewright.backends.sim.ranked import BlockOfRank, RankArguments, RankedStorage
from tilewright.backends.sim.storage import GlobalStorage, RegisterStorage, RemoteStorage, SharedStorage, Storage
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d, fill, without
from tilewright.backends.sim.warpgroups import ProductGroups
from tilewright.dtypes import uint8, uint16, uint32, uint64
from tilewright.errors import ArgumentError, CheckError
from tilewright.ir.core import Buffer, Kernel, Op, Space, TensorMap
from tilewright.ir.effects import WARPS_OF, Order, Scope, Waits
from tilewright.ir.maps import MapValues


class AccessKind(enum.Enum):
    """What is done to memory. An asynchronous copy's write is announced when issued and again when it lands."""

    LOAD = "load"
    STORE = "store"
    ATOMIC = "atomic update"
    COPY_READ = "asynchronous copy from"
    COPY_WRITE = "asynchronous copy to"
    COPY_LAND = "landing of an asynchronous copy in"
    OPERAND_READ = "wgmma's read of"  # it begins when the product is issued, and lasts until that is waited for
    ACCUMULATE = "wgmma's sum in"
    BARRIER = "use of the mbarrier"  # indivisible; an mbarrier's initialisation is a STORE


@dataclass(slots=True)
class Access:
    """One op's access by all active threads: elements `index` up to `index + lanes` of a buffer's storage."""

    op: Op
    kind: AccessKind
    storage: Storage
    index: Lanes
    lanes: int
    mask: Mask
    ranks: Lanes = None  # the blocks of the cluster whose shared memory it is, where not the threads' own


@dataclass(slots=True, eq=False)
class BulkAccess:
    """An access of many elements by the async proxy, which threads start and which takes place later.

    The n-th thread is `threads[n]` of the block `rows[n]` of the chunk; it reaches the elements `index[n]`, those of
    them that are `there` (None: all). `kind` is COPY_READ, COPY_WRITE or, of reductions, ATOMIC.
    """

    op: Op
    kind: AccessKind
    storage: Storage
    rows: Array
    threads: Array
    index: Array
    there: Array | None
    targets: Array | None = None  # the blocks of the chunk whose shared memory it is, where not the threads' own
    told: Array | None = None  # the blocks at whose mbarriers its bytes arrive, where not those whose memory it is


# Where the bytes of bulk copies arrive: the mbarrier's buffer, and for each thread the element and the phase.
Arrival = tuple[Buffer, Array, Array]


@dataclass(slots=True)
class RegisterUse:
    """Registers that a warpgroup's product uses, elements `index` up to `index + lanes`: it sums up there, or reads."""

    storage: RegisterStorage
    index: int
    lanes: int
    is_sum: bool


@dataclass(slots=True)
class Signal:
    """What active threads give or take at a barrier that part of a block meets at.

    The barrier is element `index` of `buffer`, or named barrier `index` where that is None. `phase` is the one that
    each thread arrived in, or the last one that was over when it went on: all arrivals in it and before it
    happened before. Phases count from 0 in each block; -1 is none. Values of inactive threads mean nothing.
    `ranks` are the blocks of the cluster whose mbarriers they are, where these are not the threads' own. A `relaxed`
    arrival tells of asynchronous work that the thread knows to be over, and not of what it did itself.
    """

    op: Op
    buffer: Buffer | None
    index: Lanes
    phase: Lanes
    mask: Mask
    ranks: Lanes = None
    relaxed: bool = False


@dataclass(slots=True)
class Synchronisation:
    """A strong access of active threads that has been made, or a fence, where `storage` is None.

    `wrote` says which of the threads wrote, where an update may write or not; None: those that the op's class says.
    Where threads reach one element, they did so in the order of blocks and threads.
    """

    op: Op
    storage: Storage | None
    index: Lanes
    mask: Mask
    wrote: Array | None


class Observer:
    """Watches what the threads of a chunk do. Each method does nothing unless overridden."""

    def begin(self, machine: Machine) -> None:
        """Called when a chunk of blocks starts."""

    def allocate(self, op: Op, storage: Storage, mask: Mask) -> None:
        """Called when a shared or register buffer's life begins."""

    def execute(self, op: Op, mask: Mask) -> None:
        """Called before each op that the threads of the mask run, a yield at a block's end included.

        Only observers that override this cost anything: a step for each op.
        """

    def access(self, access: Access) -> Array | None:
        """Called before an access; return the threads that must not do it, None for none."""

    def leave(self, op: Op, outside: Array, coordinate: Lanes, extent: Lanes) -> None:
        """Called when the coordinate that threads have for the next access lies outside of its tensor."""

    def barrier(self, op: Op, mask: Mask) -> None:
        """Called at a barrier that the threads of the mask reach together."""

    def wait(self, op: Op, mask: Mask) -> None:
        """Called after a wait for asynchronous work: copies that have landed, or products of warpgroups."""

    def multiply(self, op: Op, registers: Sequence[RegisterUse], mask: Mask) -> None:
        """Called when warpgroups begin a product that uses registers until it is waited for."""

    def read_operand(self, op: Op, name: str, lines: Array, mask: Mask) -> None:
        """Called when products of the warpgroups of a mask read operand "A" or "B" in shared memory.

        `lines` are the addresses, in the block's shared memory, of the lines of 16 bytes of each core matrix:
        (blocks or 1, warpgroups of the mask or 1, matrices, 8).
        """

    def fence_registers(self, op: Op, mask: Mask) -> None:
        """Called when warpgroups order their accesses to registers before the products that follow."""

    def start_bulk(self, access: BulkAccess) -> bool:
        """Called when threads start a bulk access; return whether it must not take place."""
        return False

    def finish_bulk(self, access: BulkAccess, which: Array, arrival: Arrival | None) -> None:
        """Called when bulk accesses have taken place, those of the threads that `which` selects.

        Of one with an `arrival` whoever waits for that phase learns; others are as if the thread itself had made them.
        """

    def fence_proxy(self, op: Op, mask: Mask) -> None:
        """Called at a fence behind which the async proxy sees what the threads of the mask wrote."""

    def await_grids(self, op: Op, mask: Mask) -> None:
        """Called when threads of the mask have waited for the launches before this one."""

    def finish(self) -> None:
        """Called when the blocks that run are over."""

    def synchronise(self, done: Synchronisation) -> None:
        """Called after a strong access or a fence, in kernels in which one orders anything."""

    def end(self) -> None:
        """Called when the last chunk of blocks is over."""

    def arrive(self, signal: Signal) -> None:
        """Called when threads arrive at a named barrier or mbarrier: they release what the threads did before.

        An arrival that follows asynchronous copies is announced after they have landed.
        """

    def acquire(self, signal: Signal) -> None:
        """Called when threads go on after a wait, or when their test of an mbarrier holds."""


@dataclass(slots=True)
class MadeMaps:
    """What the tensor maps describe that threads have made, of each thread of the chunk (blocks, threads).

    `address` is that of the first element in the address space of the launch, or the index of that element in an array
    argument; it is -1 where the thread has made none.
    """

    address: Array
    extents: list[Array]
    strides: list[Array]


Dim3 = tuple[int, int, int]

# A row of the arena begins at a multiple of this, as a block's shared memory does.
_ARENA_ALIGNMENT = 128
_SOME_BYTES = 1 << 15  # of a shared buffer of which only a launch knows the size
_PARTS = {1: uint8, 2: uint16, 4: uint32, 8: uint64}  # of registers that are seen as several types
# The most bytes of shared and of register memory of the blocks that run at once.
_CHUNK_BYTES = 1 << 26
# The most threads that run at once. Fewer, and NumPy's fixed cost of a call (about a microsecond) shows; more, and
# values no longer stay in a processor's second-level cache. benchmarks/simulate.py is flat from 2**14 to 2**16.
CHUNK_THREADS = 1 << 15
# The most threads of blocks that wait for each other, about what a large GPU holds at once (132 times 2048), and the
# most bytes of their memory.
RESIDENT_THREADS = 1 << 18
_RESIDENT_BYTES = 1 << 29
_RELATION_BYTES = 1 << 27  # of all clusters that run at once


def relation_bytes(threads: int) -> int:
    """Return the bytes that it takes to say what each thread of a cluster knows of each other, and of its copies."""
    return 16 * threads * threads


class Machine:
    """A launch: `grid` blocks of `block` threads, run in chunks of consecutive blocks.

    `warp` is how many threads a warp has. `storages` holds the memory of each buffer, `special` the
    special registers of the chunk that runs.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        arrays: Mapping[Buffer, Array],
        collector: Collector,
        addresses: Sequence[Reachable] = (),
        sized: Mapping[Buffer, tuple[int, int]] | None = None,
        maps: Mapping[TensorMap, MapValues] | None = None,
        interleaving: Interleaving | None = None,
        ranks: RankArguments | None = None,
    ) -> None:
        self.grid = grid
        self.ranks = ranks
        self.block = block
        self.interleaving = interleaving
        self._order: Array | None = None  # the numbers of the blocks, where they do not run in order
        self.maps: Mapping[TensorMap, MapValues] | dict[TensorMap, MapValues] = (
            maps or {}
        )  # what the tensor maps of the launch describe
        self.made_maps: dict[object, MadeMaps] = {}  # and those that threads of the chunk have made, by key
        self.threads: int = block[0] * block[1] * block[2]
        self.warp: int = kernel.warp_size
        self.blocks_of_rank: int = grid[0] * grid[1] * grid[2]
        self.total_blocks: int = self.blocks_of_rank * (1 if ranks is None else ranks.size)
        # How many blocks along x, y and z; blocks of a cluster stand side by side in a chunk.
        self.cluster: tuple[int, int, int] = kernel.cluster
        self.cluster_size: int = kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2]
        self.collector = collector
        self.observers: tuple[Observer, ...] = ()
        self.first_block: int = 0
        self.blocks: int = 0
        self.products: ProductGroups = ProductGroups(self.threads, self.warp * WARPS_OF[Scope.WARPGROUP])
        self.special: dict[str, Lanes] = {}
        # Barriers of the grid: how many are over, and how many threads have come to the next one.
        self.grid_phase: int = 0
        self.grid_arrived: int = 0
        self._is_resident = self._is_cooperative = kernel.cooperative
        if kernel.cooperative and self.total_blocks * self.threads > RESIDENT_THREADS:
            raise ArgumentError(
                f"kernel {kernel.name!r} is launched cooperatively, and its grid of {self.total_blocks} blocks does "
                "not fit on the GPU at once",
                details=[f"of blocks of {self.threads} threads the simulator holds {RESIDENT_THREADS // self.threads}"],
                help="launch fewer blocks, each of which does more: for i in range(block, count, tw.grid_dim.x)",
            )
        # Whether there are strong accesses or fences, one orders memory, and some warps wait without the others.
        model = _memory_model(kernel)
        self.has_strong: bool = model[0]
        self.orders: bool = model[1]
        self.has_roles: bool = model[2]
        self.storages: dict[Buffer, Storage] = {}
        self.shared: list[SharedStorage] = []
        self.registers: list[RegisterStorage] = []
        self.addresses: AddressSpace = AddressSpace(addresses)
        # The place and number of elements of shared buffers whose size the launch knows; without a launch some.
        self._sized = sized or {s.buffer: (0, _SOME_BYTES // s.buffer.dtype.bytes) for s in kernel.launch_sized}
        self.arena_bytes: int = self._place(kernel, arrays)
        self.arena: Array = np.empty((0, self.arena_bytes), np.uint8)
        self._fixed = self._thread_registers()

    def rank_of(self, row: int) -> int | None:
        """Return what the rank of a row of the chunk is called, None in a launch of one."""
        place = (self.first_block + row) // self.blocks_of_rank
        return None if self.ranks is None else self.ranks.numbers[place]

    def described(self, map: TensorMap, rows: Array) -> MapValues:
        """Return what a tensor map describes for threads of some rows."""
        ranks = (self.first_block + rows) // self.blocks_of_rank
        return self.maps[map] if self.ranks is None else self.ranks.map_values(map, ranks)

    def _place(self, kernel: Kernel, arrays: Mapping[Buffer, Array]) -> int:
        """Make the storage of each buffer and return the bytes of shared memory of a block."""
        end = kernel.shared_bytes
        buffers = kernel.buffers()
        views = [buffer for buffer in buffers if buffer.base is not None]
        for buffer in dict.fromkeys(buffer.root for buffer in buffers):
            if buffer.is_pointed:
                self.storages[buffer] = PointedStorage(buffer, self.addresses)
            elif buffer.space is Space.GLOBAL and self.ranks is not None:
                self.storages[buffer] = RankedStorage(buffer, self.addresses, self.ranks.arrays[buffer])
            elif buffer.space is Space.GLOBAL:
                self.storages[buffer] = GlobalStorage(buffer, arrays[buffer])
            elif buffer.space is Space.REGISTER:
                self._register(buffer, [view for view in views if view.root is buffer])
            elif buffer.offset is not None and buffer.size is not None:
                end = max(end, buffer.offset + buffer.bytes)
        for view in views:
            base = self.storages.get(view.root)
            if isinstance(base, PointedStorage):
                self.storages[view] = base.view(view)
            elif isinstance(base, GlobalStorage):
                self.storages[view] = GlobalView(view, base)
        for buffer in buffers:
            if buffer.space is Space.SHARED:
                offset, size = buffer.offset, buffer.size
                if buffer.root in self._sized:
                    place, elements = self._sized[buffer.root]
                    offset = kernel.launch_sized_start + place
                    size = elements * buffer.root.dtype.bytes // buffer.dtype.bytes
                    end = max(end, offset + size * buffer.dtype.bytes)
                assert size is not None, buffer
                if offset is None:
                    offset = -(-end // _ARENA_ALIGNMENT) * _ARENA_ALIGNMENT
                    end = offset + buffer.bytes
                if buffer.is_remote:
                    self.shared.append(RemoteStorage(buffer, offset, size, self.cluster_size))
                else:
                    self.shared.append(SharedStorage(buffer, offset, size))
                self.storages[buffer] = self.shared[-1]
        members = [buffer for buffer in dict.fromkeys(b.family for b in buffers) if buffer.is_member]
        for shared in self.shared:
            if shared.buffer.family.is_member:
                same = [m for m in members if m.base is shared.buffer.family.base]
                shared.mark = same.index(shared.buffer.family) + 1
        return -(-end // _ARENA_ALIGNMENT) * _ARENA_ALIGNMENT

    def _register(self, buffer: Buffer, views: Sequence[Buffer]) -> None:
        """Make the storage of a register buffer and of those that show its bytes."""
        if not views:
            self.registers.append(RegisterStorage(buffer))
            self.storages[buffer] = self.registers[-1]
            return
        width = min(b.dtype.bytes for b in (buffer, *views))
        parts = RegisterStorage(replace(buffer, dtype=_PARTS[width], size=buffer.bytes // width))
        self.registers.append(parts)
        self.storages.update((b, PartedRegisters(b, parts)) for b in (buffer, *views))

    def _thread_registers(self) -> dict[str, Lanes]:
        """Return the special registers that are the same in all blocks."""
        fixed: dict[str, Lanes] = {}
        thread = np.arange(self.threads, dtype=np.int32)[None, :]
        for axis, extent, blocks in zip("xyz", self.block, self.grid, strict=True):
            fixed[f"block_dim.{axis}"] = np.int32(extent)
            fixed[f"grid_dim.{axis}"] = np.int32(blocks)
            fixed[f"thread_idx.{axis}"] = thread % np.int32(extent) if extent > 1 else np.int32(0)
            thread = thread // np.int32(extent)
        return fixed

    def meet_grid(self, mask: Mask) -> int:
        """Let threads come to a barrier of the grid; return its number, which `grid_phase` is above when all have."""
        number = self.grid_phase
        everybody = self.blocks * self.threads
        self.grid_arrived += (
            everybody if mask is None else int(np.broadcast_to(mask, (self.blocks, self.threads)).sum())
        )
        if self.grid_arrived >= everybody:
            self.grid_phase = number + 1
            self.grid_arrived = 0
        return number

    def leading_lanes(self, count: int | None) -> Mask:
        """Return the threads among the first `count` lanes of their warp; None stands for all, here and there."""
        if count is None or count >= self.warp:
            return None
        return np.asarray(np.arange(self.threads)[None, :] % self.warp < count)

    @property
    def chunk(self) -> int:
        """How many blocks run at once."""
        registers = sum(r.buffer.bytes for r in self.registers) * self.threads
        most, most_bytes = CHUNK_THREADS, _CHUNK_BYTES
        if self._is_resident:
            most, most_bytes = RESIDENT_THREADS, _RESIDENT_BYTES
        by_memory = most_bytes // max(1, self.arena_bytes + registers)
        if self._is_cooperative or self.ranks is not None:
            return self.total_blocks
        size = self.cluster_size
        if size > 1:  # what the threads of a cluster know of each other
            by_memory = min(by_memory, size * (_RELATION_BYTES // relation_bytes(size * self.threads)))
        return max(1, min(self.total_blocks, most // self.threads, by_memory) // size) * size

    def watch_memory(self, *, resident: bool) -> None:
        """Let `version` change with memory; `resident` says that blocks wait for each other, and many run at once."""
        self._is_resident |= resident
        for storage in self.storages.values():
            storage.tracks = True

    @property
    def version(self) -> int:
        """A number that changes when the contents of memory do, where that is watched."""
        return sum(storage.version for storage in self.storages.values())

    def begin(self, first_block: int, blocks: int) -> None:
        """Make these blocks the ones that run, with undefined shared and register memory."""
        if blocks != self.blocks and self.shared:
            self.arena = np.empty((blocks, self.arena_bytes), np.uint8)
            for shared in self.shared:
                shared.attach(self.arena)
        self.arena.fill(0xFF)
        self.first_block, self.blocks = first_block, blocks
        self.products.begin(blocks)
        self.made_maps.clear()
        for registers in self.registers:
            registers.allocate()
        self.special = dict(self._fixed)
        number = np.arange(first_block, first_block + blocks, dtype=np.int64)[:, None]
        for storage in [each for each in self.storages.values() if each.buffer.base is None]:  # with them, their views
            if isinstance(storage, RankedStorage):
                storage.begin(number // self.blocks_of_rank)
            elif isinstance(storage, PointedStorage):
                storage.point(np.int64(0), None)  # addresses of before are of other blocks, perhaps of more
        cluster, rank = np.divmod(number, self.cluster_size)
        if self.interleaving is not None:
            if self._order is None:
                together = min(self.chunk if self._is_resident else self.total_blocks, self.blocks_of_rank)
                self._order = self.interleaving.blocks(
                    self.total_blocks // self.cluster_size, together // self.cluster_size
                )
            self.interleaving.begin(blocks, self.threads, self.warp)
        if self._order is not None:
            cluster = self._order[cluster]
        cluster = cluster % (self.blocks_of_rank // self.cluster_size)
        self.special["cluster_ctarank"] = rank.astype(np.int32)
        for axis, extent, inner in zip("xyz", self.grid, self.cluster, strict=True):
            cluster, outer = np.divmod(cluster, extent // inner)
            rank, inside = np.divmod(rank, inner)
            for name, value in (("block_idx", outer * inner + inside), ("clusterid", outer), ("cluster_ctaid", inside)):
                self.special[f"{name}.{axis}"] = value.astype(np.int32) if extent > 1 else np.int32(0)
        for observer in self.observers:
            observer.begin(self)

    def start_bulk(self, *accesses: BulkAccess) -> bool:
        """Show bulk accesses to the observers; return whether one refuses them, which the next ones do not see."""
        for observer in self.observers:
            refused = [observer.start_bulk(access) for access in accesses]
            if any(refused):
                return True
        return False

    def finish_bulk(self, access: BulkAccess, which: Array, arrival: Arrival | None) -> None:
        """Tell the observers that bulk accesses have taken place."""
        for observer in self.observers:
            observer.finish_bulk(access, which, arrival)

    def observe(self, access: Access) -> Array | None:
        """Show an access to the observers; return the threads that must not do it, None for none.

        What one observer refuses the next ones do not see.
        """
        refused: Array | None = None
        for observer in self.observers:
            more = observer.access(access)
            if more is not None:
                refused = more if refused is None else refused | more
                access = replace(access, mask=without(access.mask, more))
        return refused

    def outside(self, op: Op, buffer: Buffer, error: IndexError) -> CheckError:
        """Return the error for an index that NumPy refused while nothing was checked."""
        fault = Fault(
            op,
            "out-of-bounds",
            f"out of bounds: an access to {buffer.name} reaches beyond it ({error})",
            self.block_coordinate(0),
            buffer=buffer.name,
            notes=(f"in one of the {self.blocks} blocks from there on:",),
            help="run with checks on to learn which thread and which element",
        )
        return self.collector.error(fault)

    def block_coordinate(self, row: int) -> Dim3:
        """Return block_idx of a row of the chunk."""
        cluster, rank = divmod(self.first_block + row, self.cluster_size)
        if self._order is not None:
            cluster = int(self._order[cluster])
        cluster %= self.blocks_of_rank // self.cluster_size
        first = _coordinate(cluster, tuple(n // m for n, m in zip(self.grid, self.cluster, strict=True)))
        x, y, z = (a * m + b for a, m, b in zip(first, self.cluster, _coordinate(rank, self.cluster), strict=True))
        number = self.rank_of(row)
        return (x, y, z) if number is None else BlockOfRank.of((x, y, z), number)

    def thread_coordinate(self, thread: int) -> Dim3:
        """Return thread_idx of a linear thread number."""
        return _coordinate(thread, self.block)


_models: WeakKeyDictionary[Kernel, tuple[bool, bool, bool]] = WeakKeyDictionary()


def _memory_model(kernel: Kernel) -> tuple[bool, bool, bool]:
    """Return the kernel's `has_strong`, `orders` and `has_roles`; found once a kernel."""
    if (known := _models.get(kernel)) is None:
        effects = [op.effects for op in kernel.body.walk()]
        strong = [each.order is not Order.NONE for each in effects if each.scope is not None]
        known = _models[kernel] = bool(strong), any(strong), any(each.waits is Waits.SOME for each in effects)
    return known


def _coordinate(linear: int, extents: tuple[int, ...]) -> Dim3:
    rest, x = divmod(linear, extents[0])
    z, y = divmod(rest, extents[1])
    return x, y, z


def check_ranks(op: Op, buffer: Buffer, ranks: Lanes, mask: Mask, machine: Machine) -> Mask:
    """Report threads that name a block which their cluster does not have, and return the others."""
    outside = at_least_2d(np.asarray((ranks < 0) | (ranks >= machine.cluster_size)))
    bad = outside if mask is None else outside & mask
    if not bad.any():
        return mask
    full = np.broadcast_to(bad, (machine.blocks, machine.threads))
    row, thread = (int(n) for n in np.argwhere(full)[0])
    rank = int(np.broadcast_to(at_least_2d(ranks), full.shape)[row, thread])
    fault = Fault(
        op, "out-of-bounds", f"out of bounds: {buffer.name} of block {rank} of a cluster of {machine.cluster_size}",
        machine.block_coordinate(row), machine.thread_coordinate(thread), buffer.name,
        help="ranks go from 0 to the number of blocks of a cluster", count=int(full.sum()),
    )  # fmt: skip
    machine.collector.report(fault)
    return without(mask, bad)


def demand_whole_warps(op: Op, what: str, mask: Mask, machine: Machine, full: bool) -> None:
    """Report a warp, or warpgroup, of which only some threads reach the op; the hardware then does anything or hangs.

    `full` demands all lanes; without it, threads that a block's last warp lacks are not missed.
    """
    warps = WARPS_OF.get(op.effects.together, 1)
    lanes, group = warps * machine.warp, "warp" if warps == 1 else "warpgroup"
    if not machine.observers or (mask is None and (not full or machine.threads % lanes == 0)):
        return
    active = np.ones((1, machine.threads), np.bool_) if mask is None else fill(mask, mask.shape[0], machine.threads)
    groups = _by_warps(active, full, lanes)
    split = groups.any(axis=-1) & ~groups.all(axis=-1)
    if not split.any():
        return
    row, number = (int(n) for n in np.argwhere(split)[0])
    size = lanes if full else min(lanes, machine.threads - number * lanes)
    here = int(groups[row, number, :size].sum())
    first = number * lanes + int(np.argmax(groups[row, number]))
    help = f"let whole {group}s reach it: branches that are the same in a {group}"
    if full:
        help = (
            f"let whole {group}s reach it: blocks of a multiple of {lanes} threads, and branches that are the same "
            f"in a {group}"
        )
    fault = Fault(
        op, "warp-divergence", f"{what} of the {group} is reached by {here} of its {size} threads",
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
