"""`tw.permute`: an array with its modes in another order, in memory of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any  # Any: arrays of any library, and tiled copies

import tilewright as tw
from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import ALL, FLOAT8, uint8, uint16, uint32, uint64
from tilewright.errors import ArgumentError
from tilewright.kernels._permute_kernels import THREADS, copy_interleaved, copy_rows, transpose_tiles
from tilewright.kernels.operands import Operand, Shape, join_modes, launcher, read, result
from tilewright.kernels.repeats import repeating
from tilewright.kernels.results import handing_over
from tilewright.runtime.views import View

_BITS = {1: uint8, 2: uint16, 4: uint32, 8: uint64}
_ROW = 128  # threads of a block that copies rows
_LINE = 256  # bytes of y that a tile's columns are
_FAR = 8192  # bytes between rows
_LARGE = 1 << 26  # bytes of an array
_TOGETHER = 16  # the most elements that a thread has a vector of each of
_HELD = 64  # bytes of a row that a thread has under way


@dataclass(frozen=True)
class Move:
    """A copy y[i, ...] = x[i, ...] of bits: extents, strides of both in elements, and the bytes of an element.

    The modes are in the order of y's strides, the shortest last, and joined where both arrays allow it.
    """

    extents: Shape
    to: Shape
    source: Shape
    size: int
    alignment: int  # of both pointers, at most 16

    @property
    def fastest(self) -> int:
        """The mode along which neighbours of x are nearest."""
        return min(range(len(self.extents)), key=lambda n: (abs(self.source[n]), -n))

    @property
    def is_far(self) -> bool:
        """Whether a tile's rows are far apart in both arrays, and these much larger than the cache."""
        steps = abs(self.source[-1]), abs(self.to[self.fastest])
        return min(steps) * self.size >= _FAR and math.prod(self.extents) * self.size >= _LARGE

    def widened(self) -> Move:
        """Return the move of wider elements, as far as runs of neighbours in both arrays are whole ones."""
        last, factor = self.extents[-1], 1
        if self.to[-1] != 1 or self.source[-1] != 1:
            return self
        others = [*self.to[:-1], *self.source[:-1]]
        while self.size * factor < 8 and all(n % (2 * factor) == 0 for n in (last, *others)):
            if self.alignment % (2 * factor * self.size):
                break
            factor *= 2
        if last != factor:  # a row of several accesses; vectors are as good
            return self
        to, source = (tuple(step // factor for step in steps) for steps in (self.to[:-1], self.source[:-1]))
        extents = self.extents[:-1] or (1,)
        return Move(extents, to or (1,), source or (1,), self.size * factor, self.alignment)


def move_of(shape: Shape, to: Sequence[int], source: Sequence[int], size: int, alignment: int = 16) -> Move:
    """Return the move between two arrays of a shape with these strides.

    >>> move_of((4, 8, 3), (24, 3, 1), (3, 12, 1), 4).extents
    (4, 8, 3)
    >>> move_of((4, 8, 3), (24, 3, 1), (24, 3, 1), 4).extents
    (96,)
    """
    order = sorted((n for n in range(len(shape)) if shape[n] != 1), key=lambda n: -abs(to[n]))
    extents, (y, x) = join_modes([shape[n] for n in order], [[s[n] for n in order] for s in (to, source)])
    return Move(extents, y, x, size, alignment).widened()


@dataclass(frozen=True)
class TilePlan:
    """A tile's layout in shared memory, the tiled copies that fill it from x and empty it to y, and their threads."""

    smem: Any  # Any: a layout with a swizzle, and tiled copies
    load: Any
    store: Any
    threads: int
    runs: tuple[int, int]  # that a column of the tile has in x, and a row in y


@lru_cache(maxsize=256)
def tile_plan(
    size: int, rows: int, columns: int, run: tuple[int | None, int | None] = (None, None), is_far: bool = False
) -> TilePlan:
    """Return the tile in shared memory, and who reads and writes what of it; extents are those of the two modes.

    A vector is n elements of 16 bytes. Reading elements of a column, the lanes of a warp are in rows that are n apart,
    so the vectors of a row change places with the number of its group of n rows: vector v of row r is where
    v ^ (r / n % 8) would be. A short mode makes the tile longer along the other.

    `run` are the extents of both modes where columns or rows are of several runs. Then, and where rows are far apart
    in large arrays (`is_far`), rows and columns have 256 bytes: memory takes longer for half of that at a time.
    """
    each = VECTOR_BYTES // size
    least, usual, most = 8 * each, max(64, 8 * each), THREADS
    if is_far or run != (None, None):
        usual, most = max(usual, _LINE // size), 2 * THREADS
    tall = max(each, min(usual, _power(rows)))
    wide = max(least, min(usual * usual // tall, _power(columns)))
    tall = max(each, min(usual * usual // wide, _power(rows)))
    vectors, log2 = wide // each, {n: n.bit_length() - 1 for n in (each, wide)}
    threads = min(most, tall * vectors)
    smem = tw.composition(tw.Swizzle(3, log2[each], log2[wide]), tw.row_major((tall, wide)))
    across = min(vectors, threads)  # neighbouring threads on a row of x
    down = max(min(8, tall // each), threads // wide)  # and on a row of y
    load, store = (
        tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((threads // n, n), (n, 1)), tw.Layout((1, each)))
        for n in (across, down)
    )
    runs = (tall // (run[0] or tall), wide // (run[1] or wide))
    return TilePlan(smem, load, store, threads, runs)


def _power(extent: int) -> int:
    return 1 << (extent - 1).bit_length()


@repeating("axes")
@handing_over
def permute(x: Any, axes: Sequence[int], *, out: Any = None) -> Any:
    """Return a copy of an array with its modes in the order `axes`, as contiguous memory.

    >>> import numpy as np, tilewright as tw
    >>> x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    >>> y = tw.permute(x, (2, 0, 1))
    >>> y.shape, bool(y[3, 1, 2] == x[1, 2, 3]), y.flags.c_contiguous
    ((4, 2, 3), True, True)

    `x` has any rank, any strides, and elements of any type; bits are copied. Mode n of the result is mode axes[n] of
    `x`; negative numbers count from the back. Modes that stay adjacent are merged. If the last one stays the last, rows
    are copied; otherwise tiles are staged in shared memory, so that memory is read and written along rows.

    `out` has the shape of the result, the type of `x`, any strides, and no memory in common with `x`.

    Raises `ArgumentError` unless `axes` names each mode of `x` once, and for an `out` that does not fit.
    """
    source = read("permute", "x", x, (*ALL, *FLOAT8))
    order = order_of(axes, len(source.shape))
    shape = tuple(source.shape[n] for n in order)
    target = result("permute", out, source, shape, source.dtype, types=(source.dtype,), reads=(source,))
    if 0 not in shape:
        _copy(target, source, shape, tuple(source.info.strides[n] for n in order))
    return target.array


def _copy(target: Operand, source: Operand, shape: Shape, strides: Shape) -> None:
    """Copy to `target`, whose shape is given, what lies in the source's memory with these strides."""
    alignment = math.gcd(target.info.pointer, source.info.pointer, VECTOR_BYTES)
    move = move_of(shape, target.info.strides, strides, source.dtype.bytes, alignment)
    kind = _BITS[move.size]
    fastest, last = move.fastest, len(move.extents) - 1
    if fastest == last:
        extents = move.extents if last else (1, *move.extents)
        y, x = (
            operand.view(extents, steps if last else (0, *steps), kind)
            for operand, steps in ((target, move.to), (source, move.source))
        )
        _copy_rows(move, y, x)
        return
    mode = interleaved(move)
    if mode is not None:
        _interleave(move, mode, target, source)
        return
    beside = neighbours(move)
    batch = [n for n in range(last) if n not in (fastest, *beside)]
    (rows, run), (columns, across) = (_joined(move, n, near) for n, near in zip((last, fastest), beside, strict=True))
    plan = tile_plan(move.size, rows, columns, (run, across), move.is_far)

    def seen(x: Operand, steps: Shape, first: int, near: int | None, second: int, extent: int) -> View:
        """Return the array as matrices: `first`, and which of its runs, by the other mode, `extent` numbers."""
        modes = [*batch, first, *([] if near is None else [near]), second]
        return x.view((*(move.extents[n] for n in modes[:-1]), extent), tuple(steps[n] for n in modes), kind)

    tall, wide = plan.smem.shape
    blocks = -(-rows // tall) * -(-columns // wide) * math.prod(move.extents[n] for n in batch)
    y = seen(target, move.to, fastest, beside[1], last, rows)
    x = seen(source, move.source, last, beside[0], fastest, columns)
    launcher(transpose_tiles, blocks, plan.threads)(y, x, plan)


def _joined(move: Move, mode: int, near: int | None) -> tuple[int, int | None]:
    """Return the extent of a mode of a tile, and that of its runs where another mode tells these apart."""
    extent = move.extents[mode]
    return (extent, None) if near is None else (extent * move.extents[near], extent)


def neighbours(move: Move) -> tuple[int | None, int | None]:
    """Return the modes that tell runs of a tile's columns, and of its rows, apart, where there are several.

    A run is a mode that one array has last, and of less than 256 bytes. What follows it there is the next run, and the
    tile has both: of x, (q, p) in the order of y, there is then (r, q, p).

    >>> neighbours(move_of((8, 64, 64), (4096, 64, 1), (1, 512, 32768), 2))  # y[p, r, q] = x[q, r, p]
    (1, None)
    >>> neighbours(move_of((8, 64, 512), (32768, 512, 1), (1, 512, 32768), 2))
    (None, None)
    """
    last, fastest = len(move.extents) - 1, move.fastest
    found: list[int | None] = [None, None]
    for which, mode, steps in ((0, last, move.to), (1, fastest, move.source)):
        run = move.extents[mode]
        if steps[mode] == 1 and run & (run - 1) == 0 and run * move.size < _LINE:
            others = (n for n in range(last) if n not in (fastest, found[0]) and steps[n] == run)
            found[which] = next(others, None)
    return found[0], found[1]


def interleaved(move: Move) -> int | None:
    """Return the short mode whose numbers lie together in one array, and in the other one far apart, or None.

    >>> interleaved(move_of((3, 4096), (4096, 1), (1, 3), 2))  # y[p, q] = x[q, p]
    0
    """
    last, fastest = len(move.extents) - 1, move.fastest
    for mode, other, steps, row in ((fastest, last, move.source, 64), (last, fastest, move.to, 16)):
        count = move.extents[mode]
        # Tiles are as good where their rows are whole sectors that are read, or vectors that are written.
        is_narrow = count * move.size < row or count & (count - 1) > 0
        if is_narrow and count <= _TOGETHER and steps[mode] == 1 and steps[other] == count:
            return mode
    return None


def _interleave(move: Move, mode: int, target: Operand, source: Operand) -> None:
    last, fastest, count, kind = len(move.extents) - 1, move.fastest, move.extents[mode], _BITS[move.size]
    other = fastest if mode == last else last
    batch, each = [n for n in range(last) if n != fastest], VECTOR_BYTES // move.size
    extents, many = [move.extents[n] for n in batch], move.extents[other]

    def seen(x: Operand, steps: Shape) -> View:
        lead = [steps[n] for n in batch]
        if steps[mode] == 1 and steps[other] == count:
            return x.view((*extents, many * count), (*lead, 1), kind)
        return x.view((*extents, count, many), (*lead, steps[mode], steps[other]), kind)

    smem, tiles = interleaving_plan(move.size, count)
    blocks = -(-many // (each * _ROW)) * math.prod(extents)
    launcher(copy_interleaved, blocks, _ROW)(seen(target, move.to), seen(source, move.source), count, smem, tiles)


@lru_cache(maxsize=256)
def interleaving_plan(size: int, count: int) -> tuple[Any, Any]:
    """Return the shared memory of a block that interleaves `count` rows, and who copies what lies together.

    A thread's vectors are neighbours: those of eight threads, `count` apart, meet in banks as often as 2 divides it.
    """
    each, twos = VECTOR_BYTES // size, (count & -count).bit_length() - 1
    swizzle = tw.Swizzle(min(3, twos), each.bit_length() - 1, max(3, twos))
    smem = tw.composition(swizzle, tw.Layout(_ROW * each * count))
    return smem, tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(_ROW), tw.Layout(each))


def _copy_rows(move: Move, y: View, x: View) -> None:
    columns, lead = move.extents[-1], (*move.to[:-1], *move.source[:-1])
    vector = math.gcd(VECTOR_BYTES, move.alignment, *(step * move.size for step in lead))
    width = vector // move.size if move.to[-1] == move.source[-1] == 1 else 1
    each = _HELD // move.size
    threads = min(_ROW, _power(-(-columns // each)))
    tiles = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(threads), tw.Layout(max(1, width)))
    held, beside = threads * each, _ROW // threads
    rows = math.prod(move.extents[:-1])
    launcher(copy_rows, -(-rows // beside) * -(-columns // held), (threads, beside))(y, x, tiles, held)


def order_of(axes: Any, rank: int) -> Shape:
    """Return axes counted from the front."""
    try:
        given = tuple(int(n.__index__()) for n in axes)
    except (TypeError, AttributeError):
        raise ArgumentError(f"axes are {axes!r}, and numbers of modes are expected, such as (1, 0)") from None
    if sorted(n % rank if -rank <= n < rank else rank for n in given) != list(range(rank)):
        raise ArgumentError(
            f"axes are {given}, and x has {rank} modes", help=f"name each of 0 to {rank - 1} once, in any order"
        )
    return tuple(n % rank for n in given)
