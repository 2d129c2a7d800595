"""A kernel around a body with bulk copies: rows of 32 numbers in shared memory, and an mbarrier."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw

T = 32  # numbers of a row


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def run_body(body: Any, threads: int = 32, cluster: int = 1, grid: int = 1, x: Any = None) -> None:
    """Run a body of a block with four rows of 32 numbers in shared memory, an mbarrier, and two arrays of eight."""

    @tw.kernel(cluster=cluster)
    def kernel(out, x):
        smem, full = tw.shared(tw.int32, tw.row_major((4, T))), tw.mbarrier(1)
        body(out, x, smem, full)

    values = np.arange(8 * T, dtype=np.int32).reshape(8, T) if x is None else x
    kernel[grid, threads](zeros(8, T), values)


def load_of(x, row):
    return tw.local_tile(tw.guarded(x), (1, T), (row, 0))


def row_of(smem, row):
    return tw.local_tile(smem, (1, T), (row, 0))
