"""How tensors of one shape are walked together: common modes, the widest vector that all allow, and conversions.

Nothing is asked of a tensor but its layout, and of its engine but loads, stores and the alignment of its start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import FLOAT8, DType, float16, float32, int32, int64
from tilewright.errors import LanguageError
from tilewright.ir.core import Space, VectorType
from tilewright.ir.evaluate import facts_of
from tilewright.ir.ops import CastPair
from tilewright.layout import Basis, ComposedLayout, Layout, Swizzle
from tilewright.layout.layouts import flat_modes
from tilewright.tensors import Tensor
from tilewright.trace.control import loop
from tilewright.trace.scalar import Scalar
from tilewright.trace.tracer import current, extent_name, require_equal

UNROLL_LIMIT = 64  # steps of a copy that are written out, so that the compiler can issue all loads first
INDEX_NAMES = "ijklmnpq"


@dataclass(frozen=True)
class Walk:
    """Common modes of several tensors: `extents[k]` steps, each moving tensor t by `strides[t][k]`.

    Modes are in the order in which loops nest, the innermost first.
    """

    extents: tuple[Any, ...]
    strides: tuple[tuple[Any, ...], ...]

    @property
    def size(self) -> int | None:
        """The number of steps, where it is known."""
        return math.prod(self.extents) if all(isinstance(e, int) for e in self.extents) else None


def common_walk(tensors: Sequence[Tensor], what: str) -> Walk:
    """Return modes in which all tensors step regularly, as few as possible.

    Raises `LanguageError` when the tensors differ in size, or in the order of dynamic modes.
    """
    modes = [_flat(t) for t in tensors]
    extents, strides = _refine(modes, tensors, what)
    return _sorted_and_joined(extents, strides, len(tensors))


def _flat(tensor: Tensor) -> list[tuple[Any, Any]]:
    layout = tensor.layout
    while isinstance(layout, ComposedLayout):
        layout = layout.inner
    shape, stride = flat_modes(layout)
    return [(s, d) for s, d in zip(shape, stride, strict=True) if not (type(s) is int and s == 1)]


def _refine(
    modes: list[list[tuple[Any, Any]]], tensors: Sequence[Tensor], what: str
) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """Split static modes until all tensors have the same extents: (4, 2) and 8 become (4, 2) and (4, 2)."""
    pending = [list(m) for m in modes]
    extents: list[Any] = []
    strides: list[tuple[Any, ...]] = []
    while any(pending):
        heads = [m[0] if m else (1, 0) for m in pending]
        sizes = [s for s, _ in heads]
        if all(s is sizes[0] or (type(s) is type(sizes[0]) is int and s == sizes[0]) for s in sizes):
            step = sizes[0]
        elif all(type(s) is int for s in sizes):
            step = math.gcd(*sizes)
            if step == 1:
                raise _mismatch(tensors, what)
        elif all(isinstance(s, Scalar) for s in sizes) and len(pending[0]) == len(pending[1]):
            step = sizes[0]
            for size in sizes[1:]:
                assert isinstance(step, Scalar) and isinstance(size, Scalar), sizes
                _demand_equal(step, size, what)
            heads = [(step, d) for _, d in heads]
            pending = [[heads[n], *m[1:]] for n, m in enumerate(pending)]
            sizes = [step] * len(sizes)
        else:
            raise _mismatch(tensors, what)
        extents.append(step)
        strides.append(tuple(d for _, d in heads))
        for n, left in enumerate(pending):
            if sizes[n] is step or sizes[n] == step:
                left.pop(0)
            else:
                left[0] = (sizes[n] // step, heads[n][1] * step)
    return extents, strides


def _demand_equal(a: Scalar, b: Scalar, what: str) -> None:
    """Make it a condition of the launch that two extents are equal."""
    tracer = current(what)
    names = [extent_name(tracer, x.value) or "an extent" for x in (a, b)]
    message = f"{what}: {names[0]} is {{value}}, and {names[1]} differs"
    if a.dtype is b.dtype:
        require_equal(tracer, a.value, b.value, message, "pass arrays of one shape")


def _mismatch(tensors: Sequence[Tensor], what: str) -> LanguageError:
    static = {type(t.size) is int for t in tensors}
    help = "partition both sides with the same thread layout or tiled copy"
    if len(static) > 1:
        help = "cut an extent that only the launch knows by tw.local_tile, or pass the array as tw.static(x)"
    return LanguageError(f"{what}: the shapes do not match", details=[t.title for t in tensors], help=help)


def _sorted_and_joined(extents: list[Any], strides: list[tuple[Any, ...]], count: int) -> Walk:
    """Order static modes by the last tensor's stride, dynamic ones last, and join modes that step as one."""

    def rank(k: int) -> tuple[bool, int, int]:
        known = type(strides[k][-1]) is int
        first = strides[k][0] if type(strides[k][0]) is int else 1 << 40
        return (not known, strides[k][-1] if known else 0, first)

    order = sorted(range(len(extents)), key=rank)
    joined: list[tuple[Any, tuple[Any, ...]]] = []
    for k in order:
        extent, steps = extents[k], strides[k]
        if joined:
            last, before = joined[-1]
            static = type(last) is int and type(extent) is int and all(type(d) is int for d in (*before, *steps))
            if static and all(d == last * b for d, b in zip(steps, before, strict=True)):
                joined[-1] = (last * extent, before)
                continue
        joined.append((extent, steps))
    return Walk(tuple(e for e, _ in joined), tuple(tuple(s[t] for _, s in joined) for t in range(count)))


def split_vector(walk: Walk, width: int) -> Walk | None:
    """Return the walk in steps of `width` adjacent elements, or None where they are not contiguous."""
    if width == 1:
        return walk
    for k, extent in enumerate(walk.extents):
        if all(type(s[k]) is int and s[k] == 1 for s in walk.strides):
            if type(extent) is not int or extent % width:
                return None
            extents = list(walk.extents)
            strides = [list(s) for s in walk.strides]
            extents[k] = extent // width
            for s in strides:
                s[k] = width
            if extents[k] == 1:
                del extents[k]
                for s in strides:
                    del s[k]
            return Walk(tuple(extents), tuple(tuple(s) for s in strides))
    return None


def each_step(walk: Walk, body: Callable[[tuple[Any, ...]], None]) -> None:  # Any: numbers of host or device
    """Emit loops over a walk, and inside of them what is done for each tensor's offset."""
    size = walk.size
    unroll = True if size is not None and size <= UNROLL_LIMIT else None
    wide = [_is_wide(walk.extents, strides) for strides in walk.strides]

    def level(mode: int, offsets: tuple[Any, ...]) -> None:
        if mode < 0:
            body(offsets)
            return

        def at(index: Scalar) -> None:
            steps = [index.to(int64) if w else index for w in wide]
            moved = [
                p + i * s[mode] if _moves(s[mode]) else p for p, i, s in zip(offsets, steps, walk.strides, strict=True)
            ]
            level(mode - 1, tuple(moved))

        name = INDEX_NAMES[(len(walk.extents) - 1 - mode) % len(INDEX_NAMES)]
        loop(0, walk.extents[mode], 1, at, unroll=unroll, name=name)

    level(len(walk.extents) - 1, tuple(0 for _ in walk.strides))


def _is_wide(extents: tuple[Any, ...], strides: tuple[Any, ...]) -> bool:
    """Say whether static strides reach over more elements than 32 bits count; dynamic ones bring their own type."""
    steps = [(e - 1) * abs(s) for e, s in zip(extents, strides, strict=True) if type(e) is int and type(s) is int]
    return sum(steps) > int32.highest


def _moves(stride: Any) -> bool:
    return not (isinstance(stride, int) and stride == 0)


def place(tensor: Tensor, steps: Any) -> Any:
    """Return the element offset of a tensor for an offset in its innermost layout."""
    return _through(tensor.layout, steps)


def _through(layout: Layout | ComposedLayout, steps: Any) -> Any:
    if isinstance(layout, Layout):
        return steps
    inner = _through(layout.inner, steps)
    return layout.outer(layout.offset + inner)


def vector_limit(tensor: Tensor, strides: Sequence[Any]) -> int:
    """Return the widest vector, in elements, that every step of a walk finds aligned in a tensor."""
    element = tensor.dtype.bytes
    limit = max(VECTOR_BYTES // element, 1)
    if sum(type(stride) is int and stride == 1 for stride in strides) > 1:
        return 1  # a vector runs along one of these modes, and the others move it by single elements
    for stride in strides:
        if type(stride) is int and stride == 1:
            continue
        limit = math.gcd(limit, _divisor(stride))
    layout = tensor.layout
    while isinstance(layout, ComposedLayout):
        run = 1 << layout.outer.base if isinstance(layout.outer, Swizzle) else 1
        limit = math.gcd(math.gcd(limit, run), _divisor(layout.offset))
        layout = layout.inner
    return math.gcd(limit * element, tensor.engine.alignment) // element or 1


def _divisor(x: Any) -> int:
    """Return a number that divides an integer, as large as is known; 0 for 0."""
    if isinstance(x, Basis):
        return 1
    return abs(x) if isinstance(x, int) else facts_of(x.value).divisor


def widest(walk: Walk, tensors: Sequence[Tensor]) -> tuple[int, Walk]:
    """Return how many adjacent elements one access of all tensors may take, and the walk in such steps."""
    width = min(vector_limit(t, strides) for t, strides in zip(tensors, walk.strides, strict=True))
    while width > 1:
        split = split_vector(walk, width)
        if split is not None:
            return width, split
        width //= 2
    return 1, walk


# --- whole tensors converted from or to 8-bit floats -----------------------------------------------------


def convert_float8(source: Tensor, target: Tensor, element: DType) -> None:
    """Write target[c] = source[c].to(element) for every coordinate c, in pairs where both sides have neighbours."""
    tracer = current("tensor.to")
    tensors = (source, target)
    walk = common_walk(tensors, "tensor.to")
    pairs = split_vector(walk, 2) if _in_pairs(source, element) else None
    limits = [vector_limit(t, s) for t, s in zip(tensors, walk.strides, strict=True)]

    if pairs is not None and all(limit % 2 == 0 for limit in limits):

        def pair(steps: tuple[Any, ...]) -> None:
            value = source.engine.load_value(place(source, steps[0]), VectorType(source.dtype, 2))
            target.engine.store_value(
                place(target, steps[1]), tracer.pure(CastPair(value), VectorType(target.dtype, 2))
            )

        each_step(pairs, pair)
        return

    def one(steps: tuple[Any, ...]) -> None:
        target.engine.store(place(target, steps[1]), source.engine.load(place(source, steps[0])).to(element))

    each_step(walk, one)


def _in_pairs(source: Tensor, element: DType) -> bool:
    """Say whether there is an instruction for two conversions, and reading two elements costs nothing."""
    narrows = source.dtype is float32 and element in FLOAT8
    widens = source.dtype in FLOAT8 and element in (float16, float32)
    return (narrows or widens) and source.engine.buffer.space is Space.REGISTER
