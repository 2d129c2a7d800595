"""Packed weights made a matrix on their device: what their gradients, and products in other types, need."""

from __future__ import annotations

from typing import Any  # Any: arrays of any library

from tilewright.dtypes import DType, bfloat16, float16, float32, int16, int32, uint8
from tilewright.kernels._unpacking_kernel import unpack_weights
from tilewright.kernels.operands import check_together, launcher, read, result
from tilewright.kernels.weights import WeightFormat

TYPES = (float16, bfloat16, float32)


def unpack(packed: Any, scales: Any, zeros: Any, weights: WeightFormat, dtype: DType) -> Any:
    """Return (q - zero) * scale as an array (N, K) beside the packed weights, rounded once to `dtype`."""
    words, factors = read("matmul", "packed", packed, (int32,)), read("matmul", "scales", scales, TYPES)
    given = [words, factors]
    if zeros is not None:
        given.append(read("matmul", "zeros", zeros, (uint8, int16)))
    check_together(given)
    target = result("matmul", None, words, (weights.n, weights.k), dtype, types=TYPES)
    if 0 not in target.shape:
        views = [x.view(x.shape, x.info.strides) for x in (target, *given, given[-1])[:4]]
        launcher(unpack_weights, (weights.tiles, weights.chunks), 128)(*views, weights.without_extents())
    return target.array
