"""What the simulator measures: figures, gathered by source line and by launch, and what a launch ran on.

    Figures         numbers that add up: requests, wavefronts, sectors, bytes, instructions, operations
    Line            the figures of one source line
    SharedBuffer    the accesses to one buffer of shared memory, kept as patterns so that other layouts can be tried
    Timeline        what the warps of one block did, and for which phases of which barriers they waited
    Launch          one launch: its lines, its buffers in shared memory, its timelines, what the compiler says of it

An instruction counts once for each warp that runs it, an operation once for each thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.layout import ComposedLayout, Layout
from tilewright.remarks import Place, Remark
from tilewright.source import Located, SourceLocation
from tilewright.transactions import LINE, SECTOR, wavefronts

Array = np.ndarray[Any, np.dtype[Any]]
Dim3 = tuple[int, int, int]

MOST_PATTERNS = 4096  # of one buffer; what comes later is counted, and not tried again
MOST_EVENTS = 1500  # of one block; longer runs are cut there
MOST_WAITS = 6000  # of one block, and as many pieces of activity
_LOOK_BACK = 16  # launches that a new one is compared with


@dataclass
class Figures:
    """Numbers that add up over lines, blocks and launches.

    `shared_wavefronts` are the passes that shared memory takes, `shared_wavefronts_ideal` the fewest that the same
    requests could take. `global_sectors` are the sectors of 32 bytes that the requests touch, `global_sectors_ideal`
    the fewest that could hold the bytes asked for. `shared_bytes` and `global_bytes` are the bytes asked for, each
    byte once a request. `instructions` counts by class, once a warp; `operations` by the unit that does them (a type's
    name, or "tensor" and a type's name), once a thread, a fused multiply-add as two. `bulk_bytes` are those of
    `global_bytes` that bulk copies move, what lies outside of a tensor left out.

    Bulk copies once more, by what they do ("load", "store", "reduce"): `bulk_boxes`, `bulk_moved` (the bytes of global
    memory that they reach) and `bulk_outside` (bytes of boxes that lie outside of the tensor); `bulk_sectors` and
    `bulk_lines` are the sectors and the lines of 128 bytes that their boxes touch, `bulk_shared` the bytes of shared
    memory "written" and "read", in `bulk_passes` passes of all banks.

    Products of warpgroups: `products` are their instructions, once a warpgroup; `operand_bytes` what these read of
    shared memory as "A" and "B", `operand_wavefronts` the passes that takes and `operand_wavefronts_ideal` the fewest
    (`tilewright.transactions.core_wavefronts`). `product_waits` counts the waits of warpgroups by the groups under way
    before and after: "2 to 1".
    """

    shared_requests: int = 0
    shared_wavefronts: int = 0
    shared_wavefronts_ideal: int = 0
    shared_bytes: int = 0
    global_requests: int = 0
    global_sectors: int = 0
    global_sectors_ideal: int = 0
    global_bytes: int = 0
    bulk_bytes: int = 0
    bulk_boxes: Counter[str] = field(default_factory=Counter)
    bulk_moved: Counter[str] = field(default_factory=Counter)
    bulk_outside: Counter[str] = field(default_factory=Counter)
    bulk_sectors: int = 0
    bulk_lines: int = 0
    bulk_shared: Counter[str] = field(default_factory=Counter)
    bulk_passes: int = 0
    products: int = 0
    operand_bytes: Counter[str] = field(default_factory=Counter)
    operand_wavefronts: int = 0
    operand_wavefronts_ideal: int = 0
    product_waits: Counter[str] = field(default_factory=Counter)
    barriers: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        """Add another's numbers to these."""
        for each in fields(Figures):
            mine, more = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, Counter):
                mine.update(more)
            else:
                setattr(self, each.name, mine + more)

    def scaled(self, factor: float) -> Figures:
        """Return the numbers multiplied and rounded; what a sample of the blocks says of all."""
        result = Figures()
        for each in fields(Figures):
            mine = getattr(self, each.name)
            if isinstance(mine, Counter):
                setattr(result, each.name, Counter({k: round(v * factor) for k, v in mine.items()}))
            else:
                setattr(result, each.name, round(mine * factor))
        return result

    @property
    def shared_conflicts(self) -> int:
        """The wavefronts that bank conflicts cost."""
        return self.shared_wavefronts - self.shared_wavefronts_ideal

    @property
    def operand_conflicts(self) -> int:
        """The passes that bank conflicts cost where products read their operands."""
        return self.operand_wavefronts - self.operand_wavefronts_ideal

    @property
    def needless_waits(self) -> int:
        """The waits for products at which no group was under way that they wait for."""
        return sum(n for name, n in self.product_waits.items() if len(set(name.split(" to "))) == 1)

    @property
    def sectors_per_request(self) -> float:
        """How many sectors a request of global memory touches on average; 0 where there are none."""
        return self.global_sectors / self.global_requests if self.global_requests else 0.0

    @property
    def sector_use(self) -> float:
        """The share of the sectors' bytes that was asked for; 1 where there are none."""
        return self.global_bytes / (SECTOR * self.global_sectors) if self.global_sectors else 1.0

    @property
    def flops(self) -> int:
        """All operations, whatever their unit."""
        return sum(self.operations.values())


@dataclass
class Line(Located, Figures):
    """The figures of one line of Python; `location` is None for what no line is known of."""

    location: SourceLocation | None = None

    @property
    def text(self) -> str:
        """The line itself, without its indentation."""
        return "(no line of yours)" if self.location is None else self.location.text.strip()


def total(figures: Iterable[Figures]) -> Figures:
    """Return the sum of figures."""
    result = Figures()
    for each in figures:
        result.add(each)
    return result


@dataclass
class Pattern:
    """One request of a warp: the element at which each lane begins (-1: the lane does nothing), and how often.

    `width` is in bytes; `kind` is "load", "store", "copy", "matrix" or "atomic" (`tilewright.transactions`).
    """

    location: SourceLocation | None
    kind: str
    width: int
    elements: Array
    times: int


@dataclass
class SharedBuffer:
    """A buffer of shared memory with the requests that reached it; `layout` as it was declared, where known.

    `offset` is the buffer's place in the block's shared memory, in bytes. `is_complete` is False where there were
    more patterns than are kept.
    """

    name: str
    element: str
    element_bytes: int
    size: int
    offset: int
    layout: Layout | ComposedLayout | None
    location: SourceLocation | None
    patterns: list[Pattern] = field(default_factory=list)
    is_complete: bool = True

    def cost(self, place: Place | None = None) -> tuple[int, int]:
        """Return the wavefronts of all patterns and the fewest they could take.

        With `place`, every element e stands at element place(e) instead.
        """
        took = least = 0
        for kind, width, elements, times in self.groups:
            moved = elements if place is None else place(elements)
            waves, ideal = wavefronts(self.offset + moved * self.element_bytes, elements >= 0, width, kind)
            took, least = took + int(waves @ times), least + int(ideal @ times)
        return took, least

    def each_cost(self) -> Iterator[tuple[Pattern, int, int]]:
        """Yield each pattern with the wavefronts it takes and the fewest it could take."""
        for pattern in self.patterns:
            elements = pattern.elements[None, :]
            addresses = self.offset + elements * self.element_bytes
            took, least = wavefronts(addresses, elements >= 0, pattern.width, pattern.kind)
            yield pattern, int(took[0]), int(least[0])

    def heaviest(self, count: int) -> SharedBuffer:
        """Return the buffer with the patterns that cost most only, itself where it has no more."""
        if len(self.patterns) <= count:
            return self
        costly = sorted(self.each_cost(), key=lambda each: (each[2] - each[1]) * each[0].times)
        return replace(self, patterns=[pattern for pattern, _, _ in costly[:count]])

    @cached_property
    def groups(self) -> list[tuple[str, int, Array, Array]]:
        """The patterns of one kind and width as one array (patterns, lanes), and how often each came."""
        found: dict[tuple[str, int], list[Pattern]] = {}
        for pattern in self.patterns:
            found.setdefault((pattern.kind, pattern.width), []).append(pattern)
        return [
            (kind, width, np.stack([p.elements for p in group]), np.array([p.times for p in group], np.int64))
            for (kind, width), group in found.items()
        ]


@dataclass
class Event:
    """Something that warps did at a step: `count` instructions of one class at one line in a row.

    Arithmetic in a row is one event without a line. `warps` has bit w set for warp w. `landed` is the step at which an
    asynchronous operation was waited for; None for what is not asynchronous or was never waited for.
    """

    step: int
    kind: str
    line: int | None
    warps: int
    count: int = 1
    is_async: bool = False
    landed: int | None = None


@dataclass(frozen=True)
class Wait:
    """The wait of a warp, or of one thread of it, for a phase of a barrier: the steps of the simulator's order.

    It began at the step `begin`; the phase was over at `over`, which is `begin` where it was over before, and the warp
    went on at `end`. `barrier` is the name of an mbarrier, "named barrier" or "block barrier", `stage` which of them;
    `thread` is None where the whole warp waits.
    """

    warp: int
    thread: int | None
    barrier: str
    stage: int
    phase: int
    line: int | None
    begin: int
    over: int
    end: int

    @property
    def steps(self) -> int:
        """For how many steps it waited for the phase to be over."""
        return self.over - self.begin


@dataclass
class Activity:
    """Steps in a row, `begin` up to and without `end`, in which the same warps (bits) did what looks alike."""

    begin: int
    end: int
    warps: int
    kind: str


@dataclass
class Timeline:
    """What the warps of one block did, in the order in which the simulator did it: an order, not a time.

    `is_cut` is True where it went on for longer than `MOST_EVENTS`; `waits` and `activity` go on up to `MOST_WAITS`,
    and cover `steps` steps of the simulator.
    """

    block: tuple[int, int, int]
    warps: int
    events: list[Event] = field(default_factory=list)
    is_cut: bool = False
    waits: list[Wait] = field(default_factory=list)
    activity: list[Activity] = field(default_factory=list)
    steps: int = 0

    @property
    def is_waits_cut(self) -> bool:
        """True where waits or activity went on for longer than is kept."""
        return max(len(self.waits), len(self.activity)) >= MOST_WAITS


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of a kernel: registers of a thread, bytes of shared memory of a block, spills."""

    arch: str
    registers: int
    shared_bytes: int
    spills: bool


@dataclass(frozen=True)
class _Answer:
    """What a compiler said when it was asked, in the place of the question."""

    compiled: Compiled | None
    error: TilewrightError | None

    @staticmethod
    def of(ask: Callable[[], Compiled]) -> _Answer:
        """Ask, unless it is an answer already."""
        if isinstance(ask, _Answer):
            return ask
        try:
            return _Answer(ask(), None)
        except TilewrightError as error:
            return _Answer(None, error)

    def __call__(self) -> Compiled:
        if self.compiled is None:
            assert self.error is not None
            raise self.error
        return self.compiled


@dataclass
class Requests:
    """Requests (requests, lanes) of addresses in bytes, and again of each as much further as `shifts` says.

    `active` says which lanes ask, None for all. Addresses count from `base`, which is a multiple of a line.
    """

    addresses: Array
    active: Array | None
    shifts: Array | None
    base: int
    is_write: bool

    @property
    def count(self) -> int:
        """How many addresses they are."""
        return self.addresses.size * (1 if self.shifts is None else len(self.shifts))


@dataclass(eq=False)
class CacheLines:
    """The lines of 128 bytes that requests reach, one after another; worked out when asked for.

    `is_cut` says that more requests came than are kept.
    """

    requests: list[Requests]
    is_cut: bool

    @cached_property
    def lines(self) -> Array:
        """Twice the number of each line, plus 1 for a write; each line once a request."""
        found = [_lines_of(each) for each in self.requests]
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def _lines_of(each: Requests) -> Array:
    addresses, active = each.base + each.addresses, each.active
    if active is not None:
        first = np.take_along_axis(addresses, active.argmax(axis=1)[:, None], axis=1)
        addresses = np.where(active, addresses, first)
    if each.shifts is not None:
        addresses = (addresses + each.shifts[:, None, None]).reshape(-1, addresses.shape[1])
    lines = np.sort(addresses // LINE, axis=1)
    fresh = np.ones(lines.shape, np.bool_)
    fresh[:, 1:] = lines[:, 1:] != lines[:, :-1]
    found: Array = lines[fresh] * 2 + each.is_write
    return found


@dataclass
class Launch:
    """One launch of a kernel.

    `measured_blocks` below `blocks` says that the figures were taken from so many blocks and scaled.
    `touched_bytes` is what the launch touches of global memory, each sector counted once, and again where it is
    both read and written: the least that can come from and go to DRAM. `compile` returns what the compiler says,
    or raises where there is none. `cache_lines` are the lines of 128 bytes of global memory in the order in which the
    simulator reached them.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    arch: str
    blocks: int
    measured_blocks: int
    shared_bytes_per_block: int
    lines: list[Line] = field(default_factory=list)
    buffers: list[SharedBuffer] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    touched_bytes: int = 0
    remarks: list[Remark] = field(default_factory=list)
    arguments: tuple[tuple[str, str], ...] = ()  # their names, and each as a short text
    cache_lines: CacheLines | None = None
    registers_by_role: tuple[int, ...] = ()  # of a thread of each warpgroup, 0 where it chose none; () where none did
    compile: Callable[[], Compiled] | None = None

    def __getstate__(self) -> dict[str, object]:
        # The compiler is asked now: the kernel that it would be asked of does not travel.
        return {**self.__dict__, "compile": None if self.compile is None else _Answer.of(self.compile)}

    def __copy__(self) -> Launch:
        return replace(self)

    def is_like(self, other: Launch) -> bool:
        """Say whether two launches of a kernel are alike in shape, layouts and all figures."""
        # Arrays count with shapes and strides, which stand in brackets; numbers that differ make no other launch.
        shapes = [
            (x.kernel, x.grid, x.block, x.arch, x.touched_bytes, [a for a in x.arguments if "[" in a[1]])
            for x in (self, other)
        ]
        if shapes[0] != shapes[1] or len(self.buffers) != len(other.buffers):
            return False
        layouts = all(a.layout == b.layout for a, b in zip(self.buffers, other.buffers, strict=True))
        return layouts and self.lines == other.lines

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def is_sampled(self) -> bool:
        """True where the figures were scaled from some of the blocks."""
        return self.measured_blocks < self.blocks

    @property
    def total(self) -> Figures:
        """The sum over the lines."""
        return total(self.lines)


def add_launch(launches: list[Launch], launch: Launch) -> None:
    """Add a launch; one like another shares its patterns and timelines, so that loops of launches stay small."""
    for known in launches[-_LOOK_BACK:]:
        if known.is_like(launch):
            launch.buffers, launch.timelines = known.buffers, known.timelines
            launch.cache_lines = known.cache_lines
            break
    launches.append(launch)
