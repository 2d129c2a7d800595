"""Pictures of thread-value layouts and tilings: which thread holds each element, which part a thread or block takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tilewright.arguments import instance
from tilewright.atoms import CopyAtom
from tilewright.draw.layout_pictures import LIMIT, Limit, frame_of, value_text
from tilewright.draw.model import PAPER, Cell, Drawing, Grid, categorical
from tilewright.dtypes import DType, uint8, uint16, uint32, uint64
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import LayoutError
from tilewright.layout import ComposedLayout, Layout, crd2idx, idx2crd
from tilewright.layout.layouts import static_offsets
from tilewright.layout.tuples import leaves, show
from tilewright.tensors import CoordinateEngine, NumpyEngine, Tensor, identity_tensor
from tilewright.tiled import TiledCopy, make_tiled_copy

_NOTE = "T: thread, V: its value"
KEY = "the thread mod 32"


def thread_cells(
    layout_tv: Layout, shape: Any, first: int = 0, threads: Iterable[int] | None = None
) -> tuple[Callable[[Any], Cell], int]:
    """Return the cell of each coordinate of a tile, and how many threads hold one element.

    `layout_tv` maps (thread, value) to elements of the column-major tile of that shape, counted from element
    `first`. `threads` are the numbers of the threads that are looked at, by default all. An element of several threads
    is labelled with the first of them and the number of others.
    """
    values = static_offsets(layout_tv[1])
    holders: dict[int, dict[int, int]] = {}
    for thread in range(int(layout_tv[0].size)) if threads is None else threads:  # type: ignore[arg-type]  # static
        begin = first + layout_tv[0](thread)
        for value, offset in enumerate(values):
            holders.setdefault(begin + offset, {}).setdefault(thread, value)

    def cell(coord: Any) -> Cell:
        held = holders.get(crd2idx(coord, shape))  # type: ignore[arg-type]  # a static coordinate has an integer index
        if held is None:
            return Cell(("-",), faded=True)
        thread = next(iter(held))
        others = f"+{len(held) - 1}" if len(held) > 1 else ""
        return Cell((f"T{thread}{others}", f"V{held[thread]}"), categorical(thread))

    return cell, max([len(h) for h in holders.values()])


def holder_notes(shared: int) -> tuple[str, ...]:
    """Return the note on the labels of cells, where up to `shared` threads hold an element."""
    if shared == 1:
        return (_NOTE,)
    return (f"{_NOTE}; +n: held by n more threads",)


def copy_drawing(copy: TiledCopy, dtype: DType | None = None, limit: Limit = LIMIT) -> Drawing:
    """Draw a tiled copy: source and destination side by side, or once where they are equal.

    Each element has its thread and value.

    Widths of copy atoms are in bits, so the picture depends on the element type: the narrowest that fits by default.
    """
    chosen = _fitting_type(copy) if dtype is None else dtype
    frame = frame_of(copy.tile_shape, limit, str(copy))
    row: list[Grid | None] = []
    shared = 1
    sides = [("source", copy.layout_src_tv(chosen)), ("destination", copy.layout_dst_tv(chosen))]
    if _same_places(*[layout_tv for _, layout_tv in sides]):
        sides = [("source and destination", sides[0][1])]
    for title, layout_tv in sides:
        cell, held = thread_cells(layout_tv, copy.tile_shape)
        shared = max(shared, held)
        row.append(frame.grids(cell, title)[0][0])
    title = f"{copy.atom}: {copy.size} threads x {copy.values} values"
    about = f"tile {show(copy.tile_shape)} of {chosen.bits}-bit elements"
    return Drawing((tuple(row),), title, (about, *frame.notes, *holder_notes(shared)), KEY)


def _same_places(a: Layout, b: Layout) -> bool:
    """Say whether two layouts of threads and values lead to the same elements."""
    sizes = [[int(layout[mode].size) for mode in (0, 1)] for layout in (a, b)]  # type: ignore[arg-type]  # static
    threads, values = sizes[0]
    return sizes[0] == sizes[1] and all(a(t, v) == b(t, v) for t in range(threads) for v in range(values))


def atom_drawing(atom: CopyAtom, dtype: Any = None, limit: Limit = LIMIT) -> Drawing:  # Any: names an element type
    """Draw a copy atom: threads down, the values of each across.

    By default elements have 16 bits where several threads carry the copy out together, which move matrices of those,
    and else as many as fit of 32.
    """
    if dtype is not None:
        element = as_dtype(dtype)
    else:
        widest = uint16 if atom.threads > 1 else uint32
        fitting = [t for t in (uint8, uint16, uint32) if t.bits <= widest.bits and (atom.bits or 32) % t.bits == 0]
        element = fitting[-1] if fitting else uint8
    tiled = make_tiled_copy(atom, Layout((atom.threads, 1)), Layout((1, atom.values(element))))
    return copy_drawing(tiled, element, limit)


def _fitting_type(copy: TiledCopy) -> DType:
    """Return the narrowest unsigned type of which the copy's atom moves a whole number, and no more than there are."""
    bits = copy.atom.bits
    if bits is None:
        return uint32
    for dtype in (uint8, uint16, uint32, uint64):
        if bits % dtype.bits == 0 and copy.values % copy.atom.values(dtype) == 0:
            return dtype
    raise LayoutError(
        f"{copy} cannot be drawn: no element of 8 to 64 bits fits its atom", help="give the element type: dtype="
    )


Part = Tensor | Callable[[Tensor], Tensor]


def tiling(whole: Any, *parts: Part, limit: Limit = LIMIT) -> Drawing:  # Any: a tensor, layout or shape
    """Draw a tensor, layout or shape with parts of it marked, such as one thread's partition or one block's tile.

    A part is a function from a tensor to its part, which works for all of them, or a part that was cut from the host
    tensor `whole` itself. Marked cells show their position in the part below their offset (or value); each part has its
    own colour.

    >>> import tilewright as tw
    >>> threads = tw.Layout((2, 2))
    >>> drawing = tiling((4, 4), lambda t: tw.local_partition(t, threads, 3))
    >>> print(tw.draw.text(drawing))
    tiling of (4,4):(1,4)
             0       1       2       3
      ┌────────────────────────────────
    0 │      0       4       8      12
    1 │      1  [ 5 #0]      9  [13 #2]
    2 │      2       6      10      14
    3 │      3  [ 7 #1]     11  [15 #3]
    #n: element n of the part

    Raises `LayoutError` when a part is not one of the tensor's.
    """
    kinds = (int, tuple, Layout, ComposedLayout, Tensor)
    instance("draw.tiling", "whole", whole, kinds, "a tensor, a layout or a shape")
    for part in parts:
        if not callable(part):
            instance("draw.tiling", "each part", part, Tensor, "a function from a tensor to its part, or a tensor")
    tensor = _as_tensor(whole)
    shape = tensor.shape
    frame = frame_of(shape, limit, "a tensor")
    owners: dict[Any, list[tuple[int, int]]] = {}
    for number, part in enumerate(parts):
        for place, coord in enumerate(_coords_of(part, tensor)):
            owners.setdefault(coord, []).append((number, place))

    def cell(coord: Any) -> Cell:
        label = value_text(tensor, coord)
        held = owners.get(_flat(coord, shape))
        if held is None:
            return Cell((label,), PAPER, faded=bool(parts))
        number, place = held[0]
        others = f"+{len(held) - 1}" if len(held) > 1 else ""
        return Cell((label, f"#{place}{others}"), categorical(number), mark=True)

    title = f"tiling of {tensor.layout if not isinstance(whole, Tensor) else tensor.title}"
    notes = ("#n: element n of the part",) if parts else ()
    return Drawing(frame.grids(cell), title, frame.notes + notes)


def _as_tensor(whole: Any) -> Tensor:
    if isinstance(whole, Tensor):
        return whole
    layout = whole if isinstance(whole, (Layout, ComposedLayout)) else Layout(whole)
    # Without memory, an element stands for its own offset.
    return Tensor(CoordinateEngine(0), layout)


def _flat(coord: Any, shape: Any) -> Any:
    """Return a coordinate with one integer for each leaf of the shape, the key that parts are compared by."""
    return tuple(leaves(idx2crd(coord, shape)))


def _coords_of(part: Part, whole: Tensor) -> list[Any]:
    """Return the coordinates of a part's elements in the whole, in the part's own order."""
    if isinstance(part, Tensor):
        return _coords_in_storage(part, whole)
    cut: Any = part(_coordinates_like(whole.shape, whole.dtype))
    if not isinstance(cut, Tensor) or not isinstance(cut.engine, CoordinateEngine):
        raise LayoutError(f"a part is a function from a tensor to a part of it; this one returned {cut!r}")
    return [tuple(leaves(cut[i])) for i in range(_count(cut))]


def _coordinates_like(shape: Any, dtype: DType) -> Tensor:
    """Make the identity tensor of a shape that claims an element type, so that copy atoms see the tensor's own."""
    tensor = identity_tensor(shape)
    engine = CoordinateEngine(tensor.engine.base)
    engine.dtype = dtype
    return Tensor(engine, tensor.layout)


def _coords_in_storage(part: Tensor, whole: Tensor) -> list[Any]:
    ours, theirs = whole.engine, part.engine
    if not isinstance(ours, NumpyEngine) or not isinstance(theirs, NumpyEngine) or ours.storage is not theirs.storage:
        raise LayoutError(
            f"{part.title} was not cut from {whole.title}",
            help="pass the host tensor that it was cut from, or a function: lambda t: tw.local_tile(t, tile, coord)",
        )
    places = {ours.start + whole.layout(i): i for i in range(_count(whole))}
    found = [places.get(theirs.start + part.layout(i)) for i in range(_count(part))]
    return [_flat(i, whole.shape) for i in found if i is not None]


def _count(tensor: Tensor) -> int:
    count = tensor.size
    if not isinstance(count, int):
        raise LayoutError(f"a tensor of shape {show(tensor.shape)} cannot be drawn: an extent is dynamic")
    return count
