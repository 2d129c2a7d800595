"""Accumulators of matrix products, seen as rows and columns, reduced along rows, and handed on as an operand.

A thread's part of C is a fragment (V, M, N): V are the values of one instruction, M and N its repetitions. Which of
them lie in one row of C is said by the thread-value layout of the mma. For mma.sync of 16 x 8, V is (2, 2), two
neighbouring columns of each of two rows:

    (V, M, N) = ((2, 2), M, N)    ->    (rows, columns) = ((2, M), (2, N))

A row's other columns are in the four lanes of a quad.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright.arguments import given, instance
from tilewright.atoms.mma import MMAAtom
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import LanguageError
from tilewright.instructions.shuffle import shuffle_xor
from tilewright.language.combining import Operation, Values, tree
from tilewright.language.groups import Exchange, Group
from tilewright.layout import Layout, coalesce, composition
from tilewright.layout.layouts import flat_modes, from_modes, inside
from tilewright.tensors import Tensor
from tilewright.tiled import TiledMMA, make_tiled_mma
from tilewright.trace.control import nest
from tilewright.trace.mathematics import where
from tilewright.trace.memory import registers
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.threads import lane_id
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    import numpy as np

    Table = np.ndarray[Any, np.dtype[np.intp]]


# --- rows and columns ------------------------------------------------------------------------------------


def accumulator_rows(mma: Any, acc: Tensor) -> Tensor:  # Any: a TiledMMA or an atom
    """Return the same values of C's fragment (V, M, N) as (rows, columns), without a copy.

    `mma` is the tiled mma, or the atom, whose fragment it is. M and N may be left out. It also works on what
    `partition_C` returns for an array, or for an identity tensor of the coordinates.

    Law: for a thread, all values of one row of the result lie in one row of C, and values of different rows in
    different ones; so do columns. Both are in ascending order within an instruction.

    >>> import numpy as np, tilewright as tw
    >>> mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN)
    >>> acc = tw.tensor(np.zeros(16), tw.Layout(((2, 2), 2, 2)))
    >>> print(tw.accumulator_rows(mma, acc).layout)
    ((2,2),(2,2)):((2,4),(1,8))

    Raises `LanguageError` for a fragment that is not of this mma. Source: FlashAttention, convert_layout_acc_rowcol.
    """
    atom = _atom(mma, "tw.accumulator_rows")
    _check(atom, acc, "tw.accumulator_rows")
    rows, columns = _value_modes(atom)

    def change(layout: Layout) -> Layout:
        parts = [composition(layout[0], side) for side in (rows, columns)]
        rest = [layout[mode] if mode < layout.rank else Layout(1, 0) for mode in (1, 2)]
        return from_modes(tuple(from_modes((part, more)) for part, more in zip(parts, rest, strict=True)))

    return acc.map_layout(inside(change))


@cache
def _value_modes(atom: MMAAtom) -> tuple[Layout, Layout]:
    """Return which values of a thread's part of C step along a column of C, that is from row to row, and along a row.

    C is column-major: strides below its number of rows lead to other rows, their multiples to other columns.
    """
    rows = atom.shape_mnk[0]
    sides: tuple[list[tuple[int, int, int]], ...] = [], []
    place = 1
    for extent, stride in zip(*flat_modes(atom.layout_c[1]), strict=True):
        assert isinstance(extent, int) and isinstance(stride, int), atom.layout_c
        assert stride % rows == 0 or (extent - 1) * stride < rows, (atom.name, atom.layout_c)
        if extent > 1:
            sides[stride % rows == 0].append((stride, extent, place))
        place *= extent
    return _layout_of(sides[0]), _layout_of(sides[1])


def _layout_of(modes: list[tuple[int, int, int]]) -> Layout:
    """Return the layout of (stride in C, extent, stride among the values), by ascending strides in C."""
    parts = [Layout(extent, place) for _, extent, place in sorted(modes)] or [Layout(1, 0)]
    return parts[0] if len(parts) == 1 else from_modes(tuple(parts))


def _atom(mma: Any, what: str) -> MMAAtom:
    atom = mma.atom if isinstance(mma, TiledMMA) else mma
    if not isinstance(atom, MMAAtom):
        raise LanguageError(
            f"{what} takes a tiled mma or an atom first, got {given(mma)}",
            help=f"write {what}(mma, acc): a fragment does not say which instruction it is of",
        )
    if atom.layout_d is not None:
        raise LanguageError(
            f"{what}: {atom} holds D otherwise than C, and a fragment does not say which of the two it is",
            help=f"take an atom whose C and D are both {atom.dtype_d}",
        )
    return atom


def _tiled(mma: Any, what: str) -> TiledMMA:
    atom = _atom(mma, what)
    return mma if isinstance(mma, TiledMMA) else make_tiled_mma(atom)


def _check(atom: MMAAtom, acc: Any, what: str, *, static: bool = False) -> None:
    """Refuse what is not a fragment of C of an atom, or not the part of C that a thread has."""
    instance(what, "acc", acc, Tensor, "a fragment of C")
    values = atom.layout_c[1].size
    modes = acc.layout.rank
    if (static and not acc.layout.is_static) or not 1 <= modes <= 3 or acc.layout[0].size != values:
        raise LanguageError(
            f"{what}: C of {atom} is a fragment (V, M, N) of {values} values V, got {acc.title}",
            help="take the fragment of partition_fragment_C, or make_fragment_C, of this mma",
        )


# --- rows over threads -----------------------------------------------------------------------------------


def reduce_rows(mma: Any, acc: Tensor, op: Any = "add") -> Tensor:  # Any: a TiledMMA or an atom; a name or function
    """Return `op` over each row of C's tile: a fragment of shape (rows, 1), for the rows of `accumulator_rows`.

    First the thread combines its own values of a row, then all threads that have values of it exchange theirs, so that
    each of them gets the result: lanes by shuffles, warps that divide the row through shared memory, for which all
    threads of the tiled mma synchronise once. Thread t of each `mma.span` threads of the block has slice t. `op` is as
    in `tw.reduce`; a function of the user must also be commutative, because a row's columns are spread over lanes.

    Law: the values of a thread are combined as a tree of neighbours, those of the lanes by pairs, the lowest bit
    of the lane number first, and those of the warps as a tree of neighbours.

    Raises `LanguageError` where the threads of a row are not a power of two.
    """
    tiled = _tiled(mma, "tw.reduce_rows")
    _check(tiled.atom, acc, "tw.reduce_rows", static=True)
    rows = accumulator_rows(tiled, acc)
    warp = current("tw.reduce_rows").arch.warp_size
    masks = _threads_of_row(tiled)
    values = Values.of(acc, "tw.reduce_rows")
    operation = Operation.of(op, values, "tw.reduce_rows")
    count, columns = (rows.layout[mode].size for mode in (0, 1))
    assert isinstance(count, int) and isinstance(columns, int), rows.title
    found = []
    for row in range(count):
        own = tree(operation, [operation.prepared([rows[row, column]]) for column in range(columns)])
        for mask in masks:
            if mask < warp:
                own = _paired(operation, own, mask)
        found.append(own[0])
    across = [mask for mask in masks if mask >= warp]
    if across:
        found = _over_warps(Group.of(tiled.span, "tw.reduce_rows"), operation, found, across)
    result = registers(found[0].dtype, Layout((rows.shape[0], 1)))  # type: ignore[index]  # two modes
    for row, value in enumerate(found):
        result[row, 0] = value
    return result


def _over_warps(group: Group, operation: Operation, rows: list[Scalar], masks: list[int]) -> list[Scalar]:
    """Combine a value of each row with those of the threads whose numbers differ by the masks, in their order."""
    exchange = Exchange(group, [rows[0].dtype], len(rows) * group.size)
    (memory,) = exchange.next()
    rank = group.rank()
    for row, value in enumerate(rows):
        memory[rank + row * group.size] = value
    group.meet()
    offsets = [0]
    for mask in masks:
        offsets += [offset + mask for offset in offsets]
    first = rank & ~sum(masks)
    return [
        tree(operation, [[memory[first + (offset + row * group.size)]] for offset in offsets])[0]
        for row in range(len(rows))
    ]


def _paired(operation: Operation, own: list[Scalar], mask: int) -> list[Scalar]:
    """Combine with the lane that differs in a bit; both compute the same, bit for bit."""
    other = [shuffle_xor(value, mask) for value in own]
    if operation.commutes:
        return operation(own, other)
    is_lower = (lane_id() & mask) == 0
    lower = [as_scalar(where(is_lower, x, y)) for x, y in zip(own, other, strict=True)]
    upper = [as_scalar(where(is_lower, y, x)) for x, y in zip(own, other, strict=True)]
    return operation(lower, upper)


@cache
def _threads_of_row(mma: TiledMMA) -> tuple[int, ...]:
    """Return the bits of the thread number by which the threads differ that have values of one row of C."""
    import numpy as np

    threads = _thread_places(mma, "C")
    rows, columns = threads % mma.tile_size(0), threads // mma.tile_size(0)
    numbers = np.arange(mma.span)
    masks = []
    for bit in range((mma.span - 1).bit_length()):
        other = numbers ^ (1 << bit)
        if (other >= mma.span).any() or not (rows[other] == rows).all():
            continue
        if (columns[other] != columns).all():  # and not a copy of the same part, of atoms along K
            masks.append(1 << bit)
    shared_by = len(np.unique(columns[rows == rows[0]]))
    if 1 << len(masks) != shared_by:
        raise LanguageError(
            f"tw.reduce_rows: a row of C is spread over {shared_by} threads, whose numbers do not differ by bits",
            details=[f"mma: {mma}"],
            help="lay 1, 2, 4 or 8 atoms along N, such as make_tiled_mma(atom, (4, 1)): then a warp has whole rows",
        )
    return tuple(masks)


def _thread_places(mma: TiledMMA, operand: Any, shape: tuple[int, int] | None = None) -> Table:
    """Return the element of an operand's column-major tile at which the part of each thread begins."""
    import numpy as np

    first, second = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}[operand]
    extents = shape or (mma.tile_size(first), mma.tile_size(second))
    arranged = mma.thread_fragment_layout(Layout(extents), operand)
    vector, places = arranged[0][0], arranged[0][1]
    found = []
    for thread in range(mma.span):  # with those that are copies of others
        coordinate = mma.thr_layout_vmnk.get_flat_coord(thread)
        value: Any = coordinate[0]
        if operand == "C" and mma.atom.row_block[1] > 1:
            value = (value, mma.atom.row_block[0])
        found.append(vector(value) + places((coordinate[1 + first], coordinate[1 + second])))
    return np.array(found)


# --- the accumulator as the next operand -----------------------------------------------------------------


def as_operand_a(mma: Any, acc: Tensor, dtype: Any = None, *, to: Any = None) -> Tensor:
    """Return C's fragment as the fragment of A for the next product, converted: P V after S = Q K^T, in registers.

    `mma` produced the accumulator and `to` reads the operand (the same mma unless given): the columns of C are its K.
    The element type is that of A. The result has the modes (V, M, K) of `partition_fragment_A`.

    Law: element (m, k) of A, in the thread and value where `to` reads it, is the converted element (m, k) of C.

    It works where every thread has the values itself, as with mma.sync of 16 x 8 x 16 on float16 and bfloat16, of
    16 x 8 x 8 on float16, and of 8 x 8 x 4 on float16. Raises `LanguageError` elsewhere, saying which value is missing.
    """
    what = "tw.as_operand_a"
    source, target = _tiled(mma, what), _tiled(mma if to is None else to, what)
    _check(source.atom, acc, what, static=True)
    element = target.atom.dtype_a if dtype is None else as_dtype(dtype)
    if element.storage is not target.atom.dtype_a.storage:
        raise LanguageError(
            f"{what}: A of {target.atom} is {target.atom.dtype_a}, not {element}",
            help=f"leave the type out, or name the mma that takes {element}: to=",
        )
    repeats = [acc.layout[mode].size if mode < acc.layout.rank else 1 for mode in (1, 2)]
    # Of atoms, not of tiles: a tile that was widened holds several atoms of a thread along a mode.
    threads: Any = source.thr_layout_vmnk.shape
    once = [source.atom.shape_mnk[mode] * threads[1 + mode] for mode in (0, 1)]
    shape = (once[0] * repeats[0], once[1] * repeats[1])
    places = _places_in_c(source, target, shape)
    result = registers(element.storage, Layout(target.partition_shape(shape, "A")))
    if places == tuple(range(len(places))):  # as of warpgroups: one loop, which is shorter in every form of the kernel
        narrow, wide = result.map_layout(coalesce), acc.map_layout(coalesce)

        def convert(n: Any) -> None:
            narrow[n] = wide[n].to(element)

        nest((len(places),), convert, unroll=True)
        return result
    for n, place in enumerate(places):
        result[n] = acc[place].to(element)
    return result


@cache
def _places_in_c(source: TiledMMA, target: TiledMMA, shape: tuple[int, int]) -> tuple[int, ...]:
    """Return for each value of a thread's part of A which value of its part of C that is, the same in all threads."""
    m, n = shape
    if source.span != target.span or m % target.tile_size(0) or n % target.tile_size(2):
        raise LanguageError(
            f"tw.as_operand_a: C is {m} x {n} in {source.size} threads, and A of the next product has tiles of "
            f"{target.tile_size(0)} x {target.tile_size(2)} in {target.size} threads",
            help="let both products have the same threads along M, and N of the first be a multiple of the second's K",
        )
    in_c, in_a = _thread_places(source, "C", shape), _thread_places(target, "A", shape)
    arranged = (
        source.thread_fragment_layout(Layout(shape), "C")[1],
        target.thread_fragment_layout(Layout(shape), "A")[1],
    )
    values_c, values_a = ([part(v) for v in range(part.size)] for part in arranged)  # type: ignore[arg-type]  # static
    held = {place: v for v, place in enumerate(values_c)}
    shift = int(in_a[0] - in_c[0])
    for thread in range(source.span):
        has = {int(in_c[thread]) + place for place in values_c}
        for place in values_a:
            needed = int(in_a[thread]) + place
            if needed not in has or needed - int(in_c[thread]) != place + shift:
                raise _elsewhere(source, target, thread, needed % m, needed // m, is_there=needed in has)
    return tuple(held[place + shift] for place in values_a)


def _elsewhere(
    source: TiledMMA, target: TiledMMA, thread: int, row: int, column: int, *, is_there: bool
) -> LanguageError:
    missing = "in another register than other threads" if is_there else "in another thread"
    return LanguageError(
        f"tw.as_operand_a: A of {target.atom} needs element ({row}, {column}) in thread {thread}, and C of "
        f"{source.atom} has it {missing}",
        details=[f"C, thread and value to element: {source.layout_c_tv}", f"A: {target.layout_a_tv}"],
        help="take an atom whose C and A agree, such as 16 x 8 x 16 on float16 or bfloat16 with all threads along M, "
        "or write C to shared memory and partition it as A",
    )
