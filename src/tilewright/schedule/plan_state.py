"""The state of a plan: where the loops of a nest run on a target, what is kept where, and what a warp multiplies.

`Plan` is this state with the calls that change it. What decides and checks, and what builds a kernel, reads the state
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DType
from tilewright.schedule.affine import Affine, Dimension, Index
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.binding import Binding, block_of, grid_of
from tilewright.schedule.caches import Cache, Location, Region, region_of
from tilewright.schedule.crossings import Crossing
from tilewright.schedule.loop_nest import Access, Condition, Loop, LoopNest, Part, Statement, arrays_of, settled
from tilewright.schedule.mma_shapes import MMAFragmentOp, MMASchedulingPolicy, MMAShape
from tilewright.schedule.recipes import Recipe
from tilewright.schedule.targets import Target
from tilewright.schedule.values import Expression
from tilewright.schedule.views import Derived

Operation = tuple[Any, "float | None"]  # Any: a MMAFragmentOp, or a function of device numbers


@dataclass(frozen=True, eq=False)
class Tensorization:
    """Three loops, of M, N and K, that a warp computes with matrix instructions.

    `a`, `b` and `c` are the accesses of the statement C += A * B among the loops. `passes` are cut into `groups` of
    `fused` passes each. `saturating`: C is stored as the nearest number of its type. `edges` are the conditions
    that a tile may cross: each bounds one of its indices. `computed` is A where each thread computes it in registers.
    """

    indices: tuple[Index, Index, Index]
    part: int
    statement: Statement
    a: Access
    b: Access
    c: Access
    shape: MMAShape
    recipe: Recipe
    passes: int
    fused: int
    policy: MMASchedulingPolicy
    prologue: Operation
    epilogue: Operation
    use_static_offsets: bool
    saturating: bool
    edges: tuple[Condition, ...]
    computed: Expression | None = None

    @property
    def groups(self) -> int:
        return self.passes // self.fused

    def sets(self, array: Array) -> bool:
        """Whether an array is the one that is computed and the prologue sets it: what it held does not matter."""
        return array is self.c.array and self.prologue[0] is MMAFragmentOp.SET

    @property
    def has_a_in_registers(self) -> bool:
        """Whether a warpgroup takes A from the registers of its threads."""
        return self.recipe.is_of_warpgroup and self.recipe.has_a_in_registers

    @property
    def accumulator(self) -> DType:
        """The element type of fragments of C."""
        return self.recipe.dtype_c


class PlanState:
    """The loops of a schedule, and what each becomes on a target: blocks, threads, vectors, matrix instructions.

    Unbound loops run sequentially in each thread.
    """

    def __init__(self, nest: LoopNest, target: Target) -> None:
        self.nest = nest
        self.target = target
        self.bindings: tuple[Binding, ...] = ()
        self.crossings: tuple[Crossing, ...] = ()  # what threads of a block wait for in serial loops
        self.vectorized: frozenset[Index] = frozenset()
        self.caches: list[Cache] = []
        self.tensorization: Tensorization | None = None
        self.blocks: int | None = None  # at most so many blocks, which then stay for several of their numbers
        self.producer: bool = False  # whether a warpgroup of its own fills the caches
        self.given: frozenset[Array] = frozenset()  # memory that a kernel is built to take
        self.begun: frozenset[Array] = frozenset()  # TEMP arrays that a kernel begins with zeros

    @property
    def bound(self) -> frozenset[Index]:
        """The indices that are bound to blocks, threads or warps."""
        return frozenset(index for binding in self.bindings for index in binding.indices)

    @property
    def waiting(self) -> frozenset[Index]:
        """The loops behind each of whose iterations the threads of a block wait for one another."""
        return frozenset(crossing.index for crossing in self.crossings)

    @property
    def serial(self) -> tuple[Index, ...]:
        """The indices that are bound to nothing, outermost first."""
        return tuple(index for index in self.nest.order if index not in self.bound)

    @property
    def block(self) -> tuple[int, int, int]:
        """The threads of a block along each axis."""
        tile = self.tensorization
        wide = tile is not None and tile.recipe.is_of_warpgroup
        return block_of(self.bindings, self.target, warps=tile is not None, warpgroups=wide, producer=self.producer)

    def grid(self, sizes: Mapping[Any, int]) -> tuple[int, int, int]:  # Any: dimensions
        """Return the blocks of the grid along each axis: of blocks that stay, in a row."""
        x, y, z = grid_of(self.bindings, sizes)
        return (x, y, z) if self.blocks is None else (min(x * y * z, self.blocks), 1, 1)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the statements, in the order of their making: memory, and forms of it."""
        return tuple(arrays_of(tuple(s for part in self.nest.parts for s in part.statements)))

    @property
    def arguments(self) -> tuple[Array, ...]:
        """The arrays that the kernel takes: all but those of roles CONST and TEMP; of these, those that are given."""
        own = (Role.CONST, Role.TEMP)
        return tuple(x for x in self.memories if x.role not in own or x in self.given)

    def is_temporary(self, array: Array) -> bool:
        """Whether an array lives only while the kernel runs: of role TEMP, and no argument of the kernel."""
        return array.role is Role.TEMP and array.memory not in self.given

    @property
    def memories(self) -> tuple[Array, ...]:
        """The arrays that are accessed, by themselves or by views, in the order of their making."""
        return tuple(sorted({array.memory for array in self.arrays}, key=lambda array: array.number))

    # --- caches ------------------------------------------------------------------------------------------

    def depth(self, cache: Cache) -> int:
        """Return how many serial loops run outside of where a cache is filled."""
        order = self.nest.order
        at = len(order) if cache.trigger is None else order.index(cache.trigger)
        return sum(order.index(index) < at for index in self.serial)

    def caches_at(self, depth: int) -> Iterator[Cache]:
        """Yield the caches that are filled inside of so many serial loops, in the order in which they were made."""
        for cache in self.caches:
            if self.depth(cache) == depth:
                yield cache

    def varying(self, cache: Cache) -> tuple[Loop, ...]:
        """Return the loops whose iterations share one filling: those inside, and the threads' of a block's cache."""
        shared = {
            index
            for binding in self.bindings
            if binding.kind != "BLOCK" and cache.is_of_block
            for index in binding.indices
        }
        return tuple(
            loop
            for loop in self.nest.loops
            if loop.index in shared or (loop.index in cache.inside and loop.index not in self.bound)
        )

    def accesses(self, array: Array, parts: Sequence[Part] | None = None) -> list[Access]:
        """Return the accesses of an array by all parts, or by some, with their places among the loops."""
        accesses = []
        for part in self.nest.parts if parts is None else parts:
            for statement in part.statements:
                for access in statement.accesses:
                    if access.array is array:
                        place = tuple(settled(mode.substitute(part.places), self.nest.loops) for mode in access.place)
                        accesses.append(Access(access.statement, array, place, access.is_write))
        return accesses

    def region(self, cache: Cache, accesses: Sequence[Access] | None = None) -> Region:
        """Return the box that a cache holds, or that of some accesses. Raises `ScheduleError` where there is none."""
        accesses = self.accesses(cache.array) if accesses is None else accesses
        is_whole = self.feeds_matrix_instructions(cache)
        return region_of(cache.array, accesses, self.varying(cache), self.nest.loops, is_whole=is_whole)

    def is_read(self, cache: Cache) -> bool:
        """Whether what the array held before is needed: it is read, or parts of the box are not written."""
        reads = [access for access in self.accesses(cache.array) if not access.is_write]
        writes = {access.place for access in self.accesses(cache.array) if access.is_write}
        tile = self.tensorization
        if self.is_new(cache) or (tile is not None and tile.sets(cache.array) and not tile.edges):
            return False
        conditions = any(part.conditions or any(s.store.guards for s in part.statements) for part in self.nest.parts)
        return bool(reads) or len(writes) > 1 or conditions or not self._is_covered(cache, *writes)

    def is_new(self, cache: Cache) -> bool:
        """Whether a cache's elements begin and end with it: those of a TEMP array that no cache around keeps longer."""
        mine = self.depth(cache)
        return self.is_temporary(cache.array) and not any(
            other.array is cache.array and (self.depth(other) < mine or other is cache.source) for other in self.caches
        )

    def begins_with_zeros(self, cache: Cache) -> bool:
        """Whether a cache is filled with zeros: a TEMP array begins with it, and is read before it is written."""
        return cache.array.memory in self.begun and self.is_new(cache)

    def is_overwritten(self, cache: Cache, part: Part) -> bool:
        """Whether one statement of a part surely writes every element of the box."""
        if any(not condition.is_equality or len(condition.value.terms) != 1 for condition in part.conditions):
            return False
        # A part that stands at one iteration of a loop, such as that of a fusion, does all of its work there.
        stands = [condition.value.terms[0][0] for condition in part.conditions]
        return any(
            access.is_write
            and not access.statement.store.guards
            and not any(mode.mentions(symbol) for mode in access.place for symbol in stands)
            and self.region(cache, (access,)) == self.region(cache)
            and self._is_covered(cache, access.place)
            for access in self.accesses(cache.array, (part,))
        )

    def keeps_unwritten(self, cache: Cache) -> bool:
        """Whether a cache may be filled from elements of a TEMP array that nothing has written, and no logic reads."""
        if not self.is_temporary(cache.array) or self.is_new(cache):
            return False
        for part in self.nest.parts:
            accesses = self.accesses(cache.array, (part,))
            reads = [x for x in accesses if not x.is_write]
            reading = {x.statement for x in reads}
            fresh = [x for x in accesses if x.is_write and x.statement not in reading]
            if fresh and (reads or not self.is_overwritten(cache, part)):
                return True
            if reads and self.region(cache, reads) != self.region(cache):
                return True
        return False

    def _is_covered(self, cache: Cache, place: tuple[Affine, ...]) -> bool:
        """Whether a write reaches every element of the box: each mode by loops of its own, without gaps."""
        varying = self.varying(cache)
        used = [loop for loop in varying for mode in place if mode.mentions(loop.index)]
        if any(loop.trips is None for loop in used):
            return False
        if len(set(used)) < len(used) or any(mode.divides(loop.index) for loop in varying for mode in place):
            return False
        region = self.region(cache)
        for mode, step in zip(place, region.steps, strict=True):
            digits = sorted((abs(mode.factor(x.index)) * x.step, x.trips or 0) for x in varying if x in used)
            reached = 0
            for stride, trips in digits:
                if stride and stride > reached + step:
                    return False
                reached += stride * (trips - 1)
        return True

    def is_written(self, cache: Cache) -> bool:
        """Whether a cache has to be written back."""
        return not self.is_new(cache) and any(access.is_write for access in self.accesses(cache.array))

    def feeds_matrix_instructions(self, cache: Cache) -> bool:
        """Whether a cache holds operands or accumulators of `tensorize`."""
        tile = self.tensorization
        return tile is not None and cache.array in (tile.a.array, tile.b.array, tile.c.array)

    def is_read_by_warpgroups(self, cache: Cache) -> bool:
        """Whether a warpgroup's matrix instructions read it, A or B, from shared memory."""
        tile = self.tensorization
        if tile is None or not tile.recipe.is_of_warpgroup or cache.location is not Location.SHARED:
            return False
        return cache.array in (tile.a.array, tile.b.array)

    # --- matrix instructions -----------------------------------------------------------------------------

    @property
    def carried(self) -> tuple[Index, ...]:
        """The loops around the tile that run through K: C does not move with them."""
        tile = self.tensorization
        if tile is None:
            return ()
        moving = {symbol for mode in tile.c.place for symbol in mode.symbols()}
        return tuple(
            index
            for index in self.serial
            if index not in tile.indices and index not in moving and self.nest.loop(index).trips != 1
            and index not in self.nest.fusing
        )  # fmt: skip


def sizes_of(plan: PlanState) -> tuple[Dimension, ...]:
    """Return the sizes of the launch that loops, places and arrays depend on, in the order of their making."""
    found: dict[Dimension, None] = {}
    for part in plan.nest.parts:
        places = [*part.places.values(), *(condition.value for condition in part.conditions)]
        for statement in part.statements:
            places += [place for access in statement.accesses for place in access.place]
            places += statement.positions
        found.update((symbol, None) for place in places for symbol in place.symbols() if isinstance(symbol, Dimension))
        found.update((extent, None) for extent in part.shape if isinstance(extent, Dimension))
    for loop in plan.nest.loops:
        found.update((symbol, None) for symbol in loop.stop.symbols() if isinstance(symbol, Dimension))
    for array in plan.arrays:
        sizes = [*array.shape, *(size for step in array.steps for size in step)]
        found.update((size, None) for size in sizes if isinstance(size, Dimension))
    for size in list(found):
        if isinstance(size, Derived):
            found.update((root, None) for root in size.roots())
    return tuple(sorted(found, key=lambda size: size.number))


def operation_name(operation: Any) -> str:  # Any: as `Operation`
    """Return the name of an operation, or that of the function that it is."""
    return operation.name if isinstance(operation, MMAFragmentOp) else getattr(operation, "__name__", "it")


def operation_text(operation: Operation) -> str:
    """Return an operation and its argument: NONE, SCALE by 2.0, or the name of a function."""
    kind, argument = operation
    return (
        operation_name(kind)
        if argument is None
        else f"{operation_name(kind)} {'to' if kind is MMAFragmentOp.SET else 'by'} {argument}"
    )
