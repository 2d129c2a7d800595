"""Where a thread is: its index in block and grid, its lane and its warp; and which slices of tiles the threads take.

A tiled copy for 128 threads in a block of 64 leaves half of each tile untouched; in a block of 256, half of the threads
reach past it. What a thread's number may be is known where it is computed of `tw.thread_idx` alone: the expression is
evaluated for every thread of the block. What is certainly wrong is refused:

- an access that all threads make, or all or none, where some of them take a slice that does not exist;
- slices that no thread takes, of all those by which the kernel accesses memory.

A thread number that is computed of other things, or an access under a branch, may be right, and is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from tilewright.dtypes import int32
from tilewright.errors import LanguageError, MissingAttributeError
from tilewright.frames import hiding_frames
from tilewright.ir.core import Value
from tilewright.ir.effects import WARPS_OF, Scope
from tilewright.ir.evaluate import evaluate
from tilewright.ir.ops import Constant, For, Special
from tilewright.source import SourceLocation
from tilewright.trace.scalar import Scalar
from tilewright.trace.tracer import Tracer, current

if TYPE_CHECKING:
    from tilewright.tensors.partition import Partition
    from tilewright.tiled import TiledCopy, TiledMMA


class Index3:
    """Three int32 special registers, `.x`, `.y` and `.z`.

    What the launch fixes is a Python int: the extents of a block, and an index along an axis of extent 1.
    """

    def __init__(self, group: str, doc: str) -> None:
        self._group = group
        self.__doc__ = doc

    @property
    @hiding_frames
    def x(self) -> Any:
        return self._axis("x", 0)

    @property
    @hiding_frames
    def y(self) -> Any:
        return self._axis("y", 1)

    @property
    @hiding_frames
    def z(self) -> Any:
        return self._axis("z", 2)

    def _axis(self, axis: str, mode: int) -> Any:
        tracer = current(f"tw.{self._group}.{axis}")
        extent = None if tracer.block_shape is None else tracer.block_shape[mode]
        if extent is not None:
            if self._group == "block_dim":
                return extent
            if self._group == "thread_idx" and extent == 1:
                return 0
        value = tracer.emit(Special(f"{self._group}.{axis}"), int32)[0]
        if self._group == "thread_idx" and extent is not None and value.facts is not None:
            value.facts = type(value.facts)(0, extent - 1, 1)
        return Scalar(value)

    @hiding_frames
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingAttributeError(f"tw.{self._group} has no {name!r}", help="its axes are x, y and z")

    @hiding_frames
    def __index__(self) -> int:
        raise LanguageError(f"tw.{self._group} is not an integer: it has one for each axis", help=self._way_out)

    @property
    def _way_out(self) -> str:
        return f"write tw.{self._group}.x, or .y or .z"

    def __repr__(self) -> str:
        return f"tw.{self._group}"


thread_idx: Index3 = Index3("thread_idx", "The thread's index in its block, from 0 (CUDA threadIdx).")
block_idx: Index3 = Index3("block_idx", "The block's index in the grid, from 0 (CUDA blockIdx).")
block_dim: Index3 = Index3("block_dim", "The number of threads of a block along each axis (CUDA blockDim).")
grid_dim: Index3 = Index3("grid_dim", "The number of blocks of the grid along each axis (CUDA gridDim).")


def linear_thread() -> Any:
    """Return the thread's number in its block, x fastest: the order in which threads fill warps."""
    x, y, z = thread_idx.x, thread_idx.y, thread_idx.z
    if isinstance(y, int) and isinstance(z, int):
        return x
    return x + block_dim.x * (y + block_dim.y * z)


def lane_id() -> Any:
    """Return the thread's lane in its warp: its number in the block modulo 32 (64 on AMD targets)."""
    return linear_thread() % current("tw.lane_id").arch.warp_size


def warp_id() -> Any:
    """Return the number of the thread's warp: its number in the block divided by 32 (64 on AMD targets)."""
    return linear_thread() // current("tw.warp_id").arch.warp_size


def warpgroup_id() -> Any:
    """Return the number of the thread's warpgroup, four warps that multiply together: its number divided by 128."""
    arch = current("tw.warpgroup_id").arch
    if arch.is_amd:
        raise LanguageError(
            f"tw.warpgroup_id: {arch.name} has no warpgroups", help="take tw.warp_id() // 4, or any division of warps"
        )
    return linear_thread() // (WARPS_OF[Scope.WARPGROUP] * arch.warp_size)


# --- slices of tiled copies and mmas -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Slice:
    """The part of a tensor that a thread gets of a tiled copy or mma.

    `numbers` are the slices that the threads of the block take, None where they are not known.
    """

    tiled: TiledCopy | TiledMMA | Partition
    tensor: str
    numbers: frozenset[int] | None
    location: SourceLocation | None


def slice_of(tracer: Tracer, tiled: TiledCopy | TiledMMA | Partition, thread: Any, tensor: str) -> Slice:
    """Return the slice that a thread number, static or dynamic, stands for."""
    return Slice(tiled, tensor, _numbers(tracer, thread), tracer.location())


def _numbers(tracer: Tracer, thread: Any) -> frozenset[int] | None:
    """Return the values that a thread number has in the threads of the block, where they are known."""
    if tracer.block_shape is None:
        return None
    if isinstance(thread, int):
        return frozenset({thread})
    if not isinstance(thread, Scalar):
        return None
    numbers = tracer.thread_numbers.get(thread.value)
    if numbers is None:
        numbers = tracer.thread_numbers[thread.value] = _evaluated(tracer.block_shape, thread.value)
    return numbers or None


def _evaluated(block: tuple[int, int, int], value: Value) -> frozenset[int]:
    """Return the value of an expression in all threads, or nothing where it depends on more than their index."""
    axes = {"thread_idx.x": 0, "thread_idx.y": 1, "thread_idx.z": 2}
    indices: dict[int, list[Value]] = {}
    for leaf in _leaves(value):
        axis = axes.get(leaf.definition.name) if isinstance(leaf.definition, Special) else None
        if axis is None:
            return frozenset()
        indices.setdefault(axis, []).append(leaf)
    numbers = set()
    for place in product(*(range(block[axis]) for axis in indices)):
        known = {leaf: n for leaves, n in zip(indices.values(), place, strict=True) for leaf in leaves}
        try:
            numbers.add(evaluate(value, known))
        except KeyError:  # an operation that the host does not evaluate
            return frozenset()
    return frozenset(numbers)


def _leaves(value: Value) -> Iterable[Value]:
    """Return the values at the bottom of an expression, without constants."""
    pending, seen = [value], set()
    while pending:
        current = pending.pop()
        if current in seen or isinstance(current.definition, Constant):
            continue
        seen.add(current)
        op = current.definition
        if op is None or not op.is_pure or not op.operands:
            yield current
        else:
            pending += op.operands


def is_of_thread(value: Value) -> bool:
    """Say whether an expression is computed of the index of a thread."""
    leaves = (leaf.definition for leaf in _leaves(value))
    return any(isinstance(op, Special) and op.name.startswith("thread_idx") for op in leaves)


def note_access(tracer: Tracer, taken: Slice, condition: Value | None = None) -> None:
    """Record that the kernel accesses memory by a slice, under a condition if one is given.

    Refuses a slice that some threads do not have, unless a branch or the condition may leave those out.
    """
    known = tracer.slices.setdefault(taken.tiled, {})
    known.setdefault((taken.location, taken.numbers), taken)
    if tracer.branch_depth or taken.numbers is None:
        return
    if min(taken.numbers) < 0 or max(taken.numbers) >= _span(taken.tiled):
        if condition is not None:
            tracer.conditional_slices.append((taken, condition))
            return
        raise _outside(tracer, taken)


def refuse_wrong_slices(tracer: Tracer) -> None:
    """Raise `LanguageError` for what only the whole kernel shows of the slices that it takes.

    That is a slice that some threads do not have, under a condition which is the same for all threads, and a tiled
    copy or mma of which no thread of the block takes some slices.
    """
    indices = {op.body.arguments[0]: op for op in tracer.body.walk() if isinstance(op, For)}
    parameters = {p.target for p in tracer.parameters}
    for outside, condition in tracer.conditional_slices:
        if _is_uniform(condition, indices, parameters):
            raise _outside(tracer, outside)
    for tiled, known in tracer.slices.items():
        taken = list(known.values())
        numbers = [s.numbers for s in taken if s.numbers is not None]
        if len(numbers) == len(taken) and not _needed(tiled) <= frozenset().union(*numbers):
            raise _refusal(tracer, taken[0], "no thread takes some of its slices")


def _span(tiled: TiledCopy | TiledMMA | Partition) -> int:
    """Return the number of thread numbers that have a slice, with those of a TiledMMA that are copies of others."""
    span: int = getattr(tiled, "span", tiled.size)
    return span


def _needed(tiled: TiledCopy | TiledMMA | Partition) -> frozenset[int]:
    """Return the numbers of the threads that together do all of the work; those of a TiledMMA may have gaps."""
    return frozenset(getattr(tiled, "thread_numbers", range(tiled.size)))


def _is_uniform(condition: Value, indices: Mapping[Value, For], parameters: Container[object]) -> bool:
    """Say whether a condition certainly is the same for all threads, and not always false."""
    if isinstance(condition.definition, Constant):
        return bool(condition.definition.value)
    pending = [condition]
    while pending:
        for leaf in _leaves(pending.pop()):
            op = leaf.definition
            if leaf in indices:  # of a loop whose bounds are
                loop = indices[leaf]
                pending += [loop.start, loop.step]
            elif not (leaf in parameters or (isinstance(op, Special) and not op.name.startswith("thread_idx"))):
                return False
    return True


def _outside(tracer: Tracer, taken: Slice) -> LanguageError:
    return _refusal(
        tracer,
        taken,
        "some of them take slices that do not exist",
        ", or put the access under an if that names the threads which take part",
    )


def _refusal(tracer: Tracer, taken: Slice, what: str, more: str = "") -> LanguageError:
    tiled, numbers = taken.tiled, taken.numbers
    shape = tracer.block_shape
    threads = "" if shape is None else f" in a block of {math.prod(shape)} threads"
    kind = getattr(tiled, "CALLED", type(tiled).__name__)
    assert numbers is not None, taken
    article = "" if kind.startswith("tw.") else "a "
    return LanguageError(
        f"{article}{kind} of {tiled.size} threads is used{threads}: {what}",
        details=[
            f"of {tiled.size} slices, {_shown(_needed(tiled), '')}, the threads here take {_shown(numbers)}",
            f"{kind}: {tiled}",
            f"tensor: {taken.tensor}",
        ],
        location=taken.location,
        help=f"launch blocks of {_span(tiled)} threads"
        + (f" (its .{'size' if _span(tiled) == tiled.size else 'span'})" if article else "")
        + f", or make {article}{kind} for the threads of the block{more}",
    )


def _shown(numbers: frozenset[int], one: str = "slice ") -> str:
    low, high = min(numbers), max(numbers)
    if len(numbers) == 1:
        return f"{one}{low}" if one else f"{low} to {high}"
    gaps = "" if len(numbers) == high - low + 1 else f", {len(numbers)} of them"
    return f"{low} to {high}{gaps}"
