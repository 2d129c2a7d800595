"""Stream-K in two launches: the blocks of the Hopper kernel share the K of the last tiles, and `add_pieces` adds up.

Tiles that fill whole waves are computed as ever. Of those that are left, fewer than there are multiprocessors, each
block gets an equal stretch of K, whatever tiles it reaches over. The sums of each piece of a tile go to memory of the
launch, and are added in the order of K: nothing is added by atomics, and no block waits for another. So there are no
flags, which would have to be zero before each launch, and nothing is asked of the order in which blocks begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any  # Any: views of any library

from tilewright.kernels._hopper_kernel import sharers_of
from tilewright.kernels._stream_k_kernel import add_pieces
from tilewright.kernels.family import KernelLaunch, Workspace
from tilewright.kernels.hopper_plan import HopperPlan
from tilewright.kernels.problem import Problem
from tilewright.launch import Launcher

_THREADS = 256


def slots_of(tiles: int, k_tiles: int, blocks: int) -> tuple[int, int]:
    """Return how many tiles are left behind whole waves, and for how many pieces of them there is room."""
    left = tiles % blocks
    return left, left + sharers_of(left, k_tiles, blocks) - 1


def launch_stream(problem: Problem, tiles: int, blocks: int, first: Launcher, plan: HopperPlan) -> KernelLaunch:
    """Return the launch of both kernels; `first(D, A, B, alpha, beta, plan, sums, *operands)` leaves the sums.

    `tiles` are those of clusters, and `blocks` the clusters that there are.
    """
    m, n, k = plan.tile
    k_tiles, width = -(-problem.k // k), math.gcd(4, problem.n)
    left, slots = slots_of(tiles, k_tiles, blocks)
    numbers, count = plan.epilogue.numbers, len(problem.blocks)
    grid = m * n // (width * _THREADS), left * plan.cluster
    add = add_pieces.numbered(len(problem.operands) + len(numbers))[grid, _THREADS]
    rest_of = k_tiles, blocks, width, plan

    def launch(sums: Any, D: Any, A: Any, B: Any, alpha: Any, beta: Any, plan: HopperPlan, *rest: Any) -> None:
        first(D, A, B, alpha, beta, plan, sums, *rest)
        add(D, sums, alpha, beta, *rest_of, *rest[count:])

    def repeat(arguments: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], bool] | None:
        sums, D, A, B, alpha, beta, plan, *rest = arguments
        multiply = first.repeat((D, A, B, alpha, beta, plan, sums, *rest))
        add_again = add.repeat((D, sums, alpha, beta, *rest_of, *rest[count:]))
        if multiply is None or add_again is None:
            return None

        def again(values: tuple[Any, ...]) -> bool:
            sums, d, a, b, alpha, beta, *rest = values
            is_done = multiply((d, a, b, alpha, beta, sums, *rest))
            return is_done and add_again((d, sums, alpha, beta, k_tiles, blocks, *rest[count:]))

        return again

    extents = m, n, slots * plan.cluster
    return KernelLaunch(launch, plan, numbers, repeat, Workspace(problem.accumulator, extents, (n, 1, m * n)))
