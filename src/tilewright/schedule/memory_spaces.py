"""Words of nests and plans that need nothing else: what arrays are for, where they and caches live, element types."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tilewright import dtypes
from tilewright.dtypes import DType


class Role(enum.Enum):
    """What an array is for."""

    INPUT = "input"  # read
    INPUT_OUTPUT = "input_output"  # read and written
    OUTPUT = "output"  # written; what was in it does not matter
    CONST = "const"  # data that belongs to the kernel
    TEMP = "temp"  # lives only while the kernel runs


class AllocateFlags(enum.Enum):
    """The memory of a TEMP array that no cache keeps."""

    NONE = "none"  # in registers where their number is known and small, else in memory of the launch
    STACK = "stack"  # in the registers of each thread
    THREAD_LOCAL = "thread_local"  # as STACK
    HEAP = "heap"  # in memory that the launch allocates
    GLOBAL = "global"  # as HEAP


IN_REGISTERS = frozenset({AllocateFlags.STACK, AllocateFlags.THREAD_LOCAL})
IN_MEMORY = frozenset({AllocateFlags.HEAP, AllocateFlags.GLOBAL})
WRITTEN = frozenset({Role.INPUT_OUTPUT, Role.OUTPUT, Role.TEMP})  # the roles of what a nest may write


class Location(enum.Enum):
    """Where a cache lives."""

    SHARED = "shared"  # the block's shared memory
    PRIVATE = "private"  # registers of each thread
    GLOBAL = "global"  # global memory of the block, allocated at each launch
    MMA_FRAGMENT = "fragment"  # registers of a warp, as its matrix instructions hold them
    NONE = "none"  # no choice, as if the location were left out


class Strategy(enum.Enum):
    """Which elements of a shared cache each thread copies."""

    BLOCKED = "blocked"  # a run of neighbours
    STRIPED = "striped"  # vectors that lie a block's vectors apart, so that neighbouring threads copy neighbours


class Auto(enum.Enum):
    """An argument that leaves a choice to the plan, as if it were omitted."""

    AUTO = "auto"

    def __repr__(self) -> str:
        return self.name


AUTO: Final = Auto.AUTO


class ScalarType:
    """The element types under Accera's names: each is the type of this library.

    >>> print(ScalarType.float16, ScalarType.bool, ScalarType.index)
    float16 bool int64
    """

    bool: DType = dtypes.bool_
    int8: DType = dtypes.int8
    int16: DType = dtypes.int16
    int32: DType = dtypes.int32
    int64: DType = dtypes.int64
    index: DType = dtypes.int64
    uint8: DType = dtypes.uint8
    uint16: DType = dtypes.uint16
    uint32: DType = dtypes.uint32
    uint64: DType = dtypes.uint64
    float16: DType = dtypes.float16
    bfloat16: DType = dtypes.bfloat16
    float32: DType = dtypes.float32
    float64: DType = dtypes.float64

    __members__: Mapping[str, DType] = MappingProxyType(
        {
            "bool": bool, "int8": int8, "int16": int16, "int32": int32, "int64": int64, "index": index,
            "uint8": uint8, "uint16": uint16, "uint32": uint32, "uint64": uint64, "float16": float16,
            "bfloat16": bfloat16, "float32": float32, "float64": float64,
        }
    )  # fmt: skip
