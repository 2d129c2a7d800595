"""The tiles of the Hopper family: which there are for a problem, how many stages they have, and who shares their K.

A table of tiles, narrow ones where D is narrow, and where one wave will do such as give each multiprocessor one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import product

from tilewright import dtypes as t
from tilewright.arch import Arch
from tilewright.kernels._hopper_kernel import LEAST_PIECE
from tilewright.kernels.hopper_plan import (
    CONSUMERS,
    ROWS,
    SPARE_BYTES,
    WARPGROUP,
    HopperConfiguration,
    StreamConfiguration,
    may_alternate,
    owners_of,
    results_of,
    takes_boxes,
    transposes_results,
)
from tilewright.kernels.problem import BLOCK, Operand, Problem
from tilewright.pickling import changed
from tilewright.transactions import ROW

# Tiles along M before the next along N, by the bytes of an element: what examples 05 and 06 do. With 4 bytes groups of
# 16 took 0.2 to 0.9 % less than of 8 (4096 and 8192 cubed, example 05 on an H200); in ping-pong of 128 x 128 they take
# 1.2, 0.2 and 1.9 % more (2048, 4096 and 8192 cubed). With 2 bytes they take 0.5 % less in 128 x 256 at the mean of 11
# products for half a second each, which is for a wave of 132 about as high as wide, and 0.9 % less in pairs. Where all
# tiles are computed at once, neighbours share tiles of the larger matrix: 512 x 1024 x 4096 in 64 x 64 takes 9.8 us
# with those of M side by side, and 13.9 with those of N; over 457 tiles of 45 products this takes 1.006 of the best of
# groups of 1, 8 and all, and groups of 8 take 1.025 (`matmul_fitted_h200.json`).
_GROUP = {1: 8, 2: 8, 4: 16}
_MOST_STAGES = 16
_BLOCKS = HopperConfiguration.blocks  # that run at once on an H200
_NARROW = 128  # rows or columns of D up to which a tile has them all
_LEAST_ROWS = 8  # of an operand whose rows are contiguous: those that a swizzle goes over
_LEAST_CONTIGUOUS = 16  # elements of 16 bits: 32 bytes, the least row of a swizzle
_LEAST_STEPS = 4  # tiles of K in a split
_CLUSTERS = (2, 3, 4, 5, 6, 7, 8)  # blocks that share the K of a tile
_LEAST_STAGES = 4  # beside the sums that others send, or of more K
_LEAST_SHARED, _MOST_WAVES = 128 * 128, 6  # elements of a tile by stream-K, and whole waves beside it
_SMALL = 160  # rows and columns of a tile of which K may be deeper

# Tile (M, N), ping-pong, cluster.
_Shape = tuple[tuple[int, int], bool, int]
_SHAPES: Sequence[_Shape] = (
    ((128, 256), False, 1),
    ((128, 256), False, 2),
    ((256, 128), False, 1),
    ((256, 128), False, 2),
    ((128, 192), False, 1),
    ((128, 192), False, 2),
    ((128, 192), True, 1),
    ((128, 192), True, 2),
    ((128, 160), False, 1),
    ((128, 160), False, 2),
    ((128, 160), True, 2),
    ((128, 128), True, 1),
    ((128, 128), True, 2),
    ((128, 128), False, 1),
    ((64, 256), True, 1),
    ((64, 256), True, 2),
    ((64, 128), True, 1),  # first: of equals wider instructions take less
    ((128, 64), True, 1),
    ((128, 64), False, 1),
    ((64, 64), True, 1),
    ((64, 32), True, 1),
)
# Of which blocks side by side share rows, too, that begin between lines: 6256 x 976 x 5792 takes 106 us so on an H200,
# and 116 by any other of the table.
_SHARED: _Shape = (128, 128), True, 1
# Rows of tiles, warpgroups that multiply, whether in ping-pong, and columns at most, for which registers are there: of
# tiles whose width is such that each multiprocessor has one.
_HEIGHTS: Sequence[tuple[int, int, bool, int]] = (
    (64, 1, False, 256),
    (128, CONSUMERS, True, 128),
    (128, CONSUMERS, False, 256),
    (192, 3, False, 200),
    (256, CONSUMERS, False, 160),
)
# Blocks of a cluster side by side, and how many of 132 run at once: an H200 has room for 30 clusters of four.
_SIDE_BY_SIDE = (1, _BLOCKS), (2, _BLOCKS), (4, 120)
# Of sums that are promoted, 64 rows of each consumer are held twice, and consumers wait for their products.
THREE = 192, 128  # of three consumers, which hold one set of sums of K each
_PROMOTED_SHAPES: Sequence[_Shape] = (
    (THREE, False, 1),
    ((256, 128), False, 1),
    ((256, 128), False, 2),
    ((128, 192), False, 1),
    ((128, 192), False, 2),
    ((128, 160), False, 1),
    ((128, 160), False, 2),
    ((128, 128), False, 1),
    ((128, 128), False, 2),
    ((128, 64), False, 1),
)
# Accumulators of a thread beside which matrices, values of further results, and partners are spilled.
_MOST_BESIDE = 128
_NARROW_SHAPES = ((64, True), (128, False))  # rows of the instruction's side, ping-pong


def configurations_of(problem: Problem, arch: Arch) -> list[HopperConfiguration]:
    """Return the tiles of the table, narrow ones where D is narrow, and splits of K where tiles are few."""
    deep = _legal(problem, _whole(problem, arch))  # a narrow tile may be one of the table
    return [split for one in deep for split in (*_with_splits(problem, one, arch), *_streaming(problem, one))]


def fitted_to(problem: Problem, arch: Arch, blocks: int) -> list[HopperConfiguration]:
    """Return tiles of any width that fit one wave of so many blocks."""
    return _legal(problem, _fitted(problem, arch, blocks))


def _legal(problem: Problem, tiles: Iterable[HopperConfiguration]) -> list[HopperConfiguration]:
    """Return the tiles that a problem may have, each once and with any depth."""
    found = dict.fromkeys(tiles)
    if problem.quantises:  # a tile has whole blocks of columns
        width = BLOCK * (1 + problem.is_gated)
        found = dict.fromkeys(c for c in found if c.tile[1] % width == 0 and not c.is_swapped)
    return [two for one in found for two in _depths(problem, one)]


def _whole(problem: Problem, arch: Arch) -> Iterator[HopperConfiguration]:
    """Yield the configurations without splits."""
    promotes, halves = problem.promotes, 1 + problem.is_gated
    for is_swapped, extent in ((True, problem.m), (False, problem.columns)):  # first: of equals they do least
        if extent > _NARROW:
            continue
        operand, parts = (problem.a, 1) if is_swapped else (problem.b, halves)
        narrow = _narrow_width(operand, extent, parts)
        for wide, is_ping_pong in _NARROW_SHAPES[promotes:]:
            heights = [wide * times for times in range(1, halves + 1) if is_swapped or times == 1]
            for height in heights if not problem.is_gated or may_alternate(problem) else heights[-1:]:
                tile = (narrow, height) if is_swapped else (height, narrow)
                yield _configuration(problem, tile, arch, is_ping_pong, 1, is_swapped=is_swapped)
        if not (promotes or problem.blocks or problem.is_gated):
            tile = (narrow, ROWS) if is_swapped else (ROWS, narrow)
            yield _configuration(problem, tile, arch, False, 1, is_swapped=is_swapped, consumers=1)
    shapes: Sequence[_Shape] = _PROMOTED_SHAPES if promotes else _SHAPES
    if problem.blocks:
        # Where one tile of K is added while the next is multiplied: 4096 cubed took 119 us so on an H200, in pairs of
        # blocks 127, in tiles of 256 x 128 137, and of 128 x 192 143. With a scale for each column more would spill.
        tiles = {THREE} if [(x.boxed, x.rows) for x in problem.blocks] == [(True, 1), (False, BLOCK)] else set()
        shapes = [x for x in shapes if (max(x[0]) <= BLOCK and x[2] == 1) or x[0] in tiles]
    if problem.c is not None or problem.elements or problem.further or problem.places or problem.is_gated:
        shapes = [shape for shape in shapes if not shape[1] or math.prod(shape[0]) // WARPGROUP <= _MOST_BESIDE]
    for tile, is_ping_pong, cluster in shapes:
        # 160 columns of B that are contiguous, or their half for a block of a pair, come by rows of 64 and 32 bytes,
        # which took 1.3 to 1.4 of the time of whole rows.
        if problem.b.major == "K" or tile[1] // (cluster * halves) * problem.b.dtype.bytes % ROW == 0:
            consumers = 3 if tile == THREE else CONSUMERS
            found = _configuration(problem, tile, arch, is_ping_pong, cluster, is_swapped=False, consumers=consumers)
            yield found
            if (tile, is_ping_pong, cluster) == _SHARED and not (_are_lines(problem) or problem.is_gated):
                yield changed(found, cluster_n=2)


def _fitted(problem: Problem, arch: Arch, at_once: int) -> Iterator[HopperConfiguration]:
    """Yield tiles, of D or of D^T, that are as narrow as they may be for each multiprocessor to have one at most.

    1576 x 768 has 132 tiles of 72 x 128 of D^T: with K = 3072 11.8 us on an H200, and 14.9 in 104 of 128 x 96 (cuBLAS
    12.4). Where rows begin between lines, of which each tile reads more then, blocks of a cluster share rows, too:
    336 x 3064 x 3096 takes 16.1 us by clusters of four, 19.8 by two that share columns, 21.8 by single blocks (17.4).
    """
    if problem.promotes or problem.blocks:
        return
    is_lone = problem.c is None and not (problem.elements or problem.further or problem.places or problem.is_gated)
    for is_swapped in (False, True)[: 1 + (not problem.is_gated)]:
        sides = (problem.columns, problem.b), (problem.m, problem.a)
        (rows, of_rows), (columns, of_columns) = sides if is_swapped else sides[::-1]
        # Rows of D leave by 32 bytes at least; columns, which are transposed on their way, by any number.
        unit = _LEAST_ROWS if is_swapped else max(32 // problem.d.dtype.bytes, _LEAST_ROWS) * (1 + problem.is_gated)
        unit = max(unit, 2 * _LEAST_ROWS * (of_columns.dtype in (t.int8, t.uint8)))
        unit, share = (
            least if operand.major == "K" else ROW // operand.dtype.bytes
            for operand, least in ((of_columns, unit), (of_rows, _LEAST_ROWS))
        )
        for (height, consumers, is_ping_pong, most), (cluster_n, room) in product(_HEIGHTS, _SIDE_BY_SIDE):
            blocks = at_once * room // _BLOCKS
            groups = 1 if is_ping_pong else consumers
            # Beside C two times 11 or 13 parts of 8 columns would be spilled.
            least = 2 * _LEAST_ROWS * (1 + problem.is_gated) * (not is_lone and height > ROWS * groups)
            across, step = blocks // (-(-rows // height) * problem.batch * cluster_n) * cluster_n, max(unit, least)
            width = -(-columns // (max(across, 1) * step)) * step
            is_light = is_lone or (groups < 3 and height * width // (groups * WARPGROUP) <= _MOST_BESIDE)
            may_share = cluster_n == 1 or not (_are_lines(problem) or problem.is_gated or height % (cluster_n * share))
            if across and width <= most and is_light and may_share:
                tile = (width, height) if is_swapped else (height, width)
                found = _configuration(problem, tile, arch, is_ping_pong, 1, is_swapped=is_swapped, consumers=consumers)
                yield changed(found, cluster_n=cluster_n)


def _are_lines(problem: Problem) -> bool:
    """Return whether rows of both operands begin at whole lines of the caches."""
    return problem.a.line >= ROW <= problem.b.line


def _narrow_width(operand: Operand, extent: int, parts: int) -> int:
    """Return how wide a narrow tile is: multiples of the rows that a swizzle goes over, for TMA fills up few rows then.

    Where rows are contiguous, a power of two.
    """
    if operand.major == "K":
        unit = parts * _LEAST_ROWS
        if operand.dtype in (t.int8, t.uint8) and extent > 32:  # of integers every second one beyond
            unit = max(unit, 2 * _LEAST_ROWS)
        return -(-extent // unit) * unit
    return 1 << (max(extent, parts * _LEAST_CONTIGUOUS) - 1).bit_length()


def tiles_of(problem: Problem, c: HopperConfiguration) -> int:
    """Return how many tiles D has."""
    m, n, _ = c.tile
    return -(-problem.m // m) * -(-problem.columns // n) * problem.batch


def _depths(problem: Problem, whole: HopperConfiguration) -> Iterator[HopperConfiguration]:
    """Yield a configuration, and of small tiles with twice the K in half as many stages, for fewer steps.

    128 x 4096 x 4096 in tiles of 64 x 64 took 11.3 us on an H200, and 9.4 so; 128 x 64 gained nothing.
    """
    yield whole
    m, n, k = whole.tile
    if m + n <= _SMALL and whole.stages >= 2 * _LEAST_STAGES and not problem.promotes:
        yield changed(whole, tile=(m, n, 2 * k), stages=whole.stages // 2)


def _configuration(
    problem: Problem,
    tile: tuple[int, int],
    arch: Arch,
    is_ping_pong: bool,
    cluster: int,
    *,
    is_swapped: bool,
    consumers: int = CONSUMERS,
) -> HopperConfiguration:
    """Return a configuration with as many stages as shared memory holds beside the results."""
    warps = 4 * consumers, 1
    group = _GROUP[problem.a.dtype.bytes]
    if tile == (128, 128) and is_ping_pong:
        group = 8
    elif tile == (128, 256) and problem.a.dtype.bits == 16:
        group = 16
    found = HopperConfiguration(
        (*tile, ROW // problem.a.dtype.bytes),
        warps[::-1] if is_swapped else warps,
        1,
        group // cluster,
        cluster,
        is_ping_pong,
        is_swapped=is_swapped,
    )
    rows, columns = (problem.columns, problem.m) if is_swapped else (problem.m, problem.columns)
    if rows > columns > found.own_tile[1] and tiles_of(problem, found) <= _BLOCKS:
        found = changed(found, group=1)  # see `_GROUP`
    return changed(found, stages=min(_room(problem, found, arch) // _stage_bytes(problem, found), _MOST_STAGES))


def _room(problem: Problem, c: HopperConfiguration, arch: Arch) -> int:
    """Return the bytes of shared memory for stages, beside the results."""
    d = problem.d.dtype.bytes
    is_shared = c.is_ping_pong and not is_one_part(problem, c.tile, False)
    groups = 1 if is_shared else c.consumers  # that have buffers for results
    width = results_of(c.tile, problem.is_gated, False)[1] // owners_of(problem, c)
    results = 64 * max(min(256, width * d), width * d % 256) * groups
    if c.is_swapped:
        staged = min(256, c.tile[0] // owners_of(problem, c) * d)
        results = 64 * staged * groups if transposes_results(problem, c) else 0
    return arch.shared_bytes_optin - SPARE_BYTES - results


def _stage_bytes(problem: Problem, c: HopperConfiguration) -> int:
    """Return the bytes of a stage, with its two mbarriers and with scales of blocks at whole lines."""
    m, n, k = c.tile
    extents = [m if x.of == "A" else n for x in problem.blocks if x.boxed and takes_boxes(problem, c)]
    return (m + n) * k * problem.a.dtype.bytes + 16 + sum(-(-4 * e // ROW) * ROW for e in extents)


def _with_splits(problem: Problem, whole: HopperConfiguration, arch: Arch) -> Iterator[HopperConfiguration]:
    """Yield a configuration, and with the splits of K that give all multiprocessors work for one wave or two.

    Of one consumer only those in a cluster: what they save is bytes that come to each multiprocessor, which has less K
    of x to read. 64 x 4096 x 4096 takes 7.85 us so on an H200, and 8.82 in tiles of 64 x 32 (cuBLAS 8.78); 32 rows 7.0,
    and 8.5 by three splits of two consumers.
    """
    is_alone = whole.consumers == 1
    if not is_alone:
        yield whole
    if whole.is_ping_pong or whole.cluster > 1:  # consumers alternate over tiles that all have as many steps
        return
    m, n, k = whole.tile
    tiles, steps = tiles_of(problem, whole), -(-problem.k // k)
    most = steps // _LEAST_STEPS
    found = {min(waves * whole.blocks // tiles, most) for waves in (1, 2)}
    # Beside scales of blocks the sums of larger tiles are spilled where they are written as they are.
    has_columns = any(x.of == "B" and x.rows == 1 for x in problem.blocks)
    may_leave = not problem.is_gated and not is_alone  # as sums of all columns
    if may_leave and (not problem.blocks or m * n <= (64 if has_columns else 128) * 128):
        yield from (changed(whole, splits=splits) for splits in sorted(found) if splits > 1)
    sums = m * n * problem.accumulator.bytes
    stage = _stage_bytes(problem, whole)
    for splits in _CLUSTERS:
        one = changed(whole, splits=splits, adds_in_cluster=True)
        others = (splits - 1) * sums // owners_of(problem, one)
        stages = whole.stages - -(-others // stage)
        if takes_boxes(problem, one):  # what is left beside whole stages counts
            stages = min((_room(problem, one, arch) - others) // stage, _MOST_STAGES)
        # Of the 16 or 18 multiprocessors that lie together whole clusters are formed; pairs of all.
        at_once = whole.blocks if splits == 2 else whole.blocks * (16 // splits * splits) // 18
        if splits <= most and tiles * splits <= at_once and stages >= _LEAST_STAGES:
            yield changed(one, stages=stages)


def _streaming(problem: Problem, whole: HopperConfiguration) -> Iterator[HopperConfiguration]:
    """Yield a configuration by stream-K, where blocks would be idle in one of few waves and K is long.

    Fewer tiles than half a wave are for splits, which have pieces of equal length too.
    """
    m, n, k = whole.tile
    is_other = whole.is_ping_pong or whole.is_swapped or whole.consumers != CONSUMERS
    is_other |= bool(problem.further or problem.is_gated or problem.blocks)
    if is_other or m * n < _LEAST_SHARED or problem.k < 2 * LEAST_PIECE * k:
        return
    tiles = -(-problem.m // (m * whole.cluster)) * -(-problem.columns // n) * problem.batch
    clusters = whole.blocks // whole.cluster
    if tiles % clusters and clusters < 2 * tiles < 2 * _MOST_WAVES * clusters:
        yield StreamConfiguration(**{field.name: getattr(whole, field.name) for field in fields(whole)})


def is_one_part(problem: Problem, own_tile: tuple[int, int, int], is_swapped: bool) -> bool:
    """Return whether a tile's results pass through shared memory at once: then each consumer has room for its own."""
    m, n = results_of(own_tile, problem.is_gated, is_swapped)
    return m <= ROWS and n * problem.d.dtype.bytes <= 256
