"""The engine of device tensors: a buffer of the IR and an offset into it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.arch import VECTOR_BYTES
from tilewright.atoms.copy import CacheHints
from tilewright.dtypes import OPERANDS, DType, bool_, int32, int64, uint32
from tilewright.errors import LanguageError, LayoutError
from tilewright.ir.core import Buffer, GridLimit, Space, Value, VectorType
from tilewright.ir.evaluate import facts_of
from tilewright.ir.ops import Allocate, AtRank, Inside, Load, Special, Store
from tilewright.layout import DynamicInt, Layout, cosize
from tilewright.layout.tuples import tuple_size
from tilewright.pickling import Refused
from tilewright.source import SourceLocation
from tilewright.tensors import Tensor
from tilewright.trace import elementwise, reductions
from tilewright.trace.control import branch
from tilewright.trace.scalar import Scalar, arithmetic, as_scalar, narrowed
from tilewright.trace.threads import Slice, is_of_thread, note_access, slice_of
from tilewright.trace.tracer import Tracer, current, extent_name, require_multiple


@dataclass(frozen=True, eq=False)
class Guard:
    """A view of a tensor is right only if `divisor` divides `dividend`, the extent that `what` names."""

    dividend: Scalar | int
    divisor: int
    what: str
    location: SourceLocation | None


@dataclass(frozen=True)
class Window:
    """A slice of a mode: index i of it is index start + step * i of a mode of an extent, whose number is `mode`."""

    start: Any  # Any: integers of host or device
    step: int
    extent: Any
    mode: int


@dataclass(frozen=True, eq=False)
class BufferEngine(Refused):
    """Elements of a buffer from `start` on.

    `guards` are the conditions under which all of the view is inside the tensor; an access that no branch and
    no predicate protects makes them conditions of the launch. `slices` are the parts of tiled copies and mmas that
    the view is. `index_type` is int64 for arrays whose offsets need it. `windows` are the slices of modes that a view
    with the layout `sliced_layout` goes through, by the number of its mode: indices are checked in the sliced mode too.
    """

    _why_no_copy = (
        "it is memory of a kernel that is being traced, which Python cannot copy",
        "copy the elements: tw.copy(source, destination), or tensor.to(dtype) for a fragment of their own",
    )
    buffer: Buffer
    start: Scalar | int = 0
    index_type: DType = int32
    guards: tuple[Guard, ...] = ()
    slices: tuple[Slice, ...] = ()
    windows: Mapping[int, Window] = dataclasses.field(default_factory=dict)
    sliced_layout: Any = None  # Any: a layout
    rank: Scalar | None = None  # of memory of another block of the cluster: which block

    def __repr__(self) -> str:
        return f"{self.space} memory of {self.dtype}{f' ({self.name})' if self.name else ''}"

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def name(self) -> str:
        """The argument's or variable's name."""
        return self.buffer.name

    @property
    def space(self) -> str:
        return self.buffer.space.value

    def offset(self, elements: Any) -> BufferEngine:
        """Return the engine that begins so many elements later."""
        if isinstance(elements, int) and elements == 0:
            return self
        return dataclasses.replace(self, start=self._sum(elements))

    def at(self, start: Scalar) -> BufferEngine:
        """Return the engine that begins at an element of the buffer."""
        return dataclasses.replace(self, start=start, windows={}, sliced_layout=None)

    def at_rank(self, rank: Any) -> BufferEngine:
        """Return the engine of the same elements in the shared memory of another block of the cluster."""
        tracer, source = current("at_rank"), self.buffer
        if source.space is not Space.SHARED or source.is_remote:
            raise LanguageError(
                f"at_rank: a block reaches shared memory of another, and this is {self.space} memory"
                + (" of another block already" if source.is_remote else ""),
                help="tile = tw.shared(dtype, layout); tile.at_rank(rank) is that of the block with that rank",
            )
        if not tracer.arch.has_clusters:
            raise LanguageError(
                f"at_rank: {tracer.arch} has no clusters of blocks, which need sm_90 or later",
                help="exchange data through global memory",
            )
        blocks = math.prod(tracer.cluster_shape)
        if isinstance(rank, int) and not 0 <= rank < blocks:
            raise LanguageError(
                f"at_rank: there is no block {rank} in a cluster of {blocks}",
                help="launch with clusters: @tw.kernel(cluster=2), or kernel.configure(cluster=2)",
            )
        remote = dataclasses.replace(
            source, name=f"remote_{source.name}" if source.name else "", base=source, is_remote=True, is_member=False,
            location=tracer.location(),
        )  # fmt: skip
        where = narrowed(rank)
        tracer.emit(AtRank(remote, source, where.value))
        return dataclasses.replace(self, buffer=remote, rank=where)

    def sliced(self, layout: Any, result: Any, spans: Mapping[int, tuple[Any, Any, int]]) -> BufferEngine:
        """Return the engine of a view in which modes of a layout are sliced, to (start, extent, step)."""
        windows = dict(self.windows) if self.sliced_layout is layout else {}
        shape = layout.shape if type(layout.shape) is tuple and layout.rank == result.rank else (layout.shape,)
        for k, (start, _, step) in spans.items():
            outer = windows.get(k)
            if outer is None:
                windows[k] = Window(start, step, tuple_size(shape[k]), k)
            else:
                windows[k] = Window(outer.start + start * outer.step, outer.step * step, outer.extent, outer.mode)
        return dataclasses.replace(self, windows=windows, sliced_layout=result)

    def modes_kept(self, layout: Any, result: Any, coord: tuple[Any, ...]) -> BufferEngine:
        """Return the engine of a view that keeps the modes of a layout where a coordinate is None."""
        if self.sliced_layout is not layout:
            return self
        kept = [k for k, c in enumerate(coord) if c is None]
        whole = not any(type(c) is tuple for c in coord)
        windows = {n: self.windows[k] for n, k in enumerate(kept) if k in self.windows} if whole else {}
        return dataclasses.replace(self, windows=windows, sliced_layout=result)

    def coordinate(self, c: Any) -> Any:
        """Return a coordinate in the type that offsets of this buffer are computed in: int64 for a wide array."""
        if isinstance(c, Scalar):
            _demand_integer(c)
        return c.to(int64) if self.index_type is int64 and isinstance(c, Scalar) and c.dtype.bits < 64 else c

    def _sum(self, elements: Any) -> Scalar | int:
        if isinstance(self.start, int) and self.start == 0:
            return elements  # type: ignore[no-any-return]
        if isinstance(elements, int):
            return self.start + elements if elements else self.start
        return elements + self.start  # type: ignore[no-any-return]

    def index(self, elements: Any) -> Value:
        """Return the buffer index of an element as a value."""
        total = as_scalar(self._sum(elements))
        _demand_integer(total)
        return total.value

    def load(self, elements: Any) -> Scalar:
        """Return one element."""
        return Scalar(self.load_value(elements, self.dtype))

    def load_value(self, elements: Any, type: DType | VectorType, hints: CacheHints | None = None) -> Value:
        """Return an element or an aligned vector."""
        self.demand_guards()
        return current("reading a device tensor").emit(Load(self.buffer, self.index(elements), hints), type)[0]

    def store(self, elements: Any, value: Any) -> None:
        """Write one element, converted within its kind (a float to a narrower float, an integer to a float)."""
        scalar = (
            as_scalar(value) if isinstance(value, Scalar) or hasattr(value, "dtype") else as_scalar(value, self.dtype)
        )
        elementwise.demand_conversion(scalar.dtype, self.dtype, self.name)
        self.store_value(elements, scalar.to(self.dtype).value)

    def store_value(self, elements: Any, value: Value, hints: CacheHints | None = None) -> None:
        """Write an element or an aligned vector."""
        self.demand_guards()
        current("writing a device tensor").emit(Store(self.buffer, self.index(elements), value, hints))

    def demand_inside(self, coord: Any, layout: Any) -> None:
        """Let the simulator check a coordinate against the extents of a layout, where neither is certain to fit."""
        tracer = current("an access")
        if not tracer.bounds or self._is_all_of_it(layout):
            return
        parts = coord if type(coord) is tuple else (coord,)
        modes = layout.shape if type(coord) is tuple else (layout.shape,)
        for mode, (c, shape) in enumerate(zip(parts, modes, strict=True)):
            extent = tuple_size(shape)
            if c is None or type(c) is tuple:
                continue
            self._demand_index(tracer, mode, c, extent)
            window = self.windows.get(mode) if layout is self.sliced_layout else None
            if (window is not None and type(coord) is tuple) or (window is not None and layout.rank == 1):
                self._demand_index(tracer, window.mode, window.start + c * window.step, window.extent)

    def _demand_index(self, tracer: Tracer, mode: int, c: Any, extent: Any) -> None:
        """Let the simulator check one index against an extent, where it is not certain to fit."""
        if not (isinstance(c, Scalar) or isinstance(extent, Scalar)):
            return
        index, limit = as_scalar(c), as_scalar(extent)
        known, least = facts_of(index.value), facts_of(limit.value).low
        if known.low < 0 or known.high >= least:
            if index.dtype is not limit.dtype:
                index, limit = index.to(int64), limit.to(int64)
            tracer.emit(Inside(self.buffer, mode, index.value, limit.value))

    def _is_all_of_it(self, layout: Any) -> bool:
        """Return whether the bounds of the buffer are those of a vector that begins where it does."""
        is_first = isinstance(self.start, int) and self.start == 0
        return is_first and layout.rank == 1 and self.sliced_layout is None

    def guard(self, dividend: Any, divisor: Any, what: str) -> BufferEngine:
        """Record that the view is right only if the divisor divides the dividend."""
        if not isinstance(divisor, int):
            return self
        if isinstance(dividend, Scalar) and dividend.facts.divisor % divisor == 0:
            return self
        tracer = current("tiling")
        axis = extent_name(tracer, dividend.value) if isinstance(dividend, Scalar) else None
        guard = Guard(dividend, divisor, axis or f"the extent of {what} of {self.name}", tracer.location())
        return dataclasses.replace(self, guards=(*self.guards, guard))

    def demand_guards(self) -> None:
        """Make the guards conditions of the launch, unless a branch protects the access."""
        self.note_slices()
        if not self.guards:
            return
        tracer = current("an access")
        if tracer.branch_depth:
            return
        for guard in self.guards:
            self._demand(guard)

    def _demand(self, guard: Guard) -> None:
        tracer = current("an access")
        help = "give the tile guard=True, pad the array, take a tile that divides it, or use if or pred="
        if isinstance(guard.dividend, int):
            raise LanguageError(
                f"{guard.what} is {guard.dividend}, and the tile of {guard.divisor} does not divide it",
                location=guard.location,
                help=help,
            )
        message = f"{guard.what} is {{value}}, and the tile of {guard.divisor} does not divide it"
        require_multiple(tracer, guard.dividend.value, guard.divisor, message, help, guard.location)

    def slice_of(self, tiled: Any, thread: Any, layout: Any) -> BufferEngine:  # Any: a TiledCopy or TiledMMA, an Int
        """Record that the view will be what a thread gets of a tiled copy or mma."""
        title = f"{self.name + ', ' if self.name else ''}{self.space} {self.dtype} {layout}"
        return dataclasses.replace(self, slices=(*self.slices, slice_of(current("a slice"), tiled, thread, title)))

    def note_slices(self, condition: Value | None = None) -> None:
        """Refuse an access by slices that threads of the block do not have, unless a condition may leave those out."""
        for taken in self.slices:
            note_access(current("an access"), taken, condition)

    # --- what tiles that overhang ask for, see `tensors.guarded` ---

    def guarded(self) -> BufferEngine:
        """Return the engine of a guarded view of these elements."""
        return GuardedEngine(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def depends_on_thread(self, c: Any) -> bool:
        """Say whether a coordinate is computed of `tw.thread_idx`."""
        return isinstance(c, Scalar) and is_of_thread(c.value)

    def is_block_index(self, c: Any) -> bool:
        """Say whether a coordinate is `tw.block_idx` along an axis, where no branch leaves blocks out."""
        op = c.value.definition if isinstance(c, Scalar) else None
        return isinstance(op, Special) and op.name.startswith("block_idx") and not current("tiling").branch_depth

    def limit_blocks(self, c: Any, tiles: int, what: str) -> None:
        """Let a launch have no more blocks along the axis that `c` is the index of than there are tiles."""
        tracer, axis = current("tiling"), "xyz".index(c.value.definition.name[-1])
        what = f"{what} of {self.name} has {tiles} tiles"
        tracer.grid_limits.setdefault((axis, tiles), GridLimit(axis, tiles, what, tracer.location()))

    def bounded(self, number: Any, limit: Any) -> Any:
        """Return a number, or the nearest of 0 to `limit`."""
        if type(number) is int and type(limit) is int:
            return min(max(number, 0), limit)
        return arithmetic("min", arithmetic("max", as_scalar(number), 0), limit)

    def load_where(self, inside: Any, elements: Any, fill: Any) -> Scalar:
        """Return one element where a condition holds, and a number elsewhere."""
        return branch(inside, lambda: (self.load(elements),), lambda: (as_scalar(fill, self.dtype),))[0]  # type: ignore[no-any-return]

    def store_where(self, inside: Any, elements: Any, value: Any) -> None:
        """Write one element where a condition holds."""
        branch(inside, lambda: self.store(elements, value))

    def recast(self, dtype: DType) -> BufferEngine:
        """Return the same bytes as elements of another type.

        Raises `LanguageError` for a first element that is not known to be one of the other type, by its place and its
        alignment.
        """
        if dtype is self.dtype:
            return self
        what = f"{self.name or 'the tensor'}.recast: "
        if bool_ in (dtype, self.dtype) or dtype in OPERANDS:
            raise LanguageError(
                f"{what}{self.dtype} memory is not seen as {dtype}",
                help="recast numbers of whole bytes: the same bits in another type",
            )
        old, new = self.dtype.bytes, dtype.bytes
        if self.alignment % new:
            raise LanguageError(
                f"{what}the first element is known to lie at a multiple of {self.alignment} bytes only, and a {dtype} "
                f"takes {new}",
                help="begin at an element whose index divides by their ratio, or give the memory a wider alignment",
            )
        scaled = self.start * (old // new) if new <= old else _divided(self.start, new // old)
        return dataclasses.replace(self, buffer=view_of(self.buffer, dtype), start=scaled)

    def for_layout(self, layout: Any) -> BufferEngine:  # Any: a layout
        """Return the engine of a tensor of a layout: at an address, offsets that may be large are computed in int64.

        Raises `LayoutError` for a layout that reaches behind the end of shared memory or registers.
        """
        reach, start, size = cosize(layout) if layout.is_static else None, self.start, self.buffer.size
        if not self.buffer.is_pointed:
            if isinstance(size, int) and isinstance(reach, int) and isinstance(start, int) and start + reach > size:
                raise LayoutError(
                    f"layout {layout} reaches {reach} elements, {self} has {size - start}",
                    help="use a layout whose cosize is at most that",
                )
            return self
        small = isinstance(reach, int) and reach < 2**31
        return dataclasses.replace(self, index_type=int32 if small else int64)

    def fragment(self, layout: Layout, dtype: DType) -> BufferEngine:
        """Return registers for a layout."""
        return allocate(Space.REGISTER, dtype, cosize(layout), VECTOR_BYTES)

    def convert_into(self, source: Tensor, target: Tensor, element: DType) -> None:
        """Write the elements of a tensor of this engine to another, each converted."""
        elementwise.convert_fragment(source, target, element)

    def compute(self, name: str, function: Any, operands: tuple[Any, ...]) -> Tensor:  # Any: of numbers, or tensors
        """Return a fragment of a function of the operands' elements."""
        return elementwise.compute(name, function, operands)

    def update(self, target: Tensor, name: str, function: Any, other: Any) -> None:  # Any: of numbers, or a tensor
        """Write a function of the elements of a tensor and another operand back to the tensor."""
        elementwise.update(target, name, function, other)

    def assign(self, target: Tensor, value: Any) -> None:  # Any: a number or a tensor
        """Write a number, or the elements of a tensor, to all elements."""
        elementwise.assign(target, value)

    def reduce(self, tensor: Tensor, op: Any, modes: tuple[int, ...], shape: Any, init: Any) -> Any:  # Any: see there
        """Return the elements combined over modes."""
        return reductions.reduce(tensor, op, modes, shape, init)

    def demand_whole(self, layout: Any) -> None:
        """Check what an access to all elements of a layout needs: whole tiles, and slices inside their modes."""
        self.demand_guards()
        tracer = current("an access")
        if layout is not self.sliced_layout or not tracer.bounds:
            return
        modes = layout.shape if type(layout.shape) is tuple else (layout.shape,)
        for k, window in self.windows.items():
            last = window.start + (tuple_size(modes[k]) - 1) * window.step
            for index in (window.start, last):
                self._demand_index(tracer, window.mode, index, window.extent)

    @property
    def alignment(self) -> int:
        """What the address of the first element is a multiple of, in bytes, as far as is known."""
        if isinstance(self.start, Scalar):
            divisor = self.start.facts.divisor
        else:
            divisor = abs(self.start)
        return math.gcd(self.buffer.alignment, divisor * self.dtype.bytes)


class GuardedEngine(BufferEngine):
    """The engine of a guarded view, some of whose elements may not exist: it refuses what does not ask which do."""

    def unguarded(self) -> BufferEngine:
        """Return the engine without the guard, for who knows which elements exist."""
        return BufferEngine(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def index(self, elements: Any) -> Value:
        """Refuse an access."""
        raise self._refusal()

    def demand_guards(self) -> None:
        """Refuse an access."""
        raise self._refusal()

    def _refusal(self) -> LanguageError:
        return LanguageError(
            f"{self.name or 'the tensor'} is guarded: some elements of the tile may lie outside, and this operation "
            "does not ask which",
            help="copy the tile into registers or shared memory first, tw.copy(tile, tw.fragment_like(tile)); or "
            "access the tensor itself under `if tile.inside(coord):`",
        )


def _divided(start: Scalar | int, ratio: int) -> Scalar | int:
    """Return an element's index in elements that are wider by a ratio, which divides it."""
    return start // ratio


def view_of(buffer: Buffer, dtype: DType) -> Buffer:
    """Return the buffer that shows another's bytes as elements of a type: the same one each time."""
    family = buffer.family
    if family.dtype is dtype:
        return family
    views = current("a recast").views
    found = views.get((family, dtype))
    if found is None:
        size = None if family.size is None else family.size * family.dtype.bytes // dtype.bytes
        found = Buffer("", dtype, family.space, size, family.alignment, current("a recast").location(), base=family)
        views[family, dtype] = found
    return found


def allocate(space: Space, dtype: DType, size: int | DynamicInt, alignment: int) -> BufferEngine:
    """Begin a shared or register buffer and return its engine."""
    if not isinstance(size, int):
        raise LanguageError(
            f"{space.value} memory needs a size that is known while tracing, and the layout is dynamic",
            help="make the layout a tw.constexpr parameter",
        )
    demand_storage(dtype, space)
    buffer = Buffer("", dtype, space, size, max(alignment, dtype.bytes), current("an allocation").location())
    current("an allocation").emit(Allocate(buffer))
    return BufferEngine(buffer)


def demand_storage(dtype: DType, space: Space) -> None:
    """Refuse the types that only matrix instructions know: memory holds their operands in wider ones."""
    if dtype not in OPERANDS:
        return
    held = dtype.storage if dtype.bits == 32 else uint32
    packed = f"{32 // dtype.bits} {dtype} a word along K" if dtype.bits < 32 else f"{dtype} in the upper 19 bits"
    raise LanguageError(
        f"{space.value} memory does not hold {dtype}: it is an operand type of matrix instructions",
        details=[f"a tensor holds it as {held}: {packed}"],
        help=f"use tw.{held}, with atom.in_words() for the atom over words"
        if dtype.bits < 32
        else f"use tw.{held}; x.to(tw.{dtype}) rounds a value to what a tensor core reads",
    )


def _demand_integer(number: Scalar) -> None:
    """Raise `LanguageError` for an index that is a float or a bool."""
    if not number.dtype.is_integer:
        raise LanguageError(
            f"an index is {number.dtype}, and it must be an integer",
            help="convert it: int(x)"
            if number.dtype.is_float
            else "write tw.where(condition, a, b), or int(condition)",
        )
