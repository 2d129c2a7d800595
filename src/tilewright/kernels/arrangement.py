"""From arrays of any shape to matrices: what `tw.matmul` computes as rank-3 views (M, N, L), (M, K, L), (N, K, L).

Shapes follow NumPy's matmul: batch modes broadcast, a one-dimensional `a` is a row and a one-dimensional `b` a column
that the result does without. A mode is a stride for each array, 0 where the array does not have it, so broadcasting,
folding and transposing are arithmetic on strides:

- contiguous batch modes, of which one continues the other in every array, become one;
- a batch mode along which B stays the same becomes part of M where its matrices' rows are contiguous: the product of
  (8, 128, 64) and (64, 32) is one of 1024 rows; and the same for A and N;
- where D is contiguous along M, D^T = B^T A^T is computed in its place;
- of the batch modes that are left the longest is L, and the host loops over the others.

Where pairs of columns of B give one of D, B is (N, K, 2, L): one stride goes from pair to pair, and one from a column
to its partner, so that halves and interleaved columns differ in strides alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.arch import VECTOR_BYTES
from tilewright.errors import ArgumentError
from tilewright.kernels.pairs import Pairs
from tilewright.kernels.problem import Major
from tilewright.runtime.arrays import ALIGNMENT
from tilewright.transactions import ROW

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Extents:
    """The extents of a product of arrays: M, N, K, the batch, and the shape of the result."""

    m: int
    n: int
    k: int
    batch: Shape
    result: Shape
    rows: bool  # the result has a mode M
    columns: bool  # the result has a mode N
    pairs: Pairs | None = None  # which columns of b give one of the result

    def of_pairs(self, pairs: Pairs | None) -> Extents:
        """Return the extents of a result with one column for two of the product.

        Raises `ArgumentError` where the columns are not pairs.

        >>> extents_of((5, 3), (3, 8)).of_pairs("halves").result
        (5, 4)
        """
        if pairs is None:
            return self
        if not self.columns:
            raise ArgumentError("tw.gated takes pairs of columns of b, and b is a vector", help="pass a matrix")
        if self.n % 2:
            raise ArgumentError(
                f"tw.gated takes pairs of columns of b, and b has {self.n} columns",
                help="b holds the columns of the gate and as many that it multiplies",
            )
        return replace(self, n=self.n // 2, result=(*self.result[:-1], self.n // 2), pairs=pairs)

    def of_pair(self, stride: int) -> tuple[int, int]:
        """Return the strides from pair to pair and between partners, for that of the product's columns."""
        return (2 * stride, stride) if self.pairs == "interleaved" else (stride, self.n * stride)


def extents_of(a: Shape, b: Shape) -> Extents:
    """Return the extents of a @ b; raise `ArgumentError` for shapes that have no product.

    >>> extents_of((5, 1, 4, 3), (2, 3, 6)).result, extents_of((3,), (3, 6)).result
    ((5, 2, 4, 6), (6,))
    """
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise ArgumentError(
                f"{name} has no modes, and matmul takes vectors, matrices and batches of them",
                help="use * to multiply by a number",
            )
    rows, columns = len(a) > 1, len(b) > 1
    k, other = a[-1], b[-2] if columns else b[0]
    if k != other:
        raise ArgumentError(
            f"the shapes {a} and {b} have no product: a has {k} columns and b has {other} rows",
            help=_transposed_help(a, b),
        )
    batch = broadcast_shapes((a[:-2], b[:-2]))
    if batch is None:
        raise ArgumentError(f"the batch modes {a[:-2]} of a and {b[:-2]} of b do not broadcast")
    m, n = a[-2] if rows else 1, b[-1] if columns else 1
    return Extents(m, n, k, batch, (*batch, *(m,) * rows, *(n,) * columns), rows, columns)


def _transposed_help(a: Shape, b: Shape) -> str | None:
    if len(b) > 1 and a[-1] == b[-1]:
        return "b is transposed, it seems: pass b.T (b.mT, b.swapaxes(-1, -2)), which copies nothing"
    if len(a) > 1 and a[-2] == b[-2 if len(b) > 1 else 0]:
        return "a is transposed, it seems: pass a.T (a.mT, a.swapaxes(-1, -2)), which copies nothing"
    return None


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that all broadcast to by NumPy's rule, or None where there is none."""
    rank = max(map(len, shapes))
    result = []
    for extents in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        found = {e for e in extents if e != 1}
        if len(found) > 1:
            return None
        result.append(found.pop() if found else 1)
    return tuple(result)


def broadcast_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Return the strides of an array broadcast to a shape, or None where it does not broadcast.

    >>> broadcast_strides((3, 1), (1, 1), (2, 3, 4))
    (0, 1, 0)
    """
    missing = len(target) - len(shape)
    if missing < 0:
        return None
    result = [0] * missing
    for extent, stride, wanted in zip(shape, strides, target[missing:], strict=True):
        if extent not in (1, wanted):
            return None
        result.append(stride if extent == wanted else 0)
    return tuple(result)


@dataclass(frozen=True)
class Placement:
    """How one array lies as the kernel sees it: rank 3, or 4 of B in pairs, strides in elements.

    `major` is that of `problem.Operand`, and `unit` its mode. Modes of extent 1 have the stride that suits best.
    """

    shape: Shape
    strides: Shape
    major: Major
    unit: int | None

    def alignment(self, pointer: int, bytes: int) -> int:
        """Return the power of two, up to 16, that divides the pointer and all strides but the unit one, in bytes.

        At most 8 where all rows are one, or a stride is negative: TMA, which takes 16, knows no such steps.
        """
        steps = [s * bytes for mode, s in enumerate(self.strides) if mode != self.unit]
        is_repeated = self.unit is not None and self.strides[1 - self.unit] == 0 and self.shape[1 - self.unit] > 1
        if is_repeated or min(self.strides) < 0:
            steps.append(VECTOR_BYTES // 2)
        return ALIGNMENT[math.gcd(pointer, VECTOR_BYTES, *steps) % VECTOR_BYTES]

    def line(self, bytes: int) -> int:
        """Return the power of two, up to a line of the caches, that divides all strides but the unit one, in bytes."""
        return math.gcd(ROW, *[s * bytes for mode, s in enumerate(self.strides) if mode != self.unit])


@dataclass(frozen=True)
class BlockSteps:
    """How the scales of an operand's blocks lie: one for `rows` rows (of `a`; columns of `b`) and a block of K.

    `strides` are those of the rows, of K and of the batch, as the result has it; `depth` is the number of blocks of K.
    """

    of_a: bool
    rows: int
    depth: int
    strides: tuple[int, int, Shape]


@dataclass(frozen=True)
class Arrangement:
    """A product as the kernel computes it.

    `is_swapped`: D^T is computed, and `a` is what the user calls b. `operands` are (M, N, L), as is D; `blocks` are
    (M or N, K, L) in blocks. `offsets` holds for each launch the elements by which D, A, B, the blocks and the operands
    begin later than their arrays.
    """

    is_swapped: bool
    d: Placement
    a: Placement
    b: Placement
    operands: tuple[Placement, ...]
    offsets: tuple[tuple[int, ...], ...]
    blocks: tuple[Placement, ...] = ()


@dataclass(frozen=True)
class _Mode:
    """An extent, and the strides along it of D, A, B and the operands."""

    extent: int
    strides: Shape

    def continues(self, inner: _Mode) -> bool:
        """Say whether one step along this mode is as far as all of the inner one, in every array."""
        steps = zip(self.strides, inner.strides, strict=True)
        return inner.extent == 1 or all(outer == step * inner.extent for outer, step in steps)

    def around(self, inner: _Mode) -> _Mode:
        """Return the mode that runs through the inner one within each step of this one."""
        return _Mode(self.extent * inner.extent, self.strides if inner.extent == 1 else inner.strides)


_D, _A, _B = range(3)


def arrange(
    extents: Extents, d: Shape, a: tuple[Shape, Shape], b: tuple[Shape, Shape], operands: Sequence[Shape],
    blocks: Sequence[BlockSteps] = (), *, folds: bool = True, swaps: bool = True,
) -> Arrangement:  # fmt: skip
    """Return the arrangement for the strides of the result, of a and b with their shapes, of operands and blocks.

    Those of the operands are broadcast to the result already. No extent but K is 0. Where it `folds`, modes of the
    batch may become rows or columns, and where it `swaps`, D^T may be computed.
    """
    batch, rows, columns, pairs = extents.batch, int(extents.rows), int(extents.columns), extents.pairs
    # A block's strides count where a row of it is a row of the operand; others are of use for the batch alone.
    by_result = [
        (*x.strides[2], *(x.strides[0] * x.of_a,) * rows, *(x.strides[0] * (not x.of_a),) * columns) for x in blocks
    ]
    results = (d, *by_result, *operands)
    m_strides, n_strides = ([s[i] if has else 0 for s in results] for i, has in ((-1 - columns, rows), (-1, columns)))
    (_, a_strides), (_, b_strides) = a, b
    batch_a, batch_b = (
        _broadcast_batch(shape[: len(shape) - 1 - has], strides[: len(strides) - 1 - has], batch)
        for (shape, strides), has in ((a, rows), (b, columns))
    )
    m = _Mode(extents.m, (m_strides[0], a_strides[-2] if rows else 0, 0, *m_strides[1:]))
    b_stride, partner = extents.of_pair(b_strides[-1]) if pairs else (b_strides[-1] if columns else 0, 0)
    n = _Mode(extents.n, (n_strides[0], 0, b_stride, *n_strides[1:]))
    k_strides = a_strides[-1], b_strides[-2] if columns else b_strides[0]
    modes = [
        _Mode(extent, (results[0][i], batch_a[i], batch_b[i], *(s[i] for s in results[1:])))
        for i, extent in enumerate(batch)
        if extent > 1
    ]
    if folds and not any(x.of_a and x.rows > 1 for x in blocks):
        m, modes = _fold(m, modes, without=_B)
    if folds and not pairs and not any(not x.of_a and x.rows > 1 for x in blocks):
        n, modes = _fold(n, modes, without=_A)
    modes = _join(modes)
    is_row_major = n.strides[_D] == 1 and n.extent > 1
    is_swapped = swaps and not pairs and m.strides[_D] == 1 and m.extent > 1 and not is_row_major
    first, second = (_B, _A) if is_swapped else (_A, _B)
    if is_swapped:
        m, n, k_strides = n, m, k_strides[::-1]
    modes.sort(key=lambda mode: mode.extent)
    batches = modes.pop() if modes else _Mode(1, (0,) * len(m.strides))

    def placed(array: int) -> Placement:
        return _place_result(*((x.extent, x.strides[array]) for x in (m, n, batches)))

    def placed_blocks(array: int, x: BlockSteps) -> Placement:
        along = m if x.of_a is not is_swapped else n
        shape = -(-along.extent // x.rows), x.depth, batches.extent
        steps = zip(shape, (along.strides[array], x.strides[1], batches.strides[array]), strict=True)
        first, second, third = (_suited(*step) for step in steps)
        return Placement(shape, (first, second, third), "none", 0 if first == 1 else None)

    def placed_operand(array: int, rows: _Mode, k_stride: int) -> Placement:
        steps = ((x.extent, x.strides[array]) for x in (rows, batches))
        return _place_operand(next(steps), (extents.k, k_stride), next(steps))

    others = range(3 + len(blocks), len(m.strides))
    b_placed = placed_operand(second, n, k_strides[1])
    if pairs:
        (*shape, matrices), (*steps, step) = b_placed.shape, b_placed.strides
        b_placed = replace(b_placed, shape=(*shape, 2, matrices), strides=(*steps, partner, step))
    return Arrangement(
        is_swapped,
        placed(_D),
        placed_operand(first, m, k_strides[0]),
        b_placed,
        tuple(placed(array) for array in others),
        _offsets(modes, (_D, first, second, *range(3, len(m.strides)))),
        tuple(placed_blocks(array, x) for array, x in enumerate(blocks, 3)),
    )


def _broadcast_batch(shape: Shape, strides: Shape, batch: Shape) -> Shape:
    found = broadcast_strides(shape, strides, batch)
    assert found is not None, (shape, batch)
    return found


def _fold(inner: _Mode, modes: Sequence[_Mode], *, without: int) -> tuple[_Mode, list[_Mode]]:
    """Make batch modes part of M or N, as long as the array `without` that mode is the same all along them."""
    left = list(modes)
    while True:
        found = next((mode for mode in left if mode.strides[without] == 0 and mode.continues(inner)), None)
        if found is None:
            return inner, left
        inner = found.around(inner)
        left.remove(found)


def _join(modes: Sequence[_Mode]) -> list[_Mode]:
    """Make one mode of contiguous batch modes: those of which one continues the other in every array."""
    left = list(modes)
    while True:
        pairs = itertools.permutations(left, 2)
        found = next(((outer, inner) for outer, inner in pairs if outer.continues(inner)), None)
        if found is None:
            return left
        outer, inner = found
        left = [mode for mode in left if mode is not outer and mode is not inner]
        left.append(outer.around(inner))


def _offsets(modes: Sequence[_Mode], order: Sequence[int]) -> tuple[Shape, ...]:
    """Return where each launch of the host's loop begins in each array."""
    coordinates = itertools.product(*(range(mode.extent) for mode in modes))
    return tuple(
        tuple(sum(i * mode.strides[array] for i, mode in zip(at, modes, strict=True)) for array in order)
        for at in coordinates
    )


_Step = tuple[int, int]  # extent and stride


def _place_result(m: _Step, n: _Step, batch: _Step) -> Placement:
    steps = (_suited(*m), n[1] if n[0] > 1 else 1, _suited(*batch))
    shape = m[0], n[0], batch[0]
    return Placement(shape, steps, "MN", 1) if steps[1] == 1 else Placement(shape, steps, "none", None)


def _place_operand(rows: _Step, k: _Step, batch: _Step) -> Placement:
    (extent, row_step), (length, k_step) = rows, k
    major: Major = "none"
    if length > 1 and k_step == 1:
        major, row_step = "K", _suited(extent, row_step)
    elif extent > 1 and row_step == 1:
        major, k_step = "MN", _suited(length, k_step)
    elif length <= 1:  # one column, whose elements lie apart: as good as a row each
        major, k_step, row_step = "K", 1, _suited(extent, row_step)
    elif extent <= 1:
        major, row_step = "MN", 1
    unit = {"K": 1, "MN": 0}.get(major)
    return Placement((extent, length, batch[0]), (row_step, k_step, _suited(*batch)), major, unit)


def _suited(extent: int, stride: int) -> int:
    """Return a stride, or where it is not used the one that every power of two divides."""
    return stride if extent > 1 else 0
