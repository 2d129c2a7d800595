"""The Hopper family of `tw.grouped_matmul`: which configurations compute ragged groups, what is predicted, the launch.

The kernel is `_grouped_hopper_kernel`. Configurations, their plans and what they take are those of the Hopper family of
`tw.matmul`, without splits of K, swapped operands and clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import bfloat16, float16
from tilewright.kernels._grouped_hopper_kernel import grouped_warpgroups, listed_warpgroups
from tilewright.kernels.grouped_plan import GroupedPlan, Ragged, listed_plan
from tilewright.kernels.hopper import SPARE_BYTES, Hopper
from tilewright.kernels.hopper_plan import (
    CONSUMERS,
    ROWS,
    THREADS,
    HopperConfiguration,
    HopperPlan,
    instruction_for,
    plan_for,
)
from tilewright.kernels.model import Machine, Prediction
from tilewright.kernels.problem import Operand, Problem, Types
from tilewright.launch import Launcher
from tilewright.layout import tile_to_shape
from tilewright.schedulers import Grouped, Groups
from tilewright.tiled import make_tiled_copy_C, make_tiled_mma

MAPS = 2 * 16  # elements of uint64 that a block's tensor maps take
_MAP_BYTES = 128  # where each warp may make a map
_TYPES = (float16, bfloat16)
# Consumers that share a tile stand still together while they store it: of nine products on an H200 (4096 -> 14336, 8
# experts, 512 to 32768 rows) they took so many times longer than predicted than consumers in ping-pong did.
_STANDING = 1.04
_SWIZZLES = ((128, atoms.GMMA_K_SW128), (64, atoms.GMMA_K_SW64), (32, atoms.GMMA_K_SW32))  # bytes of a row


@dataclass(frozen=True)
class RaggedProblem:
    """Products of ragged groups: extents of the kernel's modes, that of the ragged one for all groups together.

    Of a list of so many matrices ("none" is ragged) the extents are means.

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
        if self.ragged != "K":
            b *= self.groups
        if self.ragged != "M":
            d *= self.groups
        if self.ragged == "none":
            a *= self.groups
        return a * self.a.dtype.bytes + b * self.b.dtype.bytes + d * self.d.dtype.bytes

    def alike(self, rows: int = 1) -> Problem:
        """Return the problem of one product with as much work, where each group begins a tile of so many rows."""
        m, k, batch = self.m, self.k, 1
        if self.ragged == "M":  # at the mean half of a group's last tile is not the group's
            m = math.ceil(m / rows + min(self.groups, m) / 2) * rows
        elif self.ragged == "K":
            k, batch = -(-k // self.groups), self.groups
        else:
            batch = self.groups
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
        found = []
        family, alike = Hopper(), problem.alike()
        for c in family.configurations(alike, machine.arch):
            assert isinstance(c, HopperConfiguration), c
            c = replace(c, blocks=machine.multiprocessors)
            # Of 18 products on an H200 clusters of two were the fastest for none, and took up to 1.6 times as long: of
            # a group with an odd number of rows of tiles they compute one more.
            is_ours = c.splits == c.cluster == 1 and not c.is_swapped
            if is_ours and family.resources(alike, c, machine.arch).rejection is None:
                found.append(c)
        return found

    def predict(self, problem: RaggedProblem, configuration: HopperConfiguration, machine: Machine) -> Prediction:
        """Return what a configuration takes: as one product with as many tiles, and with the bytes of all groups."""
        c, family = configuration, Hopper()
        alike = problem.alike(c.tile[0])
        found = family.predict(alike, c, family.resources(alike, c, machine.arch), machine)
        standing = 1 if c.is_ping_pong else _STANDING
        return replace(found, compute_us=found.compute_us * standing, memory_us=problem.bytes / machine.bandwidth)

    def choose(self, problem: RaggedProblem, machine: Machine) -> HopperConfiguration | None:
        """Return the configuration that is predicted to be fastest; of those that memory bounds, the largest tile."""

        def cost(c: HopperConfiguration) -> tuple[float, int]:
            return self.predict(problem, c, machine).us, -c.tile[0] * c.tile[1]

        return min(self.configurations(problem, machine), key=cost, default=None)

    def launch(self, problem: RaggedProblem, c: HopperConfiguration, arch: Arch) -> tuple[Launcher, GroupedPlan]:
        """Return what launches a configuration, and the plan that it takes."""
        plan, buffers = _plan(problem, c, arch)
        order = Groups(Grouped(c.group))
        if problem.ragged == "none":
            launched = replace(listed_plan(plan, problem.d, problem.a, problem.b, order), buffers=buffers)
            return listed_warpgroups.configure(min_blocks=1)[c.blocks, THREADS], launched
        launched = GroupedPlan(problem.ragged, order, plan, majors=(problem.a.major, problem.b.major), buffers=buffers)
        m, n, _ = c.tile
        rows = -(-problem.m // m) + problem.groups if problem.ragged == "M" else -(-problem.m // m) * problem.groups
        blocks = max(min(rows * -(-problem.n // n), c.blocks), 1)
        return grouped_warpgroups.configure(min_blocks=1)[blocks, THREADS], launched


def _plan(problem: RaggedProblem, c: HopperConfiguration, arch: Arch) -> tuple[HopperPlan, int]:
    """Return the plan of a tile, and how many buffers each consumer has for its results.

    Results leave a row of a swizzle at a time, from one buffer while the next one is filled. Consumers in ping-pong
    have buffers of their own, too, at the price of a stage where shared memory has no room for them.
    """
    alike = problem.alike()
    d, (_, n, _), plan = alike.d.dtype, c.tile, plan_for(alike, c, arch)
    if not plan.stores_boxes:
        return plan, 1
    bytes, make = next((bytes, make) for bytes, make in _SWIZZLES if n * d.bytes % bytes == 0)
    columns = bytes // d.bytes
    room, both = arch.shared_bytes_optin - SPARE_BYTES, CONSUMERS * ROWS * bytes
    if problem.ragged == "none":
        room -= 2 * THREADS // 32 * _MAP_BYTES
    stages = min(c.stages, (room - both) // plan.stage_bytes)
    most = (room - stages * plan.stage_bytes) // both
    parts = n // columns
    buffers = max(count for count in range(1, parts + 1) if parts % count == 0 and count <= most)
    part = make_tiled_mma(instruction_for(alike.a.dtype, alike.b.dtype, columns, ("K", "K"), alike.compute))
    found = replace(
        plan_for(alike, replace(c, stages=stages), arch),
        part=part,
        write=make_tiled_copy_C(plan.write.atom, part),
        smem_d=tile_to_shape(make(d), (ROWS, columns, CONSUMERS * buffers)),
    )
    return found, buffers
