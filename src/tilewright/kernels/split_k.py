"""Split-K in two launches: sums of each split in a workspace, and a pass that adds them up in a fixed order.

So the result has the same bits every time. The workspace is made for each call in memory of the library whose arrays
are multiplied, where its work is ordered by that library's stream, and graphs that are captured keep their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any  # Any: numbers of a call, and plans

from tilewright.dtypes import DType
from tilewright.kernels._split_k_kernel import THREADS, add_splits
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.packing import maker_of
from tilewright.kernels.problem import Problem
from tilewright.runtime.views import View

_VECTOR = 4  # sums: rows of the workspace begin at 16 bytes


@dataclass(frozen=True, eq=False)
class SplitLaunch:
    """Computes the sums of each split by `multiply`, and adds them up. Called as `KernelLaunch.launch` is."""

    multiply: Callable[..., None]
    splits: int
    accumulator: DType
    epilogue: ElementEpilogue

    def __call__(self, D: View, A: View, B: View, alpha: Any, beta: Any, plan: Any, *operands: Any) -> None:
        m, n, batch = D.shape
        row = -(-n // _VECTOR) * _VECTOR
        library = type(D).__tilewright_adapter__.library
        memory, pointer = maker_of(library, (batch * self.splits, m, row), self.accumulator, D.device)()
        shape, strides = (m, n, batch * self.splits), (row, 1, m * row)
        sums = type(D)(pointer, shape, strides, self.accumulator, D.device, True, memory, D.stream)
        one = self.accumulator.numpy.type(1)
        self.multiply(sums, A, B, one, one, plan)
        grid = m, -(-n // THREADS), batch
        further = len(operands)
        add_splits.numbered(further)[grid, THREADS](D, sums, alpha, beta, self.epilogue, *operands)


def workspace_bytes(problem: Problem, splits: int) -> int:
    """Return the bytes of the sums of all splits."""
    return splits * problem.batch * problem.m * problem.n * problem.accumulator.bytes
