"""Descriptors, by which a warpgroup's matrix instructions find an operand in shared memory, and what they describe.

The hardware knows eight arrangements. Memory is a row of patterns of eight lines; a line has 16 bytes (INTER), or 32,
64 or 128, within which chunks of 16 bytes are swizzled. Along a line runs K (K-major) or M or N (MN-major):

    GMMA_K_SW128      8 rows of 128 bytes along K           GMMA_MN_SW128      8 k of 128 bytes along M or N
    GMMA_K_SW64       8 rows of  64 bytes                   GMMA_MN_SW64       ...
    GMMA_K_SW32       8 rows of  32 bytes
    GMMA_K_INTER      8 rows of  16 bytes, no swizzle

`tile_to_shape` repeats one over a tile. A descriptor holds the address of a tile, the swizzle, and two distances:

    K-major     stride:  from 8 rows to the next 8
                leading: from 16 bytes along K to the next 16      (INTER; else they are neighbours, and it is not read)
    MN-major    stride:  from 8 k to the next 8                    (INTER: from 16 bytes along M or N to the next)
                leading: from one line along M or N to the next    (INTER: from 8 k to the next 8)

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", "Matrix Descriptor Format"; CUTLASS,
include/cute/atom/mma_traits_sm90_gmma.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import LayoutError
from tilewright.layout import ComposedLayout, Layout, Swizzle, coalesce, logical_divide
from tilewright.layout.layouts import flat_modes
from tilewright.layout.recasting import upcast

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Major = Literal["K", "MN"]
CHUNK = 16  # bytes that a swizzle keeps together
LINES = 8  # of a pattern
_SWIZZLED = {"SW128": 3, "SW64": 2, "SW32": 1, "INTER": 0}  # bits of the swizzle
NAMES = tuple(f"GMMA_{major}_{kind}" for major in ("K", "MN") for kind in _SWIZZLED)
_FIELD = 1 << 14  # values of a field: addresses and distances in units of 16 bytes
_KINDS = {16: 0, 128: 1, 64: 2, 32: 3}  # bits 62 and 63, by the bytes of a line


# --- canonical layouts -----------------------------------------------------------------------------------


class SharedLayout:
    """What makes a canonical layout of an element type, see `shared_layout`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, element: Any) -> Any:  # Any: whatever names an element type; a layout or a composed one
        """Return the pattern for elements of a type, to be repeated by `tile_to_shape`."""
        bits = as_dtype(element).bits
        _, major, kind = self.name.split("_")
        swizzle = _SWIZZLED[kind]
        line = 8 * CHUNK << swizzle
        plain = Layout((LINES, line), (line, 1)) if major == "K" else Layout((line, LINES), (1, line))
        return upcast(ComposedLayout.of(Swizzle(swizzle, 7, 3), 0, plain), bits)  # of bits, in units of elements

    def __repr__(self) -> str:
        return f"tw.atoms.{self.name}"


def shared_layout(name: str) -> SharedLayout:
    """Return what makes the canonical layout of a name in `NAMES`.

    >>> from tilewright.dtypes import bfloat16, float8_e4m3fn
    >>> print(shared_layout("GMMA_K_SW128")(bfloat16), shared_layout("GMMA_MN_INTER")(float8_e4m3fn))
    Sw<3,3,3> o 0 o (8,64):(64,1) (16,8):(1,16)

    Source: CUTLASS `GMMA::Layout_K_SW128_Atom` and its like.
    """
    return SharedLayout(name)


# --- descriptors -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedDescriptor:
    """How an operand of a warpgroup's instruction lies in shared memory: a descriptor without its address.

    `line` is 16 without a swizzle, else 32, 64 or 128; `leading` and `stride` are distances. All count bytes.
    """

    major: Major
    line: int
    leading: int
    stride: int

    @property
    def pattern(self) -> int:
        """The bytes of a pattern, to which the memory is aligned."""
        return LINES * self.line

    def bits(self, address: int = 0) -> int:
        """Return the 64 bits of the descriptor.

        >>> hex(SharedDescriptor("K", 128, 16, 1024).bits())
        '0x4000004000010000'
        """
        fields = ((address >> 4) % _FIELD, 0), (self.leading >> 4, 16), (self.stride >> 4, 32), (_KINDS[self.line], 62)
        return sum(value << place for value, place in fields)

    def places(self, rows: int, k: int, element: int) -> Array:
        """Return the byte of each element (rows, k) of `element` bytes, from the start of the tile, not swizzled."""
        import numpy as np

        i, j = np.arange(rows)[:, None], np.arange(k)[None, :]
        if self.major == "K":
            chunk, inside = np.divmod(j * element, CHUNK)
            along = chunk * (self.leading if self.line == CHUNK else CHUNK) + inside
            along = i % LINES * self.line + i // LINES * self.stride + along
            return np.asarray(along)
        line, inside = np.divmod(i * element, self.line)
        outer, inner = (self.stride, self.leading) if self.line == CHUNK else (self.leading, self.stride)
        found: Array = line * outer + inside + j % LINES * self.line + j // LINES * inner
        return found

    def swizzled(self, address: Array) -> Array:
        """Return the address at which the hardware finds a byte."""
        found: Array = address ^ ((address >> 3) & (self.line - CHUNK))
        return found


def describe(layout: Layout, swizzle: Swizzle | None, dtype: DType, major: Major) -> SharedDescriptor:
    """Return the descriptor of a tile (rows, k), in elements of a type, under a swizzle.

    Law: `swizzled(start + places(rows, k))` is the byte of each element, for a memory aligned to the pattern.

    >>> from tilewright.dtypes import bfloat16
    >>> describe(Layout((64, 16), (64, 1)), Swizzle(3, 3, 3), bfloat16, "K")
    SharedDescriptor(major='K', line=128, leading=16, stride=1024)

    Raises `LayoutError` with the reason where no descriptor describes the layout.
    """
    size = dtype.bytes
    line = _line(swizzle, size)
    chunk, width = CHUNK // size, line // size
    fast, slow, names = (1, 0, ("K", "rows")) if major == "K" else (0, 1, ("M or N", "k"))
    run = chunk if major == "K" else width  # elements along the fast mode of which the hardware knows that they adjoin
    near, far = _divided(layout[fast], run, names[0])
    if near not in ((run, 1), (1, 0)):
        raise LayoutError(
            f"{run} neighbours along {names[0]} ({run * size} bytes) must adjoin, and their stride is {near[1]}"
        )
    lines, groups = _divided(layout[slow], LINES, names[1])
    if lines != (LINES, width):
        raise LayoutError(
            f"eight {names[1]} must be {width} elements apart ({line} bytes, a line), and they are {lines[1]} apart"
        )
    pattern = LINES * line
    if line == CHUNK:
        first, second = (far, groups) if major == "K" else (groups, far)
        return SharedDescriptor(
            major, line, _distance(first, size, CHUNK, CHUNK), _distance(second, size, CHUNK, pattern)
        )
    if major == "K" and far[0] > 1 and far[1] != chunk:
        raise LayoutError(
            f"the chunks of a line along K must adjoin, and they are {far[1]} elements apart, not {chunk}"
        )
    leading = CHUNK if major == "K" else _distance(far, size, pattern, CHUNK)
    return SharedDescriptor(major, line, leading, _distance(groups, size, pattern, pattern))


def _line(swizzle: Swizzle | None, size: int) -> int:
    """Return the bytes of a line of the pattern that a swizzle of elements makes."""
    if swizzle is None or swizzle.bits == 0:
        return CHUNK
    if swizzle.bits > 3 or swizzle.shift != 3 or size << swizzle.base != CHUNK:
        base = (CHUNK // size).bit_length() - 1
        raise LayoutError(
            f"the hardware swizzles by Sw<1,{base},3>, Sw<2,{base},3> or Sw<3,{base},3> in elements of {size} bytes, "
            f"not by {swizzle}"
        )
    return CHUNK << swizzle.bits


def _divided(mode: Any, run: int, what: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (extent, stride) of `run` neighbours of a mode and of the groups of them."""
    try:
        parts = logical_divide(mode, run)
        pairs = [tuple(zip(*flat_modes(coalesce(parts[n])), strict=True)) for n in (0, 1)]
    except LayoutError:
        pairs = []
    if not pairs or mode.size % run or any(len(each) > 1 for each in pairs):
        raise LayoutError(
            f"the {mode.size} elements along {what} do not fall into runs of {run} at one distance: {mode}"
        )
    (near, step), (count, far) = (pair[0] for pair in pairs)
    if not (type(near) is int and type(step) is int and type(count) is int and type(far) is int):
        raise LayoutError(f"the strides along {what} are not known while tracing: {mode}")
    return (near, step), ((count, far) if count > 1 else (1, 0))


def _distance(mode: tuple[int, int], size: int, multiple: int, unused: int) -> int:
    """Return the stride of a mode in bytes, `unused` where there is none."""
    count, stride = mode
    if count == 1:
        return unused
    distance = stride * size
    if distance % multiple or not 0 <= distance < _FIELD * CHUNK:
        raise LayoutError(
            f"the distance between patterns must be a multiple of {multiple} bytes below {_FIELD * CHUNK}, and it is "
            f"{distance}"
        )
    return distance
