"""What `plan.tensorize` decides: a tile of three loops, the statement in it, and how matrix instructions compute it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from tilewright.atoms import MMAAtom
from tilewright.dtypes import DType
from tilewright.errors import ScheduleError
from tilewright.instructions.sparse_wgmma import SparseAtom
from tilewright.schedule.affine import Index
from tilewright.schedule.binding import bind
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.crossings import crossings
from tilewright.schedule.factors import factors_of_sum
from tilewright.schedule.loop_nest import Access, Condition, Part, Statement, at_places
from tilewright.schedule.mma_shapes import MMAFragmentOp, MMASchedulingPolicy, MMAShape
from tilewright.schedule.plan_state import Operation, PlanState, Tensorization, operation_name
from tilewright.schedule.recipes import OF_SPARSE, accumulator_for, is_narrow, recipe_for
from tilewright.schedule.targets import GridUnit, is_count
from tilewright.schedule.transforms import split


def tensorization_of(
    plan: PlanState,
    indices: tuple[Index, ...],
    shape: MMAShape,
    passes: int,
    fused: int | None,
    policy: MMASchedulingPolicy,
    use_static_offsets: bool,
    prologue: Operation,
    epilogue: Operation,
    saturating: bool,
) -> Tensorization:
    """Return the tile. Raises `ScheduleError` as `Plan.tensorize` says."""
    if not isinstance(shape, MMAShape):
        _refuse_shape(shape)
    if not isinstance(policy, MMASchedulingPolicy):
        raise ScheduleError(f"{policy!r} is not an MMASchedulingPolicy", help="PASS_ORDER or BLOCK_ORDER")
    if plan.tensorization is not None:
        raise ScheduleError(
            f"({', '.join(map(str, plan.tensorization.indices))}) is tensorized already",
            help="a plan has one tile of matrix instructions; make a kernel of each product, the second of which may "
            "compute its A of what the first has stored",
        )
    if shape.is_of_warpgroup and fused not in (None, passes):
        raise ScheduleError(
            f"num_fused_passes={fused!r} says how many fragments of A and B are held, and {shape.name} holds none: "
            "a warpgroup takes all passes of a tile at once",
            help="leave num_fused_passes out",
        )
    fused = passes if fused is None else fused
    if not is_count(passes):
        raise ScheduleError(f"num_total_passes={passes!r}", help="a whole number of passes, at least 1")
    if not is_count(fused) or passes % fused:
        raise ScheduleError(
            f"num_fused_passes={fused!r} does not divide num_total_passes={passes}",
            help="groups of passes are equally long: use a divisor",
        )
    tile = _tile_indices(plan, indices, shape, passes)
    number, part = _part_of(plan, tile, computes_a=shape.is_of_warpgroup)
    statement = at_places(part.statements[0], part.places, plan.nest.loops)
    if statement.store.guards:
        raise ScheduleError(
            f"no matrix instruction runs under a condition: {statement}",
            location=statement.location,
            help="let the nest that is tensorized hold C += A * B alone, and fuse what else is to be done",
        )
    for named in statement.named:
        if named.element_type is not named.base.element_type:
            raise ScheduleError(
                f"{named.name} is {named.base.name} seen as {named.element_type}, as no matrix instruction reads it",
                location=statement.location,
                help=f"declare {named.memory.name} with the type of its elements",
            )
    factors = factors_of_sum(statement, tile, shape, plan.target.arch)
    a, b, output = factors.a, factors.b, statement.store.array.element_type
    _refuse_others(plan, number, a, tile)
    recipe = recipe_for(
        plan.target.arch, shape, factors.types, accumulator_for(factors.types, output),
        a_in_registers=factors.computed is not None,
    )  # fmt: skip
    target = Access(statement, statement.store.array, statement.store.place, True)
    _refuse_divisions(statement, (b, target) if factors.computed is not None else (a, b, target), tile)
    _refuse_misplaced_target(target, statement, tile)
    if saturating:
        _refuse_saturation(factors.types[0], target)
    prologue, epilogue = _with_its_argument(prologue), _with_its_argument(epilogue)
    for operation in (prologue, epilogue):
        _check_operation(*operation, recipe.dtype_c)
    return Tensorization(
        tile, number, statement, a, b, target, shape, recipe, passes, fused, policy, prologue, epilogue,
        use_static_offsets, bool(saturating), _edges(plan, part, tile), factors.computed,
    )  # fmt: skip


def _refuse_shape(shape: object) -> NoReturn:
    """Raise `ScheduleError` for what is not a shape; atoms say which one theirs is."""
    if not isinstance(shape, MMAAtom):
        raise ScheduleError(f"{shape!r} is not an MMAShape", help="such as MMAShape.M16N16K16")
    m, n, k = shape.shape_mnk
    name = f"M{m}N{n}K{k}"
    found = f"MMAShape.{name}" if name in MMAShape.__members__ else "one that target.tensor_core_info.shapes gives"
    is_sparse = isinstance(shape, SparseAtom)
    raise ScheduleError(
        f"{shape.name} is an atom{', of a sparse A,' if is_sparse else ''} and not an MMAShape",
        help=OF_SPARSE if is_sparse else f"tensorize takes the extents of a shape, {found}, and chooses the atom",
    )


def with_operands(plan: PlanState) -> Tensorization | None:
    """Return the tile, now that all caches are known: where one keeps A in registers, they are multiplied from."""
    tile = plan.tensorization
    if tile is None or not tile.recipe.is_of_warpgroup or tile.recipe.has_a_in_registers:
        return tile
    if not any(c.array is tile.a.array and c.location is Location.MMA_FRAGMENT for c in plan.caches):
        return tile
    types = tile.recipe.dtype_a, tile.recipe.dtype_b
    recipe = recipe_for(plan.target.arch, tile.shape, types, tile.recipe.dtype_c, a_in_registers=True)
    return replace(tile, recipe=recipe)


def dealt_to_lanes(plan: PlanState, indices: tuple[Index, ...]) -> PlanState:
    """Return a plan in which the threads of each warp share the points of a tile's loops of M and N.

    Its warps then are threads: a loop that WARP_X runs through, and the points of a tile, are bound to THREAD_X
    together. Raises `ScheduleError` where these depend on one another.
    """
    made, left = copy.copy(plan), plan.target.warp_size
    dealt: list[Index] = []
    for index in (indices[1], indices[0]):
        count = min(left, plan.nest.loop(index).trips or 1)
        inner = Index(f"{index.name}_lane")
        made.nest = split(made.nest, index, count, inner)
        inside = ((c, c.inside | {inner} if index in c.inside else c.inside) for c in made.caches)
        made.caches = _with_insides(list(inside))
        dealt.insert(0, inner)
        left //= count
    units = {"WARP_X": GridUnit.THREAD_X, "WARP_Y": GridUnit.THREAD_Y}
    kept = tuple(binding for binding in plan.bindings if binding.kind != "WARP")
    warps = {units[b.unit.name]: b.indices for b in plan.bindings if b.kind == "WARP"}
    threads = {**warps, GridUnit.THREAD_X: (*warps.get(GridUnit.THREAD_X, ()), *dealt)}
    made.bindings = bind(made.nest, kept, {loops: unit for unit, loops in threads.items()}, plan.target)
    made.crossings = crossings(made.nest, made.bindings)
    return made


def _with_insides(caches: list[tuple[Cache, frozenset[Index]]]) -> list[Cache]:
    """Return caches, each with other loops inside of it, filled from one another as they were."""
    made: dict[Cache, Cache] = {}
    for cache, inside in caches:
        source = made.get(cache.source, cache.source) if isinstance(cache.source, Cache) else cache.source
        made[cache] = replace(cache, source=source, inside=inside)
    return list(made.values())


def _refuse_divisions(statement: Statement, accesses: tuple[Access, ...], tile: tuple[Index, Index, Index]) -> None:
    for access in accesses:
        for index in tile:
            if any(mode.divides(index) for mode in access.place):
                raise ScheduleError(
                    f"no matrix instruction can serve the {access}: it moves with {index} inside of a quotient or "
                    "remainder",
                    location=statement.location,
                    help="let the loops of the tile move through neighbours: split where the quotient is taken",
                )


def _tile_indices(
    plan: PlanState, indices: tuple[Index, ...], shape: MMAShape, passes: int
) -> tuple[Index, Index, Index]:
    """Return the indices of M, N and K, once they are the innermost loops and have the shape's extents."""
    if len(indices) != 3:
        raise ScheduleError(f"tensorize takes the indices of M, N and K, got {len(indices)}")
    for index in indices:
        plan.nest.position(index)
        if index in plan.bound:
            raise ScheduleError(f"{index} is bound, and tensorize runs it in the instructions of a warp")
    if set(plan.serial[-3:]) != set(indices):
        raise ScheduleError(
            f"tensorize of ({', '.join(map(str, indices))}), and the innermost loops are "
            f"({', '.join(map(str, plan.serial[-3:]))})",
            help="reorder the schedule so that the loops of the tile are innermost",
        )
    extents = (shape.m, shape.n, shape.k * passes)
    for index, extent, mode in zip(indices, extents, "MNK", strict=True):
        loop = plan.nest.loop(index)
        if loop.step != 1 or loop.trips != extent:
            raise ScheduleError(
                f"{index}, the loop of {mode}, is `{loop}` and {shape.name} with {passes} passes takes range({extent})",
                help=f"split by target.tensor_core_info.compute_tensor_splits: {extents}",
            )
    return indices[0], indices[1], indices[2]


def _part_of(plan: PlanState, tile: tuple[Index, Index, Index], *, computes_a: bool) -> tuple[int, Part]:
    """Return the part that multiplies: the one whose statement runs through the loop of K.

    With `computes_a` others may compute A there, which run through no columns.
    """
    running = [(n, part) for n, part in enumerate(plan.nest.parts) if tile[2] in _running(part)]
    multiplying = running
    if computes_a and len(running) > 1:
        multiplying = [(n, part) for n, part in running if {*tile} <= _running(part)]
    if len(multiplying) != 1 or len(multiplying[0][1].statements) != 1:
        raise _too_many(running, tile)
    return multiplying[0]


def _running(part: Part) -> set[Any]:  # Any: symbols
    """Return the loops through which a part runs."""
    return {symbol for place in part.places.values() for symbol, _ in place.terms}


def _too_many(running: list[tuple[int, Part]], tile: tuple[Index, Index, Index]) -> ScheduleError:
    return ScheduleError(
        f"tensorize needs one statement in the loop of K, {tile[2]}, and there are "
        f"{sum(len(part.statements) for _, part in running)}",
        help="let the nest that is tensorized hold C += A * B alone, and fuse what else is to be done",
    )


def _refuse_others(plan: PlanState, multiplying: int, a: Access, tile: tuple[Index, Index, Index]) -> None:
    """Raise `ScheduleError` for parts that run through the loop of K and do not compute A."""
    running = [(n, part) for n, part in enumerate(plan.nest.parts) if tile[2] in _running(part)]
    for number, part in running:
        computes_a = all(s.store.array is a.array for s in part.statements) and tile[1] not in _running(part)
        if number != multiplying and not computes_a:
            raise _too_many(running, tile)


def _refuse_misplaced_target(target: Access, statement: Statement, tile: tuple[Index, Index, Index]) -> None:
    m, n, k = tile
    moves = [mode.symbols() for mode in target.place]
    both = set().union(*moves) if moves else set()
    if k in both or m not in both or n not in both:
        raise ScheduleError(
            f"no matrix instruction can serve the {target}: it has to move with {m} and {n}, and not with {k}",
            location=statement.location,
        )


def _refuse_saturation(of_a: DType, target: Access) -> None:
    """Raise `ScheduleError` where C cannot saturate: it is not an integer, or as wide as the accumulators."""
    output = target.array.element_type
    if of_a.is_float or not is_narrow(output) or output.bits == 32:
        raise ScheduleError(
            f"saturating=True, and {target.array.name} is of {output}",
            location=target.statement.location,
            help="int32 accumulators saturate when they are stored as int8, uint8, int16 or uint16",
        )


def _with_its_argument(operation: Operation) -> Operation:
    """Return an operation with the argument that it takes: SET takes 0.0 where none is given, ReLU and NONE none."""
    kind, argument = operation
    if kind is MMAFragmentOp.SET and argument is None:
        return kind, 0.0
    return operation if kind in (MMAFragmentOp.SET, MMAFragmentOp.SCALE) or callable(kind) else (kind, None)


def _check_operation(operation: Any, argument: float | None, accumulators: DType) -> None:  # Any: as `Operation`
    if callable(operation) and not isinstance(operation, MMAFragmentOp):
        if argument is not None:
            raise ScheduleError(
                f"{operation_name(operation)} is a function of the fragment's elements and takes no argument, "
                f"got {argument}",
                help="let the function hold the number: lambda x: x * number",
            )
        return
    if not isinstance(operation, MMAFragmentOp):
        raise ScheduleError(f"a fragment operation is a MMAFragmentOp or a function, got {operation!r}")
    if operation is MMAFragmentOp.SCALE and argument is None:
        raise ScheduleError("SCALE needs an argument", help="prologue_arg or epilogue_arg, a number")
    if argument is not None and (isinstance(argument, bool) or not isinstance(argument, (int, float, np.number))):
        raise ScheduleError(f"{operation.name} by {argument!r}", help="prologue_arg or epilogue_arg, a number")
    if argument is not None and not accumulators.is_float and argument != int(argument):
        raise ScheduleError(
            f"{operation.name} by {argument}, and the accumulators are {accumulators}", help="give a whole number"
        )


def _edges(plan: PlanState, part: Part, tile: tuple[Index, Index, Index]) -> tuple[Condition, ...]:
    """Return the conditions that a tile may cross. Raises for those that cannot be masked."""
    edges = tuple(
        c for c in part.conditions if any(index in c.value.symbols() for index in tile) and not _holds(plan, c)
    )
    for edge in edges:
        moving = [index for index in tile if index in edge.value.symbols()]
        if edge.is_equality or len(moving) != 1 or edge.value.divides(moving[0]):
            raise ScheduleError(
                f"a tile of matrix instructions would cross the boundary at which {edge}",
                location=part.statements[0].location,
                help="a boundary of M, N or K alone is masked; one that moves with several indices of the tile, or in "
                "a quotient or remainder, is not",
            )
    return edges


def _holds(plan: PlanState, condition: Condition) -> bool:
    low, _ = condition.value.bounds(lambda x: (0, plan.nest.loop(x).last) if isinstance(x, Index) else (0, None))
    return low is not None and low >= 0 and not condition.is_equality
