"""One copy of vectors, lowered: the width, the walk, and the instruction that moves each vector."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from tilewright.arch import Arch
from tilewright.atoms import CopyAtom, UniversalCopy
from tilewright.atoms.copy import LOADS, STORES, CacheHints
from tilewright.dtypes import DType, bool_, int32, uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Space, VectorType
from tilewright.ir.ops import Bitcast, Pack, constant
from tilewright.layout import Layout, make_layout
from tilewright.layout.tuples import map_leaves
from tilewright.tensors import Tensor
from tilewright.trace.control import branch
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer, current
from tilewright.trace.walks import Walk, common_walk, each_step, place, split_vector, vector_limit
from tilewright.trace.widths import note_narrow

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
        note_narrow(self.tracer, (self.src, self.dst), self.walk, width, self.guard is not None)
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
            left = as_scalar(guard - steps[-1]).to(int32)  # how many elements from here on are there
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
