"""What a tensor map describes in one launch, and what the hardware demands of it.

Source: CUDA driver API, "cuTensorMapEncodeTiled"; PTX ISA, "Tensors".
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import ArgumentError
from tilewright.ir.core import TensorMap

ALIGNMENT = 16  # bytes, of the address and of all strides but the first, which is one element
MAP_ALIGNMENT = 64  # bytes, of a map
_FARTHEST = 1 << 40  # bytes, of a stride
_LONGEST = 1 << 32  # elements, of a mode
_WAY_OUT = "pad the array so that its rows begin at multiples of 16 bytes, or use tw.copy(src, dst)"


@dataclass(frozen=True)
class MapValues:
    """Where the described tensor begins (an element of the array), its extents, and its strides in elements."""

    start: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(map: TensorMap, start: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> MapValues:
        """Return the values, of a mode with one element with a stride that a map takes: no step goes along it."""
        size = map.dtype.bytes
        whole = ALIGNMENT // size
        pairs = list(zip(extents, strides, strict=True))[1:]  # the first is of contiguous elements
        taken = [whole if n == 1 and not _is_taken(stride * size) else stride for n, stride in pairs]
        return MapValues(start, extents, (*strides[:1], *taken))

    def check(self, map: TensorMap) -> None:
        """Raise `ArgumentError` for extents and strides that no tensor map has."""
        name, size = map.buffer.name, map.dtype.bytes
        for mode, extent in enumerate(self.extents):
            if not 1 <= extent <= _LONGEST:
                raise ArgumentError(
                    f"argument {name!r}: mode {mode} of the tensor that TMA copies has extent {extent}; it takes 1 to "
                    "2**32",
                    help="do not launch for an empty array",
                    location=map.location,
                )
        for mode in range(1, 1 + len(map.corners)):
            if map.pixels(mode, self.extents[mode]) < 1:
                low, high = map.corners[mode - 1]
                raise ArgumentError(
                    f"argument {name!r}: the filter has no position along a mode of extent {self.extents[mode]}: its "
                    f"first would be at {low}, and its last at {self.extents[mode] - 1 + high}",
                    help="pad more, or take a smaller filter",
                    location=map.location,
                )
        for mode, stride in list(enumerate(self.strides))[1:]:
            if not _is_taken(stride * size):
                raise ArgumentError(
                    f"argument {name!r}: TMA takes strides that are multiples of 16 bytes, below 2**40, and "
                    f"mode {mode} has {stride} elements of {size} bytes: {stride * size}",
                    help=_WAY_OUT,
                    location=map.location,
                )

    def check_address(self, map: TensorMap, pointer: int) -> int:
        """Return the address of the tensor in an array; raise `ArgumentError` where it is not aligned."""
        address = pointer + self.start * map.dtype.bytes
        if map.is_pattern and address % MAP_ALIGNMENT:
            raise ArgumentError(
                f"argument {map.buffer.name!r}: tensor maps that a kernel makes lie at multiples of {MAP_ALIGNMENT} "
                f"bytes, and the array begins at {address:#x}",
                help="pass a whole array of uint64, 16 for each map, as frameworks allocate it",
                location=map.location,
            )
        if address % ALIGNMENT:
            raise ArgumentError(
                f"argument {map.buffer.name!r}: TMA takes addresses that are multiples of 16, and the tensor begins at "
                f"{address:#x}",
                help=_WAY_OUT,
                location=map.location,
            )
        return address


def _is_taken(bytes: int) -> bool:
    return bytes % ALIGNMENT == 0 and 0 <= bytes < _FARTHEST
