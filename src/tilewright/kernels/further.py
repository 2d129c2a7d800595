"""Results beside D: what a call asks for by `also=`, the memory for parts of them, and the launch that combines these.

Blocks reduce their tiles and leave a part for each row or column; a second kernel combines the parts in a fixed order,
so that a call gives the same bits every time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any  # Any: arrays of any library, and a family's plan

from tilewright.dtypes import DType, float32
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError
from tilewright.kernels._further_kernel import combine_parts
from tilewright.kernels.family import KernelLaunch, Workspace
from tilewright.kernels.problem import BLOCK, Further, Operation, Problem
from tilewright.launch import Launcher
from tilewright.runtime.views import view
from tilewright.trace.host_numbers import NumberUse

OPERATIONS = ("sum", "max", "min", "amax", "scale")
_LANES, _THREADS, _MOST_THREADS = 32, 256, 1024


@dataclass(frozen=True)
class Asked:
    """A result beside D as a call asks for it: of a type, or an operation along an axis of the result, -1 or -2."""

    dtype: DType | None
    operation: Operation | None = None
    axis: int = 0

    def name(self, place: int) -> str:
        """Return what the array is called in errors; calls whose names agree ask for the same."""
        what = str(self.dtype) if self.operation is None else f"{self.operation} along axis {self.axis}"
        return f"also[{place}], the {what}"

    def shape(self, result: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape, for that of the result."""
        if self.operation is None:
            return result
        if self.operation == "scale":
            return (*result[:-1], -(-result[-1] // BLOCK))
        return result[:-1] if self.axis == -1 else (*result[:-2], result[-1])

    def of(self, reduced: DType, is_swapped: bool) -> Further:
        """Return what the kernel is asked for, where reductions have the type `reduced`."""
        if self.operation is None:
            assert self.dtype is not None
            return Further(self.dtype)
        kind = float32 if self.operation == "scale" else reduced
        found = Further(kind, self.operation, "N" if self.axis == -1 else "M")
        return found.transposed if is_swapped else found


def asked(also: Any) -> tuple[Asked, ...]:
    """Return what `also=` asks for; raise `ArgumentError` for what is neither a type nor an operation and an axis."""
    several = also if isinstance(also, (list, tuple)) and not _is_reduction(also) else (also,)
    return tuple(_asked(x) for x in several)


def _is_reduction(x: Any) -> bool:
    return isinstance(x, (tuple, list)) and len(x) == 2 and isinstance(x[0], str) and isinstance(x[1], int)


def _asked(x: Any) -> Asked:
    if _is_reduction(x):
        operation, axis = x
        if operation not in OPERATIONS or axis not in (-1, -2) or (operation == "scale" and axis == -2):
            raise ArgumentError(
                f"also asks for ({operation!r}, {axis})",
                help=f"one of {', '.join(map(repr, OPERATIONS))}, along axis -1 (a value for each row) or -2; "
                "scales along -1",
            )
        return Asked(None, operation, axis)
    try:
        dtype = as_dtype(x)
    except TypeError:
        raise ArgumentError(
            f"also asks for {x!r}",
            help="a list of element types, for more results of the result's shape, and of pairs such as ('sum', -2)",
        ) from None
    if dtype.storage is not dtype:
        raise ArgumentError(f"also asks for {dtype}, which is not a type of an array")
    return Asked(dtype)


def reduced_type(accumulator: DType, out: DType) -> DType:
    """Return the type of reductions: that of the accumulators, but float32 of integers that become floats."""
    return float32 if accumulator.is_integer and out.is_float else accumulator


# --- launches ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """How many parts a kernel leaves: of each row, and of each column, as the problem has them."""

    of_rows: int
    of_columns: int


def launch_further(
    problem: Problem, parts: Parts, first: Launcher, plan: Any, numbers: tuple[NumberUse, ...]
) -> KernelLaunch:
    """Return the launch of a kernel with further results, and of what combines their parts, where there are any.

    `first(D, A, B, alpha, beta, plan, *operands, *further, *numbers)` is the kernel; of what is combined it takes the
    memory of the parts, [row or column, part, matrix], and scales as [row, block of columns, matrix].
    """
    reduced = [(n, x) for n, x in enumerate(problem.further) if x.is_combined]
    begin = len(problem.blocks) + len(problem.operands)
    scales = [begin + n for n, x in enumerate(problem.further) if x.operation == "scale"]
    if not problem.further:
        return KernelLaunch(first, plan, numbers, first.repeat)
    groups = -(-problem.n // BLOCK)
    shapes = [
        (problem.m, parts.of_rows, problem.batch) if x.over == "N" else (problem.n, parts.of_columns, problem.batch)
        for _, x in reduced
    ]
    offsets = [sum(map(math.prod, shapes[:n])) for n in range(len(shapes))]
    combines = [_combine(shape) for shape in shapes]

    def launch(*arguments: Any) -> None:
        memory = arguments[0] if reduced else None
        D, A, B, alpha, beta, plan, *rest = arguments[1:] if reduced else arguments
        given, parts_of = list(rest), []
        for place in scales:
            steps = rest[place].strides
            given[place] = view(rest[place], (problem.m, groups, problem.batch), (groups, 1, steps[2]))
        for (n, _), (count, depth, matrices), offset in zip(reduced, shapes, offsets, strict=True):
            strides = 1, count, count * depth
            parts_of.append(view(memory, (count, depth, matrices), strides, offset))
            given[begin + n] = parts_of[-1]
        first(D, A, B, alpha, beta, plan, *given)
        for (n, x), made, (launcher, ways, lanes) in zip(reduced, parts_of, combines, strict=True):
            target, mode = rest[begin + n], 0 if x.over == "N" else 1
            out = view(target, (made.shape[0], made.shape[2]), (target.strides[mode], target.strides[2]))
            launcher(out, made, x, ways, lanes)

    if not reduced:
        return KernelLaunch(launch, plan, numbers)
    # Types of reductions in one product are one: accumulators', or float32.
    total = sum(map(math.prod, shapes))
    return KernelLaunch(
        launch, plan, numbers, workspace=Workspace(reduced[0][1].dtype, (1, total, 1), (total, 1, total))
    )


def _combine(shape: tuple[int, int, int]) -> tuple[Launcher, int, int]:
    """Return the launch that combines parts, and how many threads take parts of one row, and how many rows a block."""
    count, depth, matrices = shape
    threads = _THREADS if depth <= _LANES else _MOST_THREADS
    ways = min(threads // _LANES, 1 << max(depth - 1, 0).bit_length())
    lanes = threads // ways
    return combine_parts[(-(-count // lanes), matrices), threads], ways, lanes


def write_nothing(one: Asked, array: Any, shape: tuple[int, ...], dtype: DType) -> None:
    """Write the sums over nothing to an array, of an empty result; raise `ArgumentError` for extremes of nothing."""
    size = math.prod(shape)
    if one.operation in (None, "scale") or not size:
        return
    if one.operation in ("max", "min"):
        raise ArgumentError(f"also asks for the {one.operation} along axis {one.axis}, of which there is no element")
    rows, nothing = view(array, (size, 1), (1, size)), view(array, (size, 0, 1), (1, size, size))
    combine_parts[(-(-size // _THREADS), 1), _THREADS](rows, nothing, Further(dtype, "sum", "N"), 1, _THREADS)
