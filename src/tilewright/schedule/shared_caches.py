"""Caches in shared memory: filled by all threads of the block, by cp.async where the target has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.arch import VECTOR_BYTES
from tilewright.atoms import CopyAtom, UniversalCopy
from tilewright.dtypes import DType, bool_, int64
from tilewright.errors import LayoutError, ScheduleError
from tilewright.instructions import cp_async
from tilewright.ir.core import Space
from tilewright.language.copying import clear, copy
from tilewright.layout import ComposedLayout, Layout, Swizzle, append, composition, select, tile_to_shape
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import ArrayLayout
from tilewright.schedule.caches import Cache, Location, Region, Strategy, elements_of, static_layout
from tilewright.schedule.filling import Filling, divisor_of, divisor_of_affine, is_private
from tilewright.schedule.scope import Scope
from tilewright.tensors import Tensor
from tilewright.trace.carry import rename
from tilewright.trace.control import branch, loop
from tilewright.trace.elementwise import convert_fragment
from tilewright.trace.memory import registers, shared
from tilewright.trace.scalar import as_scalar
from tilewright.trace.threads import block_idx, grid_dim
from tilewright.trace.tracer import current
from tilewright.transactions import ROW

_VECTOR = 16  # bytes: the widest access, and what ldmatrix reads of a row
_MOST_HELD = 32  # vectors that a thread holds in registers while it copies a box; more go through a loop one by one
_MOST_SWIZZLED = 1024  # vectors that it holds where elements lie swizzled: no vector is then found by its number


# --- which threads copy what -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """Which elements of a box each thread copies.

    Vector v of thread t begins at element t * by_thread + v * by_vector, counted with the box's fastest mode first;
    `threads` of the block take part. Where `is_even`, all of these are elements of the box, and `layout` maps (thread,
    (element of a vector, vector)) to them; else those at `size` and beyond are not.

    Law: every element of the box has one thread and one place.
    """

    size: int
    threads: int
    width: int
    vectors: int
    by_thread: int
    by_vector: int

    @property
    def is_even(self) -> bool:
        return self.threads * self.vectors * self.width == self.size

    @property
    def layout(self) -> Layout:
        assert self.is_even, self
        return Layout((self.threads, (self.width, self.vectors)), (self.by_thread, (1, self.by_vector)))

    def in_pieces(self, pieces: int) -> Layout:
        """Return (thread, (element of a vector, vector), piece), with as many vectors in each piece."""
        assert self.is_even, self
        assert self.vectors % pieces == 0, (self, pieces)
        each = self.vectors // pieces
        return Layout(
            (self.threads, (self.width, each), pieces), (self.by_thread, (1, self.by_vector), self.by_vector * each)
        )


@dataclass(frozen=True)
class Piece:
    """One of so many equal pieces of what a thread copies."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number + 1}/{self.of}"

    def of_range(self, extent: int) -> range:
        """Return which of `extent` vectors are in the piece."""
        each = extent // self.of
        return range(self.number * each, (self.number + 1) * each)


WHOLE = Piece(0, 1)


def spread(vectors: Sequence[int], slots: int) -> list[list[tuple[int, Piece]]]:
    """Deal the pieces of several copies out to slots, about as many vectors to each: (which copy, its piece).

    >>> [[(copy, str(piece)) for copy, piece in slot] for slot in spread((4, 8), 3)]
    [[(0, '1/1')], [(1, '1/2')], [(1, '2/2')]]
    """
    most = -(-sum(vectors) // slots)
    slots_of_pieces: list[list[tuple[int, Piece]]] = [[] for _ in range(slots)]
    dealt = 0
    for number, extent in enumerate(vectors):
        of = next(n for n in range(1, extent + 1) if extent % n == 0 and extent // n <= most)
        for part in range(of):
            slots_of_pieces[min(dealt // most, slots - 1)].append((number, Piece(part, of)))
            dealt += extent // of
    return slots_of_pieces


def share_out(size: int, threads: int, width: int, strategy: Strategy) -> Share:
    """Deal out `size` elements in vectors of `width` to at most so many threads, each as many or one less.

    STRIPED: thread t takes vectors t, t + threads, ...; BLOCKED: a run of neighbours. Where the vectors do not divide
    among the threads, fewer threads take part if they do divide them and none has more to do for it.

    >>> print(share_out(64, 8, 4, Strategy.STRIPED).layout, share_out(64, 8, 4, Strategy.BLOCKED).layout)
    (8,(4,2)):(4,(1,32)) (8,(4,2)):(8,(1,4))
    """
    vectors = size // width
    most = min(threads, vectors)
    each = -(-vectors // most)
    taking = vectors // each if vectors % each == 0 else most
    by_thread, by_vector = (width * each, width) if strategy is Strategy.BLOCKED else (width, width * taking)
    return Share(size, taking, width, each, by_thread, by_vector)


# --- the cache -------------------------------------------------------------------------------------------


class SharedCache(Filling):
    """A cache in shared memory, of one or more buffers."""

    def __init__(self, scope: Scope, cache: Cache) -> None:
        super().__init__(scope, cache)
        if isinstance(self.layout, ComposedLayout) and not cache.is_filled_in_bulk and not self._divides():
            self.layout = self._plain
        self.tensor: Tensor = self._memory()
        rename(cache.name, self.tensor)

    def _memory(self) -> Tensor:
        """Return its buffers: in shared memory, or this block's part of what the launch allocates."""
        cache = self.cache
        if cache.location is Location.SHARED:
            return shared(cache.element_type, self.layout)
        memory = self.scope.cache_memory[cache]
        return Tensor(memory.engine.offset(self._number_of_block() * elements_of(cache, self.region)), self.layout)

    def _number_of_block(self) -> Any:  # Any: a number of host or device
        """Return the number of the block in the grid, along those axes that the plan uses."""
        number: Any = 0
        if self.scope.plan.blocks is not None:
            return as_scalar(block_idx.x, int64)
        for axis in sorted((b.axis for b in self.scope.plan.bindings if b.kind == "BLOCK"), reverse=True):
            index, extent = ((x.x, x.y, x.z)[axis] for x in (block_idx, grid_dim))
            number = as_scalar(index, int64) if isinstance(number, int) else number * extent + index
        return number

    @cached_property
    def layout(self) -> Layout | ComposedLayout:
        """The layout of all buffers: the modes of the array, then the number of the buffer."""
        cache, stages = self.cache, self.cache.stages
        plan = self.scope.plan
        if plan.is_read_by_warpgroups(cache) or cache.is_filled_in_bulk:
            if cache.layout is None or isinstance(cache.layout, ArrayLayout):
                return matrix_layout(cache, self.region, self.order, stages, is_shared_out=False) or self._plain
            return self._plain
        copied_on = (other.source is cache and other.location is not Location.MMA_FRAGMENT for other in plan.caches)
        if cache.layout is None and plan.feeds_matrix_instructions(cache) and not any(copied_on):
            swizzled = matrix_layout(cache, self.region, self.order, stages)
            if swizzled is not None:
                return swizzled
        return self._plain

    def _divides(self) -> bool:
        """Whether the threads share the box by a layout: vectors that are found one by one cannot lie swizzled."""
        if self.outer is None:
            return True  # what begins in the cache is not shared out
        symbols = {s for mode in self.region.origin for s in mode.symbols() if isinstance(s, Index)}
        with self.scope.knowing({index: 0 for index in symbols if index not in self.scope.values}):
            divides = self.is_dealt_by_layout
        for name in ("width", "share", "is_dealt_by_layout"):
            self.__dict__.pop(name, None)  # as the loops stand here: they are not yet entered
        return divides

    @property
    def _plain(self) -> Layout:
        """All buffers without a swizzle."""
        layout = static_layout(self.cache, self.region)
        apart = elements_of(self.cache, self.region) // self.cache.stages
        return append(layout, Layout(self.cache.stages, apart))  # type: ignore[no-any-return]  # a layout of a layout

    def buffer(self, stage: Any) -> Tensor:  # Any: a number of host or device
        """Return one of the buffers."""
        buffer: Tensor = self.tensor[(None,) * len(self.region.shape) + (stage,)]
        return buffer

    @property
    def source_type(self) -> DType:
        """The element type of what it is filled from: the array, or a cache outside of this one."""
        assert self.outer is not None, self.cache
        element_type: DType = self.outer.tensor.dtype
        return element_type

    @cached_property
    def width(self) -> int:
        """The elements that a thread moves at once: as many as alignment, layouts and edges allow."""
        cache, scope = self.cache, self.scope
        fast = self.order[0]
        source = self.source_view()
        strides = source.layout.stride if isinstance(source.layout.stride, tuple) else (source.layout.stride,)
        inner = self._inner_stride(fast)
        limit = VECTOR_BYTES // max(self.source_type.bytes, cache.element_type.bytes)
        if not isinstance(cache.vectorize, bool):
            limit = min(limit, cache.vectorize)
        if cache.vectorize is False or type(strides[fast]) is not int or strides[fast] != 1 or inner != 1:
            return 1
        width = max(limit, 1)
        extent = cache.array.shape[fast]
        fits = [self.region.shape[fast]]
        if fast in self.guards:
            fits.append(divisor_of(extent if isinstance(extent, int) else scope.values[extent]))
        fits += [divisor_of(step) for mode, step in enumerate(strides) if mode != fast]
        if isinstance(self.layout, Layout):
            fits += [divisor_of(self.layout[mode].stride) for mode in self.order[1:] if self.region.shape[mode] > 1]
        fits += self._beginnings()
        fits.append(source.engine.buffer.alignment // self.source_type.bytes)
        if cache.location is Location.GLOBAL:
            fits.append(self.scope.cache_memory[cache].engine.buffer.alignment // cache.element_type.bytes)
        while width > 1 and any(x % width for x in fits):
            width //= 2
        return width

    def _beginnings(self) -> list[int]:
        """Return a number for each mode that divides how far the box begins from where its source does: 0 for 0.

        A box of every other row still begins at any row, and a cache that it is filled from has left rows out too.
        """
        assert self.outer is not None, self.cache
        place, stride = self.outer.place(self.region.origin), self.outer.tensor.layout.stride
        strides, steps = stride if isinstance(stride, tuple) else (stride,), self.outer.steps or (1,) * len(place)
        return [
            divisor_of(apart) * divisor_of_affine(self.scope, start, step)
            for start, apart, step in zip(place, strides, steps, strict=True)
        ]

    def _inner_stride(self, fast: int) -> int:
        """Return how far apart in shared memory two neighbours along a mode lie."""
        if isinstance(self.layout, ComposedLayout):
            return 1  # a swizzle leaves the elements of a vector side by side
        stride = self.layout[fast].stride
        return stride if isinstance(stride, int) else 0

    @cached_property
    def share(self) -> Share:
        """Which vectors each thread takes."""
        return share_out(self.region.size, self.scope.threads, self.width, self.cache.strategy)

    @cached_property
    def is_dealt_by_layout(self) -> bool:
        """Whether one layout says what each thread copies: the box divides, and so do its modes among the threads.

        Conditions and elements that are converted are then held in registers, which only so many vectors can be.
        """
        is_written = self.scope.plan.is_written(self.cache)
        held = self.guards or self.cache.element_type is not self.source_type or is_written
        most = _MOST_SWIZZLED if isinstance(self.layout, ComposedLayout) else _MOST_HELD
        if not self.share.is_even or (held and self.share.vectors > most) or self._writes_to_parts_of_a_buffer:
            return False
        try:
            composition(_with_gaps(self.region.shape, self.order), self.share.layout)
            composition(select(self.layout, *self.order), self.share.layout)  # its modes may be cut further
        except LayoutError:
            return False
        return True

    @cached_property
    def atom(self) -> CopyAtom:
        """What moves a vector: cp.async where it can."""
        bits = self.width * self.source_type.bits
        same = self.cache.element_type is self.source_type
        is_global = self.source_view().engine.buffer.space is Space.GLOBAL
        found = None
        if is_global and same and self.cache.location is Location.SHARED and not self.cache.through_registers:
            found = cp_async.atom_for(bits, current("a cache").arch)
        return found or UniversalCopy(bits)

    @property
    def is_asynchronous(self) -> bool:
        return self.atom.is_asynchronous

    def part(self, tensor: Tensor, piece: Piece) -> Tensor:
        """Return the elements of the region that the thread moves: (element of a vector, vector)."""
        shares = self.share.in_pieces(piece.of)
        dealt = tensor.map_layout(lambda layout: composition(_ordered(layout, self.order), shares))
        part: Tensor = dealt[(self.scope.thread if self.share.threads > 1 else 0, None, piece.number)]
        return part

    def element(self, vector: Any) -> Any:  # Any: numbers of host or device
        """Return the number of the first element of one of the thread's vectors, counted in the region's order."""
        thread = self.scope.thread if self.share.threads != 1 else 0
        return thread * self.share.by_thread + vector * self.share.by_vector

    def coordinates(self, element: Any) -> tuple[Any, ...]:  # Any: numbers of host or device
        """Return where an element stands in the region."""
        place: list[Any] = [0] * len(self.region.shape)
        for mode in self.order[:-1]:
            place[mode] = element % self.region.shape[mode]
            element = element // self.region.shape[mode]
        last = self.order[-1]
        place[last] = element if self.region.shape[last] > 1 else 0  # beyond the region's end nothing is copied
        return tuple(place)

    def guard(self, when: Any, piece: Piece) -> Any:  # Any: a condition of host or device, or a tensor of them
        """Return what says for each vector of the thread whether it is there: None where all are."""
        if not self.guards:
            return None if when is True else when
        vectors = piece.of_range(self.share.vectors)
        held = registers(bool_, Layout(len(vectors)))
        rename("inside", held)
        for number, vector in enumerate(vectors):
            inside = self.inside(self.coordinates(self.element(vector)))
            held[number] = inside if when is True else inside & when
        return Tensor(held.engine, Layout((self.width, len(vectors)), (0, 1)))

    @property
    def _writes_to_parts_of_a_buffer(self) -> bool:
        """Whether it is written back to another cache, which has no place for what lies outside of the array."""
        assert self.outer is not None, self.cache
        is_buffer = self.outer.tensor.engine.buffer.space is Space.SHARED
        return is_buffer and bool(self.guards) and self.scope.plan.is_written(self.cache)

    @property
    def goes_one_by_one(self) -> bool:
        """Whether a thread copies its vectors one by one: more than it should hold, or each under its condition."""
        is_long = self.share.vectors > _MOST_HELD and not self.is_dealt_by_layout
        return is_long or self._writes_to_parts_of_a_buffer

    @property
    def vectors(self) -> int:
        """The vectors of a thread that may be copied at different times."""
        return self.share.vectors if self.cache.element_type is self.source_type else 1

    def fill(self, stage: Any = 0, when: Any = True, piece: Piece = WHOLE) -> None:  # Any: of host or device
        """Begin to copy the region, or a piece of it, into a buffer: zeros where the array has ended or not `when`."""
        if self.goes_one_by_one:
            self._taking(lambda: self._move_one_by_one(self.source_view(), self.buffer(stage), when, piece))
        elif self.cache.element_type is not self.source_type:
            self._taking(lambda: self._put(self._fetch(when), stage))
        else:
            self._taking(lambda: self._move(self.atom, self.source_view(), self.buffer(stage), when, piece))

    def clear(self) -> None:
        """Put zeros into the whole buffer, by all threads."""
        size, type = self.tensor.layout.cosize, self.cache.element_type
        assert isinstance(size, int), self.tensor
        width = max(VECTOR_BYTES // type.bytes, 1)
        width = width if size % width == 0 and self.tensor.engine.buffer.alignment % VECTOR_BYTES == 0 else 1
        zeros = registers(type, width)
        clear(zeros)

        def vector(number: Any) -> None:  # Any: a number of the device
            copy(
                UniversalCopy(width * type.bits),
                zeros,
                Tensor(self.tensor.engine.offset(number * width), Layout(width)),
            )

        thread = self.scope.thread if self.scope.threads > 1 else 0
        loop(thread, size // width, self.scope.threads, vector)

    def fetch(self, when: Any = True) -> Tensor:  # Any: a condition of host or device
        """Read the thread's part of the region into registers, zeros where the array has ended."""
        held = self._held(self.source_type)
        if self.share.threads == self.scope.threads:
            return self._fetch(when, held)

        def fetch() -> None:
            self._fetch(when, held)

        self._taking(fetch)  # what a thread without a part holds is not put anywhere
        return held

    def _held(self, type: DType) -> Tensor:
        """Return registers for the thread's part: zeros where it has fewer vectors than others."""
        held = registers(type, Layout((self.width, self.share.vectors)))
        if not self.share.is_even:
            clear(held)
        return held

    def _fetch(self, when: Any, held: Tensor | None = None) -> Tensor:  # Any: as in `fetch`
        if held is None:
            held = self._held(self.source_type)
        self._move(UniversalCopy(self.atom.bits or 0), self.source_view(), held, when)
        return held

    def put(self, held: Tensor, stage: Any = 0) -> None:  # Any: a number of host or device
        """Write what `fetch` has read to a buffer."""
        self._taking(lambda: self._put(held, stage))

    def _put(self, held: Tensor, stage: Any) -> None:  # Any: a number of host or device
        self._move(UniversalCopy(self.width * self.cache.element_type.bits), self._converted(held), self.buffer(stage))

    def _move(
        self, atom: CopyAtom, source: Tensor, target: Tensor, when: Any = True, piece: Piece = WHOLE
    ) -> None:  # Any: a condition
        """Copy the thread's vectors of a piece between the region, a buffer and registers, as far as the array reaches.

        A tensor of the region's rank has its modes; one in registers has (element of a vector, vector).
        """
        held = [is_private(tensor) for tensor in (source, target)]
        # A buffer of this cache has a place for what lies beyond the array's end; all else may have none.
        own = self.tensor.engine.buffer
        guarded = not (
            (held[0] and target.engine.buffer is own) or (held[1] and source.engine.buffer is own and when is True)
        )
        if self.is_dealt_by_layout:
            parts = [x if own else self.part(x, piece) for x, own in zip((source, target), held, strict=True)]
            copy(atom, *parts, pred=self.guard(when, piece) if guarded else None)
            return

        def vector(number: Any, place: tuple[Any, ...]) -> None:  # Any: numbers of the device
            ends = [
                x[(None, number)] if own else self._vector(x, place)
                for x, own in zip((source, target), held, strict=True)
            ]
            inside = self.inside(place) if guarded else True
            inside = inside if when is True or not guarded else when & inside
            copy(atom, *ends, pred=None if inside is True else inside)

        self._each_vector(piece, vector)

    def _move_one_by_one(self, source: Tensor, target: Tensor, when: Any = True, piece: Piece = WHOLE) -> None:
        """Copy the thread's vectors between the region and a buffer, each through registers of its own if converted."""
        own = self.tensor.engine.buffer
        atom = self.atom if target.engine.buffer is own else UniversalCopy(self.width * source.dtype.bits)

        def vector(_: Any, place: tuple[Any, ...]) -> None:  # Any: numbers of the device
            ends = self._vector(source, place), self._vector(target, place)
            inside = self.inside(place)
            inside = inside if when is True else when & inside
            if target.engine.buffer is not own:
                branch(inside, lambda: move(*ends))  # it may have no place for what lies beyond the array's end
            else:
                move(*ends, pred=None if inside is True else inside)

        def move(source: Tensor, target: Tensor, pred: Any = None) -> None:  # Any: a condition
            if source.dtype is target.dtype:
                copy(atom, source, target, pred=pred)
                return
            held, converted = registers(source.dtype, self.width), registers(target.dtype, self.width)
            copy(UniversalCopy(self.width * source.dtype.bits), source, held, pred=pred)
            convert_fragment(held, converted, target.dtype)
            copy(UniversalCopy(self.width * target.dtype.bits), converted, target)

        self._each_vector(piece, vector)

    def _each_vector(self, piece: Piece, body: Callable[[Any, tuple[Any, ...]], None]) -> None:
        """Emit a body for each vector of the thread that is there: its number, and where it begins in the region."""

        def vector(number: Any) -> None:  # Any: a number of the device
            element = self.element(number)
            place = self.coordinates(element)
            branch(self.share.is_even or element < self.share.size, lambda: body(number, place))

        vectors = piece.of_range(self.share.vectors)
        loop(vectors.start, vectors.stop, 1, vector, unroll=True if len(vectors) <= _MOST_HELD else None)

    def _vector(self, tensor: Tensor, place: tuple[Any, ...]) -> Tensor:  # Any: numbers of host or device
        """Return the vector of a tensor that begins at a place."""
        if isinstance(tensor.layout, ComposedLayout):
            raise ScheduleError(
                f"the box {self.region.shape} of {self.cache!r} does not divide among {self.share.threads} threads, "
                "and its elements lie swizzled",
                help="give the cache a layout: Array.Layout.FIRST_MAJOR",
            )
        strides = tensor.layout.stride if isinstance(tensor.layout.stride, tuple) else (tensor.layout.stride,)
        offset: Any = 0
        for coordinate, stride in zip(place, strides, strict=True):
            offset = offset + coordinate * stride
        return Tensor(tensor.engine.offset(offset), Layout(self.width, strides[self.order[0]]))

    def _converted(self, held: Tensor) -> Tensor:
        if held.dtype is self.cache.element_type:
            return held
        result = registers(self.cache.element_type, held.layout)
        convert_fragment(held, result, self.cache.element_type)
        return result

    def flush(self) -> None:
        """Write the region back as far as the array reaches, by all threads."""
        target = self.source_view()
        if self.goes_one_by_one:
            self._taking(lambda: self._move_one_by_one(self.buffer(0), target))
            return

        def write() -> None:
            held = self._held(self.cache.element_type)
            self._move(UniversalCopy(self.width * held.dtype.bits), self.buffer(0), held)
            result = held
            if target.dtype is not held.dtype:
                result = registers(target.dtype, held.layout)
                convert_fragment(held, result, target.dtype)
            self._move(UniversalCopy(self.width * target.dtype.bits), result, target)

        self._taking(write)

    def _taking(self, body: Callable[[], None]) -> None:
        """Emit something for the threads that take part."""
        all_take = self.share.threads == self.scope.threads
        branch(True if all_take else self.scope.thread < self.share.threads, body)


def _ordered(layout: Layout | ComposedLayout, order: tuple[int, ...]) -> Any:  # Any: a layout of the same kind
    return select(layout, *order) if len(order) > 1 else layout


def _with_gaps(shape: tuple[int, ...], order: tuple[int, ...]) -> Layout:
    """Return a layout of a box in which no two modes lie in line, so that what divides it divides any other."""
    steps, step = [], 1
    for mode in order:
        steps.append(step)
        step *= 2 * shape[mode]
    return Layout(tuple(shape[mode] for mode in order), tuple(steps))


def matrix_layout(
    cache: Cache, region: Region, order: tuple[int, ...], stages: int, *, is_shared_out: bool = True
) -> Layout | ComposedLayout | None:
    """Return the layout in which 16-byte parts of a row change places with the row's number, None where none fits.

    A row is what is contiguous, up to 128 bytes; a shorter one shares the banks with its neighbours, and so does their
    order. Eight rows one below the other, which ldmatrix reads at once, then lie in eight different groups of banks,
    and so do the parts that neighbouring threads copy. It is what the descriptors of wgmma and boxes of TMA have, too.
    Without `is_shared_out`, whole threads need not share a row, which may then be a part of what is contiguous.
    """
    size = cache.element_type.bytes
    fast = order[0]
    slow = next((mode for mode in order[1:] if region.shape[mode] % 8 == 0), None)
    longest = ROW // size
    row = min(longest, region.shape[fast]) if is_shared_out else math.gcd(longest, region.shape[fast])
    parts = row * size // _VECTOR
    least = 2 if is_shared_out else 1
    if slow is None or region.shape[fast] % row or parts < least or parts & (parts - 1) or row * size % _VECTOR:
        return None
    rank = len(region.shape) + 1
    shape, strides = [1] * rank, [0] * rank
    shape[fast], strides[fast] = row, 1
    shape[slow], strides[slow] = 8, row
    block = Layout(tuple(shape), tuple(strides))
    swizzle = Swizzle(parts.bit_length() - 1, (_VECTOR // size).bit_length() - 1, 3)
    atom = block if parts == 1 else ComposedLayout(swizzle, 0, block)
    # Next to a block lies what continues its rows' count, so that one bulk copy fills whole columns of blocks.
    first = [slow, *(mode for mode in range(rank) if mode != slow)]
    layout: Layout | ComposedLayout = tile_to_shape(
        atom, (*region.shape, stages), tuple(first.index(mode) for mode in range(rank))
    )
    return layout
