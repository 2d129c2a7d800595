"""Packing: which operands are packed first, and that the copy is the matrix, filled up with zeros."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw
from tilewright.kernels.arrangement import Placement
from tilewright.kernels.multistage import Multistage
from tilewright.kernels.packing import packing_for
from tilewright.kernels.problem import Operand, Problem
from tilewright.runtime.views import view


@pytest.mark.parametrize(
    ("dtype", "strides", "is_packed"),
    [
        (tw.float16, (40, 1), False),
        (tw.float16, (38, 1), False),  # 4 bytes at a time
        (tw.float16, (37, 1), True),
        (tw.float16, (1, 40), False),  # ldmatrix transposes 16 bits
        (tw.int8, (40, 1), False),
        (tw.int8, (1, 40), True),
        (tw.float16, (80, 2), True),
        (tw.float32, (37, 1), False),
        (tw.float32, (80, 2), False),
        (tw.float64, (80, 2), False),
    ],
)
def test_what_no_wide_copy_reads_is_packed(dtype: tw.DType, strides: tuple[int, int], is_packed: bool) -> None:
    a, b = tw.spec(dtype, (40, 36), stride=strides), tw.spec(dtype, (36, 64), stride=(1, 48))
    found = tw.matmul.explain(a, b, arch="sm_80").to_dict()["problem"]  # Hopper packs where TMA would be faster
    assert found["packed_first"] == (["a"] if is_packed else [])
    if is_packed:
        assert found["a"] == {"dtype": str(dtype), "major": "K", "alignment": 16}


@examples(8, 40)
@given(
    dtype=st.sampled_from([tw.int8, tw.float16, tw.bfloat16]),
    rows=st.integers(1, 150),
    k=st.integers(1, 150),
    batch=st.integers(1, 3),
    major=st.sampled_from(["K", "MN", "none"]),
    is_shared=st.booleans(),
)
def test_packed_matrices_are_the_same(
    dtype: tw.DType, rows: int, k: int, batch: int, major: str, is_shared: bool
) -> None:
    """Also where one matrix serves the whole batch: it is packed once."""
    random = np.random.default_rng(rows * k)
    shape = {"K": (rows, k), "MN": (k, rows), "none": (2 * rows, 2 * k)}[major]
    memory = random.integers(-100, 100, (1 if is_shared else batch, *shape)).astype(dtype.numpy)
    matrix = {"K": memory, "MN": memory.swapaxes(1, 2), "none": memory[:, ::2, ::2]}[major]
    steps = tuple(s // dtype.bytes for s in matrix.strides)
    placement = Placement((rows, k, batch), (steps[1], steps[2], 0 if is_shared else steps[0]), major, None)
    source = view(memory, placement.shape, placement.strides)
    operand = Operand(dtype, major, 1)
    d = Operand(tw.float32, "MN", 16)
    needs = Multistage().needs(Problem(rows, rows, k, batch, operand, operand, d, dtype, tw.float32))
    assert needs.a.unmet(operand)
    found = packing_for(operand, placement, "numpy", "cpu").pack(source)
    assert found.strides[0] * dtype.bytes % 16 == 0 and found.strides[1] == 1
    assert (found.strides[2] == 0) == (is_shared or batch == 1)
    bytes_each = dtype.bytes
    seen = np.lib.stride_tricks.as_strided(found.owner, found.shape, [s * bytes_each for s in found.strides])
    expected = np.broadcast_to(matrix, (batch, rows, k)).transpose(1, 2, 0)
    assert np.array_equal(seen.astype(np.float32), expected.astype(np.float32))
    assert not found.owner[:, :, k:].any()
