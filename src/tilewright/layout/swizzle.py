"""Swizzles, and layouts with a function applied to their offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.coordinates import Offset, add_offsets, checked_coord, has_kept
from tilewright.layout.display import Displayed
from tilewright.layout.ints import DynamicInt, Int, Shape, add, as_int, floordiv, is_static, mul, sub
from tilewright.layout.inverses import right_inverse
from tilewright.layout.layouts import Layout, cosize, static_offsets
from tilewright.layout.modes import slice_, slice_and_offset
from tilewright.layout.recasting import downcast, upcast
from tilewright.layout.tuples import same, tuple_size

# Up to this many elements the cosize of a swizzled layout is found by looking; past it, by rounding up.
_MOST_LOOKED_AT = 1 << 16


class Swizzle(Displayed):
    """A permutation of offsets that moves neighbours to other banks: `bits` bits are XORed into others.

    `Swizzle(bits, base, shift)` leaves the lowest `base` bits alone, so runs of `2**base` elements stay together,
    and XORs the `bits` bits that start at `base + shift` into those that start at `base`. A negative
    shift XORs the lower into the higher ones. Zero bits is the identity.

    >>> swizzle = Swizzle(2, 0, 2)
    >>> [swizzle(i) for i in range(8)]
    [0, 1, 2, 3, 5, 4, 7, 6]

    Law: swizzle(swizzle(i)) == i, and swizzle(i) ^ i depends on the source bits only.

    Raises `LayoutError` when the two groups of bits would overlap. Source: CuTe `Swizzle<B, M, S>`.
    """

    __slots__ = ("base", "bits", "shift")
    bits: int
    base: int
    shift: int

    def __init__(self, bits: int, base: int, shift: int) -> None:
        b, m, s = (
            as_int(v, f"the {name} of a swizzle") for v, name in ((bits, "bits"), (base, "base"), (shift, "shift"))
        )
        if not (type(b) is int and type(m) is int and type(s) is int):
            raise LayoutError("a swizzle has to be static", help="make bits, base and shift Python ints")
        if b < 0 or m < 0 or abs(s) < b:
            raise LayoutError(
                f"Swizzle({b}, {m}, {s}): bits and base are at least 0, and |shift| at least bits",
                help="a swizzle of b bits reads them b or more places away from where it writes",
            )
        for name, value in (("bits", b), ("base", m), ("shift", s)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Swizzle is frozen; cannot set {name}")

    def __reduce__(self) -> tuple[type[Swizzle], tuple[int, int, int]]:
        return (Swizzle, (self.bits, self.base, self.shift))

    @property
    def block(self) -> int:
        """The size of the aligned blocks of offsets that the swizzle maps onto themselves."""
        return 1 << (self.base + self.bits + abs(self.shift)) if self.bits else 1

    @property
    def source_mask(self) -> int:
        """The bits that are read."""
        return ((1 << self.bits) - 1) << (self.base + max(self.shift, 0))

    def __call__(self, offset: Any) -> Any:  # Any: a static or dynamic integer gives the same
        """Return the swizzled offset."""
        x = as_int(offset, "an offset")
        if self.bits == 0:
            return x
        if isinstance(x, DynamicInt):
            # Whole blocks are moved, not mixed: sw(x + m) == sw(x) + m. What steps through them, such as the stages
            # of a pipeline, then costs no swizzle of its own.
            x, blocks = x.split_multiple(self.block)
            return add(self._mixed(x), blocks)
        return self._mixed(x)

    def _mixed(self, x: Int) -> Int:
        read = x & self.source_mask
        return x ^ (read >> self.shift if self.shift > 0 else read << -self.shift)

    def _then(self, layout: Layout) -> Layout:
        raise LayoutError(
            f"composition({layout}, {self}): a swizzle on the right has no shape",
            help=f"give it one: composition(a, composition(swizzle, {layout.shape}))",
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Swizzle):
            return NotImplemented
        return (self.bits, self.base, self.shift) == (other.bits, other.base, other.shift)

    def __hash__(self) -> int:
        return hash((Swizzle, self.bits, self.base, self.shift))

    def __repr__(self) -> str:
        return f"Swizzle({self.bits}, {self.base}, {self.shift})"

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"


class ComposedLayout(Displayed):
    """A layout with a function applied to its offsets: coordinate c leads to `outer(offset + inner(c))`.

    `outer` is a swizzle or a layout, `inner` a layout or again a composed one. Operations that choose
    coordinates (divide, slice, group, ...) act on `inner` and keep the rest.

    >>> print(ComposedLayout(Swizzle(2, 0, 2), 0, Layout((4, 4), (4, 1))))
    Sw<2,0,2> o 0 o (4,4):(4,1)

    Source: CuTe `ComposedLayout`.
    """

    __slots__ = ("inner", "offset", "outer")
    outer: Swizzle | Layout
    offset: Offset
    inner: Layout | ComposedLayout

    def __init__(self, outer: Swizzle | Layout, offset: Any, inner: Layout | ComposedLayout) -> None:
        if not isinstance(outer, (Swizzle, Layout)):
            raise LayoutError(f"the outer part of a composed layout is a Swizzle or a Layout, not {outer!r}")
        if not isinstance(inner, (Layout, ComposedLayout)):
            raise LayoutError(f"the inner part of a composed layout is a layout, not {inner!r}")
        _set_outer(self, outer)
        _set_offset(self, offset)
        _set_inner(self, inner)

    @staticmethod
    def of(
        outer: Swizzle | Layout, offset: Any, inner: Any
    ) -> Any:  # Any: gives the inner layout where nothing is left to do
        """Make a composed layout, or return the inner one where the swizzle is the identity and the offset 0."""
        if isinstance(outer, Swizzle) and outer.bits == 0 and type(offset) is int and offset == 0:
            return inner
        return ComposedLayout(outer, offset, inner)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a ComposedLayout is frozen; cannot set {name}")

    def __reduce__(self) -> tuple[type[ComposedLayout], tuple[Any, Offset, Any]]:
        return (ComposedLayout, (self.outer, self.offset, self.inner))

    def map_layout(self, change: Callable[[Any], Any]) -> ComposedLayout:
        """Return this layout with another inner one."""
        return ComposedLayout(self.outer, self.offset, change(self.inner))

    @property
    def shape(self) -> Shape:
        return self.inner.shape

    @property
    def stride(self) -> Any:
        """The strides of the inner layout: what each step adds before the outer function applies."""
        return self.inner.stride

    @property
    def is_static(self) -> bool:
        """True when no leaf and no offset is dynamic."""
        outer = self.outer.is_static if isinstance(self.outer, Layout) else True
        return outer and self.inner.is_static and is_static(self.offset)

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def depth(self) -> int:
        return self.inner.depth

    @property
    def size(self) -> Int:
        return tuple_size(self.inner.shape)

    @property
    def cosize(self) -> Int:
        """One more than the largest offset (an upper bound where the layout is dynamic or very large)."""
        count = self.size
        is_small = self.is_static and type(count) is int and count <= _MOST_LOOKED_AT
        if isinstance(self.outer, Layout):
            bound = cosize(self.outer)  # raises where its offsets are coordinates; those of the inner layout may be
            return 1 + max(self._static_offsets()) if is_small else bound
        inner = cosize(self.inner)
        if type(inner) is int and self.is_static and self._fills_blocks(inner):
            return inner
        if is_small:
            return 1 + max(self._static_offsets())
        reach = add(inner, as_int(self.offset, "an offset"))
        block = self.outer.block
        return mul(floordiv(reach + (block - 1), block), block)

    def _static_offsets(self) -> list[int]:
        """Return the offsets of all elements of a static layout."""
        if type(self.inner) is Layout and type(self.outer) is Swizzle and type(self.offset) is int:
            # Evaluating each coordinate by itself takes ten times as long.
            return [self.outer._mixed(self.offset + offset) for offset in static_offsets(self.inner)]  # type: ignore[misc]
        return [self(i) for i in range(self.size)]  # type: ignore[arg-type]

    def _fills_blocks(self, cosize: int) -> bool:
        """Say whether the inner layout takes every offset below `cosize`, in whole blocks of a swizzle."""
        if not isinstance(self.outer, Swizzle) or self.offset != 0 or cosize % self.outer.block:
            return False
        return isinstance(self.inner, Layout) and bool(right_inverse(self.inner).size == cosize)

    def __call__(self, *coord: Any) -> Any:  # Any: coordinates; an offset, or a layout where a mode is kept
        """Return the offset of a coordinate, or the sub-layout where modes are kept with None."""
        c = checked_coord(coord[0] if len(coord) == 1 else coord)
        if has_kept(c):
            return slice_(self, c)
        return self.outer(add_offsets(self.offset, self.inner(c)))

    def slice_and_offset(self, coord: Any) -> ComposedLayout:
        """Slice, with the position of the first element in the offset, which the outer function needs."""
        if isinstance(self.inner, ComposedLayout):
            raise LayoutError(f"slicing {self}: the offset of a nested composition is not affine")
        inner, offset = slice_and_offset(self.inner, coord)
        return ComposedLayout(self.outer, add_offsets(self.offset, offset), inner)

    def recast_by(self, n: int, wider: bool) -> Any:  # Any: a layout of the same kind
        """Recast the inner layout and move the swizzle's bits along with it."""
        if not isinstance(self.outer, Swizzle) or n & (n - 1):
            raise LayoutError(f"recast of {self} by {n}: needs a swizzle and a power of two")
        outer, bits = self.outer, n.bit_length() - 1
        if wider and outer.base < bits and outer.bits:
            raise LayoutError(
                f"upcast of {self} by {n}: the swizzle moves elements inside a group of {n}",
                help=f"use a swizzle with base {bits} or more",
            )
        if wider and type(self.offset) is int and self.offset % n:
            raise LayoutError(f"upcast of {self} by {n}: the offset {self.offset} cuts a group")
        base = max(outer.base - bits, 0) if wider else outer.base + bits
        offset = floordiv(self.offset, n) if wider else mul(self.offset, n)  # type: ignore[arg-type]
        change = upcast if wider else downcast
        return ComposedLayout(Swizzle(outer.bits, base, outer.shift), offset, change(self.inner, n))

    def inverse_by(self, inverse: Callable[[Any], Any]) -> Any:  # Any: a layout, its inverse
        """Return the inverse: unswizzle, take the offset off, go back through the inner layout.

        `inverse` is right_inverse or left_inverse. A right inverse starts at offset 0, so it needs the layout's offset
        to be 0; it stops before the first block of offsets that the inner layout does not fill.
        """
        outer = self.outer
        if not isinstance(outer, Swizzle) or not isinstance(self.inner, Layout):
            raise LayoutError(f"{inverse.__name__}({self}): only a swizzled plain layout has one here")
        back = inverse(self.inner)
        if inverse.__name__ == "left_inverse":
            # Of stride 1 whatever the extent: offsets below 0, which do not count in the extent, go through it too.
            reach = self.cosize
            offsets = Layout(max(reach, 1) if type(reach) is int else reach, 1)
            return ComposedLayout(back, sub(0, self.offset), ComposedLayout(outer, 0, offsets))  # type: ignore[arg-type]
        if type(self.offset) is not int or self.offset:
            raise LayoutError(f"right_inverse({self}): the layout starts at offset {self.offset}, not 0")
        filled = tuple_size(back.shape)
        assert type(filled) is int, back
        whole = filled // outer.block * outer.block
        untouched = 1 << (outer.base + max(outer.shift, 0))
        return ComposedLayout(back, 0, ComposedLayout(outer, 0, Layout(whole or min(filled, untouched))))

    def compose(self, *tilers: Any) -> Any:  # Any: as Layout.compose
        """Return `composition(self, tiler)`; several tilers go mode by mode."""
        return self.map_layout(lambda inner: inner.compose(*tilers))

    def _then(self, layout: Layout) -> ComposedLayout:
        """Return the layout that applies this one first and then `layout`."""
        return ComposedLayout(layout, 0, self)

    def __getitem__(self, mode: int | slice) -> ComposedLayout:
        """Return one top-level mode, or a run of modes; the offset stays."""
        return self.map_layout(lambda inner: inner[mode])

    def __len__(self) -> int:
        return self.rank

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComposedLayout):
            return NotImplemented
        return self.outer == other.outer and same(self.offset, other.offset) and self.inner == other.inner

    def __hash__(self) -> int:
        offset = id(self.offset) if isinstance(self.offset, DynamicInt) else self.offset
        return hash((self.outer, offset, self.inner))

    def __repr__(self) -> str:
        return f"ComposedLayout({self.outer!r}, {self.offset!r}, {self.inner!r})"

    def __str__(self) -> str:
        return f"{self.outer} o {self.offset} o {self.inner}"


_set_outer = ComposedLayout.__dict__["outer"].__set__
_set_offset = ComposedLayout.__dict__["offset"].__set__
_set_inner = ComposedLayout.__dict__["inner"].__set__


def make_swizzle(bits: int, base: int, shift: int) -> Swizzle:
    """Make a swizzle; the same as `Swizzle(bits, base, shift)`."""
    return Swizzle(bits, base, shift)
