"""Operands that no wide copy reads are packed first: copied so that K is contiguous and rows begin at 16 bytes.

The tile loaders bring at least 4 bytes at a time into shared memory, asynchronously, and ldmatrix wants 8-bit elements
contiguous along K. Matrices of 8 or 16 bits that lie otherwise (rows of odd length, columns of bytes, strides along
both modes) cost one more pass over memory, which is short beside the product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewright.arch import VECTOR_BYTES
from tilewright.kernels.arrangement import Placement
from tilewright.kernels.problem import Operand
from tilewright.kernels.rearranging import THREADS, TILE, pack_tiles
from tilewright.kernels.results import Maker, maker_for
from tilewright.runtime.arrays import Device
from tilewright.runtime.views import View

_LIBRARIES = ("numpy", "torch", "cupy")  # that make memory on request


def is_packed_first(operand: Operand) -> bool:
    """Say whether an operand has to be packed.

    >>> import tilewright as tw
    >>> is_packed_first(Operand(tw.bfloat16, "K", 2)), is_packed_first(Operand(tw.bfloat16, "MN", 4))
    (True, False)
    >>> is_packed_first(Operand(tw.int8, "MN", 16)), is_packed_first(Operand(tw.float32, "none", 4))
    (True, False)
    """
    if operand.dtype.bytes >= 4:
        return False
    if operand.dtype.bits == 8 and operand.major != "K":
        return True
    return operand.major == "none" or operand.alignment < 4


def packed(operand: Operand) -> Operand:
    """Return how an operand lies after it was packed."""
    return Operand(operand.dtype, "K", VECTOR_BYTES)


def packed_row(operand: Operand, k: int) -> int:
    """Return the elements from one row of a packed operand to the next."""
    width = VECTOR_BYTES // operand.dtype.bytes
    return -(-k // width) * width


class Packing(NamedTuple):
    """What packs one operand of every call of a kind.

    `make` gives memory of (batches, rows, row) elements, `shape` and `strides` are those of what the kernel reads of
    it, and `whole` is the shape that is filled: rows up to their last vector.
    """

    launch: Any  # Any: a launcher
    make: Maker
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]
    whole: tuple[int, int, int]
    across: bool

    def pack(self, source: View) -> View:
        """Return the packed matrix; the work goes where the source's library has its work go."""
        memory, pointer = self.make()
        kind, dtype, device = type(source), source.dtype, source.device
        filled = kind(pointer, self.whole, self.strides, dtype, device, True, memory, source.stream)
        if self.whole[2] != source.shape[2]:  # the same matrix for the whole batch
            source = kind(
                source.pointer,
                (*source.shape[:2], 1),
                source.strides,
                dtype,
                device,
                False,
                source.owner,
                source.stream,
            )
        self.launch(filled, source, self.across)
        return kind(pointer, self.shape, self.strides, dtype, device, False, memory, source.stream)


def packing_for(operand: Operand, placement: Placement, library: str, device: Device) -> Packing:
    """Return what packs an operand that lies as it is placed, in memory of a library, or of our own."""
    rows, k, batch = placement.shape
    copies = 1 if placement.strides[2] == 0 else batch
    row = packed_row(operand, k)
    grid = (-(-rows // TILE), -(-k // TILE), copies)
    step = rows * row if copies > 1 else 0
    return Packing(
        pack_tiles[grid, THREADS],
        maker_for(library if library in _LIBRARIES else "tilewright", (copies, rows, row), operand.dtype, device),
        placement.shape,
        (row, 1, step),
        (rows, row, copies),
        operand.major == "MN",
    )
