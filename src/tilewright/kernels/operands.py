"""Arrays of a call of a finished operator: checked, made, and seen as rows.

An operator takes arrays of any library, and reads them in place, whatever their strides.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any  # Any: arrays of any library

from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import DType, bfloat16, float16, float32, float64
from tilewright.errors import ArgumentError
from tilewright.kernels.repeats import watch
from tilewright.kernels.results import maker_for
from tilewright.runtime.addresses import may_overlap_itself, range_of, ranges_meet, share_memory
from tilewright.runtime.arrays import Adapter, ArrayInfo, ArraySpec, Static, adapter_for, common_device
from tilewright.runtime.views import View, view_class

FLOATS = (float16, bfloat16, float32, float64)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """An array of a call: what it is called, what is known of it, and the array itself."""

    name: str
    info: ArrayInfo
    adapter: Adapter
    array: Any  # Any: an array of any library

    @property
    def shape(self) -> Shape:
        return self.info.shape

    @property
    def dtype(self) -> DType:
        return self.info.dtype

    def view(self, shape: Shape, strides: Shape, dtype: DType | None = None) -> View:
        """Return the memory with another shape and other strides, of elements of `dtype`, for a kernel."""
        info = self.info
        kind = view_class(self.adapter)
        return kind(
            info.pointer, shape, strides, dtype or info.dtype, info.device, info.writable, info.owner, info.stream
        )


def read(function: str, name: str, array: Any, types: Sequence[DType] = FLOATS) -> Operand:
    """Return an array of a call; raise `ArgumentError` for what the function does not take."""
    adapter = None if array is None or isinstance(array, (Static, ArraySpec)) else adapter_for(array)
    if adapter is None:
        raise ArgumentError(
            f"{name} is {'None' if array is None else f'a {type(array).__name__}'}, and {function} takes arrays",
            help="arrays of NumPy, torch, CuPy, or of any library with DLPack or __cuda_array_interface__",
        )
    if adapter.library == "torch":
        _check_tensor(function, name, array)
    try:
        info = adapter.describe(array)
    except ArgumentError as error:
        raise ArgumentError(f"{name} cannot be used: {error.summary}", details=error.details, help=error.help) from None
    if info.dtype not in types:
        raise ArgumentError(
            f"{name} is {info.dtype}, and {function} takes {', '.join(map(str, types))}",
            help=f"convert it: {name}.astype(...)" if adapter.library != "torch" else f"convert it: {name}.to(...)",
        )
    return Operand(name, info, adapter, array)


def _check_tensor(function: str, name: str, tensor: Any) -> None:
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise ArgumentError(
            f"{name} requires a gradient, and none flows through {function}",
            help=f"gradients flow through tw.torch.{function.removesuffix('_backward')}; or pass {name}.detach(), "
            "or call it in torch.no_grad()",
        )


@lru_cache(maxsize=1024)
def launcher(kernel: Any, grid: Any, block: Any, min_blocks: int | None = None) -> Any:  # Any: a kernel, its launcher
    """Return what launches a kernel on a grid, the same object each time."""
    return (kernel if min_blocks is None else kernel.configure(min_blocks=min_blocks))[grid, block]


def check_together(operands: Sequence[Operand]) -> None:
    """Refuse arrays on different devices."""
    common_device([x.info for x in operands], [x.name for x in operands])


def result(
    function: str,
    out: Any,
    like: Operand,
    shape: Shape,
    dtype: DType,
    *,
    name: str = "out",
    types: Sequence[DType] = FLOATS,
    reads: Sequence[Operand] = (),
    may_be: Sequence[Operand] = (),
    writes: Sequence[Operand] = (),
) -> Operand:
    """Return where a result goes: `out` when it is given, else a new array in the library of `like`.

    `out` has one of `types`, and shares no memory with the arrays `reads`, nor with other results that were given, the
    `writes`; it may be one of `may_be` itself, element by element.

    Raises `ArgumentError` for an `out` that cannot hold the result.
    """
    if out is None:
        try:
            make = maker_for(like.adapter.library, shape, dtype, like.info.device)
            array, pointer = make()
        except ArgumentError as error:
            if "matmul" not in error.summary:
                raise
            library = like.adapter.library
            raise ArgumentError(
                f"{like.name} is an array that is known by {library} alone, and {function} cannot allocate a "
                f"{library} array",
                help=f"give the array that the result goes to: {name}=",
            ) from None
        watch.makes(array, make, pointer)
        made = adapter_for(array)
        assert made is not None, array
        return Operand(name, made.describe(array), made, array)
    given = read(function, name, out, types)
    info = given.info
    common_device([like.info, info], [like.name, name])
    if info.shape != shape:
        raise ArgumentError(f"{name} has the shape {info.shape}, and the result {shape}")
    if not info.writable:
        raise ArgumentError(f"{name} is read-only", help="pass a writable array, for example a copy")
    if may_overlap_itself(info.shape, info.strides):
        raise ArgumentError(
            f"elements of {name} share memory: shape {info.shape}, strides {info.strides}",
            help="pass an array of its own memory, for example a copy",
        )
    for x in (*reads, *writes, *may_be):
        if not ranges_meet(range_of(x.info), range_of(info)):
            continue
        itself = (x.info.pointer, x.info.strides, x.dtype) == (info.pointer, info.strides, info.dtype)
        if not (itself and any(x is y for y in may_be)) and share_memory(x.info, x.info.pointer, info, info.pointer):
            names = " or ".join(y.name for y in may_be)
            raise ArgumentError(
                f"{name} shares memory with {x.name}, which is "
                f"{'written' if any(x is y for y in writes) else 'read'} while {name} is written",
                help=f"give {name} memory of its own" + (f", or {names} itself" if may_be else ""),
            )
    watch.meets(info, [x.info for x in (*reads, *writes)])
    watch.meets(info, [x.info for x in may_be], may_coincide=True)
    return given


def axis_of(function: str, axis: Any, rank: int) -> int:
    """Return an axis counted from the front; raise `ArgumentError` for one that the array does not have."""
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise ArgumentError(f"axis of {function} is {axis!r}, and one mode's number is expected")
    found = int(axis.__index__())
    if not -max(rank, 1) <= found < max(rank, 1):
        raise ArgumentError(f"axis is {found}, and the array has {rank} modes", help=f"{-max(rank, 1)} to {rank - 1}")
    return found % max(rank, 1)


@dataclass(frozen=True)
class Rows:
    """Arrays of one shape as the kernels of rows see them: leading modes joined, one row along the last."""

    count: int  # of rows
    columns: int
    views: tuple[View, ...]
    vector: int  # bytes at which all rows of all arrays begin, at most 16


def rows_of(operands: Sequence[Operand], axis: int = -1) -> Rows:
    """Return arrays of one shape as rows along a mode, with as few other modes as their strides allow."""
    shape, moved = operands[0].shape, [list(x.info.strides) for x in operands]
    extents = list(shape)
    if not extents:
        extents, moved = [1], [[1] for _ in operands]
    columns = extents.pop(axis)
    steps = [strides.pop(axis) if columns > 1 else (strides.pop(axis), 1)[1] for strides in moved]
    modes, strides = join_modes(extents, moved)
    views, vector = [], VECTOR_BYTES
    for x, lead, step in zip(operands, strides, steps, strict=True):
        views.append(x.view((*modes, columns), (*lead, step)))
        size = x.dtype.bytes
        aligned = math.gcd(x.info.pointer, VECTOR_BYTES, *(s * size for s, e in zip(lead, modes, strict=True) if e > 1))
        # An array of narrower elements is read by shorter accesses, of as many elements.
        vector = min(vector, aligned if step == 1 else size)
    return Rows(math.prod(modes), columns, tuple(views), vector)


def join_modes(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[Shape, list[Shape]]:
    """Return modes joined where the strides of all arrays allow it; there is one at least.

    >>> join_modes((2, 3, 4), [(12, 4, 1), (24, 8, 2)])
    ((24,), [(1,), (2,)])
    >>> join_modes((2, 1, 4), [(5, 4, 1), (4, 4, 1)])
    ((2, 4), [(5, 1), (4, 1)])
    """
    modes: list[int] = []
    steps: list[list[int]] = []
    for n, extent in enumerate(extents):
        if extent == 1:
            continue
        step = [s[n] for s in strides]
        if modes and all(before == extent * now for before, now in zip(steps[-1], step, strict=True)):
            modes[-1], steps[-1] = modes[-1] * extent, step
        else:
            modes.append(extent)
            steps.append(step)
    if not modes:
        modes, steps = [1], [[0] * len(strides)]
    return tuple(modes), [tuple(step[n] for step in steps) for n in range(len(strides))]
