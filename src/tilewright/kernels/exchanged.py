"""Products whose rows, or whose sums, travel between GPUs while they are computed, in one launch; sm_90a only.

The kernels are `_gathered_kernel` and `_scattered_kernel`; tiles, plans and predictions are those of the Hopper family
of `tw.matmul`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple  # Any: arrays of any library

from tilewright.arch import VECTOR_BYTES
from tilewright.kernels._gathered_kernel import STEP_BYTES, matmul_gathered
from tilewright.kernels._hopper_results_kernel import BOX
from tilewright.kernels._ring_kernel import MOST_PARTS as MOST_PARTS
from tilewright.kernels._scattered_kernel import matmul_scattered
from tilewright.kernels.dispatch import machine_of
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_plan import CONSUMERS, THREADS, WARPGROUP, HopperConfiguration, HopperPlan, plan_for
from tilewright.kernels.matrices import Matrix, matrix_of
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Problem, types_of
from tilewright.launch import Kernel, Launcher
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.transactions import ROW

_STORES_US = 4.0  # an estimate: a cooperative tile waits so long for its stores to another rank
# Of what is predicted for a product: gathering 8192 cubed on two H200s takes 798 us in ping-pong and 778 otherwise,
# scattering 753 in ping-pong and 839 otherwise.
_IN_TURNS, _TOGETHER = 1.03, 1.1
_PART_ROWS = 1024  # at least: the rows of the tiles that blocks compute at once
_TILE = 256  # the extent of the largest tiles
_FULL = 0.9  # of the blocks have a tile of the rank's own: few begin with one that waits
_FIRST_US = 8.0  # until the first part of another rank's rows has come, on two H200s
# Bytes of a part of few rows: with half of it 512 x 4096 x 8192 took 60 us on two H200s in place of 52, because whoever
# sends waits for the stores of each part.
_LEAST_PART = 1 << 20
# Pauses between stores to another GPU, of the time of a tile. On two H200s 1024 x 8192 x 8192, whose tiles take 25 us,
# is scattered in 132 us without pauses, with 6.4 us of them in 117, 12.8 us in 114, 19.2 us in 118. Gathering it, whose
# tiles take 44 us, takes 114.5 us without, 112.5 with 8 to 24 us of them, and 148 with 36 us.
_RESTS, _RESTS_OF_SENDERS = 0.5, 0.4
_LEAST_ROUNDS = 1.9  # tiles of a block, so that another is multiplied while one leaves
RING_BYTES = 8 << 20  # of what one rank sends to another, from which on it travels in the ring
_RING_PART = 16 << 20  # bytes of one of its parts: a copy that waits, and tells, takes 4 us beside its bytes


def travels_in_ring(rows: int, columns: int, bytes: int, size: int) -> bool:
    """Say whether what each of `size` ranks sends to another goes from each rank to the one before it, which passes on.

    Where two ranks send to a third one at once, both wait: four H200s that send 32 MB to each of the others take 340 us
    in turns and 284 us to one neighbour. Small parts go straight to their readers, as each rank on the way takes time.
    """
    return size > 2 and rows * columns * bytes >= RING_BYTES


def _count(rows: int, columns: int, bytes: int) -> int:
    """Return in how many parts a matrix travels in the ring."""
    return max(2, min(rows * columns * bytes // _RING_PART, MOST_PARTS))


def _shares(extent: int, count: int, multiple: int) -> int:
    """Return a share of an extent of which there are at most `count`, a multiple of a number unless it is the extent.

    >>> _shares(8192, 2, 64), _shares(1000, 3, 256), _shares(100, 3, 256)
    (4096, 512, 100)
    """
    return min(-(-extent // (count * multiple)) * multiple, extent)


def parts_of_sums(rows: int, columns: int, bytes: int, size: int = 2) -> tuple[int, int]:
    """Return the extent (rows, columns) of the parts in which sums travel: at most `MOST_PARTS`, in the order of tiles.

    >>> parts_of_sums(8192, 8192, 2), parts_of_sums(20000, 40, 4), parts_of_sums(512, 40, 4)
    ((1024, 8192), (3072, 40), (512, 40))
    >>> parts_of_sums(1024, 28672, 2, size=4)
    (1024, 9728)
    """
    if not travels_in_ring(rows, columns, bytes, size):
        return _shares(rows, MOST_PARTS, _PART_ROWS), columns
    count = _count(rows, columns, bytes)
    height = _shares(rows, count, _PART_ROWS)
    width = _shares(columns, count // -(-rows // height), _TILE)
    while 0 < columns % width < _TILE:  # some tile has to begin in the last part, whose end nobody would tell of
        width = min(width + _TILE, columns)
    return height, width


def parts_of(rows: int, depth: int, bytes: int, size: int = 2) -> tuple[int, int]:
    """Return the extent (rows, K) of the parts in which rows are sent, from what is the same on all ranks.

    Tiles are computed by groups of rows, so that those of the first part are multiplied while the next ones come. Where
    all tiles are computed at once, each of them goes along K as that comes; and so it is in the ring, where little is
    left to do when the last part has come.

    >>> parts_of(8192, 4096, bytes=2), parts_of(512, 8192, bytes=2), parts_of(8, 40, bytes=4)
    ((1024, 4096), (512, 1024), (8, 40))
    >>> parts_of(2048, 8192, bytes=2, size=4), parts_of(256, 8192, bytes=2, size=4)
    ((2048, 4096), (256, 2048))
    """
    step = ROW // bytes  # a tile of K
    if travels_in_ring(rows, depth, bytes, size):
        width = _shares(depth, 2, step)
        return _shares(rows, _count(rows, depth, bytes) // -(-depth // width), _TILE), width
    if rows > _PART_ROWS:
        return _shares(rows, MOST_PARTS, _PART_ROWS), depth
    count = max(min(rows * depth * bytes // _LEAST_PART, MOST_PARTS), 1)
    return rows, _shares(depth, count, step)


@dataclass(frozen=True)
class Exchange:
    """The memory by which ranks exchange a matrix in one call, and the number of the call.

    `arrived` is the rank's own, (ranks, elements); `slots` and `flags` belong to the other ranks, in the order in which
    they are sent to, and the numbers `rows` say where in `flags` their readers look; `told` is the rank's own, (ranks,
    parts). So are `counters`, which has zeros, and `sent`, where a kernel tells of what it has written for others,
    (ranks - 1, parts). `in_ring` says that all slots belong to the rank before this one, which passes on what it gets.
    """

    rank: int
    size: int
    number: int
    in_ring: bool
    arrived: Any
    slots: Sequence[Any]
    rows: Sequence[int]
    flags: Sequence[Any]
    told: Any
    counters: Any
    sent: Any


class _Tabled(Hopper):
    """The family without tiles that fit one wave: nobody has measured these between ranks."""

    fits = False


_TABLED = _Tabled()


class RingFamily:
    """The configurations of one of the kernels, on GPUs of sm_90a."""

    is_simulated = False  # as the Hopper family of tw.matmul

    def __init__(self, kernel: Kernel, *, stores_boxes: bool, narrowest: int = 0) -> None:
        self.kernel = kernel
        self._stores_boxes = stores_boxes  # whether results have to leave by TMA
        self._narrowest = narrowest  # the columns of a tile in ping-pong

    def configurations(self, problem: Problem, machine: Machine) -> dict[HopperConfiguration, float]:
        """Return the configurations that take a problem, with the microseconds that are predicted for a product."""
        found: dict[HopperConfiguration, float] = {}
        are_boxes = problem.is_whole_vectors and problem.d.dtype.bytes in (2, 4)
        if self._stores_boxes and not are_boxes:
            return found
        # Accumulators of a thread in ping-pong: with more, some are spilled.
        most = 128 if problem.has_bias and self._stores_boxes else 192 if are_boxes else 160
        for candidate in _TABLED.candidates(problem, machine):
            c, prediction = candidate.configuration, candidate.prediction
            assert isinstance(c, HopperConfiguration), c
            is_too_large = c.is_ping_pong and c.tile[0] * c.tile[1] > most * WARPGROUP
            # Blocks of a cluster wait for each other's parts: 1521 us on two H200s, where single ones take 1393.
            is_other = c.consumers != CONSUMERS or c.streams or (c.is_ping_pong and c.tile[1] < self._narrowest)
            is_other |= c.cluster_size > 1 or c.splits > 1 or c.is_swapped or any(candidate.packed) or is_too_large
            if prediction is not None and not is_other:
                slower = 1.0 if c.is_ping_pong == self._stores_boxes else _IN_TURNS if c.is_ping_pong else _TOGETHER
                found[c] = slower * prediction.us + self._waits(problem, c)
        return found

    def _waits(self, problem: Problem, c: HopperConfiguration) -> float:
        """Return the microseconds that nothing hides, of products of few rows.

        Where the rank's own tiles do not fill the GPU, others begin at once, and wait for their rows; where sums are
        stored by both consumers of a tile, nobody multiplies meanwhile.
        """
        if problem.m > _PART_ROWS:
            return 0.0
        m, n, _ = c.tile
        own = -(-problem.m // m) * -(-problem.n // n)
        if self._stores_boxes:
            return 0.0 if c.is_ping_pong else _STORES_US * -(-own * problem.batch // c.blocks)
        return _FIRST_US if own < _FULL * c.blocks else 0.0

    def choose(self, problem: Problem, machine: Machine) -> HopperConfiguration | None:
        """Return the configuration that is predicted to be fastest, None where the kernel does not take a problem."""
        found = self.configurations(problem, machine)
        return min(found, key=found.__getitem__, default=None)

    def launch(self, problem: Problem, c: HopperConfiguration, machine: Machine) -> tuple[Launcher, HopperPlan]:
        """Return what launches a configuration, and the plan that it takes."""
        m, n, _ = c.tile
        clusters = -(-problem.m // (m * c.cluster)) * -(-problem.n // n) * problem.batch
        blocks = max(min(clusters, c.blocks // c.cluster), 1) * c.cluster
        kernel = self.kernel.configure(min_blocks=1)
        if c.cluster > 1:
            kernel = kernel.configure(cluster=c.cluster)
        return kernel[blocks, THREADS], plan_for(problem, c, machine.arch)


# Gathering 8192 cubed on two H200s takes 778 us in tiles of 128 x 256, and 798 and 881 in ping-pong in 128 x 192 and
# 128 x 128, whether rows travel or not.
GATHERED = RingFamily(matmul_gathered, stores_boxes=False, narrowest=192)
SCATTERED = RingFamily(matmul_scattered, stores_boxes=True)


class _Chosen(NamedTuple):
    """What launches a kernel and the plan that it takes; its blocks, how many tiles each has, and what one takes."""

    launcher: Launcher
    plan: HopperPlan
    blocks: int
    rounds: float
    tile_us: float

    def pause_of_tiles(self) -> int | None:
        """Return the nanoseconds between stores of a tile, None where nothing is multiplied meanwhile."""
        plan = self.plan
        if not plan.is_ping_pong or self.rounds < _LEAST_ROUNDS:
            return None
        stores = plan.tile[0] // BOX * (plan.tile[1] // plan.part.tiler_mn[1])
        return int(1000 * _RESTS * self.tile_us / stores)

    def pause_of_senders(self, parts: int, bytes: int, size: int) -> int | None:
        """Return the nanoseconds between stores of rows in so many parts, None where own tiles do not fill the GPU."""
        if self.rounds < _FULL * size:
            return None
        steps = parts * -(-bytes // (parts * self.blocks * STEP_BYTES))
        return int(1000 * _RESTS_OF_SENDERS * self.tile_us * math.ceil(self.rounds / size) / steps)


# What launches a kernel, and its arguments: first D, A and B, then others, the number of the call, and constants.
Launch = tuple[Launcher, tuple[Any, ...]]


def gathered_launch(
    x: Any, w: Any, out: Any, part: tuple[int, int], exchange: Exchange, bias: Any = None, *, sends: bool = True
) -> Launch | None:
    """Return what computes out = concatenate(x of rank 0, x of rank 1, ...) @ w + bias, and sends x by `part`.

    x is (M, K), w (K, N), `out` (ranks * M, N) and the bias (N,), contiguous but for w. With `sends` false others send
    x. Return None where no kernel does this in one launch.
    """
    a_info, b_info, d_info = (_described(array) for array in (x, w, out))
    (rows, depth), columns = a_info.shape, b_info.shape[1]
    a, b = Matrix(a_info, x, (rows, depth, 1), (depth, 1, 0)), matrix_of(b_info, w).transposed
    d = Matrix(d_info, out, (rows, columns, exchange.size), (columns, 1, rows * columns))
    found = _found(GATHERED, a, b, d, exchange.size, bias)
    if found is None or a.mapped().alignment < VECTOR_BYTES:  # of what is sent
        return None
    launcher, plan, *_ = found
    parts = -(-rows // part[0]) * -(-depth // part[1])
    pause = found.pause_of_senders(parts, rows * depth * a_info.dtype.bytes, exchange.size) if sends else None
    come = _described(exchange.arrived)
    arrived = Matrix(come, exchange.arrived, (rows, depth, exchange.size), (depth, 1, come.strides[0]))
    slots = [slot.reshape(rows, depth) for slot in exchange.slots if sends]
    return launcher, (
        d.view(), x, b.view(), _of_columns(bias, d), arrived.view(), slots, list(exchange.flags) if sends else [],
        exchange.told, exchange.counters, exchange.rank, part, pause, exchange.number, plan,
    )  # fmt: skip


def scattered_launch(
    x: Any,
    w: Any,
    out: Any,
    part: tuple[int, int],
    exchange: Exchange,
    added: Sequence[Any] = (),
    bias: Any = None,
    staging: Any = None,
) -> Launch | None:
    """Return what computes out = (sum over ranks of x @ w + bias)[rows of this rank] + `added`, and sends the others'.

    x is (ranks * M, K), w (K, N), the bias (N,), `out` and each of `added` (M, N), contiguous but for w; sums travel
    in the type of `out`, by `part`. With `staging`, (ranks - 1, M, N), the sums for others are written there, and
    `exchange.sent` tells of each part. Return None where no kernel does this in one launch.
    """
    a_info, b_info, d_info = (_described(array) for array in (x, w, out))
    (rows, columns), depth = d_info.shape, a_info.shape[1]
    a = Matrix(a_info, x, (rows, depth, exchange.size), (depth, 1, rows * depth))
    b, d = matrix_of(b_info, w).transposed, Matrix(d_info, out, (rows, columns, 1), (columns, 1, rows * columns))
    found = _found(SCATTERED, a, b, d, exchange.size, bias)
    if found is None:
        return None
    launcher, plan, *_ = found
    pause = found.pause_of_tiles() if staging is None else None
    slots, flags = [slot.reshape(rows, columns, 1) for slot in exchange.slots], list(exchange.flags)
    if staging is not None:
        there = Matrix(_described(staging), staging, (rows, columns, exchange.size - 1), (columns, 1, rows * columns))
        slots, flags = [there.view()], [exchange.sent]
    if exchange.in_ring:
        come = _described(exchange.arrived)
        shape, strides = (rows, columns, exchange.size), (columns, 1, come.strides[0])
        arrived = [Matrix(come, exchange.arrived, shape, strides).view()]
    else:
        others = [rank for rank in range(exchange.size) if rank != exchange.rank]
        arrived = [exchange.arrived[rank].reshape(rows, columns, 1) for rank in others]
    more = [each.reshape(rows, columns, 1) for each in added]
    return launcher, (
        d.view(), a.view(), b.view(), more, _of_columns(bias, d), slots, arrived, flags, exchange.told,
        exchange.counters, exchange.rank, part, pause, exchange.number, staging is not None, exchange.in_ring, plan,
    )  # fmt: skip


def _described(array: Any) -> ArrayInfo:
    found = describe(array)
    assert found is not None, array
    return found


def _of_columns(bias: Any, d: Matrix) -> list[Any]:
    """Return a bias as a matrix of the shape of d, if there is one."""
    return [] if bias is None else [Matrix(_described(bias), bias, d.shape, (0, 1, 0)).view()]


def _found(family: RingFamily, a: Matrix, b: Matrix, d: Matrix, ranks: int, bias: Any) -> _Chosen | None:
    """Return what launches a product, None where the kernel does not take it."""
    if isinstance(d.info.device, str) and not family.is_simulated:
        return None
    (m, k, _), (n, _, _) = a.shape, b.shape
    types = types_of(a.info.dtype, b.info.dtype, d.info.dtype, None)
    operands = a.mapped(), b.mapped(), d.mapped_result()
    added = None if bias is None else _described(bias).dtype
    problem = Problem(m, n, k, ranks, *operands, types.compute, types.accumulator, bias=added)
    if problem.promotes and family is SCATTERED:
        return None
    return _chosen(family, problem, machine_of(d.info.device))


@lru_cache(maxsize=1024)
def _chosen(family: RingFamily, problem: Problem, machine: Machine) -> _Chosen | None:
    c = family.choose(problem, machine)
    if c is None:
        return None
    m, n, _ = c.tile
    rounds = -(-problem.m // m) * -(-problem.n // n) * problem.batch / c.blocks
    us = family.configurations(problem, machine).get(c, 0.0)
    return _Chosen(*family.launch(problem, c, machine), c.blocks, rounds, us / math.ceil(rounds))
