"""Short vectors: float4 and its like where CUDA and HIP have one of that name, a small template elsewhere."""

from __future__ import annotations

from tilewright.arch import VECTOR_BYTES
from tilewright.backends.cpp.expression import Expression, Rank, call, reads_of
from tilewright.dtypes import DType, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from tilewright.ir.core import Type, VectorType

_STEMS: dict[DType, str] = {
    int8: "char",
    uint8: "uchar",
    int16: "short",
    uint16: "ushort",
    int32: "int",
    uint32: "uint",
    int64: "longlong",
    uint64: "ulonglong",
    float32: "float",
    float64: "double",
}

VECTOR_TEMPLATE = """\
template <typename T, int N>
struct __align__(sizeof(T) * N) vec {
    T v[N];
};"""


def c_type(type: Type) -> str:
    """Return the C++ name of a type."""
    if isinstance(type, DType):
        return type.c_name
    return built_in(type) or f"vec<{type.element.c_name}, {type.lanes}>"


def built_in(type: VectorType) -> str | None:
    """Return the name of CUDA's and HIP's own vector type with the same size and alignment, or None."""
    stem = _STEMS.get(type.element)
    # Four 8-byte elements would be 32 bytes, and the IR's vectors are 16 at most.
    return f"{stem}{type.lanes}" if stem is not None and type.lanes in (2, 4) and type.bytes <= VECTOR_BYTES else None


def lane_of(vector: Expression, lane: int) -> Expression:
    """Return one lane of a vector."""
    type = vector.type
    assert isinstance(type, VectorType), vector
    member = f".{'xyzw'[lane]}" if built_in(type) else f".v[{lane}]"
    return Expression(vector.at_least(Rank.POSTFIX) + member, Rank.POSTFIX, type.element, vector.reads)


def packed(elements: tuple[Expression, ...], type: VectorType) -> Expression:
    """Return the vector of elements that have its exact element type."""
    name = built_in(type)
    if name is not None:
        return call(f"make_{name}", elements, type)
    text = ", ".join(e.text for e in elements)
    return Expression(f"{c_type(type)}{{{{{text}}}}}", Rank.POSTFIX, type, reads_of(*elements))
