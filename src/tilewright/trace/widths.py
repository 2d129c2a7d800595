"""Why a copy moves fewer bytes at once than the 16 that an access can, for the advice that `tw.check` gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.arch import VECTOR_BYTES
from tilewright.ir.core import Space
from tilewright.layout import ComposedLayout, Swizzle
from tilewright.remarks import Remark
from tilewright.tensors import Tensor
from tilewright.trace.tracer import Tracer
from tilewright.trace.walks import Walk, split_vector, vector_limit


def note_narrow(tracer: Tracer, tensors: Sequence[Tensor], walk: Walk, width: int, is_guarded: bool) -> None:
    """Add a remark to the trace where a copy that reaches global memory could take more elements at once.

    `tensors` are source and destination, `width` is what the copy takes at once, and `is_guarded` says that it has
    a predicate or a count.
    """
    element = tensors[0].dtype.bytes
    whole = walk.size
    if whole is None or element > VECTOR_BYTES:
        return
    widest = math.gcd(VECTOR_BYTES // element, whole)
    spaces = [t.engine.buffer.space for t in tensors if hasattr(t.engine, "buffer")]
    if width >= widest or Space.GLOBAL not in spaces:
        return
    reason, help = _reason(tensors, walk, width, widest, is_guarded)
    location = tracer.location()
    lines = [f"narrow copy: {width * element} bytes at once, where {widest * element} are possible: {reason}"]
    lines += [f"  from {tensors[0].title}", f"  to {tensors[1].title}"]
    if location is not None:
        lines += [f"  {line}" for line in location.excerpt()]
    lines.append(f"  help: {help}")
    tracer.remarks[Remark("narrow-copy", "\n".join(lines), location)] = None


def _reason(tensors: Sequence[Tensor], walk: Walk, width: int, widest: int, is_guarded: bool) -> tuple[str, str]:
    """Return the first reason that holds, and the fix."""
    for name, tensor, strides in zip(("the source", "the destination"), tensors, walk.strides, strict=False):
        reason = _alone(name, tensor, walk.extents, strides, widest)
        if reason is not None:
            return reason
    data = Walk(walk.extents, walk.strides[:2])
    if split_vector(data, widest) is None:
        return (
            "source and destination are contiguous along different modes",
            "transpose the tile through shared memory, or give both the same contiguous mode",
        )
    if is_guarded:
        return (
            f"the predicate or count may differ within {widest} adjacent elements",
            "let one stand for a whole vector: a predicate tensor with stride 0 along the contiguous mode",
        )
    return (
        f"the copy was told to take {width} at once",
        f"use a copy atom of {8 * widest * tensors[0].dtype.bytes} bits, or none: tw.copy(src, dst) takes the widest",
    )


def _alone(
    name: str, tensor: Tensor, extents: tuple[Any, ...], strides: tuple[Any, ...], widest: int
) -> tuple[str, str] | None:
    """Return what in one tensor prevents vectors, None where nothing does."""
    element = tensor.dtype.bytes
    runs = [e for e, d in zip(extents, strides, strict=True) if type(d) is int and d == 1]
    if not runs:
        return (
            f"the elements of one thread are not contiguous in {name}",
            f"let each thread take {widest} adjacent elements: a value layout of {widest} in the tiled copy",
        )
    if type(runs[0]) is not int or runs[0] % widest:
        return (
            f"runs of {runs[0] if type(runs[0]) is int else 'a dynamic extent'} in {name} are not whole vectors",
            f"let each thread take a multiple of {widest} along the contiguous mode",
        )
    if vector_limit(tensor, strides) >= widest:
        return None
    engine, layout = tensor.engine, tensor.layout
    while isinstance(layout, ComposedLayout):
        if isinstance(layout.outer, Swizzle) and 1 << layout.outer.base < widest:
            base = widest.bit_length() - 1
            return (
                f"{layout.outer} keeps only {1 << layout.outer.base} elements of {name} together",
                f"use a swizzle with base {base}: it moves vectors as a whole",
            )
        layout = layout.inner
    if engine.buffer.alignment < widest * element:
        return (
            f"{name} is known to begin at a multiple of {engine.buffer.alignment} bytes only",
            f"begin the array at a multiple of {widest * element} bytes",
        )
    return (
        f"rows of {name} are not known to begin at multiples of {widest * element} bytes",
        f"make the strides of its rows multiples of {widest} elements",
    )
