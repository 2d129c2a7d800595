"""Launch attributes: what `cuLaunchKernelEx` is told beside grid, block, shared memory and stream.

Source: CUDA driver API, "CUlaunchAttribute"; values of CUlaunchAttributeID in cuda.h.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_VALUE_BYTES = 64


@dataclass(frozen=True)
class Attribute:
    """One attribute: its number, and the ints that its value begins with."""

    id: int
    value: tuple[int, ...]

    def encode(self) -> bytes:
        """Return it as a CUlaunchAttribute: the number, padding, and a value of 64 bytes."""
        value = struct.pack(f"@{len(self.value)}i", *self.value)
        return struct.pack("@i4x", self.id) + value.ljust(_VALUE_BYTES, b"\0")


COOPERATIVE = Attribute(2, (1,))  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE

# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: it may begin before the launch before it has ended.
DEPENDENT = Attribute(6, (1,))


def cluster_dimension(cluster: tuple[int, int, int]) -> Attribute:
    """Return the attribute of launches in clusters of so many blocks (CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)."""
    return Attribute(4, cluster)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Attributes in memory that stays: where they begin and how many there are, as a CUlaunchConfig ends."""

    memory: Any  # Any: a ctypes array
    count: int

    @property
    def address(self) -> int:
        """Where they begin."""
        return ctypes.addressof(self.memory)


@cache
def encoded(attributes: tuple[Attribute, ...]) -> Encoded:
    """Return attributes as the driver takes them; equal ones share their memory, which stays: launches point to it."""
    text = b"".join(attribute.encode() for attribute in attributes)
    return Encoded(ctypes.create_string_buffer(text, len(text)), len(attributes))


def configuration(head: bytes, stream: int, attributes: Sequence[Attribute]) -> Any:  # Any: a ctypes array
    """Return a CUlaunchConfig: `head` is its grid, block and dynamic shared memory."""
    found = encoded(tuple(attributes))
    return ctypes.create_string_buffer(struct.pack("@28sQQI4x", head, stream, found.address, found.count))
