"""Split-K in two launches: blocks sum up a part of K each, and a second kernel adds these sums in a fixed order.

A product of few tiles and a long K keeps few multiprocessors busy. With splits of K there are as many blocks more.
Their sums go to memory of their own, (M, N, batches * splits) of the accumulators' type, and `add_splits` adds them
and applies the epilogue. Nothing is added by atomics, so that a call gives the same bits every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any  # Any: a family's plan is whatever its kernel is compiled for

from tilewright.arch import VECTOR_BYTES, Arch, gpu_of
from tilewright.kernels._split_k_kernel import add_splits
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.family import KernelLaunch, Workspace
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.launch import Launcher
from tilewright.pickling import changed
from tilewright.trace.host_numbers import NumberUse

# A split has as many steps of K at least: fewer do not pay for their sums and for filling the stages.
LEAST_STEPS = 8
_ROUND = 8  # more splits than that are a multiple of it
_THREADS, _MOST_WAYS = 256, 16
_BUSY = 512  # threads that keep a multiprocessor's loads under way


def with_splits(configuration: Configuration, problem: Problem, arch: Arch, most: int = 4) -> list[Configuration]:
    """Return a configuration with splits of K, as many as give each multiprocessor one block, two, and `most`.

    None where there are blocks enough without splits, or where K is short.
    """
    m, n, k = configuration.tile
    tiles = -(-problem.m // m) * -(-problem.n // n) * problem.batch
    steps = -(-problem.k // k)
    found = set()
    for blocks in (1, 2, most):
        splits = min(blocks * gpu_of(arch).multiprocessors // max(tiles, 1), steps // LEAST_STEPS)
        splits -= splits % _ROUND if splits > _ROUND else 0
        if splits > 1:
            found.add(math.ceil(steps / math.ceil(steps / splits)))  # without splits that would have nothing to do
    return [changed(configuration, splits=splits) for splits in sorted(found)]


def sums_problem(problem: Problem) -> Problem:
    """Return the problem of the first kernel, whose D is the workspace."""
    d = Operand(problem.accumulator, "MN", VECTOR_BYTES)
    return replace(problem, d=d, c=None, bias=None, elements=(), epilogue=None, scales=(), places=None)


@dataclass(frozen=True)
class AddPlan:
    """How sums of `splits` are added: `width` elements at once, by `ways` threads, with the epilogue of the product."""

    splits: int
    width: int
    ways: int
    threads: int
    epilogue: ElementEpilogue


def add_plan(problem: Problem, splits: int, arch: Arch, numbers: tuple[NumberUse, ...] = ()) -> AddPlan:
    """Plan to load 16 bytes at once where rows allow it, with more threads for elements that are few."""
    width = math.gcd(VECTOR_BYTES // problem.accumulator.bytes, problem.n)
    groups, ways = problem.m * problem.batch * problem.n // width, 1
    while ways < min(splits, _MOST_WAYS) and groups * ways < _BUSY * gpu_of(arch).multiprocessors:
        ways *= 2
    return AddPlan(splits, width, ways, _THREADS, replace(ElementEpilogue.of(problem), numbers=numbers))


def launch_splits(
    problem: Problem, splits: int, arch: Arch, first: Launcher, plan: Any, numbers: tuple[NumberUse, ...]
) -> KernelLaunch:
    """Return the launch of both kernels; `first(sums, A, B, 1, 0, plan, *blocks)` is the one that writes the sums.

    `sums` is the workspace: split s of matrix l of the batch goes to matrix l + batches * s.
    """
    adding = add_plan(problem, splits, arch, numbers)
    groups = problem.m * problem.batch * problem.n // adding.width
    blocks = -(-groups * adding.ways // _THREADS)
    add = add_splits.numbered(len(problem.operands) + len(numbers))[blocks, _THREADS]
    count = len(problem.blocks)
    one, zero = (problem.accumulator.numpy.type(x) for x in (1, 0))

    def launch(sums: Any, D: Any, A: Any, B: Any, alpha: Any, beta: Any, plan: Any, *rest: Any) -> None:
        first(sums, A, B, one, zero, plan, *rest[:count])
        add(D, sums, alpha, beta, adding, *rest[count:])

    def repeat(arguments: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], bool] | None:
        sums, D, A, B, alpha, beta, plan, *rest = arguments
        sum_again = first.repeat((sums, A, B, one, zero, plan, *rest[:count]))
        add_again = add.repeat((D, sums, alpha, beta, adding, *rest[count:]))
        if sum_again is None or add_again is None:
            return None

        def again(values: tuple[Any, ...]) -> bool:
            sums, d, a, b, alpha, beta, *rest = values
            first_values = (sums, a, b, one, zero, *rest[:count])
            return sum_again(first_values) and add_again((d, sums, alpha, beta, *rest[count:]))

        return again

    width = VECTOR_BYTES // problem.accumulator.bytes
    row = -(-problem.n // width) * width
    extents = (problem.m, row, problem.batch * splits)  # whole rows: TMA writes whole 16 bytes at their ends
    workspace = Workspace(problem.accumulator, extents, (row, 1, problem.m * row))
    return KernelLaunch(launch, plan, numbers, repeat, workspace)


def workspace_bytes(problem: Problem, splits: int) -> int:
    """Return the bytes of the sums of all splits."""
    return splits * problem.batch * problem.m * problem.n * problem.accumulator.bytes
