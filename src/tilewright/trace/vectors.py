"""One copy of vectors, lowered: the width, the walk, the instruction that moves each; and why a width is narrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.atoms import CopyAtom, UniversalCopy
from tilewright.atoms.copy import LOADS, STORES, CacheHints
from tilewright.dtypes import DType, bool_, uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Space, VectorType
from tilewright.ir.ops import Bitcast, Pack, constant
from tilewright.layout import ComposedLayout, Layout, Swizzle, make_layout
from tilewright.layout.tuples import map_leaves
from tilewright.remarks import Remark
from tilewright.tensors import Tensor
from tilewright.trace.control import branch
from tilewright.trace.scalar import Scalar, as_scalar, narrowed
from tilewright.trace.tracer import Tracer, current
from tilewright.trace.walks import Walk, common_walk, each_step, place, split_vector, vector_limit

# Which atom moves so many bits between two spaces on a target, where the caller has not named one.
Choice: TypeAlias = Callable[[tuple[Space, Space], int, Arch], CopyAtom]


def by_registers(spaces: tuple[Space, Space], bits: int, arch: Arch) -> CopyAtom:
    """Choose a load and a store."""
    return UniversalCopy()


class VectorCopy:
    """One copy of vectors being lowered. `guard` says where, or how many elements of a vector, where `counts`.

    `choose` names the instruction where no atom was given.

    With `in_words`, elements of 8 and 16 bits go as words of 32. A register array that both sides of a branch write in
    words stays in whole registers for the compiler; written by elements, it is taken apart and packed again.
    """

    in_words = False

    def __init__(
        self,
        src: Tensor,
        dst: Tensor,
        atom: CopyAtom | None = None,
        pred: Any = None,
        count: Any = None,
        choose: Choice = by_registers,
    ) -> None:
        self.tracer: Tracer = current("tw.copy")
        self.src = src
        self.dst = dst
        self.atom = atom
        self.choose = choose
        self.guard: Any = pred if count is None else count  # one for all, a tensor of them, or None
        self.counts: bool = count is not None
        tensors = [src, dst]
        if isinstance(self.guard, Tensor):
            tensors.append(self.guard)
        self.tensors = tensors
        # For `count`, the positions in mode 0 are walked with them.
        self.walk: Walk = common_walk([*tensors, _positions(src)] if self.counts else tensors, "tw.copy")
        self.spaces: tuple[Any, Any] = (src.engine.buffer.space, dst.engine.buffer.space)
        self.hints: tuple[CacheHints | None, CacheHints | None] = split_hints(self.tracer, atom, src, dst)

    def emit(self) -> None:
        width = self._width()
        _note_narrow(self.tracer, (self.src, self.dst), self.walk, width, self.guard is not None)
        walk = self._vector_walk(width)
        assert walk is not None, (self.walk, width)
        if isinstance(self.guard, Tensor):
            with self.tracer.inside(Block(), branch=True):  # it may name the threads that take part
                self.src.engine.note_slices()
                self.dst.engine.note_slices()
        elif self.guard is not None:
            condition = as_scalar(self.guard > 0 if self.counts else self.guard, bool_).value
            self.src.engine.note_slices(condition)
            self.dst.engine.note_slices(condition)
        else:
            self.src.engine.demand_whole(self.src.layout)
            self.dst.engine.demand_whole(self.dst.layout)
        atom = self._instruction(width)
        atom.check(self, width)
        self.tracer.copies_to_shared |= self.spaces == (Space.GLOBAL, Space.SHARED)
        each_step(walk, lambda steps: self._step(steps, width, atom))

    def _vector_walk(self, width: int) -> Walk | None:
        """Return the walk in vectors; one predicate or count must stand for a whole vector."""
        if self.guard is None or width == 1:
            return split_vector(self.walk, width)
        steps_by_one = [0, 1, -1] if self.counts else [0, 1]
        for k, extent in enumerate(self.walk.extents):
            column = [s[k] for s in self.walk.strides]
            if not all(is_step(column[t], 1) for t in steps_by_one):
                continue
            if isinstance(self.guard, Tensor) and not is_step(column[2], 0):
                return None
            if type(extent) is not int or extent % width:
                return None
            extents = tuple(e // width if n == k else e for n, e in enumerate(self.walk.extents))
            strides = tuple(tuple(d * width if n == k else d for n, d in enumerate(s)) for s in self.walk.strides)
            return Walk(extents, strides)
        return None

    def _width(self) -> int:
        """Return how many elements one access moves: what the atom says, or the most that is legal."""
        limit = self._limit()
        if self.atom is None or self.atom.bits is None:
            return self._widest(limit if self.atom is None else 1)
        element = self.src.dtype.bits
        width = self.atom.bits // element
        if width * element != self.atom.bits or width == 0:
            raise LanguageError(
                f"tw.copy: {self.atom.name} moves {self.atom.bits} bits, not a whole number of {self.src.dtype}"
            )
        if limit % width or self._vector_walk(width) is None:
            raise LanguageError(
                f"tw.copy: {self.atom.name} needs {width} adjacent {self.src.dtype}, "
                f"aligned to {self.atom.bits // 8} bytes",
                details=[
                    f"from {self.src.title}",
                    f"to {self.dst.title}",
                    f"their known alignment allows {self._widest(limit) * element} bits at most",
                ],
                help="pass a contiguous, aligned array, use a narrower atom, or a layout whose strides are multiples "
                "of the width",
            )
        return width

    def _limit(self) -> int:
        """Return the widest vector that is aligned in both tensors."""
        return min(vector_limit(t, s) for t, s in zip((self.src, self.dst), self.walk.strides, strict=False))

    def _widest(self, limit: int) -> int:
        """Return the widest vector up to a limit whose elements are contiguous in both tensors."""
        while limit > 1 and self._vector_walk(limit) is None:
            limit //= 2
        return limit

    def _instruction(self, width: int) -> CopyAtom:
        """Return what moves a vector: the atom that was given, or what is chosen."""
        return (
            self.choose(self.spaces, width * self.src.dtype.bits, self.tracer.arch) if self.atom is None else self.atom
        )

    def _step(self, steps: tuple[Any, ...], width: int, atom: CopyAtom) -> None:
        """Move one vector."""
        offsets = [place(t, s) for t, s in zip(self.tensors, steps, strict=False)]
        guard = self.guard.engine.load(offsets[2]) if isinstance(self.guard, Tensor) else self.guard
        if self.counts:
            left = narrowed(guard - steps[-1])  # how many elements from here on are there
            guard = left if width > 1 else left > 0
        atom.move(self, offsets, width, guard)

    def load_and_store(self, places: list[Any], width: int, guard: Any) -> None:  # Any: numbers of host or device
        """Move one vector by a load and a store: where `guard` holds, or as many elements as it says."""
        if guard is None:
            self._move(places, width)
        elif self.counts and width > 1:
            whole = as_scalar(guard >= width, bool_)
            branch(whole, partial(self._move, places, width), partial(self._move_some, places, width, guard))
        else:
            branch(as_scalar(guard, bool_), partial(self._move, places, width), partial(self._clear, places, width))

    def _type(self, width: int) -> Any:
        return self.src.dtype if width == 1 else VectorType(self.src.dtype, width)

    def _move(self, places: list[Any], width: int) -> None:
        value = self.src.engine.load_value(places[0], self._type(width), self.hints[0])
        words = self._words(width)
        if words is not None:
            value = self.tracer.pure(Bitcast(self.tracer.pure(Bitcast(value), words)), self._type(width))
        self.dst.engine.store_value(places[1], value, self.hints[1])

    def _words(self, width: int) -> DType | VectorType | None:
        """Return the type of a vector in words, None where it is moved in its own type."""
        bits = width * self.src.dtype.bits
        if not self.in_words or self.src.dtype.bits >= 32 or bits % 32:
            return None
        return uint32 if bits == 32 else VectorType(uint32, bits // 32)

    def _move_some(self, places: list[Any], width: int, count: Scalar) -> None:
        """Move the first `count` elements of a vector, which are not all, one by one."""
        *before, last = [[places[0] + lane, places[1] + lane] for lane in range(width)]
        for lane, one in enumerate(before):
            branch(count > lane, partial(self._move, one, 1), partial(self._clear, one, 1))
        self._clear(last, 1)

    def _clear(self, places: list[Any], width: int) -> None:
        """Write what a destination holds where nothing is copied."""
        if self.spaces[1] is Space.GLOBAL:
            return
        zero = constant(0, self.dst.dtype)
        value = zero if width == 1 else self.tracer.pure(Pack((zero,) * width), self._type(width))
        self.dst.engine.store_value(places[1], value)


def _positions(tensor: Tensor) -> Tensor:
    """Return a tensor to walk along with another: its offsets are the positions in mode 0."""
    first, *others = (tensor.layout[mode] for mode in range(tensor.rank))
    still = [Layout(mode.shape, map_leaves(lambda _: 0, mode.shape)) for mode in others]
    return Tensor(tensor.engine, make_layout(Layout(first.shape), *still))


def is_step(step: Any, number: int) -> bool:
    """Say whether a step is known and is a number."""
    return type(step) is int and step == number


# --- which access carries the cache hints of an atom ---------------------------------------------------


def split_hints(
    tracer: Tracer, atom: CopyAtom | None, src: Tensor, dst: Tensor
) -> tuple[CacheHints | None, CacheHints | None]:
    """Return the hints of a copy's load and of its store: those that each can carry, on global memory.

    Raises `LanguageError` where neither can, and where the target lacks them.
    """
    if atom is None or atom.hints is None:
        return None, None
    hints = atom.hints
    if hints.arch and tracer.arch.number < Arch.parse(hints.arch).number:
        raise LanguageError(
            f"tw.copy: {atom.name} needs {hints.arch} or later, and the target is {tracer.arch.name}",
            details=[f"from {src.title}", f"to {dst.title}"],
            help="leave out policy= and prefetch=; cache= works everywhere"
            if not atom.is_asynchronous
            else "leave out policy= and prefetch=",
        )
    of_load = hints if hints.loads and _is_global(src) else None
    of_store = hints if hints.stores and _is_global(dst) else None
    if of_load is None and of_store is None:
        raise LanguageError(
            f"tw.copy: {atom.name} has cache hints that neither side can carry",
            details=[f"from {src.title}", f"to {dst.title}"],
            help=f"hints are for global memory: a load takes cache= {', '.join(LOADS)} and prefetch=, "
            f"a store cache= {', '.join(STORES)}",
        )
    return of_load, of_store


def _is_global(tensor: Tensor) -> bool:
    is_global: bool = tensor.engine.buffer.space is Space.GLOBAL
    return is_global


def _note_narrow(tracer: Tracer, tensors: Sequence[Tensor], walk: Walk, width: int, is_guarded: bool) -> None:
    """Add a remark to the trace where a copy that reaches global memory could take more elements at once.

    `tensors` are source and destination, `width` is what the copy takes at once, and `is_guarded` says that it has
    a predicate or a count.
    """
    element = tensors[0].dtype.bytes
    whole = walk.size
    if whole is None or element > VECTOR_BYTES:
        return
    widest = math.gcd(VECTOR_BYTES // element, whole)
    spaces = [t.engine.buffer.space for t in tensors if hasattr(t.engine, "buffer")]
    if width >= widest or Space.GLOBAL not in spaces:
        return
    reason, help = _width_reason(tensors, walk, width, widest, is_guarded)
    location = tracer.location()
    lines = [f"narrow copy: {width * element} bytes at once, where {widest * element} are possible: {reason}"]
    lines += [f"  from {tensors[0].title}", f"  to {tensors[1].title}"]
    if location is not None:
        lines += [f"  {line}" for line in location.excerpt()]
    lines.append(f"  help: {help}")
    tracer.remarks[Remark("narrow-copy", "\n".join(lines), location)] = None


def _width_reason(tensors: Sequence[Tensor], walk: Walk, width: int, widest: int, is_guarded: bool) -> tuple[str, str]:
    """Return the first reason that holds, and the fix."""
    for name, tensor, strides in zip(("the source", "the destination"), tensors, walk.strides, strict=False):
        reason = _limit_of(name, tensor, walk.extents, strides, widest)
        if reason is not None:
            return reason
    data = Walk(walk.extents, walk.strides[:2])
    if split_vector(data, widest) is None:
        return (
            "source and destination are contiguous along different modes",
            "transpose the tile through shared memory, or give both the same contiguous mode",
        )
    if is_guarded:
        return (
            f"the predicate or count may differ within {widest} adjacent elements",
            "let one stand for a whole vector: a predicate tensor with stride 0 along the contiguous mode",
        )
    return (
        f"the copy was told to take {width} at once",
        f"use a copy atom of {8 * widest * tensors[0].dtype.bytes} bits, or none: tw.copy(src, dst) takes the widest",
    )


def _limit_of(
    name: str, tensor: Tensor, extents: tuple[Any, ...], strides: tuple[Any, ...], widest: int
) -> tuple[str, str] | None:
    """Return what in one tensor prevents vectors, None where nothing does."""
    element = tensor.dtype.bytes
    runs = [e for e, d in zip(extents, strides, strict=True) if type(d) is int and d == 1]
    if not runs:
        return (
            f"the elements of one thread are not contiguous in {name}",
            f"let each thread take {widest} adjacent elements: a value layout of {widest} in the tiled copy",
        )
    if type(runs[0]) is not int or runs[0] % widest:
        return (
            f"runs of {runs[0] if type(runs[0]) is int else 'a dynamic extent'} in {name} are not whole vectors",
            f"let each thread take a multiple of {widest} along the contiguous mode",
        )
    if vector_limit(tensor, strides) >= widest:
        return None
    engine, layout = tensor.engine, tensor.layout
    while isinstance(layout, ComposedLayout):
        if isinstance(layout.outer, Swizzle) and 1 << layout.outer.base < widest:
            base = widest.bit_length() - 1
            return (
                f"{layout.outer} keeps only {1 << layout.outer.base} elements of {name} together",
                f"use a swizzle with base {base}: it moves vectors as a whole",
            )
        layout = layout.inner
    if engine.buffer.alignment < widest * element:
        return (
            f"{name} is known to begin at a multiple of {engine.buffer.alignment} bytes only",
            f"begin the array at a multiple of {widest * element} bytes",
        )
    return (
        f"rows of {name} are not known to begin at multiples of {widest * element} bytes",
        f"make the strides of its rows multiples of {widest} elements",
    )
