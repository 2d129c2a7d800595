"""Tiles that overhang: views that know which of their elements lie inside of the tensor that they were cut from.

A `GuardedTensor` keeps two layouts of one shape. `layout` leads to memory, as that of any tensor; `where` has basis
strides and leads to coordinates of the tensor that was guarded. Whatever changes a view changes `where`, and `layout`
follows from it: a step along coordinate k moves by the stride of mode k. So slices, tiles and partitions of every kind
keep the two together, as users of CuTe do by hand with an identity tensor.

    x: 100 x 60, row-major            where                       layout
    tile (32, 16) at (3, 2)           (96, 32) + (i, j)           96 * 60 + 32 + 60 * i + j      28 rows of 4 are inside
    every 8th row from row t on       (96 + t, 32) + (8 * i, j)   ...

Of the first element's coordinate, what depends on the thread (`own`) is kept apart from what all threads of a block
share (`base`): extent - base is the same number for all of them, and comparing it with the tile's extent says for the
whole block whether the tile overhangs at all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, Any

from tilewright.arguments import instance
from tilewright.dtypes import DType
from tilewright.errors import LayoutError
from tilewright.layout.coordinates import Offset, has_kept, offset_of
from tilewright.layout.ints import Basis, Coord, DynamicInt, Int, add, mul, same_int, sub
from tilewright.layout.layouts import Layout, modes_of, raw_layout
from tilewright.layout.modes import slice_and_offset
from tilewright.layout.simplify import coalesce
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import leaves, map_leaves, show, tuple_size, unflatten
from tilewright.tensors.host import fill_view
from tilewright.tensors.tensor import Tensor, _check_coord, _full_coord

if TYPE_CHECKING:
    import numpy as np

_FAR = 1 << 39  # a stride above all of what fits into registers


@dataclass(frozen=True, eq=False)
class Edge:
    """Where a view begins in the tensor that was guarded, with an entry for each leaf of that tensor's shape.

    `shape` and `stride` are the tensor's; coordinates from `begin` up to but not including `end` are inside. The view's
    first element has the coordinate `base` + `own`, which is at least `low` where that is known. `fill` is what
    elements outside read as. `origin` is the engine at coordinate 0, None where that is not known.
    """

    shape: tuple[Int, ...]
    stride: tuple[Int, ...]
    begin: tuple[Int, ...]
    end: tuple[Int, ...]
    fill: Any  # a number of the element type
    base: tuple[Int, ...]
    own: tuple[Int, ...]
    low: tuple[int | None, ...]
    origin: Any = None

    def moved(self, where: Layout, coord: Coord, of_thread: Callable[[Any], bool]) -> Edge:
        """Return the edge of the view at a coordinate of `where`; None in the coordinate keeps a mode."""
        shared, own = _apart(coord, of_thread)
        steps = [self._flat(offset_of(part, where.shape, where.stride)) for part in (shared, own)]
        low = _lowest(coord, where, steps)
        return replace(
            self,
            base=tuple(map(add, self.base, steps[0])),
            own=tuple(map(add, self.own, steps[1])),
            low=tuple(None if a is None or b is None else a + b for a, b in zip(self.low, low, strict=True)),
        )

    def _flat(self, offset: Offset) -> tuple[Any, ...]:
        given = offset if isinstance(offset, tuple) else ()
        return (*given, *[0] * (len(self.shape) - len(given)))

    def place(self, where: Layout, coord: Coord) -> tuple[Any, ...]:
        """Return how far the element at a coordinate of a view lies from the view's first one, along each leaf."""
        return self._flat(offset_of(coord, where.shape, where.stride))

    def left(self, k: int) -> Any:  # Any: an Int that may be compared
        """Return the number of elements from `base` to the end of leaf k: zero or less where base is beyond it."""
        return sub(self.end[k], self.base[k])

    def within(self, k: int, steps: Any) -> Any:  # Any: a bool or a device bool
        """Return whether the element `steps` behind the first one is inside along leaf k."""
        position: Any = add(self.own[k], steps)
        result = known(position < self.left(k))
        if not self.is_behind_start(k, steps):
            place: Any = add(self.base[k], position)
            result = both(result, place >= self.begin[k])
        return result

    def is_behind_start(self, k: int, steps: Any) -> bool:
        """Say whether elements `steps` behind the first one certainly are not before the tensor along leaf k."""
        low, begin = self.low[k], self.begin[k]
        least = steps if type(steps) is int else steps.facts.low
        return low is not None and type(begin) is int and low + least >= begin


def _apart(coord: Coord, of_thread: Callable[[Any], bool]) -> tuple[Any, Any]:
    """Split a coordinate into a sum: what all threads share, and what depends on the thread."""
    if type(coord) is tuple:
        pairs = [_apart(c, of_thread) for c in coord]
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    if coord is None:
        return None, None
    return (0, coord) if of_thread(coord) else (coord, 0)


def _lowest(coord: Coord, where: Layout, steps: list[tuple[Any, ...]]) -> tuple[int | None, ...]:
    """Return the least that a coordinate adds along each leaf, None where it is not known."""
    if all(type(s) is int for part in steps for s in part):
        return tuple(map(operator.add, *steps))
    values = [d.value if isinstance(d, Basis) else d for d in leaves(where.stride)]
    forward = all(type(v) is int and v >= 0 for v in values)
    if forward and all(_at_least_zero(c) for c in leaves(coord)):
        return tuple(0 for _ in steps[0])
    return tuple(0 if type(a) is int and type(b) is int and a == b == 0 else None for a, b in zip(*steps, strict=True))


def _at_least_zero(c: Any) -> bool:
    if c is None or type(c) is int:
        return c is None or c >= 0
    facts = getattr(c, "facts", None)
    return facts is not None and facts.low >= 0


def both(a: Any, b: Any) -> Any:  # Any: bools and device bools
    """Return `a and b`, as a bool where it is known."""
    a, b = known(a), known(b)
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return a & b


def known(condition: Any) -> Any:
    """Return a condition as a bool where its value is known, and as it is elsewhere."""
    facts = getattr(condition, "facts", None)
    if facts is not None and facts.constant is not None:
        return bool(facts.constant)
    return condition if facts is not None else bool(condition)


class GuardedTensor(Tensor):
    """A view of a tensor whose elements outside of it read as `fill`, and are not written.

    >>> import numpy as np, tilewright as tw
    >>> x = tw.tensor(np.arange(1, 16).reshape(3, 5))
    >>> tile = tw.local_tile(x, (2, 4), (1, 1), guard=True, fill=-1)
    >>> tile
    guarded host int64 (2,4):(5,1)
    15 -1 -1 -1
    -1 -1 -1 -1
    >>> tile.residue, tile.inside((0, 0)), tile.inside((1, 0))
    ((1, 1), True, False)
    """

    __slots__ = ("edge", "where")
    edge: Edge
    where: Layout

    def __init__(self, engine: Any, layout: Layout | ComposedLayout, where: Layout, edge: Edge) -> None:
        super().__init__(engine, layout)
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "edge", edge)

    def __reduce__(self) -> tuple[Any, ...]:
        return GuardedTensor, (self.engine, self.layout, self.where, self.edge)

    @property
    def plain(self) -> Tensor:
        """The view without its guard: for who knows which elements are inside."""
        engine = self.engine
        return Tensor(engine.unguarded() if hasattr(engine, "unguarded") else engine, self.layout)

    @property
    def order(self) -> Layout:
        """The layout in whose order fragments hold the elements: two at one place may differ, being inside or not."""
        pairs = zip(leaves(self.layout.stride), leaves(self.where.stride), strict=True)
        steps = [_FAR if same_int(d, 0) and not same_int(place, 0) else d for d, place in pairs]
        return raw_layout(self.layout.shape, unflatten(steps, self.layout.stride))

    @property
    def title(self) -> str:
        return f"guarded {super().title}"

    # --- views ---

    def map_layout(self, change: Callable[[Any], Any]) -> GuardedTensor:
        """Return the same elements under `change(layout)`: coordinates change, and memory follows."""
        where = change(self.where)
        if not isinstance(where, Layout):
            raise LayoutError(
                f"a guarded tile cannot be seen through {where}: where its elements lie is not followed",
                details=[self.title],
                help="copy the tile into shared memory or registers, and change the layout there",
            )
        return GuardedTensor(self.engine, _dressed(self.layout, self._in_memory(where)), where, self.edge)

    def _in_memory(self, where: Layout) -> Layout:
        def step(d: Any) -> Any:
            return mul(self.edge.stride[d.modes[0]], d.value) if isinstance(d, Basis) else d

        return raw_layout(where.shape, map_leaves(step, where.stride))

    def with_engine(self, engine: Any) -> GuardedTensor:
        return GuardedTensor(engine, self.layout, self.where, self.edge)

    def _view(self, coord: Coord) -> GuardedTensor:
        if coord is None:
            return self
        _check_coord(coord, self._checked_shape(coord), self)
        return self.at(coord)

    def at(self, coord: Coord) -> GuardedTensor:
        """Return the view that a coordinate keeps; the coordinate may lie outside."""
        coord = self._index_typed(coord)
        of_thread = getattr(self.engine, "depends_on_thread", _never)
        edge = self.edge.moved(self.where, coord, of_thread)
        where, _ = slice_and_offset(self.where, coord)
        if isinstance(self.layout, ComposedLayout):
            return GuardedTensor(self.engine, self.layout.slice_and_offset(coord), where, edge)
        layout, offset = slice_and_offset(self.layout, coord)
        return GuardedTensor(self.engine.offset(offset), layout, where, edge)

    def moved(self, coord: Coord) -> GuardedTensor:
        """Return the same layout from the element at a coordinate on, which may be outside, see `tw.domain_offset`."""
        coord = self._index_typed(coord)
        edge = self.edge.moved(self.where, coord, getattr(self.engine, "depends_on_thread", _never))
        there = self.plain.moved(coord)
        engine = there.engine.guarded() if hasattr(there.engine, "guarded") else there.engine
        return GuardedTensor(engine, there.layout, self.where, edge)

    def _checked_shape(self, coord: Coord) -> Any:
        """Return the shape, with None for each mode that is all of one of the guarded tensor: any index is legal."""
        if not isinstance(self.shape, tuple):
            return None if self._is_whole(self.where) else self.shape
        if type(coord) is not tuple and self.rank == 1:
            return None if self._is_whole(modes_of(self.where)[0]) else self.shape
        if type(coord) is not tuple or len(coord) != len(self.shape):
            return self.shape
        return tuple(
            None if self._is_whole(mode) else s for mode, s in zip(modes_of(self.where), self.shape, strict=True)
        )

    def _is_whole(self, mode: Layout) -> bool:
        d = mode.stride
        return isinstance(d, Basis) and same_int(d.value, 1) and same_int(mode.shape, self.edge.shape[d.modes[0]])

    def is_cut_from(self, mode: int) -> bool:
        """Say whether a mode is all of a mode of the guarded tensor, so that tiles of it may overhang."""
        return self._is_whole(modes_of(self.where)[mode])

    # --- elements ---

    def inside(self, coord: Any) -> Any:  # Any: a coordinate; a bool or a device bool
        """Return whether the element at a coordinate of the view lies inside of the tensor."""
        c = self._element(coord)
        return self._is_inside(c)

    def _is_inside(self, c: Coord) -> Any:
        steps = self.edge.place(self.where, c)
        return reduce(both, [self.edge.within(k, step) for k, step in enumerate(steps)], True)

    def _element(self, coord: Any) -> Coord:
        c = _full_coord(coord, self.layout)
        if has_kept(c):
            raise LayoutError(
                f"coordinate {show(c)} names no single element of {self.title}",
                help="give an index for each mode; `t.residue` counts the elements inside along each mode",
            )
        shape = self._checked_shape(c)
        _check_coord(c, shape, self)
        checked: Coord = self._index_typed(c)  # refuses what is not an integer
        check = getattr(self.engine, "demand_inside", None)
        if check is not None:
            check(_where_limited(c, shape), self.layout)
        return checked

    def __getitem__(self, coord: Any) -> Any:  # Any: coordinates; an element or a view
        """Return the element at a coordinate, `fill` outside, or the view that keeps the modes given as `:` or None."""
        c = _full_coord(coord, self.layout)
        if has_kept(c):
            return self._view(c)
        c = self._element(c)
        return self.plain.engine.load_where(self._is_inside(c), self.layout(c), self.edge.fill)

    def __setitem__(self, coord: Any, value: Any) -> None:
        """Write the element at a coordinate where it is inside, or every element of a view that is."""
        c = _full_coord(coord, self.layout)
        if has_kept(c):
            fill_view(self._view(c), value)
            return
        c = self._element(c)
        self.plain.engine.store_where(self._is_inside(c), self.layout(c), value)

    @property
    def residue(self) -> Any:  # Any: an integer of host or device for each mode, nested as the shape's top level
        """How many elements of each mode are inside, the others being at its ends.

        Raises `LayoutError` where a mode has no such number: one that steps through memory in several ways (the part
        of a thread, say), or along a mode of the tensor that another one goes along too.
        """
        modes = modes_of(self.where)
        along = [{d.modes[0] for d in leaves(m.stride) if isinstance(d, Basis)} for m in modes]
        counts = []
        for n, mode in enumerate(modes):
            others = set().union(*along[:n], *along[n + 1 :])
            counts.append(self._count(n, coalesce(mode), bool(along[n] & others)))
        return tuple(counts) if isinstance(self.shape, tuple) else counts[0]

    def _count(self, number: int, mode: Layout, is_shared: bool) -> Any:
        d = mode.stride
        if type(d) is int and d == 0:
            return tuple_size(mode.shape)
        if is_shared or not isinstance(d, Basis) or type(d.value) is not int or d.value < 1:
            raise LayoutError(
                f"mode {number} of {self.title} has no single number of elements inside",
                details=[f"coordinates: {self.where}"],
                help="take one tile first, as t[:, :, k], or ask for single elements by t.inside(coord)",
            )
        edge, k, step = self.edge, d.modes[0], d.value
        extent, engine = tuple_size(mode.shape), self.engine
        first = add(edge.base[k], edge.own[k])
        ahead = sub(edge.left(k), edge.own[k])
        count = engine.bounded(add(ahead, step - 1) // step if step > 1 else ahead, extent)
        if edge.is_behind_start(k, 0):
            return count
        missing = sub(edge.begin[k], first)
        before = engine.bounded(add(missing, step - 1) // step if step > 1 else missing, extent)
        return engine.bounded(sub(count, before), extent)

    def narrowed(self) -> GuardedTensor:
        """Return the view guarded as a tensor of its own: what is outside of the view is outside too.

        That concerns modes that are part of a mode of the tensor and step from element to element; of others, tiles
        that overhang stay refused.
        """
        edge, engine = self.edge, self.engine
        modes = modes_of(self.where) if isinstance(self.shape, tuple) else (self.where,)
        along = [d.modes[0] for m in modes for d in leaves(m.stride) if isinstance(d, Basis)]
        fields: dict[str, list[Any]] = {
            name: list(getattr(edge, name)) for name in ("shape", "begin", "end", "base", "own", "low")
        }
        for mode in modes:
            d = mode.stride
            if not isinstance(d, Basis) or not same_int(d.value, 1) or along.count(d.modes[0]) > 1:
                continue
            if self._is_whole(mode):
                continue
            k, extent = d.modes[0], tuple_size(mode.shape)
            first = add(edge.base[k], edge.own[k])
            begin: Any = 0 if edge.is_behind_start(k, 0) else engine.bounded(sub(edge.begin[k], first), extent)
            limits = {"shape": extent, "begin": begin, "end": engine.bounded(sub(edge.end[k], first), extent)}
            for name, number in {**limits, "base": 0, "own": 0, "low": 0}.items():
                fields[name][k] = number
        narrower = replace(edge, origin=None, **{name: tuple(numbers) for name, numbers in fields.items()})
        return GuardedTensor(engine, self.layout, self.where, narrower)

    # --- on the host ---

    def padded(self) -> np.ndarray[Any, Any]:
        """Return the elements of a host view as an array with an axis for each leaf, `fill` where they are outside."""
        import numpy as np

        shape: Any = tuple(leaves(self.shape))  # static on the host
        found = np.empty(shape, self.dtype.numpy)
        for place in product(*map(range, shape)):
            found[place] = self[unflatten(list(place), self.shape)]
        return found


def _where_limited(coord: Coord, shape: Any) -> Any:
    """Return a coordinate with None where the shape has None."""
    if type(coord) is tuple and type(shape) is tuple and len(coord) == len(shape):
        return tuple(None if s is None else c for c, s in zip(coord, shape, strict=True))
    return None if shape is None else coord


def _never(_: Any) -> bool:
    return False


def _dressed(old: Layout | ComposedLayout, inner: Layout) -> Layout | ComposedLayout:
    """Return a layout with another innermost part."""
    if isinstance(old, ComposedLayout):
        return ComposedLayout(old.outer, old.offset, _dressed(old.inner, inner))
    return inner


def guarded(t: Any, fill: Any = 0) -> Any:  # Any: a tensor
    """Return a tensor whose elements outside of its shape read as `fill`, and are not written.

    Every view of it knows where the tensor ends: tiles that reach past it, partitions of them, single elements at any
    coordinate. `tw.local_tile(x, tile, coord, guard=True)` is a tile of `tw.guarded(x)`.

    Law: guarded(t, f)[c] == t[c] for c inside the shape of t, and f elsewhere.

    >>> import numpy as np, tilewright as tw
    >>> x = tw.guarded(tw.tensor(np.arange(4)), fill=9)
    >>> [int(x[i]) for i in (-1, 0, 3, 4)]
    [9, 0, 3, 9]

    Raises `LayoutError` for a fill that the element type cannot represent, and for a tensor that is not in memory.
    """
    instance("tw.guarded", "t", t, Tensor, "a tensor", "on the host tw.tensor(array) makes a tensor of a NumPy array")
    if t.space == "coordinate":
        raise LayoutError("tw.guarded: an identity tensor has no elements to guard", help="guard the data's tensor")
    if isinstance(t, GuardedTensor):
        if not _same_number(t.edge.fill, _checked_fill(fill, t.dtype)):
            raise LayoutError(
                f"what is outside of the tensor reads as {t.edge.fill!r} already, and not as {fill!r}",
                details=[t.title],
                help=f"give fill={t.edge.fill!r}, or guard the tensor once",
            )
        return t.narrowed()
    inner: Any = t.layout
    while isinstance(inner, ComposedLayout):
        inner = inner.inner
    shape = tuple(leaves(inner.shape))
    none: tuple[Int, ...] = (0,) * len(shape)
    units = unflatten([Basis(1, (k,)) for k in range(len(shape))], inner.shape)
    edge = Edge(
        shape, tuple(leaves(inner.stride)), none, shape, _checked_fill(fill, t.dtype), none, none, (0,) * len(shape),
        t.engine if isinstance(t.layout, Layout) else None,
    )  # fmt: skip
    engine = t.engine.guarded() if hasattr(t.engine, "guarded") else t.engine
    return GuardedTensor(engine, t.layout, raw_layout(inner.shape, units), edge)


def _same_number(a: Any, b: Any) -> bool:
    numbers = all(isinstance(x, (bool, int, float)) for x in (a, b))
    return a is b or (numbers and str(float(a)) == str(float(b)))  # NaN is itself, and -0.0 is not 0.0


def _checked_fill(fill: Any, dtype: DType) -> Any:
    """Return a fill as a Python number that the element type has, or the number of a kernel as it is."""
    import numpy as np

    if isinstance(fill, DynamicInt):
        type: Any = getattr(fill, "dtype", dtype)
        if type.is_float and not dtype.is_float:
            raise LayoutError(
                f"the fill of a guarded tile is a {type}, and is not converted to {dtype} implicitly",
                help=f"write fill.to({dtype!r})",
            )
        return fill

    number = fill.item() if hasattr(fill, "item") and getattr(fill, "shape", None) == () else fill
    if not isinstance(number, (bool, int, float)):
        raise LayoutError(
            f"the fill of a guarded tile is {fill!r}, and it must be a number of {dtype}",
            help="give a Python number, such as 0, -1.0 or float('-inf')",
        )
    if dtype.is_float:
        with np.errstate(over="ignore"):
            held = float(dtype.storage.numpy.type(number))
        fits = held == number or number != number or (abs(held) != float("inf") and held == held)
    else:
        fits = not isinstance(number, float) and (
            number in (0, 1) if dtype.kind == "bool" else dtype.lowest <= number <= dtype.highest
        )
    if not fits:
        raise LayoutError(
            f"the fill of a guarded tile is {number!r}, which {dtype} does not have", help="give a number of that type"
        )
    return number


def offsets_of(where: Layout, k: int) -> Layout:
    """Return the layout from coordinates of a view to how far its elements lie along leaf k."""

    def step(d: Any) -> Any:
        return d.value if isinstance(d, Basis) and d.modes[0] == k else 0

    return raw_layout(where.shape, map_leaves(step, where.stride))


def reach(layout: Layout) -> tuple[Any, Any]:
    """Return the least and the greatest offset of a layout with integer strides."""
    low: Any = 0
    high: Any = 0
    for s, d in _steps(layout):
        far = mul(sub(s, 1), d)
        if type(d) is int and d < 0:
            low = add(low, far)
        else:
            high = add(high, far)
    return low, high


def _steps(layout: Layout) -> Iterator[tuple[Any, Any]]:
    for s, d in zip(leaves(layout.shape), leaves(layout.stride), strict=True):
        if not (type(d) is int and d == 0):
            yield s, d
