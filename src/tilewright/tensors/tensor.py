"""The Tensor: an engine that holds elements, and a layout that says where each coordinate finds its own.

The same `Tensor` works on NumPy storage on the host and on values of a kernel's IR; only the engine differs.
Slicing and tiling move the engine and change the layout, and never copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tilewright.arguments import instance
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError, LanguageError, LayoutError
from tilewright.layout.coordinates import Offset, add_offsets, checked_coord, has_kept
from tilewright.layout.display import Displayed
from tilewright.layout.ints import Coord, Int, Shape
from tilewright.layout.layouts import Layout, from_modes, modes_of
from tilewright.layout.modes import make_fragment_like as fragment_layout_like
from tilewright.layout.modes import make_layout_like, select, slice_and_offset
from tilewright.layout.recasting import demand_whole_groups
from tilewright.layout.recasting import recast as recast_layout
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import show, tuple_size
from tilewright.tensors import host
from tilewright.tensors.arithmetic import Arithmetic
from tilewright.tensors.associative import NAMED
from tilewright.tensors.broadcasting import modes_of_shape
from tilewright.tensors.slicing import is_part, resolve, slice_mode

if TYPE_CHECKING:
    import numpy as np


class Tensor(Arithmetic, Displayed):
    """Elements seen through a layout: `t[i, j]` reads, `t[i, j] = v` writes, `t[:, j]` is a view of the same elements.

    `:` and None keep a mode. A single index on a tensor of several modes is linear, first mode fastest.

    >>> import numpy as np, tilewright as tw
    >>> t = tw.tensor(np.arange(12).reshape(3, 4))
    >>> t[1, 2], t.shape, t.stride, t.T.shape
    (np.int64(6), (3, 4), (4, 1), (4, 3))
    >>> t[:, 3]
    host int64 (3):(4)
     3  7 11
    """

    __slots__ = ("engine", "layout")
    engine: Any  # an Engine; Any so that a kernel's engine may offer more
    layout: Layout | ComposedLayout

    # NumPy leaves `array + tensor` and the like to the tensor.
    __array_ufunc__ = None

    def __init__(self, engine: Any, layout: Layout | ComposedLayout) -> None:  # Any: see `engine`
        object.__setattr__(self, "engine", engine)
        object.__setattr__(self, "layout", layout)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Tensor is frozen; cannot set {name}")

    def __reduce__(self) -> tuple[type[Tensor], tuple[Any, Layout | ComposedLayout]]:
        # A shallow copy sees the same elements, as a view does; a deep one and an unpickled one have their own.
        return Tensor, (self.engine, self.layout)

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def stride(self) -> Any:  # Any: nested strides of any kind
        return self.layout.stride

    @property
    def dtype(self) -> DType:
        found: DType = self.engine.dtype
        return found

    @property
    def space(self) -> str:
        """Where the elements live: "host", "global", "shared", "register" or "coordinate"."""
        found: str = self.engine.space
        return found

    @property
    def size(self) -> Int:
        """The number of elements."""
        return tuple_size(self.layout.shape)

    @property
    def rank(self) -> int:
        """The number of top-level modes."""
        return self.layout.rank

    @property
    def T(self) -> Tensor:
        """The transposed view: the modes in reverse."""
        return self.map_layout(lambda layout: select(layout, *reversed(range(layout.rank))))

    def map_layout(self, change: Callable[[Any], Any]) -> Tensor:
        """Return the same elements under `change(layout)`."""
        return Tensor(self.engine, change(self.layout))

    def with_engine(self, engine: Any) -> Tensor:  # Any: see `engine`
        """Return the same layout over another engine."""
        return Tensor(engine, self.layout)

    def compose(self, *tilers: Any) -> Tensor:  # Any: as Layout.compose
        """Return the tensor seen through a tiler: the law is result(i) == self(tiler(i))."""
        return self.map_layout(lambda layout: layout.compose(*tilers))

    def __getitem__(self, coord: Any) -> Any:  # Any: coordinates; an element or a view
        """Return the element at a coordinate, or the view that keeps the modes given as `:`, None or a slice."""
        parts = _slices(coord, self.layout)
        if parts is not None:
            return self._sliced(parts)[tuple([None if isinstance(c, slice) else c for c in parts])]
        c = _full_coord(coord, self.layout)
        if has_kept(c):
            return self._view(c)
        place = self._place(c)
        try:
            return self.engine.load(place)
        except IndexError as error:
            raise IndexError(f"coordinate {show(c)} of {self.title} is outside its storage: {error}") from None

    def __setitem__(self, coord: Any, value: Any) -> None:
        """Write the element at a coordinate, or every element of a view."""
        parts = _slices(coord, self.layout)
        if parts is not None:
            self._sliced(parts)[tuple([None if isinstance(c, slice) else c for c in parts])] = value
            return
        c = _full_coord(coord, self.layout)
        if has_kept(c):
            host.fill_view(self._view(c), value)
            return
        place = self._place(c)
        try:
            self.engine.store(place, value)
        except IndexError as error:
            raise IndexError(f"coordinate {show(c)} of {self.title} is outside its storage: {error}") from None

    def _sliced(self, parts: tuple[Any, ...]) -> Tensor:
        """Return the view of all modes, with the parts of those that are sliced."""
        if len(parts) == 1:
            taken = {0: (parts[0], self.layout)}  # a single index is linear, over all modes
        else:
            taken = {k: (part, self.layout[k]) for k, part in enumerate(parts) if isinstance(part, slice)}
        spans = {k: resolve(part, tuple_size(mode.shape), self.title) for k, (part, mode) in taken.items()}
        offsets: list[Offset] = []

        def change(layout: Layout | ComposedLayout) -> Any:
            if isinstance(layout, ComposedLayout):
                inner = change(layout.inner)
                if isinstance(layout.inner, ComposedLayout):
                    raise LayoutError(f"a slice of {layout}: the offset of a nested composition is not affine")
                first, offsets[:] = offsets[0], [0]
                return ComposedLayout(layout.outer, add_offsets(layout.offset, first), inner)
            modes = [layout] if len(parts) == 1 else list(modes_of(layout))
            total: Offset = 0
            for k, (start, count, step) in spans.items():
                modes[k], offset = slice_mode(modes[k], self._index_typed(start), count, step, self.title)  # type: ignore[arg-type]
                total = add_offsets(total, offset)
            offsets[:] = [total]
            return modes[0] if len(parts) == 1 and type(layout.shape) is not tuple else from_modes(modes)

        layout = change(self.layout)
        engine = self.engine if type(offsets[0]) is int and offsets[0] == 0 else self.engine.offset(offsets[0])
        if hasattr(engine, "sliced"):
            engine = engine.sliced(self.layout, layout, spans)
        return Tensor(engine, layout)

    def _view(self, coord: Coord) -> Tensor:
        if coord is None:
            return self
        _check_coord(coord, self.layout.shape, self)
        coord = self._index_typed(coord)
        if isinstance(self.layout, ComposedLayout):
            return Tensor(self.engine, self.layout.slice_and_offset(coord))
        layout, offset = slice_and_offset(self.layout, coord)
        engine = self.engine if type(offset) is int and offset == 0 else self.engine.offset(offset)
        if type(coord) is tuple and hasattr(engine, "modes_kept"):
            engine = engine.modes_kept(self.layout, layout, coord)
        return Tensor(engine, layout)

    def moved(self, coord: Coord) -> Tensor:
        """Return the same layout starting at the element at a coordinate, see `tw.domain_offset`."""
        coord = self._index_typed(coord)
        if isinstance(self.layout, ComposedLayout):
            first = self.layout.slice_and_offset(coord)
            return Tensor(self.engine, ComposedLayout(first.outer, first.offset, self.layout.inner))
        return self.with_engine(self.engine.offset(self.layout(coord)))

    def __delitem__(self, coord: Any) -> None:  # Any: a coordinate
        raise LayoutError(f"{self.title} has a fixed shape, and its elements cannot be deleted")

    def offset_of(self, coord: Any) -> Any:  # Any: coordinates and offsets of all kinds
        """Return the offset of the element at a coordinate from the engine's first."""
        return self._place(_full_coord(coord, self.layout))

    def _place(self, coord: Coord) -> Offset:
        _check_coord(coord, self.layout.shape, self)
        typed = self._index_typed(coord)  # refuses what is not an integer
        check = getattr(self.engine, "demand_inside", None)
        if check is not None:
            check(coord, self.layout)
        place: Offset = self.layout(typed)
        return place

    def _index_typed(self, coord: Coord) -> Coord:
        """Return a coordinate in the type of the engine's offsets, before it is multiplied by strides."""
        convert = getattr(self.engine, "coordinate", None)
        if convert is None:
            return coord
        if type(coord) is tuple:
            return tuple([self._index_typed(c) for c in coord])
        found: Coord = convert(coord)
        return found

    def __iter__(self) -> Iterator[Any]:
        raise LayoutError(
            "a Tensor cannot be iterated over: which mode to go along is not said",
            help="loop over indices: for i in range(size): t[i], or call t.to_numpy() on the host",
        )

    def __len__(self) -> int:
        raise LayoutError("a Tensor has no len()", help="use .size for the number of elements, .rank for that of modes")

    def reduce(
        self, op: Any, mode: Any = None, *, init: Any = None, keep: bool = False
    ) -> Any:  # Any: a name or function, an int or several; a number or a tensor
        """Combine the elements along modes by an associative function, and return a tensor of the other modes.

        `op` is "add", "mul", "min", "max", "and", "or", "xor", or a function of two values that gives one of their
        type. `mode` is a number or a tuple of them; with all modes, which is the default, the result is one number.
        With `keep`, the modes stay with extent 1, so that the result matches the tensor. The result is op(init, result)
        where `init` is given. bool is added and multiplied as int32.

        The order depends on the number n of elements that are combined, and on nothing else. They are taken with the
        first of the modes fastest and cut into 4, 2 or 1 equal runs: the largest of these numbers that leaves runs of
        at least two. Each run is combined from its first element to its last, and runs in pairs: (r0 + r1) + (r2 + r3).

        >>> import numpy as np, tilewright as tw
        >>> t = tw.tensor(np.arange(6).reshape(2, 3))
        >>> t.reduce("add"), t.reduce("max", 1).to_numpy()
        (np.int64(15), array([2, 5]))

        Raises `ArgumentError` for another op or mode, `LanguageError` for a dynamic shape.
        """
        if not callable(op) and not (isinstance(op, str) and op in NAMED):
            raise ArgumentError(f"reduce: op is {op!r}", help=f"one of {', '.join(NAMED)}, or a function")
        given = range(self.rank) if mode is None else mode if isinstance(mode, (tuple, list)) else (mode,)
        modes = tuple(sorted({k + self.rank if type(k) is int and k < 0 else k for k in given}))
        if not modes or any(type(k) is not int or not 0 <= k < self.rank for k in modes):
            raise ArgumentError(f"reduce: mode is {mode!r}, and {self.title} has modes 0 to {self.rank - 1}")
        parts = modes_of_shape(self.shape)
        left: tuple[Any, ...] = tuple(1 if k in modes else s for k, s in enumerate(parts) if keep or k not in modes)
        shape = left or None
        if hasattr(self.engine, "reduce"):
            return self.engine.reduce(self, op, modes, shape, init)
        return host.reduce(self, op, modes, shape, init)

    def inside(self, coord: Any) -> Any:  # Any: a coordinate; a bool, of a guarded tile perhaps a device bool
        """Return whether the element at a coordinate exists: always, except in guarded tiles (see `tw.guarded`)."""
        _check_coord(_full_coord(coord, self.layout), self.layout.shape, self)
        return True

    @property
    def residue(self) -> Any:  # Any: an integer for each mode
        """The number of elements of each mode that exist: all, except in guarded tiles (see `tw.guarded`)."""
        shape = self.layout.shape
        return tuple([tuple_size(s) for s in shape]) if isinstance(shape, tuple) else shape

    def to(self, dtype: Any) -> Tensor:  # Any: whatever names an element type
        """Return a new tensor, in a kernel a fragment of the thread's registers, with the elements converted.

        Law: t.to(d)[c] == t[c].to(d) for every coordinate c, with the shape of t. Conversions to 8-bit floats go two at
        a time.

        >>> import numpy as np, tilewright as tw
        >>> tw.tensor(np.array([1.5, 2.25])).to(tw.float16)
        host float16 (2):(1)
         1.5 2.25

        Raises `LayoutError` for a dynamic shape.
        """
        element = as_dtype(dtype)
        result = compact_fragment(self, element.storage)
        convert = getattr(self.engine, "convert_into", None)
        if convert is None:
            for i in range(host.static_size(result)):
                result[i] = element(self[i])
        else:
            convert(self, result, element)
        return result

    def recast(self, dtype: Any) -> Tensor:  # Any: whatever names an element type
        """Return the same bytes as elements of another type, in every memory space, on the host and in a kernel.

        The mode of stride 1 is divided by the ratio of the widths, or multiplied by it.

        >>> import numpy as np, tilewright as tw
        >>> tw.tensor(np.array([1.0, 2.0], np.float32)).recast(tw.uint16)
        host uint16 (4):(1)
            0 16256     0 16384

        Raises `LayoutError` when the layout does not divide into whole elements of it, `LanguageError` in a kernel when
        the first element is not known to be aligned to it. Source: CuTe `recast`.
        """
        new = as_dtype(dtype)
        layout = recast_layout(self.layout, self.dtype.bits, new.bits)
        if new.bits > self.dtype.bits:
            demand_whole_groups(self.layout, new.bits // self.dtype.bits)
        return Tensor(self.engine.recast(new), layout)

    def at_rank(self, rank: Any) -> Tensor:  # Any: an integer of host or device
        """Return the same tensor in the shared memory of the block `rank` of the cluster, for loads and stores.

        Separate the accesses of two blocks by `tw.cluster_sync()` or an mbarrier. Raises `LanguageError` for a tensor
        that is not in the block's shared memory. Source: PTX ISA, mapa; CUDA, cluster_group::map_shared_rank.
        """
        map_rank = getattr(self.engine, "at_rank", None)
        if map_rank is None:
            raise LanguageError("at_rank: a block reaches shared memory of another, which kernels have")
        return self.with_engine(map_rank(rank))

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Return a host tensor as an array with one axis for each top-level mode: a view where the strides allow it.

        >>> import numpy as np, tilewright as tw
        >>> tw.tensor(np.arange(6), tw.Layout((2, 3), (1, 2))).to_numpy()
        array([[0, 2, 4],
               [1, 3, 5]])

        Raises `LayoutError` when the tensor is not on the host or has no static layout.
        """
        return host.to_array(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        import numpy as np

        array = self.to_numpy()
        return np.array(array, dtype=dtype, copy=True) if copy or dtype is not None else array

    @property
    def title(self) -> str:
        """One line that names the tensor: the argument or variable in a kernel, space, element type and layout."""
        name = getattr(self.engine, "name", "")
        return f"{name + ', ' if name else ''}{self.space} {self.dtype} {self.layout}"

    def __repr__(self) -> str:
        if self.space != "host" or not self.layout.is_static:
            return f"Tensor({self.title})"
        return host.to_text(self)


def fragment_like(t: Tensor, dtype: Any = None) -> Tensor:  # Any: whatever names an element type
    """Make registers in the shape of a tensor, compact, of its own or another element type.

    The modes keep the order of the tensor's strides; modes of stride 0 stay at stride 0.

    >>> import numpy as np, tilewright as tw
    >>> fragment_like(tw.tensor(np.zeros((4, 2)))).stride
    (2, 1)

    Raises `LayoutError` when the shape is dynamic: registers have to be counted. Source: CuTe `make_tensor_like`.
    """
    instance("fragment_like", "t", t, Tensor, "a tensor")
    return _registers(t, make_layout_like(_ordering(t)), dtype)


def make_fragment_like(t: Tensor, dtype: Any = None) -> Tensor:  # Any: whatever names an element type
    """Make registers in the shape of a tensor: mode 0, an instruction's values, column-major, the others in order.

    >>> import numpy as np, tilewright as tw
    >>> make_fragment_like(tw.tensor(np.zeros((2, 4, 8)))).stride
    (1, 16, 2)

    Raises `LayoutError` when the shape is dynamic: registers have to be counted. Source: CuTe `make_fragment_like`.
    """
    instance("make_fragment_like", "t", t, Tensor, "a tensor")
    return _registers(t, fragment_layout_like(_ordering(t)), dtype)


def compact_fragment(t: Tensor, dtype: Any = None) -> Tensor:  # Any: whatever names an element type
    """Make registers in the shape of a tensor, column-major; raises `LayoutError` as `fragment_like` does."""
    instance("a fragment", "t", t, Tensor, "a tensor")
    return _registers(t, Layout(t.shape), dtype)


def _ordering(t: Tensor) -> Layout:
    """Return the plain layout whose strides say in which order a fragment holds the elements."""
    layout: Any = getattr(t, "order", t.layout)  # a guarded tensor's; Any: a layout, perhaps inside of composed ones
    while isinstance(layout, ComposedLayout):
        layout = layout.inner
    assert isinstance(layout, Layout), t
    return layout


def _registers(t: Tensor, layout: Layout, dtype: Any) -> Tensor:
    if not layout.is_static:
        raise LayoutError(
            f"a fragment needs a static shape, not {show(t.shape)}", help="tile the tensor by static extents first"
        )
    new = t.dtype if dtype is None else as_dtype(dtype)
    return Tensor(t.engine.fragment(layout, new), layout)


def _slices(coord: Any, layout: Layout | ComposedLayout) -> tuple[Any, ...] | None:
    """Return a coordinate, `...` written out, in which a mode is sliced; None where none is."""
    if is_part(coord):
        return (coord,)
    if type(coord) is not tuple or not any(is_part(c) for c in coord):
        return None
    if any(c is Ellipsis for c in coord):
        at = next(i for i, c in enumerate(coord) if c is Ellipsis)
        coord = coord[:at] + (None,) * (layout.rank - len(coord) + 1) + coord[at + 1 :]
    if len(coord) != layout.rank:
        raise LayoutError(
            f"{len(coord)} indices for a tensor of {layout.rank} modes",
            help="give one index or slice for each mode; a single one is linear over all of them",
        )
    return tuple([None if isinstance(c, slice) and not is_part(c) else c for c in coord])


def _full_coord(coord: Any, layout: Layout | ComposedLayout) -> Coord:
    """Return a checked coordinate, with `...` written out as kept modes."""
    if coord is Ellipsis:
        return None
    if isinstance(coord, tuple) and any(c is Ellipsis for c in coord):
        at = next(i for i, c in enumerate(coord) if c is Ellipsis)
        coord = coord[:at] + (None,) * (layout.rank - len(coord) + 1) + coord[at + 1 :]
    c = checked_coord(coord)
    return c[0] if type(c) is tuple and len(c) == 1 and type(layout.shape) is not tuple else c


def _check_coord(coord: Coord, shape: Any, tensor: Tensor) -> None:  # Any: a Shape, with None where all is legal
    """Refuse a static coordinate that lies outside a static extent."""
    if shape is None:
        return
    if type(coord) is tuple:
        if type(shape) is not tuple or len(shape) != len(coord):
            raise LayoutError(
                f"coordinate {show(coord)} does not fit shape {show(shape)}",
                details=[f"tensor: {tensor.title}"],
                help="give one index for each mode, or a single linear index",
            )
        for c, s in zip(coord, shape, strict=True):
            _check_coord(c, s, tensor)
    elif type(coord) is int:
        extent = tuple_size(shape)
        if coord < 0 or (type(extent) is int and coord >= extent):
            counted = "; an index counts from the front" if coord < 0 else ""
            raise IndexError(f"index {coord} is outside an extent of {extent}, in a tensor {tensor.title}{counted}")
