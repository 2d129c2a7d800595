"""What `plan.auto` chooses: blocks, threads, caches and matrix instructions by a fixed list of attempts.

An attempt is a plan made by the calls that a user would make. The first one that every check lets pass, and whose
kernel can be printed, is taken; the last is the plan as it stands, so there always is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from tilewright import dtypes
from tilewright.errors import ScheduleError, TilewrightError
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import Array, ArrayLayout, Role
from tilewright.schedule.binding import Binding
from tilewright.schedule.crossings import crossings
from tilewright.schedule.loop_nest import Access, Loop, LoopNest
from tilewright.schedule.memory_spaces import Location
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.schedule.parameters import DelayedParameter
from tilewright.schedule.targets import GridUnit, Target
from tilewright.schedule.warpgroup_choice import moving, ordered, product_of, split_by, warpgroup_attempts

_ROW_OF_THREADS, _ROWS_OF_THREADS, _ONLY_THREADS = 32, 8, 256  # of two loops, and of one
_SQUARE_OF_THREADS = 16  # of a nest whose threads share what they read
_STEPS = 16  # of a serial loop between two fillings of shared memory


class Planned(Protocol):
    """What an attempt calls: a `Plan`."""

    nest: LoopNest
    target: Target

    @property
    def serial(self) -> tuple[Index, ...]: ...
    def restarted(self, start: LoopNest) -> Any: ...  # Any: a plan
    def accesses(self, array: Array) -> list[Access]: ...
    def bind(self, mapping: Mapping[Any, GridUnit]) -> None: ...  # Any: an index or several
    @property
    def cache(self) -> Callable[..., Any]: ...  # Any: as `Plan.cache`
    def tensorize(self, indices: Sequence[Index], mma_shape: MMAShape) -> None: ...
    def build(self) -> Any: ...  # Any: a `ScheduledKernel`


def best_of(plan: Planned, precision: str) -> Any:  # Any: a plan
    """Return the first attempt at a plan that can be built, or the plan itself where there is none."""
    for attempt in _attempts(plan, precision == "tf32"):
        try:
            found = attempt()
            if found is not None:
                found.build().source()
                return found
        except TilewrightError:
            continue
    return plan


def _attempts(plan: Planned, is_rounded: bool) -> Iterator[Callable[[], Any]]:  # Any: a plan, or None: no attempt
    product = product_of(plan.nest)
    if product is not None:
        yield from warpgroup_attempts(plan, product, is_rounded)
    for shape in _shapes(plan, is_rounded):
        for number in (2, 1):
            yield partial(_on_matrix_instructions, plan, shape, warps=number, tiles=number)
    for shared, private in ((True, True), (False, True), (False, False)):
        yield partial(_on_threads, plan, shared=shared, private=private)


# --- products on matrix instructions -----------------------------------------------------------------------------


def _shapes(plan: Planned, is_rounded: bool) -> list[MMAShape]:
    """Return a warp's shapes for a product; none that round operands, float32 to tf32, unless that is asked for."""
    product = product_of(plan.nest)
    if product is None or product.a.element_type is not product.b.element_type:
        return []
    given = product.a.element_type
    if given is dtypes.float32 and not is_rounded and not plan.target.arch.is_amd:
        return []
    sums = dtypes.float32 if given.is_float else dtypes.int32
    found = plan.target.tensor_core_info.shapes(given, sums)
    return [shape for shape in found if shape.num_blocks == 1 and not shape.is_of_warpgroup]


def _on_matrix_instructions(plan: Planned, shape: MMAShape, warps: int, tiles: int) -> Any:  # Any: a plan, or None
    """Blocks of warps x warps warps, of tiles x tiles tiles each; A and B come through shared memory."""
    product = product_of(plan.nest)
    assert product is not None
    i, j, k = product.rows[-1], product.columns[-1], product.sums[-1]
    step = shape.k * max(1, 32 // shape.k) if warps > 1 else shape.k
    sizes = {i: shape.m * warps * tiles, j: shape.n * warps * tiles, k: step}
    if any(loop.step != 1 or loop.trips is None or loop.trips % size for loop, size in sizes.items()):
        return None
    nest = plan.nest
    nest, i_warp = split_by(nest, i.index, sizes[i], "_warp")
    nest, j_warp = split_by(nest, j.index, sizes[j], "_warp")
    nest, i_tile = split_by(nest, i_warp, shape.m * tiles, "_tile")
    nest, j_tile = split_by(nest, j_warp, shape.n * tiles, "_tile")
    nest, k_step = split_by(nest, k.index, step, "_step")
    nest, ii = split_by(nest, i_tile, shape.m, "")
    nest, jj = split_by(nest, j_tile, shape.n, "")
    nest, kk = split_by(nest, k_step, shape.k, "")
    blocks = [loop.index for loop in (*product.batches, *product.rows, *product.columns)]
    sums = [loop.index for loop in product.sums]
    order = (*blocks, i_warp, j_warp, *sums, k_step, i_tile, j_tile, ii, jj, kk)
    made = plan.restarted(ordered(nest, order))
    made.bind({tuple(blocks): GridUnit.BLOCK_X})
    if warps > 1:
        made.bind({i_warp: GridUnit.WARP_Y, j_warp: GridUnit.WARP_X})
    made.tensorize((ii, jj, kk), shape)
    if warps > 1:
        for operand in {product.a: None, product.b: None}:
            made.cache(operand, index=k_step, pipeline_stages=2)
    made.cache(product.c, index=sums[0], location=Location.MMA_FRAGMENT)
    return made


# --- any nest on threads -----------------------------------------------------------------------------------------


def _on_threads(plan: Planned, *, shared: bool, private: bool) -> Any:  # Any: a plan, or None
    """Give every loop whose iterations are independent to blocks and threads, neighbours in memory to neighbours."""
    nest = plan.nest
    free = [loop.index for loop in nest.loops if loop.index not in nest.fusing and _is_independent(nest, loop)]
    if not free:
        return None
    by_contiguity = sorted(free, key=lambda index: (_contiguous(plan, index), nest.position(index)))
    threads = [by_contiguity[-1], *[index for index in free if index is not by_contiguity[-1]][-1:]]
    reused = _reused(plan, threads) if shared else []
    if shared and not reused:
        return None
    sizes = (_SQUARE_OF_THREADS, _SQUARE_OF_THREADS) if reused else (_ROW_OF_THREADS, _ROWS_OF_THREADS)
    if len(threads) == 1:
        sizes = (_ONLY_THREADS, 1)
    bound: dict[Any, GridUnit] = {}  # Any: an index, or several
    blocks = [index for index in free if index not in threads]
    for index, size, unit in zip(threads, sizes, (GridUnit.THREAD_X, GridUnit.THREAD_Y), strict=False):
        trips = nest.loop(index).trips
        if trips is not None and trips <= size:
            bound[index] = unit
            continue
        nest, inner = split_by(nest, index, size, "")
        bound[inner] = unit
        blocks.append(index)
    steps = [index for index in nest.order if index not in blocks and index not in bound]
    inner_step = None
    if reused and steps and _is_long(nest.loop(steps[-1])):
        nest, inner_step = split_by(nest, steps[-1], _STEPS, "")
    made = plan.restarted(nest)
    if blocks:
        bound[tuple(sorted(blocks, key=nest.position))] = GridUnit.BLOCK_X
    made.bind(bound)
    for array in reused:
        made.cache(array, index=inner_step or min(_threads_of(bound), key=nest.position))
    if private:
        for array in _held(made):
            made.cache(array, index=made.serial[0], location=Location.PRIVATE)
    return made


def _is_independent(nest: LoopNest, loop: Loop) -> bool:
    try:
        crossings(nest, (Binding(GridUnit.BLOCK_X, (loop,)),))
    except ScheduleError:
        return False
    return True


def _is_long(loop: Loop) -> bool:
    return loop.trips is None or loop.trips >= 2 * _STEPS


def _arrays(nest: LoopNest) -> list[Array]:
    found = {a.array: None for part in nest.parts for s in part.statements for a in s.accesses}
    return sorted(found, key=lambda array: array.number)


def _contiguous(plan: Planned, index: Index) -> int:
    """Return how many accesses move by one element in memory from one iteration to the next."""
    loop, count = plan.nest.loop(index), 0
    for array in _arrays(plan.nest):
        for access in plan.accesses(array):
            moves = [mode.factor(index) * loop.step for mode in access.place]
            moved = [(move, step) for move, step in zip(moves, array.strides, strict=True) if move]
            count += moved == [(1, 1)]
    return count


def _reused(plan: Planned, threads: Sequence[Index]) -> list[Array]:
    """Return the arrays of which threads of a block read the same elements, and that are only read."""
    found = []
    for array in _arrays(plan.nest):
        accesses = plan.accesses(array)
        if array.rank == 0 or any(access.is_write for access in accesses) or array.role is Role.CONST:
            continue
        moved = [moving(access.place) for access in accesses]
        is_shared = any(index not in symbols for symbols in moved for index in threads)
        if len(threads) > 1 and (is_shared or len({access.place for access in accesses}) > 1):
            found.append(array)
    return found


def _held(plan: Planned) -> list[Array]:
    """Return the written arrays of which a thread touches one element while its serial loops run."""
    serial = [index for index in plan.serial if plan.nest.loop(index).trips != 1]
    if not serial:
        return []
    found = []
    for array in _arrays(plan.nest):
        accesses = plan.accesses(array)
        places = {access.place for access in accesses}
        if any(a.is_write for a in accesses) and len(places) == 1 and not moving(next(iter(places))) & set(serial):
            found.append(array)
    return found


def _threads_of(bound: Mapping[Any, GridUnit]) -> list[Index]:  # Any: an index, or several
    return [index for index, unit in bound.items() if unit.name.startswith("THREAD")]


# --- Accera's heuristic ------------------------------------------------------------------------------------------


class NoneCacheHeuristics:
    """A cache whose index and layout are chosen by trying all: `plan.auto(NoneCacheHeuristics(source=B, index=j))`.

    What is left out, the index or the layout, becomes a parameter of the plan, with all loops or the two orders of
    memory as choices; `Package.add` makes a function of each, and `tune_plan` finds the best one.
    Source: Accera, `algorithms.NoneCacheHeuristics`.
    """

    def __init__(self, source: Array, index: Index | None = None, layout: ArrayLayout | None = None) -> None:
        if not isinstance(source, Array):
            raise ScheduleError(f"NoneCacheHeuristics of {source!r}", help="source is the array to cache")
        self.source = source
        self.index = index
        self.layout = layout

    def choices(self, order: Sequence[Index]) -> tuple[Any, Any, dict[DelayedParameter, list[Any]]]:
        """Return the index and the layout of the cache, and the choices of those of them that are parameters."""
        choices: dict[DelayedParameter, list[Any]] = {}  # Any: indices, or layouts
        index: Any = self.index
        layout: Any = self.layout
        if layout is None:
            layout = DelayedParameter(f"layout_of_{self.source.name}")
            choices[layout] = [ArrayLayout.FIRST_MAJOR, ArrayLayout.LAST_MAJOR]
        if index is None:
            index = DelayedParameter(f"index_of_{self.source.name}")
            choices[index] = list(order)
        return index, layout, choices
