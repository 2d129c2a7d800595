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
from tilewright.errors import LayoutError
from tilewright.layout.coordinates import Offset, checked_coord
from tilewright.layout.display import Displayed
from tilewright.layout.ints import Coord, Int, Shape
from tilewright.layout.layouts import Layout, has_kept
from tilewright.layout.modes import select, slice_and_offset
from tilewright.layout.recasting import recast as recast_layout
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import show, tuple_size
from tilewright.tensors import host

if TYPE_CHECKING:
    import numpy as np


class Tensor(Displayed):
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

    def compose(self, *tilers: Any) -> Tensor:  # Any: as Layout.compose
        """Return the tensor seen through a tiler: the law is result(i) == self(tiler(i))."""
        return self.map_layout(lambda layout: layout.compose(*tilers))

    def __getitem__(self, coord: Any) -> Any:  # Any: coordinates; an element or a view
        """Return the element at a coordinate, or the view that keeps the modes given as `:` or None."""
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
        c = _full_coord(coord, self.layout)
        if has_kept(c):
            host.fill_view(self._view(c), value)
            return
        place = self._place(c)
        try:
            self.engine.store(place, value)
        except IndexError as error:
            raise IndexError(f"coordinate {show(c)} of {self.title} is outside its storage: {error}") from None

    def _view(self, coord: Coord) -> Tensor:
        if coord is None:
            return self
        _check_coord(coord, self.layout.shape, self)
        coord = self._index_typed(coord)
        if isinstance(self.layout, ComposedLayout):
            return Tensor(self.engine, self.layout.slice_and_offset(coord))
        layout, offset = slice_and_offset(self.layout, coord)
        engine = self.engine if type(offset) is int and offset == 0 else self.engine.offset(offset)
        return Tensor(engine, layout)

    def offset_of(self, coord: Any) -> Any:  # Any: coordinates and offsets of all kinds
        """Return the offset of the element at a coordinate from the engine's first."""
        return self._place(_full_coord(coord, self.layout))

    def _place(self, coord: Coord) -> Offset:
        _check_coord(coord, self.layout.shape, self)
        check = getattr(self.engine, "demand_inside", None)
        if check is not None:
            check(coord, self.layout)
        place: Offset = self.layout(self._index_typed(coord))
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

    def __bool__(self) -> bool:
        return True

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
        result = fragment_like(self, element.storage)
        convert = getattr(self.engine, "convert_into", None)
        if convert is None:
            for i in range(host.static_size(result)):
                result[i] = element(self[i])
        else:
            convert(self, result, element)
        return result

    def recast(self, dtype: Any) -> Tensor:  # Any: whatever names an element type
        """Return the same bytes seen as elements of another type, in a kernel too: for every space of memory.

        The mode of stride 1 is divided by the ratio of the widths, or multiplied by it.

        >>> import numpy as np, tilewright as tw
        >>> tw.tensor(np.array([1.0, 2.0], np.float32)).recast(tw.uint16)
        host uint16 (4):(1)
            0 16256     0 16384

        Raises `LayoutError` when the layout does not fall into whole elements of it, `LanguageError` in a kernel when
        the first element is not known to be aligned to it. Source: CuTe `recast`.
        """
        new = as_dtype(dtype)
        layout = recast_layout(self.layout, self.dtype.bits, new.bits)
        return Tensor(self.engine.recast(new), layout)

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

    >>> import numpy as np, tilewright as tw
    >>> fragment_like(tw.tensor(np.zeros((4, 2)))).stride
    (1, 4)

    Raises `LayoutError` when the shape is dynamic: registers have to be counted. Source: CuTe `make_fragment_like`.
    """
    instance("fragment_like", "t", t, Tensor, "a tensor")
    layout = Layout(t.shape)
    if not layout.is_static:
        raise LayoutError(
            f"a fragment needs a static shape, not {show(t.shape)}", help="tile the tensor by static extents first"
        )
    new = t.dtype if dtype is None else as_dtype(dtype)
    return Tensor(t.engine.fragment(layout, new), layout)


def _full_coord(coord: Any, layout: Layout | ComposedLayout) -> Coord:
    """Return a checked coordinate, with `...` written out as kept modes."""
    if coord is Ellipsis:
        return None
    if isinstance(coord, tuple) and any(c is Ellipsis for c in coord):
        at = next(i for i, c in enumerate(coord) if c is Ellipsis)
        coord = coord[:at] + (None,) * (layout.rank - len(coord) + 1) + coord[at + 1 :]
    c = checked_coord(coord)
    return c[0] if type(c) is tuple and len(c) == 1 and type(layout.shape) is not tuple else c


def _check_coord(coord: Coord, shape: Shape, tensor: Tensor) -> None:
    """Refuse a static coordinate that lies outside a static extent."""
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
            raise IndexError(f"index {coord} is outside an extent of {extent}, in a tensor {tensor.title}")
