"""What a profile is made of: figures, gathered by source line and by launch, and what a launch ran on.

    Figures     numbers that add up: requests, wavefronts, sectors, bytes, instructions, operations
    Line        the figures of one source line
    Launch      one launch: its lines, its buffers in shared memory, its timelines, what the compiler says of it
    Profile     all launches of a run

An instruction counts once for each warp that runs it, an operation once for each thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from tilewright.errors import TilewrightError
from tilewright.profile.gpus import DEFAULT_GPU
from tilewright.profile.patterns import SharedBuffer
from tilewright.profile.remarks import Remark
from tilewright.profile.timeline import Timeline
from tilewright.source import SourceLocation

if TYPE_CHECKING:
    from tilewright.profile.report import Report

Dim3 = tuple[int, int, int]

_LOOK_BACK = 16  # launches that a new one is compared with
SECTOR = 32  # bytes that a cache line's quarter holds, the least that global memory moves


@dataclass
class Figures:
    """Numbers that add up over lines, blocks and launches.

    `shared_wavefronts` are the passes that shared memory takes, `shared_wavefronts_ideal` the fewest that the same
    requests could take. `global_sectors` are the sectors of 32 bytes that the requests touch, `global_sectors_ideal`
    the fewest that could hold the bytes asked for. `shared_bytes` and `global_bytes` are the bytes asked for, each
    byte once a request. `instructions` counts by class, once a warp; `operations` by the unit that does them (a type's
    name, or "tensor" and a type's name), once a thread, a fused multiply-add as two.
    """

    shared_requests: int = 0
    shared_wavefronts: int = 0
    shared_wavefronts_ideal: int = 0
    shared_bytes: int = 0
    global_requests: int = 0
    global_sectors: int = 0
    global_sectors_ideal: int = 0
    global_bytes: int = 0
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
class Line(Figures):
    """The figures of one line of Python; `location` is None for what no line is known of."""

    location: SourceLocation | None = None

    @property
    def file(self) -> str | None:
        """The Python file."""
        return None if self.location is None else self.location.file

    @property
    def line(self) -> int | None:
        """The line's number, from 1."""
        return None if self.location is None else self.location.line

    @property
    def text(self) -> str:
        """The line itself, without its indentation."""
        return "(no line of yours)" if self.location is None else self.location.text.strip()


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
class Launch:
    """One launch of a kernel.

    `measured_blocks` below `blocks` says that the figures were taken from so many blocks and scaled.
    `touched_bytes` is what the launch touches of global memory, each sector counted once, and once more where it is
    both read and written: the least that can come from and go to DRAM. `compile` returns what the compiler says,
    or raises where there is none.
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
    compile: Callable[[], Compiled] | None = None

    def __getstate__(self) -> dict[str, object]:
        # The compiler is asked now: the kernel that it would be asked of does not travel.
        return {**self.__dict__, "compile": None if self.compile is None else _Answer.of(self.compile)}

    def __copy__(self) -> Launch:
        return replace(self)

    def is_like(self, other: Launch) -> bool:
        """Say whether two launches of a kernel are alike in shape, layouts and all figures."""
        shapes = [(each.kernel, each.grid, each.block, each.arch, each.touched_bytes) for each in (self, other)]
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


@dataclass
class Profile:
    """What a run measured, launch by launch; its own properties are sums over them."""

    launches: list[Launch] = field(default_factory=list)

    def add(self, launch: Launch) -> None:
        """Add a launch; one like another shares its patterns and timelines, so that loops of launches stay small."""
        for known in self.launches[-_LOOK_BACK:]:
            if known.is_like(launch):
                launch.buffers, launch.timelines = known.buffers, known.timelines
                break
        self.launches.append(launch)

    @property
    def total(self) -> Figures:
        """The sum over all launches."""
        return total(line for launch in self.launches for line in launch.lines)

    @property
    def shared_wavefronts(self) -> int:
        """The passes that shared memory took for all requests."""
        return self.total.shared_wavefronts

    @property
    def shared_wavefronts_ideal(self) -> int:
        """The fewest passes that the same requests could take."""
        return self.total.shared_wavefronts_ideal

    @property
    def global_sectors(self) -> int:
        """The sectors of 32 bytes that all requests of global memory touched."""
        return self.total.global_sectors

    @property
    def global_sectors_ideal(self) -> int:
        """The fewest sectors that could hold the bytes asked for, request by request."""
        return self.total.global_sectors_ideal

    def by_line(self) -> list[Line]:
        """Return the figures of each source line over all launches, by file and line."""
        found: dict[tuple[str | None, int | None], Line] = {}
        for launch in self.launches:
            for line in launch.lines:
                found.setdefault((line.file, line.line), Line(location=line.location)).add(line)
        return sorted(found.values(), key=lambda line: (line.file or "", line.line or 0))

    @property
    def remarks(self) -> list[Remark]:
        """What could be faster, line by line: bank conflicts with the layouts that mend them, and narrow copies."""
        return self.report().remarks

    def report(self, gpu: str = DEFAULT_GPU) -> Report:
        """Return the report, with bounds and occupancy for a GPU: print it, or `.save("report.html")` it.

        Raises `ArgumentError` for a GPU that is not in the table (`tilewright.profile.gpus`).
        """
        from tilewright.profile.report import report

        return report(self, gpu)


def total(figures: Iterable[Figures]) -> Figures:
    """Return the sum of figures."""
    result = Figures()
    for each in figures:
        result.add(each)
    return result
