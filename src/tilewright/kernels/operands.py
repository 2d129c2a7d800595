"""How one operand of a matrix product travels: global memory, shared memory, fragments."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.atoms import CopyAtom, UniversalCopy
from tilewright.dtypes import DType
from tilewright.errors import LayoutError
from tilewright.instructions import cp_async
from tilewright.kernels.problem import Operand
from tilewright.layout import ComposedLayout, Layout, Swizzle, tile_to_shape
from tilewright.tiled import TiledCopy, TiledMMA, make_tiled_copy, make_tiled_copy_A, make_tiled_copy_B
from tilewright.transactions import ROW


@dataclass(frozen=True)
class OperandPlan:
    """Tiles of `rows` (of M or N) by `depth` (of K) of one operand, and how they are copied.

    `along_k` says that the vectors of `copy` lie along K. Guards say what may reach beyond the matrix: rows, K, and a
    vector by a part of its elements.
    """

    dtype: DType
    rows: int
    depth: int
    smem: Layout | ComposedLayout  # (rows, depth, stages)
    copy: TiledCopy  # global to shared memory
    load: TiledCopy  # shared memory to fragments
    along_k: bool
    guard_rows: bool
    guard_k: bool
    guard_parts: bool


def plan_operand(
    operand: Operand, name: str, extents: tuple[int, int], tile: tuple[int, int], stages: int, mma: TiledMMA, arch: Arch
) -> OperandPlan:
    """Plan operand `name` ("A" or "B") of `extents` (rows, K), taken in tiles of (rows, K).

    Raises `LayoutError` when the threads of `mma` cannot share the copying of a tile evenly.
    """
    is_fma = mma.atom.threads == 1
    smem_along_k = not is_fma and (operand.major != "MN" or operand.dtype.bits == 8)
    copy_along_k = operand.major != "MN"
    copy = _copy_in(operand, tile, mma.size, arch, in_place=smem_along_k == copy_along_k)
    atom = _fragment_load(operand.dtype, smem_along_k, is_fma)
    swizzled = None if is_fma else _swizzled(operand.dtype, tile, stages, smem_along_k)
    smem = swizzled or _padded(operand.dtype, tile, stages, is_fma=is_fma)
    width = copy.atom.values(operand.dtype)
    return OperandPlan(
        operand.dtype,
        *tile,
        smem,
        copy,
        make_tiled_copy_A(atom, mma) if name == "A" else make_tiled_copy_B(atom, mma),
        copy_along_k,
        guard_rows=extents[0] % tile[0] != 0,
        guard_k=extents[1] % tile[1] != 0,
        guard_parts=extents[1 if copy_along_k else 0] % width != 0,
    )


def _copy_in(operand: Operand, tile: tuple[int, int], threads: int, arch: Arch, *, in_place: bool) -> TiledCopy:
    """Return the copy of a tile into shared memory: as wide as alignment, tile and threads allow.

    Without cp.async, or for elements that it cannot move alone, the copy goes through registers. `in_place` says that
    shared memory is contiguous along the same mode; otherwise elements go one by one.
    """
    element = operand.dtype.bytes
    width = operand.alignment // element if operand.major != "none" and in_place else 1
    width = max(width, 1)
    along, across = (tile[1], tile[0]) if operand.major != "MN" else tile
    while True:
        beside = min(along // width, threads)  # threads along the contiguous mode
        if threads % beside == 0 and across % (threads // beside) == 0 and along % (beside * width) == 0:
            break
        if width == 1:
            raise LayoutError(f"{threads} threads cannot share a tile of {tile[0]} x {tile[1]} elements evenly")
        width //= 2
    bits = width * operand.dtype.bits
    atom = cp_async.atom_for(bits, arch) or UniversalCopy(bits)
    if operand.major == "MN":
        return make_tiled_copy(atom, Layout((beside, threads // beside)), Layout((width, 1)))
    return make_tiled_copy(atom, Layout((threads // beside, beside), (beside, 1)), Layout((1, width)))


def _fragment_load(dtype: DType, along_k: bool, is_fma: bool) -> CopyAtom:
    """Return what reads fragments: ldmatrix where it can deal out the elements, ordinary loads elsewhere."""
    if is_fma:
        return UniversalCopy(8 * VECTOR_BYTES)
    if dtype.bits == 64 or (dtype.bits == 32 and not along_k):
        return UniversalCopy(dtype.bits)
    found: CopyAtom = atoms.SM75_U32x4_LDSM_N if along_k else atoms.SM75_U16x8_LDSM_T
    return found


def _swizzled(dtype: DType, tile: tuple[int, int], stages: int, along_k: bool) -> ComposedLayout | None:
    """Return the layout of a tile whose 16-byte parts (float64: 32 bytes) change places with the row's number.

    A row is what is contiguous, up to 128 bytes. Rows of 64 bytes are half of the banks, so that two share one order.
    None for what is read by ordinary loads across its rows, which padding serves.
    """
    rows, depth = tile
    row = min(ROW // dtype.bytes, depth if along_k else rows)
    part = 32 if dtype.bits == 64 else VECTOR_BYTES
    if dtype.bits >= 32 and not along_k:
        return None
    base = (part // dtype.bytes).bit_length() - 1
    bits = (row * dtype.bytes // part).bit_length() - 1
    shift = (ROW // part).bit_length() - 1
    block = Layout((8, row), (row, 1)) if along_k else Layout((row, 8), (1, row))
    found: ComposedLayout = tile_to_shape(ComposedLayout(Swizzle(bits, base, shift), 0, block), (rows, depth, stages))
    return found


def _padded(dtype: DType, tile: tuple[int, int], stages: int, *, is_fma: bool) -> Layout:
    """Return the layout of a tile contiguous along its rows, whose columns begin in different banks.

    Matrix instructions read four columns of K at once, eight elements of 4 bytes of each, or four of 8: padding by 8
    (or 4) puts them side by side in the banks. Multiply-adds read along one column, and padding by 16 bytes serves the
    copies: eight elements of a row of K go to eight columns, four rows at once.
    """
    rows, depth = tile
    column = rows + (VECTOR_BYTES // dtype.bytes if is_fma else 4 if dtype.bits == 64 else 8)
    return Layout((rows, depth, stages), (1, column, column * depth))
