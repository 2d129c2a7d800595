"""Products of a nest, and what `plan.auto` chooses for those of warpgroups: the tile by a model, all else by it.

The model of a multiprocessor takes the longest of three times for a step through K: of the tensor cores, of their reads
of shared memory (128 bytes a clock), and of filling it from the second-level cache. A block's tile has its steps and an
end in which C is read and stored, and runs in as many rounds as there are tiles for each multiprocessor. What comes out
orders the tiles; it does not forecast a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Protocol

from tilewright import dtypes
from tilewright.arch import find_gpu
from tilewright.arch.gpus import Gpu, gpu_of
from tilewright.errors import ArgumentError
from tilewright.schedule import transforms
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Array, ArrayLayout, Load
from tilewright.schedule.loop_nest import Access, Loop, LoopNest, at_places
from tilewright.schedule.memory_spaces import Location
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.schedule.orders import refuse_violations
from tilewright.schedule.recipes import accumulator_for, shapes_for
from tilewright.schedule.targets import GridUnit, Target
from tilewright.schedule.values import Apply, Convert, Expression

_UNIT = 16  # bytes: of strides of what TMA copies
_LINE = 128  # bytes: of a row of K in shared memory, as long as the longest swizzle
_TRANSPOSED_BITS = 16  # of the elements that wgmma takes with M or N contiguous
_CONSUMERS = (2, 1)  # warpgroups that multiply, one below the other
_MOST_STAGES = 8
_RESULTS = 64 * 256  # bytes of shared memory through which a warpgroup's results leave by TMA, at most
_BARRIERS = 1024  # bytes left to mbarriers and to what is aligned
_GROUP = 8  # rows of tiles that come one after the other
_READ = 128  # bytes a clock that a multiprocessor reads from its shared memory
_FILLED = 32  # bytes a clock that it gets from the second-level cache, where the table of GPUs has no figure
_LATENCY = 1000  # clocks from the first request of a tile to its first product
_MEETING = 100  # clocks of a step in which warps meet and start the next one
_SCATTERED = 2  # times as long: results whose neighbours along N are not neighbours in C
_WIDEST_TRANSPOSED = 128  # columns: threads hold what they transpose beside their sums
_TRIED = 3  # tiles, best first


class Planned(Protocol):
    """What a choice reads and calls: a `Plan`."""

    nest: LoopNest
    target: Target

    def restarted(self, start: LoopNest) -> Any: ...  # Any: a plan
    def accesses(self, array: Array) -> list[Access]: ...


@dataclass(frozen=True)
class _Problem:
    """A product as warpgroups compute it: the loops of M, of N and of K, and what runs around them."""

    product: Product
    m: Loop
    n: Loop
    k: Loop
    is_swapped: bool  # M runs along the columns of C
    transposed: tuple[Array, ...]  # factors that threads transpose on their way to shared memory
    stores_rows: bool  # neighbours along N are neighbours in C, which results leave for by TMA

    @property
    def around(self) -> tuple[Loop, ...]:
        """The loops that blocks run through one iteration each."""
        product = self.product
        return (*product.batches, *product.rows[:-1], *product.columns[:-1])


@dataclass(frozen=True)
class _Tile:
    """What a block computes, and in which steps."""

    problem: _Problem
    shape: MMAShape
    consumers: int
    passes: int

    @property
    def rows(self) -> int:
        return self.shape.m * self.consumers

    @property
    def depth(self) -> int:
        return self.shape.k * self.passes

    @property
    def row_tiles(self) -> int:
        return -(-_trips(self.problem.m) // self.rows)

    @property
    def tiles(self) -> int:
        return self.row_tiles * -(-_trips(self.problem.n) // self.shape.n) * prod(map(_trips, self.problem.around))

    @property
    def steps(self) -> int:
        return -(-_trips(self.problem.k) // self.depth) * prod(map(_trips, self.problem.product.sums[:-1]))

    @property
    def stage_bytes(self) -> int:
        return (self.rows + self.shape.n) * self.depth * self.problem.product.a.element_type.bytes

    def clocks(self, gpu: Gpu) -> float:
        """Return what the model says of all tiles."""
        filled = (gpu.l2_bytes_per_clock or _FILLED * gpu.multiprocessors) / gpu.multiprocessors
        row = self.shape.k * self.problem.product.a.element_type.bytes  # of a pass: 32 bytes
        pass_clocks = max(self.shape.n / 2, (self.shape.m + self.shape.n) * row / _READ)
        step = max(self.consumers * self.passes * pass_clocks, self.stage_bytes / filled) + _MEETING
        results = self.rows * self.shape.n * self.problem.product.c.element_type.bytes
        ends = _LATENCY + results / filled * (1 if self.problem.stores_rows else _SCATTERED)
        return float(-(-self.tiles // gpu.multiprocessors) * (self.steps * step + ends))

    def stages(self, target: Target) -> int:
        """Return how many stages shared memory holds beside the buffers of results, as many as there are steps."""
        free = target.max_shared_memory_per_block - _RESULTS * self.consumers - _BARRIERS
        return max(1, min(free // self.stage_bytes, self.steps, _MOST_STAGES))


def warpgroup_attempts(plan: Planned, product: Product, is_rounded: bool) -> Iterator[Callable[[], Any]]:
    """Return attempts at plans for warpgroups, best first; none where they cannot serve a product.

    `is_rounded` lets float32 be multiplied as tf32.
    """
    problems = _problems(plan, product)
    if not problems or (product.a.element_type is dtypes.float32 and not is_rounded):
        return
    gpu = _gpu(plan.target)
    tiles = [tile for problem in problems for tile in _tiles(plan.target, problem)]
    tiles.sort(key=lambda tile: (tile.clocks(gpu), tile.tiles))
    for tile in tiles[:_TRIED]:
        for by_tma in (True, False) if tile.problem.stores_rows else (False,):
            yield partial(_plan_of, plan, tile, gpu.multiprocessors, by_tma=by_tma)


# --- what can be multiplied --------------------------------------------------------------------------------------


def _problems(plan: Planned, product: Product) -> list[_Problem]:
    """Return the product with M along the rows of C and along its columns; nothing where TMA cannot bring A and B."""
    loops = (*product.batches, *product.rows, *product.columns, *product.sums)
    if any(loop.step != 1 or loop.trips is None for loop in loops):
        return []
    if not all(_is_aligned(array) for array in (product.a, product.b)):
        return []
    i, j, k = product.rows[-1], product.columns[-1], product.sums[-1]
    factors = dict.fromkeys((product.a, product.b))
    transposed = tuple(array for array in factors if _is_transposed(plan, array, k.index))
    return [
        _Problem(product, m, n, k, m is j, transposed, _stores_rows(plan, product.c, n.index))
        for m, n in ((i, j), (j, i))
    ]


def _is_aligned(array: Array) -> bool:
    """Whether a tensor map describes an array: neighbours in one mode, and 16 bytes from row to row."""
    size, strides = array.element_type.bytes, array.strides
    if 1 not in strides or not all(isinstance(step, int) for step in strides):
        return False
    fast = strides.index(1)
    return all(mode == fast or step * size % _UNIT == 0 for mode, step in enumerate(strides))


def _is_transposed(plan: Planned, array: Array, k: Index) -> bool:
    """Whether K is not contiguous in a factor of elements that wgmma takes with K contiguous alone."""
    fast = array.strides.index(1)
    return array.element_type.bits != _TRANSPOSED_BITS and not all(
        x.place[fast].factor(k) for x in plan.accesses(array)
    )


def _stores_rows(plan: Planned, c: Array, n: Index) -> bool:
    """Whether neighbours along N are neighbours in C, and a tensor map describes it, with rows of whole 16 bytes."""
    if not _is_aligned(c):
        return False
    fast = c.strides.index(1)
    extent = c.shape[fast]
    if not isinstance(extent, int) or extent * c.element_type.bytes % _UNIT:
        return False
    return all(n in moving([access.place[fast]]) for access in plan.accesses(c))


def _tiles(target: Target, problem: _Problem) -> Iterator[_Tile]:
    product = problem.product
    a, b = (product.b, product.a) if problem.is_swapped else (product.a, product.b)
    types = a.element_type, b.element_type
    for shape in shapes_for(target.arch, types, accumulator_for(types, product.c.element_type)):
        if not shape.is_of_warpgroup or shape.n >= 2 * max(_trips(problem.n), 32):
            continue
        if problem.transposed and shape.n > _WIDEST_TRANSPOSED:
            continue
        passes = min(_LINE // (shape.k * a.element_type.bytes), -(-_trips(problem.k) // shape.k))
        for consumers in _CONSUMERS:
            if shape.m * (consumers - 1) < _trips(problem.m):
                yield _Tile(problem, shape, consumers, passes)


def _trips(loop: Loop) -> int:
    assert loop.trips is not None, loop
    return loop.trips


def _gpu(target: Target) -> Gpu:
    """Return the figures of a target's model, or of the largest GPU of its architecture."""
    try:
        return find_gpu(target.name.removeprefix("NVIDIA "))
    except ArgumentError:
        return gpu_of(target.arch)


# --- the plan of a tile ------------------------------------------------------------------------------------------


def _plan_of(plan: Planned, tile: _Tile, multiprocessors: int, *, by_tma: bool) -> Any:  # Any: a plan
    """Return the plan: a ring of stages, filled by a producer unless threads transpose, and sums in registers."""
    problem, shape = tile.problem, tile.shape
    m, n, k = problem.m.index, problem.n.index, problem.k.index
    nest, row = split_by(plan.nest, m, tile.rows, "_row")
    nest, ii = split_by(nest, row, shape.m, "")
    nest, jj = split_by(nest, n, shape.n, "")
    nest, kk = split_by(nest, k, tile.depth, "")
    nest, group = split_by(nest, m, _group(tile.row_tiles), "_group")
    blocks = [*(loop.index for loop in problem.around), m, n, group]
    sums = [loop.index for loop in problem.product.sums]
    made = plan.restarted(ordered(nest, (*blocks, *sums, row, ii, jj, kk)))
    stays = multiprocessors if tile.tiles > multiprocessors else None
    made.bind({tuple(blocks): GridUnit.BLOCK_X, row: GridUnit.WARPGROUP}, producer=not problem.transposed, blocks=stays)
    for factor in dict.fromkeys((problem.product.a, problem.product.b)):
        options: dict[str, Any] = {}  # Any: of a cache
        if factor in problem.transposed:
            by_k = [access.place[-1].factor(k) for access in plan.accesses(factor)]
            options["layout"] = ArrayLayout.FIRST_MAJOR if all(by_k) else ArrayLayout.LAST_MAJOR
        made.cache(factor, index=ii, pipeline_stages=tile.stages(plan.target), **options)
    made.cache(problem.product.c, index=sums[0], location=Location.MMA_FRAGMENT, tma=True if by_tma else None)
    made.tensorize((ii, jj, kk), shape, tile.passes)
    return made


def _group(tiles: int) -> int:
    """Return how many rows of tiles form a group: those that leave the fewest places of the grid without a tile."""
    return min(range(1, min(_GROUP, tiles) + 1), key=lambda n: (-(-tiles // n) * n - tiles, -n))


@dataclass(frozen=True)
class Product:
    """C += A * B: the loops that move C with A, C with B, A with B, and all three."""

    a: Array
    b: Array
    c: Array
    rows: tuple[Loop, ...]
    columns: tuple[Loop, ...]
    sums: tuple[Loop, ...]
    batches: tuple[Loop, ...]


def product_of(nest: LoopNest) -> Product | None:
    """Return the product that a nest computes, None where it computes anything else."""
    if len(nest.parts) != 1 or len(nest.parts[0].statements) != 1 or nest.parts[0].conditions:
        return None
    if nest.parts[0].statements[0].store.guards:
        return None
    statement = at_places(nest.parts[0].statements[0], nest.parts[0].places)
    factors = _factors(statement.reduction[1]) if statement.reduction and statement.reduction[0] == "+" else None
    if factors is None:
        return None
    a, b = factors
    in_a, in_b, in_c = (moving(place) for place in (a.place, b.place, statement.store.place))
    groups: dict[tuple[bool, bool, bool], list[Loop]] = {}
    for loop in nest.loops:
        groups.setdefault((loop.index in in_a, loop.index in in_b, loop.index in in_c), []).append(loop)
    found = [groups.pop(key, []) for key in ((True, False, True), (False, True, True), (True, True, False))]
    batches = groups.pop((True, True, True), [])
    if groups or not all(found):
        return None
    rows, columns, sums = map(tuple, found)
    return Product(a.array, b.array, statement.store.array, rows, columns, sums, tuple(batches))


def _factors(value: Expression) -> tuple[Load, Load] | None:
    while isinstance(value, Convert):
        value = value.value
    if not isinstance(value, Apply) or value.name != "*" or len(value.arguments) != 2:
        return None
    first, second = (x.value if isinstance(x, Convert) else x for x in value.arguments)
    return (first, second) if isinstance(first, Load) and isinstance(second, Load) else None


def moving(place: Sequence[Affine]) -> set[Any]:  # Any: indices and dimensions
    """Return what a place moves with."""
    return {symbol for mode in place for symbol in mode.symbols()}


def split_by(nest: LoopNest, index: Index, size: int, ending: str) -> tuple[LoopNest, Index]:
    """Return the nest with a loop split, and the inner index, named by the outer one and an ending."""
    name = index.name.partition("_")[0]
    inner = Index(f"{name}{ending}" if ending else f"{name}{name[-1]}")
    return transforms.split(nest, index, size, inner), inner


def ordered(nest: LoopNest, order: Sequence[Index]) -> LoopNest:
    """Return the nest in another order. Raises `ScheduleError` where that changes what it computes."""
    changed = transforms.reorder(nest, order)
    refuse_violations(nest, changed, f"the order ({', '.join(map(str, order))})")
    return changed
