"""Packing: operands whose layout a kernel does not take are copied, so that K is contiguous and rows begin at 16 bytes.

Which operands, `Family.needs` decides: matrices of 8 or 16 bits, for example, with rows of odd length, columns of bytes
or strides along both modes. Packing is one more pass over memory, which is short beside the product and counted in the
predicted time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import DType
from tilewright.kernels._packing_kernel import THREADS, TILE, pack_tiles, pack_tiles_of_two
from tilewright.kernels.arrangement import Placement, Shape
from tilewright.kernels.problem import Operand
from tilewright.kernels.results import Maker, maker_for
from tilewright.launch import Kernel, Launcher
from tilewright.runtime.arrays import Device
from tilewright.runtime.views import View
from tilewright.transactions import ROW

_LINES = 4  # of which a row may leave a part empty
_LIBRARIES = ("numpy", "torch", "cupy", "xla")  # that make memory on request


def packed_row(operand: Operand, k: int) -> int:
    """Return the elements from one row of a packed operand to the next: whole lines of the caches if it has several."""
    bytes = k * operand.dtype.bytes
    width = (ROW if bytes >= _LINES * ROW else VECTOR_BYTES) // operand.dtype.bytes
    return max(-(-k // width), 1) * width


class Packing(NamedTuple):
    """What packs one operand of every call of a kind.

    `make` gives memory of (batches, rows, row) elements, `shape` and `strides` are those of what the kernel reads of
    it, and `whole` and `steps` those of what is filled: rows up to their last vector, by so many `blocks`. What is read
    lies as `source` says, each of its matrices once. With `early` launches begin before the one before them has ended.
    """

    blocks: int
    make: Maker
    shape: Shape
    strides: Shape
    whole: Shape
    steps: Shape
    source: tuple[Shape, Shape]
    across: bool
    early: bool

    def views(self, source: View) -> tuple[View, View, View]:
        """Return what is filled, what it is filled with, and the packed matrix."""
        memory, pointer = self.make()
        kind, dtype, device = type(source), source.dtype, source.device
        filled = kind(pointer, self.whole, self.steps, dtype, device, True, memory, source.stream)
        packed = kind(pointer, self.shape, self.strides, dtype, device, False, memory, source.stream)
        if source.shape != self.source[0]:  # the same matrix for the whole batch, or pairs, which are read as rows
            source = kind(source.pointer, *self.source, dtype, device, False, source.owner, source.stream)
        return filled, source, packed

    def pack(self, source: View) -> View:
        """Return the packed matrix; the work goes where the source's library has its work go."""
        filled, source, packed = self.views(source)
        _launcher(pack_tiles, self.blocks, self.early)(filled, source, self.across, self.early)
        return packed


def pack_both(first: Packing, second: Packing, a: View, b: View) -> tuple[View, View]:
    """Return two packed matrices, by one launch."""
    (target, source, packed), (other_target, other_source, other) = first.views(a), second.views(b)
    launch = _launcher(pack_tiles_of_two, first.blocks + second.blocks, first.early)
    launch(target, source, other_target, other_source, first.across, second.across, first.early)
    return packed, other


@lru_cache(maxsize=256)
def _launcher(kernel: Kernel, blocks: int, early: bool) -> Launcher:
    return kernel.configure(dependent_launch=early)[blocks, THREADS]


def maker_of(library: str, shape: tuple[int, ...], dtype: DType, device: Device) -> Maker:
    """Return what makes memory for a call whose arrays are of a library: the library's, or our own."""
    return maker_for(library if library in _LIBRARIES else "tilewright", shape, dtype, device)


def packing_for(operand: Operand, placement: Placement, library: str, device: Device, early: bool = False) -> Packing:
    """Return what packs an operand that lies as it is placed, in memory of a library, or of our own.

    `early` is for a product that begins while its operands are packed, on GPUs that have such launches.
    """
    extent, k, *pair, batch = placement.shape
    first, along, *partner, step = placement.strides
    row, copies = packed_row(operand, k), 1 if step == 0 else batch
    rows, down, of_pair = extent, first, [row]
    if pair:  # rows of one matrix: partners lie side by side, or one half behind the other
        is_beside = extent == 1 or first == 2 * partner[0]
        rows, down = 2 * extent, partner[0] if is_beside else first
        of_pair = [2 * row, row] if is_beside else [row, extent * row]
    matrix = rows * row if copies > 1 else 0
    return Packing(
        -(-rows // TILE) * -(-row // TILE) * copies,
        maker_of(library, (copies, rows, row), operand.dtype, device),
        placement.shape,
        (of_pair[0], 1, *of_pair[1:], matrix),
        (rows, row, copies),
        (row, 1, matrix),
        ((rows, k, copies), (down, along, step)),
        down == 1 and operand.major != "K",
        early,
    )
