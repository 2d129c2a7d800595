"""The Hopper family of `tw.grouped_matmul`: which configurations compute ragged groups, what is predicted, the launch.

The kernel is `_grouped_hopper_kernel`. Configurations, their plans and what they take are those of the Hopper family of
`tw.matmul`, without splits of K, swapped operands and clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.kernels._grouped_hopper_kernel import grouped_warpgroups
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_plan import CONSUMERS, ROWS, THREADS, HopperConfiguration, HopperPlan, plan_for
from tilewright.kernels.model import Machine, Prediction
from tilewright.kernels.multistage_plan import Plan
from tilewright.kernels.problem import Operand, Problem, Types
from tilewright.launch import Launcher
from tilewright.pickling import hashed_once
from tilewright.schedulers import Grouped, Groups

Ragged = Literal["M", "K", "none"]

_TYPES = (float16, bfloat16)
# Consumers that share a tile stand still together while they store it: of nine products on an H200 (4096 -> 14336, 8
# experts, 512 to 32768 rows) they took so many times longer than predicted than consumers in ping-pong did.
_STANDING = 1.04
# Tiles of 64 rows have fewer that belong to no group, and take more from L2: over 15 products (as above, and of 64
# experts) the choice takes 1.025 of the best time with this factor, and 1.027 without.
_LOW = 1.04
# Up to so many rows of a group at the mean, consumers that share a tile leave out what the group has no rows for: it
# takes 0.96 and 0.97 of the time with 512 rows (as above), 0.89 with 256 and 0.93 with 1024.
_FEW = 128


@hashed_once
@dataclass(frozen=True)
class GroupedPlan:
    """Which mode is ragged, in which order tiles come, and a tile's plan.

    For lists of matrices: element types of D, A and B, their unit modes and least alignments. For the Hopper kernel:
    the contiguous modes of A and B, and whether it `skips` the rows that a tile has and its group has not. `fills` says
    whether results after the last offset become 0.
    """

    ragged: Ragged
    scheduler: Groups
    plan: Plan | HopperPlan
    dtypes: tuple[DType, ...] = ()
    units: tuple[int | None, ...] = ()
    alignments: tuple[int, ...] = ()
    majors: tuple[str, ...] = ()
    fills: bool = True
    skips: bool = False

    @property
    def rest(self) -> int:
        """How many groups follow those of the offsets: one of the rows that belong to none, where they become 0."""
        return 1 if self.ragged == "M" and self.fills else 0


@dataclass(frozen=True)
class RaggedProblem:
    """Products of ragged groups: extents of the kernel's modes, that of the ragged one for all groups together.

    `a`, `b` and `d` say how the whole arrays lie: a tensor map reaches every element, so groups may begin anywhere.
    """

    ragged: Ragged
    m: int
    n: int
    k: int
    groups: int
    a: Operand
    b: Operand
    d: Operand
    types: Types

    @property
    def bytes(self) -> int:
        """The bytes that pass between device memory and the multiprocessors when each element passes once."""
        a, b, d = self.m * self.k, self.n * self.k, self.m * self.n
        if self.ragged == "M":
            b *= self.groups
        else:
            d *= self.groups
        return a * self.a.dtype.bytes + b * self.b.dtype.bytes + d * self.d.dtype.bytes

    def alike(self, rows: int = 1) -> Problem:
        """Return the problem of one product with as much work, where each group begins a tile of so many rows."""
        m, k, batch = self.m, self.k, 1
        if self.ragged == "M":  # at the mean half of a group's last tile is not the group's
            m = math.ceil(m / rows + min(self.groups, m) / 2) * rows
        else:
            k, batch = -(-k // self.groups), self.groups
        t = self.types
        return Problem(m, self.n, k, batch, self.a, self.b, self.d, t.compute, t.accumulator)


class GroupedHopper:
    """TMA, wgmma and roles, on GPUs of sm_90a."""

    is_simulated = False  # as the Hopper family of tw.matmul

    def configurations(self, problem: RaggedProblem, machine: Machine) -> Sequence[HopperConfiguration]:
        """Return the configurations that take a problem; none for other targets, element types and layouts."""
        operands = problem.a, problem.b
        if machine.arch.name != "sm_90a" or problem.types.compute not in _TYPES or not problem.m * problem.k:
            return ()
        if any(x.major == "none" or x.alignment < VECTOR_BYTES for x in operands):
            return ()
        # Groups begin anywhere, and TMA's boxes at multiples of 16 bytes along the contiguous mode.
        if problem.a.major == "MN" if problem.ragged == "M" else any(x.major == "K" for x in operands):
            return ()
        found = []
        family, alike = Hopper(), problem.alike()
        for c in (*family.configurations(alike, machine.arch), *family.fitted(alike, machine)):
            assert isinstance(c, HopperConfiguration), c
            c = replace(c, blocks=machine.multiprocessors)
            # Of 18 products on an H200 clusters of two were the fastest for none, and took up to 1.6 times as long: of
            # a group with an odd number of rows of tiles they compute one more.
            is_ours = c.splits == c.cluster_size == 1 and c.threads == THREADS and not (c.is_swapped or c.streams)
            # Beside more accumulators the ends of groups are spilled.
            is_ours = is_ours and (not c.is_ping_pong or c.tile[0] * c.tile[1] <= 128 * 128)
            if is_ours and family.resources(alike, c, machine.arch).rejection is None:
                found.append(c)
        return found

    def predict(self, problem: RaggedProblem, configuration: HopperConfiguration, machine: Machine) -> Prediction:
        """Return what a configuration takes: as one product with as many tiles, and with the bytes of all groups."""
        c, family = configuration, Hopper()
        alike = problem.alike(c.tile[0])
        found = family.predict(alike, c, family.resources(alike, c, machine.arch), machine)
        factor = (1 if c.is_ping_pong else _STANDING) * (_LOW if c.tile[0] == ROWS else 1)
        if _skips(problem, c):
            factor *= problem.alike(ROWS).m / alike.m
        return replace(found, compute_us=found.compute_us * factor, memory_us=problem.bytes / machine.bandwidth)

    def choose(self, problem: RaggedProblem, machine: Machine) -> HopperConfiguration | None:
        """Return the configuration that is predicted to be fastest; of those that memory bounds, the largest tile."""

        def cost(c: HopperConfiguration) -> tuple[float, int]:
            return self.predict(problem, c, machine).us, -c.tile[0] * c.tile[1]

        return min(self.configurations(problem, machine), key=cost, default=None)

    def launch(self, problem: RaggedProblem, c: HopperConfiguration, arch: Arch) -> tuple[Launcher, GroupedPlan]:
        """Return what launches a configuration, and the plan that it takes."""
        plan = plan_for(problem.alike(), c, arch)
        majors, skips = (problem.a.major, problem.b.major), _skips(problem, c)
        launched = GroupedPlan(problem.ragged, Groups(Grouped(c.group)), plan, majors=majors, skips=skips)
        m, n, _ = c.tile
        rows = -(-problem.m // m) + problem.groups if problem.ragged == "M" else -(-problem.m // m) * problem.groups
        blocks = max(min(rows * -(-problem.n // n), c.blocks), 1)
        return grouped_warpgroups.configure(min_blocks=1)[blocks, THREADS], launched


def _skips(problem: RaggedProblem, c: HopperConfiguration) -> bool:
    """Say whether a configuration leaves out the half of a tile that its group has no rows for."""
    is_few = problem.ragged == "M" and problem.m <= _FEW * problem.groups
    return is_few and not c.is_ping_pong and c.tile[0] == CONSUMERS * ROWS
