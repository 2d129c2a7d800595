"""What is worked out of a launch's figures for a GPU: roofline, other limits of throughput, occupancy, conflicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.arch import Gpu, blocks_allowed
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.figures import Launch
from tilewright.profile.caches import CacheUse, use_of
from tilewright.profile.conflicts import Conflict, conflicts_of
from tilewright.remarks import Remark
from tilewright.transactions import SECTOR

# Index arithmetic and control, of which compilers save most: counted, but no bound.
_SAVED = frozenset({"integer", "select", "convert", "branch"})


@dataclass(frozen=True)
class Limit:
    """A resource that a launch uses, and the seconds that it takes at least because of it."""

    name: str
    amount: float
    rate: float

    @property
    def seconds(self) -> float:
        """The amount at the peak rate."""
        return self.amount / self.rate


@dataclass(frozen=True)
class Bounds:
    """The limits of a launch on a GPU, the longest first. `unknown` are units that the table has no rate for.

    `intensity` is operations for each byte of DRAM, `attainable` the operations a second that the roofline allows:
    min(peak, intensity * bandwidth) with the peak of the mix of units that the launch uses, all of them busy at once;
    infinite where no unit has a rate. `reachable` is what all limits together allow: shared memory or the issue of
    instructions may hold a launch below the roof.
    """

    gpu: Gpu
    limits: tuple[Limit, ...]
    unknown: tuple[str, ...]
    flops: int
    touched_bytes: int
    peak: float

    @property
    def intensity(self) -> float:
        """Operations for each byte that DRAM must move; 0 without operations, infinite without bytes."""
        if not self.touched_bytes:
            return float("inf") if self.flops else 0.0
        return self.flops / self.touched_bytes

    @property
    def attainable(self) -> float:
        """The operations a second under the roofline."""
        return min(self.peak, self.intensity * self.gpu.bandwidth) if self.flops else 0.0

    @property
    def reachable(self) -> float:
        """The operations a second at the longest of all limits."""
        longest = self.longest
        return self.flops / longest.seconds if self.flops and longest is not None else 0.0

    @property
    def why_no_point(self) -> str | None:
        """Why the launch has no point in a roofline plot; None where it has one."""
        if not self.flops:
            return "no point: a roofline counts floating-point arithmetic and matrix products, and the launch has none"
        if not self.touched_bytes:
            return "no point: the launch moves nothing from or to DRAM, whose bytes a roofline counts operations for"
        return None

    @property
    def longest(self) -> Limit | None:
        """The limit that takes longest; None for a launch that does nothing."""
        return self.limits[0] if self.limits else None


def issued(instructions: Mapping[str, int]) -> int:
    """Return how many instructions are sure to be issued: those that no compiler saves."""
    return sum(count for name, count in instructions.items() if name not in _SAVED)


def bounds_of(launch: Launch, gpu: Gpu) -> Bounds:
    """Return what a launch takes at least on a GPU: each resource at its peak rate, all of them at once."""
    total = launch.total
    limits = [
        Limit("DRAM", launch.touched_bytes, gpu.bandwidth),
        Limit("shared memory", total.shared_wavefronts + total.operand_wavefronts, gpu.shared_wavefronts),
        Limit("instruction issue", issued(total.instructions), gpu.issue_slots),
    ]
    if gpu.l2_bandwidth is not None:  # what bulk copies move, and nothing that L1 may hold
        limits.append(Limit("L2", SECTOR * total.bulk_sectors, gpu.l2_bandwidth))
    unknown = []
    work_seconds = 0.0  # of the busiest unit
    for unit, count in sorted(total.operations.items()):
        rate = gpu.rates.get(unit)
        if rate is None:
            unknown.append(unit)
            continue
        limits.append(Limit(f"{unit} arithmetic", count, rate))
        work_seconds = max(work_seconds, count / rate)
    peak = total.flops / work_seconds if work_seconds else float("inf") if total.flops else gpu.rates["float32"]
    found = sorted((limit for limit in limits if limit.amount), key=lambda limit: -limit.seconds)
    return Bounds(gpu, tuple(found), tuple(unknown), total.flops, launch.touched_bytes, peak)


@dataclass(frozen=True)
class LaunchOccupancy:
    """How many blocks and warps a multiprocessor holds, and what keeps it from more.

    `limits` gives the blocks that each resource allows; `limiter` names the least of them. `registers` is None where
    no compiler reported them; then they are not counted, and `problem` says why.
    """

    blocks: int
    warps: int
    most_warps: int
    limits: dict[str, int]
    limiter: str
    registers: int | None
    shared_bytes: int
    spills: bool
    arch: str
    problem: str | None

    @property
    def share(self) -> float:
        """The warps held of those that a multiprocessor can hold."""
        return self.warps / self.most_warps


def occupancy_of(launch: Launch, gpu: Gpu) -> LaunchOccupancy:
    """Return the occupancy of a launch on a GPU, from the compiler's registers and shared memory."""
    arch, compiled, problem = gpu.arch, None, None
    try:
        compiled = launch.compile() if launch.compile is not None else None
        if compiled is None:
            problem = "the launch had no compiled form"
    except TilewrightError as error:
        problem = error.summary
    shared = compiled.shared_bytes if compiled is not None else launch.shared_bytes_per_block
    registers = compiled.registers if compiled is not None else None
    limits = blocks_allowed(arch, threads=launch.threads, registers=registers, shared_bytes=shared)
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    return LaunchOccupancy(
        blocks, blocks * arch.warps_of(launch.threads), arch.warps_per_multiprocessor, limits, limiter,
        registers, shared, compiled is not None and compiled.spills,
        compiled.arch if compiled is not None else launch.arch, problem,
    )  # fmt: skip


@dataclass(frozen=True)
class Achieved:
    """What a launch reached that took some seconds: rates, and their shares of the limits of a GPU.

    `of_peak` is the share of the arithmetic peak, `of_roofline` that of what the roofline allows, both of operations a
    second; `of_bandwidth` that of DRAM's bandwidth, for the bytes that DRAM moves at least. `of_bound` is the time that
    the longest limit takes, as a share of the seconds. All are 0 where there is nothing of the kind.
    """

    seconds: float
    flops_per_second: float
    of_peak: float
    of_roofline: float
    bytes_per_second: float
    of_bandwidth: float
    bound: str
    of_bound: float


def achieved_in(bounds: Bounds, seconds: float) -> Achieved:
    """Return what a launch reached that took so many seconds on the GPU of its bounds; 0 seconds are refused."""
    if not seconds > 0:
        raise ArgumentError(f"a launch takes more than {seconds!r} seconds", help="measure it with tw.bench.do_bench")
    rate, moved, longest = bounds.flops / seconds, bounds.touched_bytes / seconds, bounds.longest
    roof = bounds.attainable
    return Achieved(
        seconds, rate, rate / bounds.peak, rate / roof if roof else 0.0,
        moved, moved / bounds.gpu.bandwidth,
        "nothing" if longest is None else longest.name, 0.0 if longest is None else longest.seconds / seconds,
    )  # fmt: skip


@dataclass(frozen=True)
class LaunchReport:
    """A launch with all that is worked out of its figures."""

    launch: Launch
    gpu: Gpu
    times: int = 1  # launches that were alike in all figures; `launch` is the first
    seconds: float | None = None  # that it took on the GPU, where it was measured

    @cached_property
    def achieved(self) -> Achieved | None:
        """What it reached on the GPU; None where its time was not measured."""
        return None if self.seconds is None else achieved_in(self.bounds, self.seconds)

    @cached_property
    def cache_uses(self) -> tuple[CacheUse, ...]:
        """What the second-level cache has of the lines that it reaches: as a whole, and as one of its partitions.

        Empty where the cache is not in the table, where the lines are those of a sample, or nothing was reached.
        """
        found, size = self.launch.cache_lines, self.gpu.l2_bytes
        if found is None or size is None or self.launch.is_sampled:
            return ()
        return tuple(use_of(found, size // parts) for parts in sorted({1, self.gpu.l2_partitions}))

    @cached_property
    def bounds(self) -> Bounds:
        """What bounds the launch on the GPU."""
        return bounds_of(self.launch, self.gpu)

    @cached_property
    def occupancy(self) -> LaunchOccupancy:
        """How many warps a multiprocessor holds."""
        return occupancy_of(self.launch, self.gpu)

    @cached_property
    def conflicts(self) -> list[Conflict]:
        """The buffers with bank conflicts."""
        return conflicts_of(self.launch.buffers)

    @property
    def remarks(self) -> list[Remark]:
        """What could be faster, line by line."""
        return [*(r for conflict in self.conflicts for r in conflict.remarks()), *self.launch.remarks]
