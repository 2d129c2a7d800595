"""The machine that a launch runs on: its geometry, its memory, and the chunk of blocks that runs now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewright.backends.sim.findings import Collector, Fault, FindingsError
from tilewright.backends.sim.observers import Access, Observer
from tilewright.backends.sim.registers import RegisterStorage
from tilewright.backends.sim.storage import GlobalStorage, SharedStorage, Storage
from tilewright.backends.sim.values import Array, Lanes, Mask, without
from tilewright.ir.core import Buffer, Kernel, Op, Space

Dim3 = tuple[int, int, int]

# A row of the arena begins at a multiple of this, as a block's shared memory does.
_ARENA_ALIGNMENT = 128
# The most bytes of shared and of register memory of the blocks that run at once.
_CHUNK_BYTES = 1 << 26
# The most threads that run at once. Fewer, and NumPy's fixed cost of a call (about a microsecond) shows; more, and
# values no longer stay in a processor's second-level cache. benchmarks/simulate.py is flat from 2**14 to 2**16.
CHUNK_THREADS = 1 << 15


class Machine:
    """A launch: `grid` blocks of `block` threads, run in chunks of consecutive blocks.

    `warp` is how many threads a warp has. `storages` holds the memory of each buffer, `special` the
    special registers of the chunk that runs.
    """

    def __init__(
        self, kernel: Kernel, grid: Dim3, block: Dim3, arrays: Mapping[Buffer, Array], collector: Collector
    ) -> None:
        self.grid, self.block = grid, block
        self.threads = block[0] * block[1] * block[2]
        self.warp = kernel.warp_size
        self.total_blocks = grid[0] * grid[1] * grid[2]
        self.collector = collector
        self.observers: tuple[Observer, ...] = ()
        self.first_block, self.blocks = 0, 0
        self.special: dict[str, Lanes] = {}
        self.storages: dict[Buffer, Storage] = {}
        self.shared: list[SharedStorage] = []
        self.registers: list[RegisterStorage] = []
        self.arena_bytes = self._place(kernel, arrays)
        self.arena = np.empty((0, self.arena_bytes), np.uint8)
        self._fixed = self._thread_registers()

    def _place(self, kernel: Kernel, arrays: Mapping[Buffer, Array]) -> int:
        """Make the storage of each buffer and return the bytes of shared memory of a block."""
        end = kernel.shared_bytes
        for buffer in kernel.buffers():
            if buffer.space is Space.GLOBAL:
                self.storages[buffer] = GlobalStorage(buffer, arrays[buffer])
            elif buffer.space is Space.REGISTER:
                self.registers.append(RegisterStorage(buffer))
                self.storages[buffer] = self.registers[-1]
            elif buffer.offset is not None:
                end = max(end, buffer.offset + buffer.bytes)
        for buffer in kernel.buffers():
            if buffer.space is Space.SHARED:
                offset = buffer.offset
                if offset is None:
                    offset = -(-end // _ARENA_ALIGNMENT) * _ARENA_ALIGNMENT
                    end = offset + buffer.bytes
                self.shared.append(SharedStorage(buffer, offset))
                self.storages[buffer] = self.shared[-1]
        return -(-end // _ARENA_ALIGNMENT) * _ARENA_ALIGNMENT

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

    def leading_lanes(self, count: int | None) -> Mask:
        """Return the threads among the first `count` lanes of their warp; None stands for all, here and there."""
        if count is None or count >= self.warp:
            return None
        return np.asarray(np.arange(self.threads)[None, :] % self.warp < count)

    @property
    def chunk(self) -> int:
        """How many blocks run at once."""
        registers = sum(r.buffer.bytes for r in self.registers) * self.threads
        by_memory = _CHUNK_BYTES // max(1, self.arena_bytes + registers)
        return max(1, min(self.total_blocks, CHUNK_THREADS // self.threads, by_memory))

    def begin(self, first_block: int, blocks: int) -> None:
        """Make these blocks the ones that run, with undefined shared and register memory."""
        if blocks != self.blocks and self.shared:
            self.arena = np.empty((blocks, self.arena_bytes), np.uint8)
            for shared in self.shared:
                shared.attach(self.arena)
        self.arena.fill(0xFF)
        self.first_block, self.blocks = first_block, blocks
        for registers in self.registers:
            registers.allocate()
        self.special = dict(self._fixed)
        block = np.arange(first_block, first_block + blocks, dtype=np.int64)[:, None]
        for axis, extent in zip("xyz", self.grid, strict=True):
            self.special[f"block_idx.{axis}"] = (block % extent).astype(np.int32) if extent > 1 else np.int32(0)
            block = block // extent
        for observer in self.observers:
            observer.begin(self)

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

    def outside(self, op: Op, buffer: Buffer, error: IndexError) -> FindingsError:
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
        return _coordinate(self.first_block + row, self.grid)

    def thread_coordinate(self, thread: int) -> Dim3:
        """Return thread_idx of a linear thread number."""
        return _coordinate(thread, self.block)


def _coordinate(linear: int, extents: Dim3) -> Dim3:
    rest, x = divmod(linear, extents[0])
    z, y = divmod(rest, extents[1])
    return x, y, z
