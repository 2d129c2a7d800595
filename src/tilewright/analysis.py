"""What a kernel costs, asked of the kernel itself: measured on the simulator, or told from its trace alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.arguments import instance
from tilewright.backends.sim import predict, simulate
from tilewright.errors import ArgumentError
from tilewright.launch import ArraySpec, Kernel, Launcher
from tilewright.profile.advice import conflicts_of
from tilewright.profile.model import Profile
from tilewright.profile.remarks import Remark
from tilewright.runtime.arrays import VECTOR_BYTES, Static, describe

Array = np.ndarray[Any, np.dtype[Any]]


def analyze(launcher: Launcher, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Profile:  # Any: kernel arguments
    """Run a kernel on the simulator and return its profile; the arguments are left as they were.

    A `tw.spec` stands for an array of zeros. Arrays on a GPU are copied. Raises `CheckError` where the kernel is wrong.
    """
    given = [_on_host(value) for value in (*args, *kwargs.values())]
    names = list(kwargs)
    positional, named = given[: len(args)], dict(zip(names, given[len(args) :], strict=True))
    with _unchanged(given), simulate(profile=True) as run:
        launcher(*positional, **named)
    return run.profile


def check(
    kernel: object,
    signature: Sequence[Any] | Mapping[str, Any] = (),  # Any: what a kernel takes, or tw.spec in an array's place
    *,
    block: Any = None,
    arch: str | None = None,
) -> list[Remark]:
    """Return what can be said of a kernel's speed from its trace, without running it.

    `signature` holds the arguments, in order or by name: arrays or `tw.spec(dtype, shape)` in their place, numbers,
    and compile-time arguments. The block is that of `kernel[grid, block]`, or `block`; the target is `arch`, without it
    that of `kernel.configure(arch=...)`, or sm_90a. Each remark has `.kind`,
    `.file`, `.line`, `.message` and `.suggestion`:

    "bank-conflict"    accesses to shared memory whose places follow from the thread's index alone take more
                       wavefronts than they need; with a layout that mends it
    "narrow-copy"      a `tw.copy` takes fewer bytes at once than it could, and why

    What depends on data, on the block's index or on extents that only the launch knows is not told here; profile a run
    for that.

    >>> import tilewright as tw
    >>> @tw.kernel
    ... def column(x):
    ...     smem = tw.shared(tw.float32, tw.Layout((32, 32), (32, 1)))
    ...     smem[tw.thread_idx.x, 0] = x[tw.thread_idx.x]
    ...     tw.sync_threads()
    ...     x[tw.thread_idx.x] = smem[31 - tw.thread_idx.x, 0]
    >>> store, load = tw.check(column, (tw.spec(tw.float32, (32,)),), block=32)
    >>> store.kind, store.suggestion.expression
    ('bank-conflict', 'tw.composition(tw.Swizzle(5, 0, 5), tw.Layout((32, 32), (32, 1)))')

    Raises `ArgumentError` for a signature that the kernel cannot take, `LanguageError` for what its trace refuses.
    """
    if isinstance(kernel, Launcher):
        if block is not None:
            raise ArgumentError("tw.check: the block was given twice, in kernel[grid, block] and as block=")
        block = kernel.block
        kernel = kernel.kernel
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"tw.check takes a kernel, got {type(kernel).__name__}", help="decorate the function with @tw.kernel"
        )
    kinds = (list, tuple, Mapping)
    instance("tw.check", "signature", signature, kinds, "a list of arguments, or a dict of them by name")
    named = dict(signature) if isinstance(signature, Mapping) else {}
    positional = () if isinstance(signature, Mapping) else tuple(signature)
    lowered = kernel.lower(*positional, arch=arch, block=block, **named)
    remarks = [r for conflict in conflicts_of(predict(lowered.kernel)) for r in conflict.remarks()]
    return sorted([*remarks, *lowered.kernel.remarks], key=lambda r: (r.file or "", r.line or 0, r.kind))


def _on_host(value: Any) -> Any:
    """Return an argument that the simulator takes: arrays of a GPU copied, specs as zeros, the rest as it is."""
    if isinstance(value, Static):
        return replace(value, array=_on_host(value.array))
    if isinstance(value, ArraySpec):
        return _zeros(value)
    info = describe(value)
    if info is None or not info.is_cuda:
        return value
    from tilewright.runtime.memory import copy_to_host

    return copy_to_host(info)[0]


def _zeros(spec: ArraySpec) -> Array:
    """Return zeros with the shape, strides and alignment of a spec."""
    info = spec.info
    item = info.dtype.bytes
    before = -info.lowest_offset * item
    start = before + (info.pointer - before) % VECTOR_BYTES  # NumPy's memory begins at a multiple of that
    memory = np.zeros(start + info.span * item, np.uint8)
    strides = tuple(stride * item for stride in info.strides)
    array: Array = np.ndarray(info.shape, info.dtype.numpy, memory, start, strides)
    return array


@contextmanager
def _unchanged(values: Sequence[Any]) -> Iterator[None]:
    """Put back what the arrays held."""
    saved = []
    for value in values:
        info = describe(value.array if isinstance(value, Static) else value)
        if info is not None and info.writable:
            array = info.host()
            saved.append((array, array.copy()))
    try:
        yield
    finally:
        for array, before in saved:
            array[...] = before
