"""Layouts of shared memory that matrix instructions read without bank conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.arch import VECTOR_BYTES
from tilewright.layout import ComposedLayout, Layout, Swizzle, tile_to_shape
from tilewright.transactions import ROW

if TYPE_CHECKING:
    from tilewright.schedule.caches import Cache, Region

_PART = VECTOR_BYTES  # what ldmatrix reads of a row, and the widest copy


def matrix_layout(cache: Cache, region: Region, order: tuple[int, ...], stages: int) -> ComposedLayout | None:
    """Return the layout in which 16-byte parts of a row change places with the row's number, None where none fits.

    A row is what is contiguous, up to 128 bytes; a shorter one shares the banks with its neighbours, and so does their
    order. Eight rows one below the other, which ldmatrix reads at once, then lie in eight different groups of banks,
    and so do the parts that neighbouring threads copy.
    """
    size = cache.element_type.bytes
    fast = order[0]
    slow = next((mode for mode in order[1:] if region.shape[mode] % 8 == 0), None)
    row = min(ROW // size, region.shape[fast])
    parts = row * size // _PART
    if slow is None or region.shape[fast] % row or parts < 2 or parts & (parts - 1) or row * size % _PART:
        return None
    rank = len(region.shape) + 1
    shape, strides = [1] * rank, [0] * rank
    shape[fast], strides[fast] = row, 1
    shape[slow], strides[slow] = 8, row
    block = Layout(tuple(shape), tuple(strides))
    swizzle = Swizzle(parts.bit_length() - 1, (_PART // size).bit_length() - 1, 3)
    found: ComposedLayout = tile_to_shape(ComposedLayout(swizzle, 0, block), (*region.shape, stages))
    return found
