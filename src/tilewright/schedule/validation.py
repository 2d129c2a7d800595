"""What a whole plan has to be before a kernel is built of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.frames import warn_at
from tilewright.schedule.affine import Dimension, Index
from tilewright.schedule.arrays import Array, ArrayLayout, Role
from tilewright.schedule.beginnings import Unwritten, forgotten, is_of_several, unwritten
from tilewright.schedule.bulk import result_bytes
from tilewright.schedule.cache_placement import refuse_conflicts, refuse_nonsense, shared_bytes
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.integers import UndecidedError
from tilewright.schedule.loop_nest import arrays_of, substituted
from tilewright.schedule.memory_spaces import IN_REGISTERS
from tilewright.schedule.mma_shapes import MMAFragmentOp
from tilewright.schedule.orders import refuse_violations
from tilewright.schedule.plan_state import PlanState, operation_name, sizes_of
from tilewright.schedule.views import Derived
from tilewright.schedule.warpgroup_rules import refuse_warpgroups

_LOCAL_BYTES = 512 << 10  # of a thread, where registers do not hold what it keeps (CUDA programming guide)


def validate(plan: PlanState, parameters: tuple[Array, ...]) -> None:
    """Raise `ScheduleError` for parameters that are not the plan's arrays, and caches that do not fit the bindings."""
    _refuse_parameters(plan, parameters)
    names = [array.name for array in {*plan.memories, *parameters}]
    for name in names:
        if names.count(name) > 1:
            raise ScheduleError(f"two arrays are called {name}", help="give them names: Array(..., name='...')")
    if plan.blocks is not None and not any(binding.kind == "BLOCK" for binding in plan.bindings):
        raise ScheduleError(f"blocks={plan.blocks}, and no loop is bound to blocks", help="bind one to BLOCK_X")
    _refuse_deferred(plan)
    _refuse_cached_forms(plan)
    _refuse_own_copies(plan)
    for cache in plan.caches:
        refuse_nonsense(plan, cache)
        if plan.is_written(cache) and cache.location is not Location.MMA_FRAGMENT:
            refuse_conflicts(plan, cache)
    _refuse_rivals(plan)
    _refuse_too_much(plan)
    _refuse_forgotten(plan)
    refuse_warpgroups(plan)
    _refuse_fragments(plan)
    _refuse_seen(plan)


def _refuse_seen(plan: PlanState) -> None:
    """Raise `ScheduleError` for an order that leaves something else in a TEMP array, where the caller gives it."""
    seen = [memory for memory in plan.memories if memory.role is Role.TEMP and memory in plan.given]
    if seen:
        what = f"the order ({', '.join(map(str, plan.nest.order))})"
        refuse_violations(replace(plan.nest, is_unchecked=True), plan.nest, what, seen)


def _refuse_parameters(plan: PlanState, parameters: tuple[Array, ...]) -> None:
    """Raise `ScheduleError` for parameters that do not give each array and each size of a plan, once."""
    missing = [array for array in plan.arguments if not _is_given(plan, array, parameters)]
    memories = [array.memory for array in parameters]
    if missing or len(set(memories)) < len(memories):
        raise ScheduleError(
            f"the kernel's parameters are ({', '.join(a.name for a in parameters)})",
            help=f"name each of ({', '.join(a.name for a in plan.arguments)}) once, or a view that has all of it that "
            "the nest accesses",
        )
    for array in parameters:
        shape, strides = array.shape, array.strides
        if array.base is not array and (None in strides or not all(isinstance(x, (int, Dimension)) for x in shape)):
            raise ScheduleError(
                f"{array!r} is a parameter, and its shape or its strides depend on more than its own extents",
                help=f"let the kernel take {array.memory.name}",
            )
    known = {extent for array in parameters for extent in array.shape if isinstance(extent, Dimension)}
    known |= {array.stands_for for array in parameters if array.stands_for is not None}
    for size in sizes_of(plan):
        if size not in known and not isinstance(size, Derived):
            raise ScheduleError(
                f"{size} is the extent of no parameter, so that the launch does not know it",
                help=f"give it as an argument: args=({size}, ...)",
            )


def _is_given(plan: PlanState, memory: Array, parameters: tuple[Array, ...]) -> bool:
    """Whether parameters have the memory of an array, or the one part or form of it that is accessed."""
    bases = [array for array in plan.arrays if array.memory is memory]
    return memory in parameters or all(any(given.base is base for given in parameters) for base in bases)


def _refuse_deferred(plan: PlanState) -> None:
    """Raise `ScheduleError` for an array whose layout was deferred and never given."""
    for array in plan.memories:
        if array.layout is ArrayLayout.DEFERRED:
            caches = [cache.name for cache in plan.caches if cache.array is array]
            raise ScheduleError(
                f"the layout of {array.name} is DEFERRED, and no cache has given it one",
                help=f"{array.name}.deferred_layout(cache={caches[0] if caches else f'plan.cache({array.name}, ...)'})",
            )


def _refuse_cached_forms(plan: PlanState) -> None:
    """Raise `ScheduleError` for a cache of memory that is accessed otherwise too, and written: neither would see it."""
    for cache in plan.caches:
        others = [array for array in plan.arrays if array.memory is cache.array.memory and array is not cache.array]
        writes = any(access.is_write for array in (*others, cache.array) for access in plan.accesses(array))
        if others and writes:
            raise ScheduleError(
                f"{cache.name} keeps {cache.array.name}, and {others[0].name} is the same memory with other elements: "
                "what is written to one is not seen in the other",
                help=f"access {cache.array.memory.name} in one way, or do not cache it",
            )


def _refuse_fragments(plan: PlanState) -> None:
    """Raise `ScheduleError` for fragments without instructions, or instructions that the bindings do not fit."""
    tile = plan.tensorization
    kept = [cache for cache in plan.caches if cache.location is Location.MMA_FRAGMENT]
    if tile is None:
        if kept:
            raise ScheduleError(
                f"{kept[0].name} lives in fragments of matrix instructions, and nothing is tensorized",
                help="location=Location.PRIVATE keeps elements in the registers of each thread",
            )
        return
    for binding in plan.bindings:
        if binding.kind == "THREAD":
            raise ScheduleError(
                f"{binding.unit.name} is bound in a plan that is tensorized: a whole warp runs each tile",
                help="bind to WARP_X or WARP_Y, which count warps",
            )
    if set(plan.serial[-3:]) != set(tile.indices):
        raise ScheduleError(
            f"the loops of the tile, ({', '.join(map(str, tile.indices))}), have been bound since it was tensorized",
            help="bind loops outside of the tile",
        )
    operands = (tile.a.array, tile.b.array, tile.c.array)
    for array in operands:
        if plan.is_temporary(array) and not any(cache.array is array for cache in plan.caches):
            raise ScheduleError(
                f"{array.name} is TEMP and without a cache lives in the registers of each thread; a warp multiplies it "
                "whole",
                help=f"plan.cache({array.name}, ..., location=Location.MMA_FRAGMENT), or SHARED",
            )
    for cache in plan.caches:
        inside = cache.inside & set(tile.indices)
        if inside != set(tile.indices) and (inside or cache.array in operands):
            raise ScheduleError(f"{cache.name} is filled inside of the tile", help="give an index outside of its loops")
        if cache.array not in operands:
            continue
        if cache.location is Location.PRIVATE:
            raise ScheduleError(
                f"{cache.name} lives in the registers of each thread, and a warp multiplies {cache.array.name} whole",
                help="cache it in MMA_FRAGMENT or SHARED",
            )
        converts = tile.computed is not None and cache.array is tile.a.array and cache.is_of_block
        if cache.array is not tile.c.array and cache.element_type is not cache.array.element_type and not converts:
            raise ScheduleError(
                f"{cache.name} keeps {cache.array.name} in {cache.element_type}, and the instructions take "
                f"{cache.array.element_type}",
                help="leave element_type out, or declare the array of the other type",
            )
    for cache in kept:
        if cache.array not in operands:
            raise ScheduleError(
                f"{cache.name} is not an operand of the tile and cannot be kept in its fragments",
                help="location=Location.PRIVATE keeps elements in the registers of each thread",
            )
        if tile.a.array is tile.b.array is cache.array:
            raise ScheduleError(
                f"{cache.name} would hold both factors, whose fragments differ", help="cache it in shared memory"
            )
    held = [cache.inside for cache in kept if cache.array is tile.c.array]
    _refuse_repeated_operations(plan, lambda index: any(index in inside for inside in held))


def _refuse_rivals(plan: PlanState) -> None:
    """Raise `ScheduleError` for two caches of an array that are filled at one place in memory of the same kind."""
    rivals: dict[tuple[Array, int, Location], Cache] = {}
    for cache in plan.caches:
        key = (cache.array, plan.depth(cache), cache.location)
        if key in rivals and cache.source is not rivals[key]:
            raise ScheduleError(
                f"{cache.name} is filled at {rivals[key].trigger} and at {cache.trigger}, between which no loop runs",
                help="cache the array once there",
            )
        rivals[key] = cache


def _refuse_too_much(plan: PlanState) -> None:
    """Raise `ScheduleError` where a statement needs more memory at once than a thread, or a block, can have.

    Caches live at once if one statement uses them all; an outer cache of an array lives while an inner one is filled
    from it again and again.
    """
    most = plan.target.max_shared_memory_per_block
    for cache in plan.caches:
        size = plan.region(cache).size * cache.element_type.bytes * cache.stages
        if cache.location is Location.PRIVATE and size > _LOCAL_BYTES:
            raise ScheduleError(
                f"{cache.name} takes {size} bytes of each thread, whose local memory has {_LOCAL_BYTES}",
                help="cache at an inner index, or with location=Location.GLOBAL",
            )
    for part in plan.nest.parts:
        for statement in part.statements:
            alive = [cache for array in arrays_of((statement,)) for cache in _alive(plan, array)]
            sizes = {cache: shared_bytes(plan, cache) + result_bytes(plan, cache) for cache in alive}
            if sum(sizes.values()) > most:
                largest = max(alive, key=lambda cache: sizes[cache])
                shape = " x ".join(map(str, plan.region(largest).shape))
                raise ScheduleError(
                    f"the caches of {substituted(statement, part)} take {sum(sizes.values())} bytes of shared memory "
                    f"({', '.join(f'{c.name} {n}' for c, n in sizes.items() if n)}), and a block of "
                    f"{plan.target.arch.name} has {most}",
                    location=statement.location,
                    help=f"cache {largest.array.name}, of which a box of {shape} is kept, at an inner index, with "
                    "fewer buffers, or with location=Location.GLOBAL",
                )


def _alive(plan: PlanState, array: Array) -> list[Cache]:
    """Return the innermost cache of an array, and those around it from which it is filled more than once."""
    caches = sorted((c for c in plan.caches if c.array is array), key=lambda c: plan.depth(c), reverse=True)
    alive = caches[:1]
    for inner, cache in itertools.pairwise(caches):
        between = plan.serial[plan.depth(cache) : plan.depth(inner)]
        if any(plan.nest.loop(index).trips != 1 for index in between):
            alive.append(cache)
    return alive


def _refuse_own_copies(plan: PlanState) -> None:
    """Raise `ScheduleError` for registers in which a thread keeps what other threads write while it runs a loop."""
    for crossing in plan.crossings:
        array = crossing.pair.write.array
        around = [cache for cache in plan.caches if cache.array is array and crossing.index in cache.inside]
        is_own = any(cache.array is array for cache in plan.caches) or array.flags in IN_REGISTERS
        if plan.is_temporary(array) and is_own and not any(cache.is_of_block for cache in around):
            raise ScheduleError(
                f"{array.name} is TEMP and lives in the registers of each thread, and in different iterations of "
                f"{crossing.index} several threads access an element: the {crossing.pair.first.access} and the "
                f"{crossing.pair.second.access}",
                location=crossing.pair.write.statement.location,
                help=f"cache it in shared memory at {crossing.index} or outside of it",
            )
        for cache in around:
            if not cache.is_of_block:
                raise ScheduleError(
                    f"{cache.name} keeps {array.name} in the registers of each thread while {crossing.index} runs, and "
                    f"in different iterations of it several threads access an element: the "
                    f"{crossing.pair.first.access} and the {crossing.pair.second.access}",
                    location=crossing.pair.write.statement.location,
                    help=f"cache it in shared memory, or inside of {crossing.index}",
                )
    for index in plan.waiting:
        for cache in plan.caches:
            if cache.is_ahead and plan.depth(cache) == plan.serial.index(index) + 1:
                raise ScheduleError(
                    f"{cache.name} is filled ahead in {index}, behind each of whose iterations threads wait for one "
                    "another",
                    help="fill it once for each iteration: leave double_buffer and pipeline_stages out",
                )


def _refuse_repeated_operations(plan: PlanState, holds_target: Callable[[Index], bool]) -> None:
    """Raise `ScheduleError` where SET, SCALE, ReLU or a function would run once for each iteration of a loop over K.

    `holds_target(index)` says whether fragments of C are kept while a loop runs.
    """
    tile = plan.tensorization
    assert tile is not None
    repeated = [
        (f"the {name} operation {operation_name(operation)}", operation is not MMAFragmentOp.NONE)
        for name, (operation, _) in (("prologue", tile.prologue), ("epilogue", tile.epilogue))
    ]
    for what, runs in (*repeated, ("the saturation", tile.saturating)):
        for index in plan.carried if runs else ():
            if not holds_target(index):
                raise ScheduleError(
                    f"{what} would run in each iteration of {index}, which runs through K",
                    help=f"keep {tile.c.array.name} in fragments: "
                    f"plan.cache({tile.c.array.name}, index={index}, location=Location.MMA_FRAGMENT)",
                )


# --- arrays that hold nothing at first -------------------------------------------------------------------


def begun_with_zeros(plan: PlanState) -> frozenset[Array]:
    """Return the TEMP arrays a read of which may come before every write of its element; warn of each.

    Those that a cache is filled from where no logic reads begin with zeros too.
    A read of an OUTPUT array that no other statement writes is warned of too: it reads what the caller left there.
    """
    found = set()
    for array in plan.memories:
        if plan.is_temporary(array):
            first = unwritten(plan, array)
            if first is None:
                if any(cache.array.memory is array and plan.keeps_unwritten(cache) for cache in plan.caches):
                    found.add(array)
                continue
            found.add(array)
            _refuse_beginning(plan, array, first)
            text = f"{array.name} is TEMP, and {first} comes before every write of it: {array.name} begins with zeros"
            if first.values is None:
                text = f"{array.name} is TEMP, and {first} may come before writes of it: {array.name} begins with zeros"
            help = "store to it first, in a nest that is fused in front, or tensorize with prologue_op=SET"
            warn_at(f"{text} (help: {help})", first.read.access.statement.location)
        elif array.role is Role.OUTPUT:
            _warn_of_output(plan, array)
    return frozenset(found)


def _warn_of_output(plan: PlanState, array: Array) -> None:
    """Warn of an OUTPUT array that is added to and never begun."""
    if plan.tensorization is not None and plan.tensorization.sets(array):
        return
    statements = [statement for part in plan.nest.parts for statement in part.statements]
    reads = [s for s in statements if any(x.array.memory is array and not x.is_write for x in s.accesses)]
    if reads and not any(s.store.array.memory is array for s in statements if s not in reads):
        warn_at(
            f"{array.name} is OUTPUT and is read, and nothing is written to it before: it begins with what is in it "
            "(help: declare it INPUT_OUTPUT, or store to it first, in a nest that is fused in front, or tensorize with "
            "prologue_op=SET)",
            reads[0].location,
        )


def _refuse_beginning(plan: PlanState, array: Array, first: Unwritten) -> None:
    """Raise `ScheduleError` for an array that nothing can begin: one of several blocks, or in a cache filled ahead."""
    caches = [cache for cache in plan.caches if cache.array.memory is array]
    for cache in caches:
        if cache.is_ahead and plan.is_new(cache):
            raise ScheduleError(
                f"{cache.name} is double-buffered, and {array.name} is TEMP and begins in it: nothing fills it ahead",
                location=first.read.access.statement.location,
                help="leave double_buffer and pipeline_stages out",
            )
    is_written = any(access.is_write for form in plan.arrays if form.memory is array for access in plan.accesses(form))
    if is_written and not caches and is_of_several(plan, array, "BLOCK"):
        raise ScheduleError(
            f"{array.name} is TEMP, and {first} comes before every write of it; several blocks access one element, and "
            "none can begin it for the others",
            location=first.read.access.statement.location,
            help="store to it first, in a nest that is fused in front",
        )


def _refuse_forgotten(plan: PlanState) -> None:
    """Raise `ScheduleError` where a TEMP array is read after the cache that held what was written has ended.

    It is where an element was written in another iteration of the loops around the outermost cache, and not again
    in that of the read.
    """
    for array in plan.arrays:
        caches = [cache for cache in plan.caches if cache.array is array]
        if not plan.is_temporary(array) or not caches:
            continue
        longest = min(caches, key=lambda cache: plan.depth(cache))
        around = [index for index in plan.serial[: plan.depth(longest)] if plan.nest.loop(index).trips != 1]
        if not around or (plan.tensorization is not None and plan.tensorization.sets(array)):
            continue
        loops = ", ".join(map(str, around))
        try:
            read = forgotten(plan, array, around)
        except UndecidedError:
            first = next(access for access in plan.accesses(array) if not access.is_write)
            raise ScheduleError(
                f"{array.name} cannot be cached at {around[-1]}: whether an element is read in another iteration of "
                f"{loops} than that which writes it was not decided",
                location=first.statement.location,
                help=f"cache {array.name} at an outer index first",
            ) from None
        if read is not None:
            raise ScheduleError(
                f"{longest.name} is filled anew in each iteration of {loops}, and nothing is written there "
                f"before the {read.access}",
                location=read.access.statement.location,
                help=f"{array.name} is TEMP and lives in its caches alone: cache it at an outer index first",
            )
