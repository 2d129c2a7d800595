"""Results of warpgroups that leave by TMA: rounded, put into shared memory, and stored from there in whole rows.

Each warpgroup has a buffer of its own for some columns of its tile, and stores these one after the other. A store goes
on while the warpgroup does other things; before it writes to the buffer again, the thread that started the store waits
until that has read it.
"""

from __future__ import annotations

from typing import Any

from tilewright import atoms
from tilewright.dtypes import DType
from tilewright.instructions.barrier import named_barrier
from tilewright.instructions.bulk_groups import tma_store_commit, tma_store_wait
from tilewright.instructions.proxy_fence import fence_proxy_async
from tilewright.instructions.warpgroup_atoms import THREADS
from tilewright.language.copying import copy
from tilewright.layout import ComposedLayout, Layout, Swizzle, tile_to_shape
from tilewright.layout.layouts import raw_layout
from tilewright.schedule.bulk import columns_at_once
from tilewright.schedule.plan_state import Tensorization
from tilewright.schedule.scope import Scope
from tilewright.tensors import Tensor, guarded
from tilewright.tiled import TiledMMA, make_tiled_copy_C, make_tiled_mma
from tilewright.trace.carry import rename
from tilewright.trace.control import branch, nest
from tilewright.trace.memory import registers, shared
from tilewright.trace.scalar import as_scalar
from tilewright.trace.threads import thread_idx

_FIRST_BARRIER = 2  # 1 is that of all threads but a producer's
_LINE = 128  # bytes: what the longest swizzle spreads


class BulkResults:
    """The buffers of all warpgroups of a block. Made at the kernel's beginning."""

    def __init__(self, scope: Scope, tile: Tensorization) -> None:
        self.scope = scope
        self.tile = tile
        self.type: DType = tile.c.array.element_type
        self.columns: int = columns_at_once(tile)
        self.rows: int = tile.shape.m
        self.target: Tensor = scope.storage[tile.c.array].tensor  # C itself
        layout = _layout(self.rows, self.columns, scope.threads // THREADS, self.type)
        self.memory: Tensor = shared(self.type, layout)
        rename(f"s{tile.c.array.name}", self.memory)
        # The fragments of so many columns: what multiplies them does not matter.
        self.part: TiledMMA = make_tiled_mma(getattr(atoms, f"SM90_64x{self.columns}x16_F32F16F16_SS"))

    @property
    def _number(self) -> Any:  # Any: a device number
        """The number of the warpgroup among those that multiply."""
        return self.scope.thread // THREADS

    @property
    def _is_leader(self) -> Any:  # Any: a condition of the device
        return as_scalar(thread_idx.x % THREADS) == 0

    def store(self, sums: Tensor, start: tuple[Any, ...], modes: tuple[int, int]) -> None:
        """Store a tile of sums to C, from an element on; `modes` are those of C that its rows and columns run along."""
        ours = named_barrier(_FIRST_BARRIER + self._number, THREADS)
        buffer: Tensor = self.memory[(None, None, self._number)]
        for part in range(self.tile.shape.n // self.columns):
            held = registers(self.type, self.part.partition_shape((self.rows, self.columns), "C"))

            def element(n: Any, part: int = part, held: Tensor = held) -> None:  # Any: a device number
                held[n] = as_scalar(sums[n + part * held.size], None).to(self.type)

            nest((held.size,), element, unroll=True)
            branch(self._is_leader, lambda: tma_store_wait(0))  # the store before has read the buffer
            ours.sync()
            self._put(held, buffer)
            fence_proxy_async()
            ours.sync()
            branch(self._is_leader, lambda part=part: self._start(buffer, start, modes, part))  # type: ignore[misc]  # bound now

    def _put(self, held: Tensor, buffer: Tensor) -> None:
        """Write a fragment to the buffer, by stmatrix where the elements have 16 bits."""
        thread = thread_idx.x % THREADS
        if self.type.bits == 16:
            atom = atoms.SM90_U32x4_STSM_N if self.columns % 16 == 0 else atoms.SM90_U32x2_STSM_N
            writer = make_tiled_copy_C(atom, self.part)
            ours = writer.get_slice(thread)
            copy(writer, ours.retile_S(held), ours.partition_D(buffer))
            return
        copy(held, self.part.get_slice(thread).partition_C(buffer))

    def _start(self, buffer: Tensor, start: tuple[Any, ...], modes: tuple[int, int], part: int) -> None:
        place = tuple(x + part * self.columns if mode == modes[1] else x for mode, x in enumerate(start))
        whole = guarded(self.target)
        box = whole.moved(place).map_layout(
            lambda where: raw_layout((self.rows, self.columns), tuple(where.stride[mode] for mode in modes))
        )
        copy(atoms.SM90_TMA_STORE, buffer, box)
        tma_store_commit()

    def finish(self) -> None:
        """Let a buffer be there until its last store has read it."""
        branch(self._is_leader, lambda: tma_store_wait(0))


def _layout(rows: int, columns: int, buffers: int, type: DType) -> Layout | ComposedLayout:
    """Return the layout (rows, columns, buffers): rows of up to 128 bytes, swizzled, one beside the other."""
    line = next(n for n in (_LINE, 64, 32, 16) if columns * type.bytes % n == 0)
    block = Layout((8, line // type.bytes), (line // type.bytes, 1))
    bits = (line // 16).bit_length() - 1
    swizzle = Swizzle(bits, (16 // type.bytes).bit_length() - 1, 3)
    atom = ComposedLayout(swizzle, 0, block) if bits else block
    layout: Layout | ComposedLayout = tile_to_shape(atom, (rows, columns, buffers))
    return layout
