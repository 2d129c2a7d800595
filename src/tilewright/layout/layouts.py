"""The Layout: a shape and congruent strides, which together map coordinates to offsets.

`lift` is the one dispatch for everything that carries a layout: composed layouts and tensors map the layout inside
them.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeAlias

from tilewright.arguments import given, shown
from tilewright.errors import ArgumentError, LayoutError
from tilewright.layout.composer import compose_strides
from tilewright.layout.coordinates import Offset, checked_coord, collect_modes, has_kept, offset_of
from tilewright.layout.display import Displayed
from tilewright.layout.ints import (
    Basis,
    Coord,
    DynamicInt,
    Int,
    Leaf,
    Shape,
    Stride,
    add,
    as_int,
    floordiv,
    is_static,
    mod,
    mul,
    need_static,
    sub,
)
from tilewright.layout.text import parse_layout
from tilewright.layout.tuples import (
    checked_stride,
    compact_strides,
    congruent_tuples,
    leaves,
    same,
    show,
    tuple_depth,
    tuple_size,
    unflatten,
)


class Layout(Displayed):
    """A function from coordinates to offsets: `shape` is the set of coordinates, `stride` what each step adds.

    Shape and stride are integers or congruent nested tuples. Without a stride the layout is column-major
    compact. A layout is frozen, hashable, and checked when it is made.

    >>> layout = Layout((4, 8), (8, 1))
    >>> layout(1, 2), layout((1, 2)), layout(9)
    (10, 10, 10)
    >>> print(layout), print(Layout(((2, 2), 8)))
    (4,8):(8,1)
    ((2,2),8):((1,2),4)
    (None, None)

    Raises `LayoutError` when shape and stride differ in nesting, or an extent is not positive.
    """

    __slots__ = ("_hash", "_static", "shape", "stride")
    shape: Shape
    stride: Stride
    _static: bool | None
    _hash: int

    def __init__(self, shape: Any, stride: Any = None) -> None:  # Any: ints and nested sequences, checked here
        checked = _checked_shape(shape)
        _set_shape(self, checked)
        if stride is None:
            _set_stride(self, compact_strides(checked)[0])
        else:
            steps = checked_stride(stride)
            if not congruent_tuples(checked, steps):
                raise LayoutError(
                    f"shape {show(checked)} and stride {show(steps)} are nested differently",
                    help="give one stride for each extent",
                )
            _set_stride(self, steps)
        _set_static(self, None)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Layout is frozen; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Layout is frozen; cannot delete {name}")

    def __reduce__(self) -> tuple[type[Layout], tuple[Shape, Stride]]:
        return (Layout, (self.shape, self.stride))

    @property
    def is_static(self) -> bool:
        """True when no leaf is dynamic."""
        known = self._static
        if known is None:
            known = is_static(self.shape) and is_static(self.stride)
            _set_static(self, known)
        return known

    @property
    def rank(self) -> int:
        """The number of top-level modes; an integer shape has one."""
        return len(self.shape) if type(self.shape) is tuple else 1

    @property
    def depth(self) -> int:
        """The depth of nesting: 0 for an integer shape, 1 for a flat tuple."""
        return tuple_depth(self.shape)

    @property
    def size(self) -> Int:
        """The number of coordinates."""
        return tuple_size(self.shape)

    @property
    def cosize(self) -> Int:
        """One more than the largest offset, see `cosize`."""
        return cosize(self)

    def __call__(self, *coord: Any) -> Any:  # Any: coordinates; an offset, or a layout where a mode is kept
        """Return the offset of a linear index or coordinate, or the sub-layout where modes are kept with None."""
        c: Coord = coord[0] if len(coord) == 1 else coord
        if type(c) is int:
            return offset_of(c, self.shape, self.stride)
        if type(c) is tuple and type(self.shape) is tuple and len(c) == len(self.shape):
            total = 0
            for x, d in builtins.zip(c, self.stride, strict=True):  # type: ignore[arg-type]  # hot, and congruent
                if type(x) is not int or type(d) is not int:
                    break
                total += x * d
            else:
                return total
        c = checked_coord(c)
        if has_kept(c):
            return pick(self, c, keep=True)
        return offset_of(c, self.shape, self.stride)

    def __getitem__(self, mode: int | slice) -> Layout:
        """Return one top-level mode, or a run of modes, as a layout."""
        modes = list(modes_of(self))
        if isinstance(mode, slice):
            return from_modes(modes[mode])
        try:
            return modes[mode]
        except IndexError:
            raise IndexError(f"layout {self} has {len(modes)} modes; mode {mode} is not there") from None
        except TypeError:
            raise LayoutError(
                f"layout[mode] takes the number of a mode or a slice of modes, not {shown(mode)}",
                help="the offset of a coordinate is layout(coordinate)",
            ) from None

    def __len__(self) -> int:
        return self.rank

    def get_hier_coord(self, index: Any) -> Any:  # Any: integers in, coordinate out
        """Return the coordinate that leads to an offset, nested as the shape: the inverse of calling the layout.

        Law: layout(layout.get_hier_coord(x)) == x for every offset x of the layout.

        >>> Layout(((2, 2), 8), ((8, 16), 1)).get_hier_coord(10)
        ((1, 0), 2)

        Coordinates of modes with stride 0 are 0; an offset that the layout does not have wraps around in each mode.
        Raises `LayoutError` when the strides are dynamic or do not step over one another. Source: CuTe
        `Layout::get_hier_coord`.
        """
        return unflatten(_leaf_coords(self, index), self.shape)

    def get_flat_coord(self, index: Any) -> Any:  # Any: integers in, coordinate out
        """Return the coordinate that leads to an offset, with one integer for each top-level mode.

        Law: layout(layout.get_flat_coord(x)) == x for every offset x of the layout.

        >>> Layout(((2, 2), 8), ((8, 16), 1)).get_flat_coord(10)
        (1, 2)

        See `get_hier_coord`. Source: CuTe `Layout::get_flat_coord`.
        """
        hier = self.get_hier_coord(index)
        if type(hier) is not tuple:
            return (hier,)
        shapes = self.shape
        assert type(shapes) is tuple, self  # nested as its coordinates
        return tuple([offset_of(c, s, compact_strides(s)[0]) for c, s in builtins.zip(hier, shapes, strict=True)])

    def with_shape(self, *shape: Any) -> Layout:  # Any: integers or a nested tuple
        """Return this layout on other coordinates of the same linear index: composition with `Layout(shape)`.

        >>> print(Layout(12, 2).with_shape(3, 4))
        (3,4):(2,6)
        """
        other = Layout(shape[0] if len(shape) == 1 else shape)
        return raw_layout(*compose_strides(self.shape, self.stride, other.shape, other.stride))

    def compose(self, *tilers: Any) -> Any:  # Any: a layout, or one tiler a mode with None for untouched modes
        """Return `composition(self, tiler)`; several tilers go mode by mode."""
        tiler = tilers[0] if len(tilers) == 1 else tilers
        if isinstance(tiler, Layout):
            return raw_layout(*compose_strides(self.shape, self.stride, tiler.shape, tiler.stride))
        if isinstance(tiler, (tuple, list)):
            return _compose_by_mode(self, tuple(tiler))
        if tiler is None:
            return self
        then = getattr(tiler, "_then", None)  # what is not a plain layout composes itself
        return self.compose(Layout(tiler)) if then is None else then(self)

    @staticmethod
    def from_text(text: str) -> Layout:
        """Read a layout as `str` writes it; blanks are free, and the stride may be left out.

        Law: Layout.from_text(str(layout)) == layout for every static layout within the limits: 10,000 characters, 64
        brackets in brackets, numbers below 2**63, and basis strides of modes 0 to 63, at most 8 in one another.

        >>> Layout.from_text("(4,8):(8,1)") == Layout((4, 8), (8, 1))
        True

        Raises `LayoutError` at the first character that does not belong, and for what is beyond a limit.
        """
        return Layout(*parse_layout(text))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not Layout:
            return NotImplemented
        if (self._static or self.is_static) and (other._static or other.is_static):
            return self.shape == other.shape and self.stride == other.stride
        return same(self.shape, other.shape) and same(self.stride, other.stride)

    def __hash__(self) -> int:
        try:  # computed when first asked for
            return self._hash
        except AttributeError:
            pass
        if self.is_static:
            value = hash((self.shape, self.stride))
            _set_hash(self, value)
            return value
        keys = [
            x if type(x) is int or isinstance(x, Basis) else id(x) for x in leaves(self.shape) + leaves(self.stride)
        ]
        return hash(tuple(keys))

    def __repr__(self) -> str:
        return f"Layout({self.shape!r}, {self.stride!r})"

    def __str__(self) -> str:
        return f"{show(self.shape)}:{show(self.stride)}"


# The slots' own setters: Layout.__setattr__ refuses, and these cost less than object.__setattr__.
_new = object.__new__
_set_shape = Layout.__dict__["shape"].__set__
_set_stride = Layout.__dict__["stride"].__set__
_set_hash = Layout.__dict__["_hash"].__set__
_set_static = Layout.__dict__["_static"].__set__


def raw_layout(shape: Shape, stride: Stride, static: bool | None = None) -> Layout:
    """Make a layout of parts known to be right, without checks."""
    layout: Layout = _new(Layout)
    _set_shape(layout, shape)
    _set_stride(layout, stride)
    _set_static(layout, static)
    return layout


def _leaf_coords(layout: Layout, offset: Int) -> list[Int]:
    """Return the coordinate of each leaf, least stride first: offset // stride % extent."""
    shape, stride = flat_modes(layout)
    offset = as_int(offset, "the offset")
    result: list[Int] = [0] * len(shape)
    steps = []
    for i, d in enumerate(stride):
        if isinstance(d, Basis):
            raise LayoutError(f"get_hier_coord of {layout}: offsets of basis strides are coordinates already")
        step = need_static(d, "get_hier_coord", "every stride")
        if step != 0 and not (type(shape[i]) is int and shape[i] == 1):
            steps.append((step, i))
    steps.sort()
    for at, (d, i) in enumerate(steps):
        following = steps[at + 1] if at + 1 < len(steps) else None
        extent = shape[i]
        fits = following is None or (following[0] % d == 0 and type(extent) is int and following[0] >= d * extent)
        if d < 0 or not fits:
            raise LayoutError(
                f"get_hier_coord of {layout}: stride {d} and the next larger do not step over one another",
                help="use a layout whose modes do not overlap, like a compact one",
            )
        result[i] = mod(floordiv(offset, d), extent)
    return result


def _checked_shape(x: object) -> Shape:
    if type(x) is int:
        if x > 0:
            return x
        raise LayoutError(f"an extent is {x}", help="extents are at least 1")
    if isinstance(x, (tuple, list)):
        return tuple([_checked_shape(v) for v in x])
    if isinstance(x, DynamicInt):
        return x
    if isinstance(x, Layout):
        raise LayoutError(
            f"a layout stands where a shape is expected: {x}", help="use its .shape, or make_layout to join layouts"
        )
    return _checked_shape(as_int(x, "an extent"))


def modes_of(layout: Layout) -> tuple[Layout, ...]:
    """Return the top-level modes as layouts; an integer shape is its own one mode."""
    if type(layout.shape) is not tuple:
        return (layout,)
    static = True if layout._static else None
    return tuple([raw_layout(s, d, static) for s, d in builtins.zip(layout.shape, layout.stride, strict=True)])  # type: ignore[arg-type]


def from_modes(modes: Any) -> Layout:  # Any: an iterable of layouts
    """Join layouts as the top-level modes of one, without checks."""
    parts = list(modes)
    return raw_layout(tuple([m.shape for m in parts]), tuple([m.stride for m in parts]))


def pick(layout: Layout, coord: Coord, keep: bool) -> Layout:
    """Return the modes at which a checked coordinate is None (`keep`), or is not."""
    if type(coord) is not tuple:
        return layout if (coord is None) == keep else raw_layout((), (), True)
    shape: list[Shape] = []
    stride: list[Stride] = []
    collect_modes(coord, layout.shape, layout.stride, keep, shape, stride)
    return raw_layout(tuple(shape), tuple(stride), True if layout._static else None)


def flat_modes(layout: Layout) -> tuple[list[Int], list[Leaf]]:
    """Return the leaves of a layout's shape and stride."""
    shape, stride = layout.shape, layout.stride
    if type(shape) is not tuple:
        return [shape], [stride]  # type: ignore[list-item]
    return leaves(shape), leaves(stride)


def _compose_by_mode(a: Layout, tiler: tuple[Tiler, ...]) -> Layout:
    modes = modes_of(a)
    if len(tiler) > len(modes):
        raise LayoutError(
            f"composition({a}, {show(tiler)}): the tiler has {len(tiler)} modes, the layout {len(modes)}",
            help="a tuple goes mode by mode; for a reshape compose with Layout(shape)",
        )
    parts = [mode.compose(entry) for mode, entry in builtins.zip(modes, tiler, strict=False)]
    if not all(isinstance(part, Layout) for part in parts):
        raise LayoutError(
            f"composition({a}, {show(tiler)}): the modes of a tiler are plain layouts, and one here is swizzled",
            help="compose with plain layouts, and swizzle the result as a whole",
        )
    return from_modes([*parts, *modes[len(tiler) :]])


def static_offsets(layout: Layout) -> list[int]:
    """Return the offsets of all elements, in the order of linear indices; shape and stride are integers."""
    offsets = [0]
    for extent, stride in builtins.zip(*flat_modes(layout), strict=True):
        assert type(extent) is int and type(stride) is int, layout
        offsets = (
            [step + offset for step in range(0, extent * stride, stride) for offset in offsets]
            if stride
            else offsets * extent
        )
    return offsets


def size(x: Any) -> Int:  # Any: a layout, tensor, integer or nested tuple
    """Return the number of elements of a shape, layout or tensor.

    Law: size(x) == the product of all leaves of its shape.

    >>> size((4, (2, 3))), size(Layout((4, 8)))
    (24, 32)

    Source: CuTe `size`.
    """
    try:
        return tuple_size(_shape_of(x, "size"))
    except TypeError:
        raise ArgumentError(f"size: the leaves of x are integers, got {given(x)}") from None


def cosize(layout: Any) -> Int:  # Any: a Layout or ComposedLayout
    """Return the size of the codomain: one more than the largest offset.

    Law: cosize(layout) == 1 + max(layout(i) for i in range(size(layout))).

    >>> cosize(Layout((4, 8), (1, 10)))
    74

    A dynamic stride is taken as not negative. Raises `LayoutError` for basis strides, which have no integer
    offsets. Source: CuTe `cosize` (which counts the absolute values of negative strides; here they add nothing).
    """
    if not isinstance(layout, Layout):
        if not hasattr(layout, "cosize"):
            raise ArgumentError(f"cosize: layout is a Layout or a ComposedLayout, got {given(layout)}")
        other: Int = layout.cosize
        return other
    if layout._static or layout.is_static:
        return 1 + _reach(layout, layout.shape, layout.stride)
    result: Int = 1
    for extent, stride in builtins.zip(*flat_modes(layout), strict=True):
        if isinstance(stride, Basis):
            raise LayoutError(f"cosize({layout}): a layout with basis strides has no integer offsets")
        if type(stride) is int and stride < 0:
            continue
        result = add(result, mul(sub(extent, 1), stride))
    return result


def _reach(layout: Layout, shape: Any, stride: Any) -> int:
    """Return the largest offset of a static layout."""
    if type(shape) is not tuple:
        shape, stride = (shape,), (stride,)
    result = 0
    for s, d in builtins.zip(shape, stride, strict=True):  # hot, and congruent
        if type(d) is int:
            if d > 0:
                result += (s - 1) * d
        elif type(d) is tuple:
            result += _reach(layout, s, d)
        else:
            raise LayoutError(f"cosize({layout}): a layout with basis strides has no integer offsets")
    return result


def rank(x: Any) -> int:  # Any: a layout, tensor, integer or nested tuple
    """Return the number of top-level modes; an integer has one.

    >>> rank((4, (2, 3))), rank(7), rank(Layout((4, 8)))
    (2, 1, 2)

    Source: CuTe `rank`.
    """
    shape = _shape_of(x, "rank")
    return len(shape) if isinstance(shape, tuple) else 1


def depth(x: Any) -> int:  # Any: a layout, tensor, integer or nested tuple
    """Return the depth of nesting: 0 for an integer, 1 for a flat tuple.

    >>> depth(7), depth((4, (2, 3)))
    (0, 2)

    Source: CuTe `depth`.
    """
    return tuple_depth(_shape_of(x, "depth"))


def _shape_of(x: Any, function: str) -> Any:  # Any: a layout, tensor, integer or nested tuple; its shape
    if isinstance(x, (tuple, int, DynamicInt)):
        return x
    try:
        return x.shape
    except AttributeError:
        raise ArgumentError(
            f"{function}: x is a layout, a tensor, an integer or a nested tuple, got {given(x)}"
        ) from None


def static_flat(layout: Layout, operation: str, what: str) -> tuple[list[int], list[int]]:
    """Return the leaves of a layout that has to be static with integer strides, or raise."""
    shape, stride = flat_modes(layout)
    for extent in shape:
        need_static(extent, operation, f"the shape of {what}")
    for step in stride:
        if isinstance(step, Basis):
            raise LayoutError(f"{operation} of {layout}: {what} has basis strides, and integer strides are needed")
        need_static(step, operation, f"the strides of {what}")
    return shape, stride  # type: ignore[return-value]


Tiler: TypeAlias = "int | DynamicInt | Layout | tuple[Tiler, ...] | None"
"""How to tile: an extent, a layout, None for "leave this mode", or a tuple of those, one for each mode."""

__all__ = [
    "Layout", "Offset", "Tiler", "cosize", "depth", "flat_modes", "from_modes", "modes_of", "rank", "raw_layout",
    "size", "static_flat",
]  # fmt: skip


def lift(operation: Callable[..., Any], x: Any, *arguments: Any) -> Any:  # Any: a tensor gives a tensor
    """Apply a layout operation to what is not a plain Layout: through `map_layout`, or to a shape's own layout."""
    mapper = getattr(x, "map_layout", None)
    if mapper is not None:
        return mapper(lambda layout: operation(layout, *arguments))
    return operation(as_layout(x), *arguments)


def inside(operation: Callable[[Layout], Layout]) -> Callable[[Any], Any]:  # Any: plain and composed layouts
    """Return the operation as one that also takes composed layouts, and then changes the plain layout inside."""

    def apply(layout: Any) -> Any:
        mapper = getattr(layout, "map_layout", None)
        return operation(layout) if mapper is None else mapper(apply)

    return apply


def as_layout(x: Any) -> Layout:  # Any: a layout, or a shape that stands for its compact layout
    """Return a layout as it is, and a shape as its compact column-major layout."""
    if isinstance(x, Layout):
        return x
    if isinstance(x, (tuple, list)) and any(isinstance(v, Layout) or v is None for v in x):
        raise LayoutError(f"a tuple of tilers stands where one layout is expected: {show(x)}")
    return Layout(x)
