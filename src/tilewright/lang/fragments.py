"""Whole tensors converted to another element type: `tensor.to(dtype)`."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import FLOAT8, DType, float16, float32
from tilewright.ir.core import Space, VectorType
from tilewright.ir.ops import CastPair
from tilewright.lang.access import common_walk, each_step, place, split_vector, vector_limit
from tilewright.lang.tracer import current
from tilewright.tensors import Tensor


def convert_fragment(source: Tensor, target: Tensor, element: DType) -> None:
    """Write target[c] = source[c].to(element) for every coordinate c.

    Float32 and float16 pack by themselves (two conversions become one instruction); 8-bit floats are converted in
    pairs where both sides have neighbours.
    """
    tracer = current("tensor.to")
    tensors = (source, target)
    walk = common_walk(tensors, "tensor.to")
    pairs = split_vector(walk, 2) if _in_pairs(source, element) else None
    limits = [vector_limit(t, s) for t, s in zip(tensors, walk.strides, strict=True)]

    if pairs is not None and all(limit % 2 == 0 for limit in limits):

        def pair(steps: tuple[Any, ...]) -> None:
            value = source.engine.load_value(place(source, steps[0]), VectorType(source.dtype, 2))
            target.engine.store_value(
                place(target, steps[1]), tracer.pure(CastPair(value), VectorType(target.dtype, 2))
            )

        each_step(pairs, pair)
        return

    def one(steps: tuple[Any, ...]) -> None:
        target.engine.store(place(target, steps[1]), source.engine.load(place(source, steps[0])).to(element))

    each_step(walk, one)


def _in_pairs(source: Tensor, element: DType) -> bool:
    """Say whether there is an instruction for two conversions, and reading two elements costs nothing."""
    narrows = source.dtype is float32 and element in FLOAT8
    widens = source.dtype in FLOAT8 and element in (float16, float32)
    return (narrows or widens) and source.engine.buffer.space is Space.REGISTER
