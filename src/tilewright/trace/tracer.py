"""The state of one trace: where ops go, what the kernel takes, which source line is being executed.

A kernel's Python function runs once for each specialisation. While it runs, its values are stand-ins
(`Scalar`, `Tensor` over a `BufferEngine`) whose operations append ops here.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from itertools import islice
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from tilewright.arch import Arch
from tilewright.dtypes import DType, bool_
from tilewright.errors import LanguageError
from tilewright.frames import is_user_file
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Buffer, GridLimit, LaunchSized, Op, Parameter, Requirement, TensorMap, Type, Value
from tilewright.ir.evaluate import COMPUTED
from tilewright.ir.ops import Binary, Compare, Constant, constant
from tilewright.remarks import Remark
from tilewright.source import SourceLocation

if TYPE_CHECKING:
    from tilewright.layout import Layout
    from tilewright.tensors import Tensor
    from tilewright.tensors.partition import Partition
    from tilewright.tiled import TiledCopy, TiledMMA
    from tilewright.trace.aliases import Copy
    from tilewright.trace.element_loops import ElementLoop
    from tilewright.trace.reach import Memory
    from tilewright.trace.settle import Settled
    from tilewright.trace.threads import Slice

INNER = "__in__"  # the rewriter makes functions of loops and branches, called WHAT__in__FUNCTION


@dataclass(eq=False)
class Tracer:
    """One trace in progress. `block_shape` is None where the kernel is traced without a launch."""

    name: str
    arch: Arch
    block_shape: tuple[int, int, int] | None

    def __post_init__(self) -> None:
        self.body: Block = Block()
        self.builder: Builder = Builder(self.body, self.location)
        self.parameters: list[Parameter] = []
        self.requirements: dict[tuple[str, int], Requirement] = {}
        self.grid_limits: dict[tuple[int, int], GridLimit] = {}
        self.remarks: dict[Remark, None] = {}
        self.branch_depth: int = 0
        self.fastmath: bool = False  # whether functions of float32 are computed approximately
        self.cluster_shape: tuple[int, int, int] = (1, 1, 1)  # blocks
        self.bounds = False  # whether coordinates are checked where the program runs
        self.copies_to_shared = False  # whether tw.copy was called from global to shared memory
        self.elements: list[ElementLoop] = []  # the last loops over registers, the newest at the end
        self.place: SourceLocation | None = None  # what ops are built for, where that is not the line that builds them
        self.calls: Calls = Calls()
        # What the last trace of the loop around, if there is one, settled of each loop in it; the number of the next.
        self.settled: list[Settled] = []
        self.next_loop = 0
        # What `threads` knows: the thread numbers that expressions give, and the slices that were accessed.
        self.thread_numbers: dict[Value, frozenset[int]] = {}
        self.slices: dict[TiledCopy | TiledMMA | Partition, dict[object, Slice]] = {}
        self.views: dict[tuple[Buffer, DType], Buffer] = {}  # of the bytes of a buffer, by element type
        self.addresses: dict[Buffer, Value] = {}  # of global buffers
        # Shared memory of a size that the launch knows, with its layout and the place that the kernel computes.
        self.launch_sized: list[LaunchSized] = []
        self.placed: list[tuple[Layout, Value]] = []
        self.tensor_maps: dict[tuple[object, ...], TensorMap] = {}  # by all that they are made of
        self.conditional_slices: list[tuple[Slice, Value]] = []
        self.barrier_owners: dict[int, str] = {}  # who uses each of the block's named barriers
        # For each size of groups, the variable that says which half of their shared memory collectives write next.
        self.collective_sides: dict[int, Tensor] = {}
        self.weak_leaves: set[Value] = set()  # what stands in loops for Python numbers that have no type yet
        self.copies: list[Copy] = []  # objects that stand for others (`aliases`)
        self.reach: Memory | None = None  # what `heap` knows of the Python objects that the kernel's code reaches
        self.arguments: tuple[Any, ...] = ()  # what the kernel's function was called with

    @contextmanager
    def computing(self, *, fastmath: bool | None) -> Iterator[None]:
        """Compute functions of float32 approximately for a while, or exactly; None: as before."""
        outer = self.fastmath
        self.fastmath = outer if fastmath is None else fastmath
        try:
            yield
        finally:
            self.fastmath = outer

    def emit(self, op: Op, *types: Type) -> tuple[Value, ...]:
        """Append an op with effects."""
        return self.builder.emit(op, *types)

    def pure(self, op: Op, type: Type) -> Value:
        """Return the result of a pure op, folded where it can be."""
        return self.builder.pure(op, type)

    @contextmanager
    def inside(self, block: Block, *, branch: bool = False) -> Iterator[Block]:
        """Append to a nested block for a while; `branch` where threads may skip it."""
        self.branch_depth += branch
        try:
            with self.builder.inside(block):
                yield block
        finally:
            self.branch_depth -= branch

    def location(self) -> SourceLocation | None:
        """Return the user's source line that is being traced, with the calls that led to it."""
        return self.place or self.calls.locate(sys._getframe(1))

    def require(self, requirement: Requirement, key: tuple[str, int]) -> None:
        """Add a condition that the launch must check, once for each `key`."""
        self.requirements.setdefault(key, requirement)


def locate(frame: FrameType | None) -> SourceLocation | None:
    """Return the place of the innermost frame of the user's code, linked to the calls that led to it."""
    steps = []
    while frame is not None and (code := frame.f_code) is not _run_code:
        if is_user_file(code.co_filename):
            steps.append((code, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back
    return _linked(steps)


class Calls:
    """The places of the frames that the last op was built in: the frames further out are mostly those of the next one.

    While a frame stands in the same call, so do all further out. Not those of generators, which many may resume.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[FrameType, int, SourceLocation | None]] = []  # outermost first
        self._depths: dict[FrameType, int] = {}

    def locate(self, frame: FrameType | None) -> SourceLocation | None:
        """Return what `locate` does."""
        stack, depths = self._stack, self._depths
        frames: list[FrameType] = []
        depth = steps = 0
        place: SourceLocation | None = None
        while frame is not None and (code := frame.f_code) is not _run_code:
            known = depths.get(frame)
            if known is not None and stack[known][1] == frame.f_lasti and not code.co_flags & _RESUMED:
                depth, place = known + 1, stack[known][2]
                break
            # Frames further in are seen once. Further out there may be none of the user's: in kernels of this package.
            if frames or steps > _SEEN_ONCE or is_user_file(code.co_filename):
                frames.append(frame)
            frame = frame.f_back
            steps += 1
        for old in stack[depth:]:
            depths.pop(old[0], None)
        del stack[depth:]
        for each in reversed(frames):
            if is_user_file(each.f_code.co_filename):
                place = _called(_place(each.f_code, each.f_lasti, each.f_lineno), place)
            depths[each] = len(stack)
            stack.append((each, each.f_lasti, place))
        return place

    def clear(self) -> None:
        """Let go of the frames, which keep the variables of the user's functions."""
        self._stack.clear()
        self._depths.clear()


_SEEN_ONCE = 8
_RESUMED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def locate_error(error: BaseException) -> SourceLocation | None:
    """Return the innermost place of the user's code that an exception came through, linked likewise."""
    steps: list[tuple[CodeType, int, int]] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code is _run_code:
            steps.clear()
        elif is_user_code(code):
            steps.append((code, traceback.tb_lasti, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _linked(steps[::-1])


def _linked(steps: Iterable[tuple[CodeType, int, int]]) -> SourceLocation | None:
    """Return the places of steps through the user's code, innermost first, as one linked place."""
    result: SourceLocation | None = None
    for code, instruction, line in reversed(list(steps)):
        result = _called(_place(code, instruction, line), result)
    return result


def _called(place: SourceLocation, caller: SourceLocation | None) -> SourceLocation:
    """Return a place with that of the call that led to it."""
    # A loop's body is a function of its own after rewriting, and stands in the user's function.
    if caller is not None and caller.function == place.function and caller.file == place.file:
        caller = caller.inlined_at
    if caller is None:
        return place
    return SourceLocation(place.file, place.line, place.function, place.column, place.end_column, caller)


# By the identity of the code, which stays alive here: code objects are compared by what they hold, but for the file's
# name, and that takes time.
_places: dict[tuple[int, int], tuple[CodeType, SourceLocation]] = {}


def _place(code: CodeType, instruction: int, line: int) -> SourceLocation:
    known = _places.get((id(code), instruction))
    if known is None:
        column = end_column = None
        if hasattr(code, "co_positions") and instruction >= 0:  # Python 3.11 and later
            _, end_line, column, end_column = next(islice(code.co_positions(), instruction // 2, None))
            if end_line != line:
                end_column = None
        function = code.co_name.rsplit(INNER, 1)[-1]
        place = SourceLocation(code.co_filename, line, function, column, end_column)
        known = _places[id(code), instruction] = code, place
    return known[1]


def is_user_code(code: CodeType) -> bool:
    """Say whether code stands outside of this package."""
    return is_user_file(code.co_filename)


def asked_by_user() -> bool:
    """Say whether code of the user asked, not this package: it keeps tables by identity, and names in messages."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name == "__hash__" and frame.f_code.co_filename == "<string>":
        frame = frame.f_back  # written by dataclasses: who asks stands behind it
    return frame is not None and is_user_code(frame.f_code)


class _Current(threading.local):
    tracer: Tracer | None = None


_current = _Current()


def current(what: str) -> Tracer:
    """Return the trace in progress; raise `LanguageError` outside of one. `what` names the caller."""
    tracer = _current.tracer
    if tracer is None:
        raise LanguageError(
            f"{what} can be used only inside a kernel",
            help="call it in a function decorated with @tw.kernel, or in one that a kernel calls",
        )
    return tracer


def tracing() -> Tracer | None:
    """Return the trace in progress, or None."""
    return _current.tracer


def run(
    tracer: Tracer, call: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]
) -> Any:  # Any: whatever the user's function takes and returns
    """Run a rewritten kernel function under a tracer."""
    outer, _current.tracer = _current.tracer, tracer
    try:
        return call(*arguments, **options)
    finally:
        _current.tracer = outer
        tracer.calls.clear()


# Frames outside this one belong to the caller of the kernel, not to the kernel.
_run_code = run.__code__


def is_caller(frame: FrameType | None) -> bool:
    """Say whether a frame is outside of the kernel that is traced."""
    return frame is None or frame.f_code is _run_code


# --- what a kernel requires of its launch ------------------------------------------------------------------


def known_to_host(value: Value, tracer: Tracer) -> bool:
    """Say whether a launch can compute a value: from parameters and constants, by pure ops."""
    op = value.definition
    if op is None:
        return any(parameter.target is value for parameter in tracer.parameters)
    if not isinstance(op, (Constant, *COMPUTED)):
        return False
    return all(known_to_host(operand, tracer) for operand in op.operands)


def require_multiple(
    tracer: Tracer, value: Value, divisor: int, message: str, help: str, location: SourceLocation | None
) -> None:
    """Make it a condition of the launch that `divisor` divides a value; `{value}` in the message stands for it.

    A value that only a thread knows is left to the simulator, which checks each access.
    """
    if not known_to_host(value, tracer):
        return
    with tracer.builder.inside(Block()):  # the host computes it, not the kernel
        remainder = tracer.pure(Binary("rem", value, constant(divisor, value.dtype)), value.dtype)
        condition = tracer.pure(Compare("eq", remainder, constant(0, value.dtype)), bool_)
    tracer.require(Requirement(condition, message, help, location, value), (message, id(value)))


def require_equal(tracer: Tracer, a: Value, b: Value, message: str, help: str) -> None:
    """Make it a condition of the launch that two values of one type are equal; `{value}` stands for the first."""
    if a is b or not (known_to_host(a, tracer) and known_to_host(b, tracer)):
        return
    with tracer.builder.inside(Block()):
        condition = tracer.pure(Compare("eq", a, b), bool_)
    tracer.require(Requirement(condition, message, help, tracer.location(), a), (message, id(a)))


def refuse_partial_warps(tracer: Tracer, what: str, lanes: int = 0) -> None:
    """Refuse an operation of `lanes` lanes, by default those of a warp, in a block whose last such group is partial.

    Threads fill warps by their linear number, and the lanes after the last thread do not exist: a matrix instruction
    of such a warp is undefined, and a shuffle may read a lane that holds nothing. Under a branch, which may leave that
    warp out, the simulator checks which threads take part.
    """
    if tracer.block_shape is None or tracer.branch_depth:
        return
    lanes = lanes or tracer.arch.warp_size
    threads = math.prod(tracer.block_shape)
    if threads % lanes == 0:
        return
    below = threads // lanes * lanes
    raise LanguageError(
        f"{what} is done by {lanes} lanes together, and the block of {threads} threads leaves "
        f"{threads - below} in its last group",
        details=[f"block: {' x '.join(map(str, tracer.block_shape))} threads"],
        help=f"launch blocks of a multiple of {lanes} threads: {below + lanes}" + (f" or {below}" if below else ""),
    )


def extent_name(tracer: Tracer, extent: Value) -> str | None:
    """Return the name of an argument's axis, such as x.shape[0], or None where the value is not one."""
    for parameter in tracer.parameters:
        if parameter.target is extent and isinstance(parameter.part, tuple):
            part, axis = parameter.part
            return f"{parameter.argument}.{part}[{axis}]"
    return None


def demand_clusters(tracer: Tracer, what: str) -> None:
    """Raise `LanguageError` on a target without clusters."""
    if not tracer.arch.has_clusters:
        raise LanguageError(
            f"{what}: {tracer.arch} has no clusters of blocks, which need sm_90 or later",
            help="let the threads of a block meet: tw.sync_threads()",
        )
