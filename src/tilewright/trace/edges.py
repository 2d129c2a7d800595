"""Copies of tiles that overhang: what is inside is copied, what is outside reads as the fill and is not written.

    if (all of the tile is inside)              one condition for the block, as far as the layouts tell
        the copy of the tile without its guard: the widest accesses
    else
        for each vector of the tile
            all of it is inside, or all outside     where the extent is a multiple of the vector: one predicate
            or it may end inside                    one predicate for the vector, and one for each element of the last

Where all of the tile certainly is inside, only the first copy is there. The second has no vectors where neither holds:
where a vector may begin before the tensor, and where the elements of one lie along several modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from tilewright.atoms import CopyAtom, UniversalCopy
from tilewright.atoms.copy import CacheHints
from tilewright.dtypes import bool_, int32, uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Space, Value, VectorType
from tilewright.ir.ops import Bitcast, Pack, constant
from tilewright.layout import Layout
from tilewright.layout.ints import add, sub
from tilewright.tensors import CoordinateEngine, GuardedTensor, Tensor
from tilewright.tensors.guarded import Edge, both, known, offsets_of, reach
from tilewright.trace.control import branch, truth
from tilewright.trace.scalar import Scalar, arithmetic, as_scalar, narrowed, select
from tilewright.trace.tracer import Tracer, current
from tilewright.trace.vectors import Choice, VectorCopy, by_registers, is_step, split_hints
from tilewright.trace.walks import Walk, common_walk, each_step, place

_WIDEST_RANGE = 1 << 16  # of a thread's part of a coordinate, for one bound to stand for all threads


@dataclass(frozen=True, eq=False)
class Limit:
    """One leaf of the guarded tensor that elements of a view may lie outside of. `steps` maps to positions along it."""

    edge: Edge
    leaf: int
    steps: Layout

    def within(self, step: Any) -> Any:  # Any: a bool or a device bool
        """Return whether the element so many steps behind the view's first one is inside."""
        return self.edge.within(self.leaf, step)

    @property
    def starts_inside(self) -> bool:
        """Whether no element lies before the tensor."""
        return self.edge.is_behind_start(self.leaf, reach(self.steps)[0])

    def of_all(self) -> Any:  # Any: a bool or a device bool
        """Return whether all elements are inside; one condition for all threads where the range of theirs is known."""
        low, high = reach(self.steps)
        own: Any = self.edge.own[self.leaf]
        first = last = own
        if isinstance(own, Scalar) and own.facts.high - own.facts.low < _WIDEST_RANGE:
            first, last = own.facts.low, own.facts.high
        ends = known(self.edge.left(self.leaf) > add(last, high))
        if self.starts_inside:
            return ends
        start: Any = add(self.edge.base[self.leaf], add(first, low))
        return both(ends, start >= self.edge.begin[self.leaf])

    @property
    def divisor(self) -> int:
        """What the position of the view's first element is a multiple of."""
        return math.gcd(_divisor(self.edge.base[self.leaf]), _divisor(self.edge.own[self.leaf]))

    @property
    def end_divisor(self) -> int:
        """What the end is a multiple of."""
        return _divisor(self.edge.end[self.leaf])

    def begins_at(self, width: int) -> bool:
        """Say whether no vector of a width, at a multiple of it, begins before the tensor and ends inside."""
        return self.starts_inside or _divisor(self.edge.begin[self.leaf]) % width == 0


def _divisor(x: Any) -> int:
    return abs(x) if isinstance(x, int) else x.facts.divisor


def limits_of(tensor: Tensor) -> list[Limit]:
    """Return the limits that a view may cross: none for a tensor without a guard."""
    if not isinstance(tensor, GuardedTensor):
        return []
    edge, where = tensor.edge, tensor.where
    limits = [Limit(edge, k, offsets_of(where, k)) for k in range(len(edge.shape))]
    return [limit for limit in limits if limit.of_all() is not True]


def all_inside(*tensors: Tensor) -> Any:  # Any: a bool or a device bool
    """Return whether all elements of tensors are inside: True for those without a guard."""
    return reduce(both, [limit.of_all() for tensor in tensors for limit in limits_of(tensor)], True)


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor without its guard."""
    return tensor.plain if isinstance(tensor, GuardedTensor) else tensor


def along(limits: Sequence[Limit]) -> list[Tensor]:
    """Return tensors to walk along with the data: their offsets are positions along the limits."""
    return [Tensor(CoordinateEngine(0), limit.steps) for limit in limits]


def conjunction(limits: Sequence[Limit], steps: Sequence[Any]) -> Any:  # Any: numbers, a bool or a device bool
    """Return whether the element so many steps behind the first one, along each limit, is inside of all."""
    return reduce(both, [limit.within(step) for limit, step in zip(limits, steps, strict=True)], True)


def copy_guarded(
    src: Tensor,
    dst: Tensor,
    atom: CopyAtom | None = None,
    pred: Any = None,
    count: Any = None,
    choose: Choice = by_registers,
) -> None:
    """Copy where source or destination is guarded: what lies outside of the source reads as its fill."""
    if count is not None or isinstance(pred, Tensor):
        raise LanguageError(
            "tw.copy: a guarded tile takes neither count= nor a tensor as pred=: it knows which elements are there",
            details=[f"from {src.title}", f"to {dst.title}"],
            help="leave it out; or give a tile without guard=, and a predicate that says what is inside too",
        )
    if atom is not None and atom.threads > 1:
        raise LanguageError(
            f"tw.copy: {atom.name} does not take a guarded tile: a whole warp executes it",
            details=[f"from {src.title}", f"to {dst.title}"],
            help="guard the copy between global and shared memory",
        )
    condition = True if pred is None else truth(pred)
    for engine in (plain(src).engine, plain(dst).engine):
        if isinstance(condition, Scalar):  # it may name the threads that take part
            engine.note_slices(as_scalar(condition, bool_).value)
        elif condition:
            engine.demand_guards()  # those of tiles around the guarded tensor
    is_inside = all_inside(src, dst)

    def without_guard() -> None:
        copy = VectorCopy(plain(src), plain(dst), atom, choose=choose)
        copy.in_words = is_inside is not True
        copy.emit()

    def everywhere() -> None:
        branch(is_inside, without_guard, lambda: EdgeCopy(src, dst, atom, choose).emit())

    def nowhere() -> None:
        if plain(dst).engine.buffer.space is not Space.GLOBAL:
            fill_guarded(dst, 0)

    branch(condition, everywhere, nowhere)


def fill_guarded(tensor: Tensor, value: Any) -> None:
    """Set every element of a tile that is inside."""
    target, limits = plain(tensor), limits_of(tensor)
    target.engine.demand_guards()
    walk = common_walk([target, *along(limits)], "tw.fill")

    def step(steps: tuple[Any, ...]) -> None:
        branch(conjunction(limits, steps[1:]), lambda: target.engine.store(place(target, steps[0]), value))

    each_step(walk, step)


class EdgeCopy(VectorCopy):
    """The copy of a tile that overhangs."""

    in_words = True

    def __init__(self, src: Tensor, dst: Tensor, atom: CopyAtom | None, choose: Choice) -> None:
        self.tracer: Tracer = current("tw.copy")
        self.choose = choose
        self.src: Tensor = plain(src)
        self.dst: Tensor = plain(dst)
        self.atom = atom
        self.counts = False
        self.fill: Any = src.edge.fill if isinstance(src, GuardedTensor) else 0
        self.reads: list[Limit] = limits_of(src)
        self.writes: list[Limit] = limits_of(dst)
        self.limits: list[Limit] = [*self.reads, *self.writes]
        # Modes are ordered by the strides of the last tensor, which is to be the destination.
        walk = common_walk([self.src, *along(self.limits), self.dst], "tw.copy")
        self.walk: Walk = Walk(walk.extents, (walk.strides[0], walk.strides[-1], *walk.strides[1:-1]))
        self.spaces: tuple[Any, Any] = (self.src.engine.buffer.space, self.dst.engine.buffer.space)
        self.hints: tuple[CacheHints | None, CacheHints | None] = split_hints(self.tracer, atom, self.src, self.dst)
        self.partial: tuple[bool, ...] = ()  # for each limit, whether a vector may end inside

    def emit(self) -> None:
        with self.tracer.inside(Block(), branch=True):
            self.src.engine.note_slices()
            self.dst.engine.note_slices()
        width, atom = self._width_and_atom()
        walk = self._vector_walk(width)
        assert walk is not None, (self.walk, width)
        atom.check(self, width)
        self.tracer.copies_to_shared |= self.spaces == (Space.GLOBAL, Space.SHARED)
        each_step(walk, lambda steps: self._step(steps, width, atom))

    def _width_and_atom(self) -> tuple[int, CopyAtom]:
        """Return what the atom says, or the most that is legal where the atom's vectors may be cut at the start."""
        width = self._widest(self._limit())
        if self.atom is None:
            return width, self._instruction(width)
        wanted = self.src.dtype.bits if self.atom.bits is None else self.atom.bits
        size = wanted // self.src.dtype.bits
        if size and self._limit() % size == 0 and self._vector_walk(size) is not None:
            return size, self.atom
        return min(width, size) or 1, UniversalCopy()

    def _vector_walk(self, width: int) -> Walk | None:
        """Return the walk in vectors; each vector lies along at most one mode of a guarded tensor."""
        self.partial = (False,) * len(self.limits)
        if width == 1:
            return self.walk
        for m, extent in enumerate(self.walk.extents):
            if not all(is_step(s[m], 1) for s in self.walk.strides[:2]):
                continue
            partial = [self._may_end(n, m, width) for n in range(len(self.limits))]
            if type(extent) is not int or extent % width or None in partial:
                return None
            self.partial = tuple(bool(p) for p in partial)
            keep = [n for n in range(len(self.walk.extents)) if n != m or extent != width]
            extents = [e // width if n == m else e for n, e in enumerate(self.walk.extents)]
            strides = [[d * width if n == m else d for n, d in enumerate(s)] for s in self.walk.strides]
            return Walk(tuple(extents[n] for n in keep), tuple(tuple(s[n] for n in keep) for s in strides))
        return None

    def _may_end(self, number: int, mode: int, width: int) -> bool | None:
        """Say whether a vector along a mode may end inside of a limit; None where it may begin before the tensor."""
        limit, strides = self.limits[number], self.walk.strides[2 + number]
        if is_step(strides[mode], 0):
            return False
        if not is_step(strides[mode], 1):
            return None
        others = [d for n, d in enumerate(strides) if n != mode]
        start = math.gcd(limit.divisor, *[_divisor(d) for d in others])
        if not limit.begins_at(width) or not (limit.starts_inside or start % width == 0):
            return None
        return start % width != 0 or limit.end_divisor % width != 0

    def _step(self, steps: tuple[Any, ...], width: int, atom: CopyAtom) -> None:
        """Move one vector."""
        places = [place(t, s) for t, s in zip((self.src, self.dst), steps[:2], strict=True)]
        positions = steps[2:]
        if not any(self.partial):
            read, write = self._inside(positions, 0)
            branch(write, partial(self._move_where, places, width, atom, read))
            return
        if atom.is_asynchronous and self._fills_with_zeros and not self.writes and sum(self.partial) == 1:
            self.counts = True
            atom.move(self, places, width, self._count(positions, width))
            self.counts: bool = False
            return
        # A vector begins inside, or at a multiple of its width from the start: it is there if its last element is.
        branch(
            reduce(both, self._inside(positions, width - 1)),
            partial(atom.move, self, places, width, None),
            partial(self._move_lanes, places, positions, width),
        )

    def _inside(self, positions: Sequence[Any], lane: int) -> tuple[Any, Any]:
        """Return whether an element of a vector may be read, and whether it may be written."""
        at = [add(p, lane) if cut else p for p, cut in zip(positions, self.partial, strict=True)]
        count = len(self.reads)
        return conjunction(self.reads, at[:count]), conjunction(self.writes, at[count:])

    def _count(self, positions: Sequence[Any], width: int) -> Any:  # Any: a device integer
        """Return how many leading elements of a vector may be read."""
        cut = self.partial.index(True)
        limit = self.limits[cut]
        left = sub(limit.edge.left(limit.leaf), add(limit.edge.own[limit.leaf], positions[cut]))
        count = narrowed(arithmetic("min", as_scalar(left), width))
        others = [n for n in range(len(self.limits)) if n != cut]
        is_there = conjunction([self.limits[n] for n in others], [positions[n] for n in others])
        if not limit.starts_inside:
            is_there = both(is_there, limit.within(positions[cut]))
        if is_there is True:
            return count
        return select(is_there, count, as_scalar(0, int32))

    def _move_where(self, places: list[Any], width: int, atom: CopyAtom, read: Any) -> None:
        """Move one vector where it may be read, and the fill elsewhere."""
        if read is True:
            atom.move(self, places, width, None)
        elif atom.is_asynchronous and not self._fills_with_zeros:  # the instruction fills with zeros only
            branch(read, partial(atom.move, self, places, width, None), partial(self._clear, places, width))
        elif read is False:
            self._clear(places, width)
        else:
            atom.move(self, places, width, read)

    @property
    def _fills_with_zeros(self) -> bool:
        return not isinstance(self.fill, Scalar) and self.fill == 0 and math.copysign(1, self.fill) > 0

    def _move_lanes(self, places: list[Any], positions: Sequence[Any], width: int) -> None:
        """Move the elements of a vector that ends inside or lies outside, one by one."""
        for lane in range(width):
            one = [add(p, lane) for p in places]
            read, write = self._inside(positions, lane)
            if lane == width - 1 and not (self.reads and self.writes):  # the last one is not there
                read, write = not self.reads, not self.writes
            branch(write, partial(branch, read, partial(self._move, one, 1), partial(self._clear, one, 1)))

    def _filled(self, value: Scalar, width: int) -> Value:
        """Return a vector of one value."""
        words, type = self._words(width), self._type(width)
        if words is None or isinstance(self.fill, Scalar):
            return self.tracer.pure(Pack((value.value,) * width), type)
        element = np.array(self.fill, self.dst.dtype.numpy)
        word = constant(int(np.repeat(element, 4 // element.itemsize).view(np.uint32)[0]), uint32)
        packed = self.tracer.pure(Pack((word,) * words.lanes), words) if isinstance(words, VectorType) else word
        return self.tracer.pure(Bitcast(packed), type)

    def _clear(self, places: list[Any], width: int) -> None:
        """Write the fill."""
        value = (
            as_scalar(self.fill).to(self.dst.dtype)
            if isinstance(self.fill, Scalar)
            else as_scalar(self.fill, self.dst.dtype)
        )
        vector = value.value if width == 1 else self._filled(value, width)
        self.dst.engine.store_value(places[1], vector)
