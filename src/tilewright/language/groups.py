"""Groups of threads that compute together, and the shared memory by which their warps exchange values.

The threads of a group have consecutive numbers in the block. Those of one warp exchange values by shuffles; warps
exchange them by an `Exchange`, with one barrier a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arch import VECTOR_BYTES
from tilewright.arguments import shown
from tilewright.dtypes import DType, int32
from tilewright.errors import LanguageError
from tilewright.instructions.barrier import claim_barriers, meet_at, sync_threads
from tilewright.instructions.shuffle import Shuffle
from tilewright.language.copying import copied_fragment
from tilewright.layout import Layout
from tilewright.tensors import Tensor
from tilewright.trace.control import branch
from tilewright.trace.mathematics import minimum
from tilewright.trace.memory import registers, shared
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.threads import linear_thread
from tilewright.trace.tracer import Tracer, current

_WARPGROUP = 128  # threads
_LAST_BARRIER = 15  # of a block; groups of several warps take barriers from this one downwards


@dataclass(frozen=True)
class Group:
    """Threads of a block that take part in one collective: `size` of them, with consecutive numbers.

    A group is one *row* of up to a warp's lanes, or several of whole warps; the block's last row may lack lanes.
    `threads` are those of the block, None where the kernel is traced without a launch.
    """

    name: str
    size: int
    warp: int
    threads: int | None

    @classmethod
    def of(cls, group: Any, what: str) -> Group:  # Any: a name or a number of threads
        """Return the group that a user names. Raises `LanguageError` for one that the block or the warp cannot have."""
        tracer = current(what)
        warp = tracer.arch.warp_size
        threads = None if tracer.block_shape is None else math.prod(tracer.block_shape)
        if group == "block":
            if threads is None:
                raise LanguageError(
                    f'{what} with group="block" needs the number of threads, and the kernel is traced without a launch',
                    help="give the block: kernel[grid, block].source(...), or kernel.lower(..., block=...)",
                )
            return cls("block", threads, warp, threads)
        size = {"warp": warp, "warpgroup": _WARPGROUP}.get(group, group) if isinstance(group, str) else group
        lanes = [1 << n for n in range(warp.bit_length())]
        if type(size) is not int or size < 1 or (size not in lanes and size % warp):
            raise LanguageError(
                f'{what}: group is "block", "warp", "warpgroup" or a number of threads, not {shown(group)}',
                help=f"a number is a power of two up to {warp}, or a multiple of {warp}; it is known while tracing",
            )
        if size > warp:
            _demand_whole_groups(what, size, warp, threads)
        return cls("warp" if size == warp else f"groups of {size} threads", size, warp, threads)

    # --- rows: the threads of a group that are in one warp ---

    @property
    def width(self) -> int:
        """The lanes of a row, a power of two; the block's last row may lack some."""
        return min(self.warp, 1 << (self.size - 1).bit_length())

    @property
    def rows(self) -> int:
        """The number of rows of a group: its warps, or one."""
        return -(-self.size // self.width)

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the block have all their lanes, as far as is known."""
        return self.threads is None or self.threads % self.width == 0

    def rank(self) -> Any:
        """Return the thread's number in its group."""
        return linear_thread() if self.size == self.threads else linear_thread() % self.size

    def row_number(self) -> Any:
        """Return the number of the thread's row in its group."""
        number = linear_thread() // self.width
        return number if self.size == self.threads else number % self.rows

    def row(self) -> Row:
        """Return the row that the thread is in."""
        thread, width = linear_thread(), self.width
        if self.is_whole or self.threads is None:
            return Row(width, self.warp, thread if self.threads == width else thread % width, width)
        if self.threads < width:
            return Row(width, self.warp, thread, self.threads)
        return Row(width, self.warp, thread % width, minimum(width, self.threads - thread // width * width))

    def row_of_warps(self) -> Row:
        """Return a row of lanes with one value for each warp of the group; the lanes behind have that of the last."""
        width = 1 << (self.rows - 1).bit_length()
        return Row(width, self.warp, linear_thread() % width, self.rows, has_spares=True)

    # --- warps of a group ---

    @property
    def groups(self) -> int:
        """The number of groups of the block that have several warps."""
        assert self.threads is not None, self
        return self.threads // self.size

    def number(self) -> Any:
        """Return the number of the thread's group in the block."""
        return 0 if self.groups == 1 else linear_thread() // self.size

    def meet(self) -> None:
        """Wait for all threads of the group, which then see what the others wrote."""
        if self.size == self.threads:
            sync_threads()
        else:
            meet_at(self._first_barrier() - self.number(), self.size)

    def _first_barrier(self) -> int:
        """Return the barrier of the first group; the others have those below. Each size of groups has its own."""
        tracer = current("a collective")
        owner = f"collectives of {self.size} threads"
        own = [number for number, name in tracer.barrier_owners.items() if name == owner]
        if own:
            return max(own)
        taken = [number for number, name in tracer.barrier_owners.items() if name.startswith("collectives")]
        first = min(taken, default=_LAST_BARRIER + 1) - 1
        if first < self.groups:
            raise LanguageError(
                f"{self.groups} groups of {self.size} threads need a named barrier each, and {first} are left of "
                f"{_LAST_BARRIER}",
                help=f"take larger groups, or groups of up to {self.warp} lanes, which need none",
            )
        claim_barriers(tracer, range(first - self.groups + 1, first + 1), owner)
        return first


@dataclass(frozen=True, eq=False)
class Row:
    """Lanes of a warp that exchange values by shuffles: `width`, a power of two, of which the first `count` have one.

    `lane` is the thread's number among them. The lanes behind `count` do not exist; with `has_spares`, they do and
    have copies of the last value, and all rows of a warp have the same values.
    """

    width: int
    warp: int
    lane: Any  # Any: a number of host or device
    count: Any
    has_spares: bool = False

    @property
    def is_full(self) -> bool:
        """Whether all lanes are there, each with a value of its own."""
        return isinstance(self.count, int) and self.count == self.width

    @property
    def distances(self) -> list[int]:
        """1, 2, 4 and so on, up to half of the width."""
        return [1 << n for n in range((self.width - 1).bit_length())]

    def shuffle(self, kind: str, values: Sequence[Scalar], lane: Any) -> list[Scalar]:
        """Return what another lane of the row has, as `tw.shuffle` and its like, also in a row that lacks lanes."""
        tracer = current("a collective")
        by = as_scalar(lane, int32).value
        found = (tracer.emit(Shuffle(kind, x.value, by, self.width), x.dtype) for x in values)
        return [Scalar(result[0]) for result in found]


def _demand_whole_groups(what: str, size: int, warp: int, threads: int | None) -> None:
    if threads is None:
        raise LanguageError(
            f"{what} of {size} threads needs the number of threads of the block, and the kernel is traced without a "
            "launch",
            help="give the block: kernel[grid, block].source(...), or kernel.lower(..., block=...)",
        )
    # Under a branch, the threads behind the last whole group may be left out; else their barrier is never complete.
    if threads < size or (threads % size and not current(what).branch_depth):
        raise LanguageError(
            f"{what}: groups of {size} threads do not divide a block of {threads}",
            help=f"launch blocks of a multiple of {size} threads, put it under an if that leaves the others out, or "
            f'take group="warp" ({warp} lanes) or "block"',
        )


class Exchange:
    """Shared memory through which the warps of a group pass values on, `count` a step of each type.

    A step is written, the group meets, and it is read. What was read in one step is written over in the second one
    after it at the earliest, and the barrier of the step between them separates the two: so one barrier a step is
    enough. Code that runs once needs half of the memory for each of two steps in a row, and knows which; in loops
    and branches a variable of the kernel says which half comes next. It starts at 0, so that the compiler
    knows its value wherever an even number of steps is between two executions.
    """

    def __init__(self, group: Group, types: Sequence[DType], count: int, steps: int = 1) -> None:
        self.group = group
        self.step: int = 0
        self.tracer: Tracer = current("a collective")
        self.runs_once: bool = self.tracer.builder.block is self.tracer.body
        halves = 1 if self.runs_once and steps == 1 else 2
        self.memory: list[Any] = []
        for type in types:
            unit = VECTOR_BYTES // math.gcd(VECTOR_BYTES, type.bytes)
            padded = -(-count // unit) * unit  # every half of every group is aligned for vectors
            memory = shared(type, Layout((padded, group.groups, halves)))
            memory.engine.buffer.name = "exchange"
            self.memory.append(memory)

    def next(self) -> list[Tensor]:
        """Begin a step: return the memory of each type, a vector."""
        half = self._half()
        number = self.group.number()
        return [memory[None, number, half] for memory in self.memory]

    def _half(self) -> Any:
        step, self.step = self.step, self.step + 1
        if self.runs_once:
            return step % self.memory[0].layout[2].size
        side = self._side()
        half = side[0]
        side[0] = half ^ 1
        return half

    def _side(self) -> Tensor:
        """Return the variable that says which half is next: one of the kernel for each size of groups."""
        sides = self.tracer.collective_sides
        if self.group.size not in sides:
            with self.tracer.builder.inside(self.tracer.body):
                side = sides[self.group.size] = registers(int32, 1)
                side.engine.buffer.name = "side"
                side[0] = 0
        return sides[self.group.size]


def pass_on(
    group: Group,
    exchange: Exchange,
    values: Sequence[Scalar],
    place: Any,
    sender: Any = None,  # Any: a condition; None where all threads send
) -> list[Tensor]:
    """Let threads write values at their places, wait for the group, and return the memory to be read."""
    memory = exchange.next()

    def write() -> None:
        for tensor, value in zip(memory, values, strict=True):
            tensor[place] = value

    if sender is None:
        write()
    else:
        branch(sender, write)
    group.meet()
    return memory


def read_all(memory: Sequence[Tensor], count: int) -> list[list[Scalar]]:
    """Return the first `count` elements of several vectors, as one list of values for each place."""
    fragments = [copied_fragment(tensor.compose(count)) for tensor in memory]
    return [[fragment[n] for fragment in fragments] for n in range(count)]


def where_else(condition: Any, values: Callable[[], Sequence[Any]], others: Sequence[Scalar]) -> list[Scalar]:
    """Return values computed where a condition holds, and others elsewhere; nothing is computed there."""
    return [as_scalar(x) for x in branch(condition, values, lambda: others)]
