"""The multistage family: a ring of tiles of K filled by cp.async, multiplied by mma.sync or fused multiply-adds.

For every element type and every target; without cp.async (before sm_80) the copies go through registers. The kernel is
`_multistage_kernel`, and `multistage_plan` what it knows at compile time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from tilewright import dtypes as t
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType
from tilewright.errors import LayoutError
from tilewright.kernels._multistage_kernel import matmul_tiles
from tilewright.kernels.family import Family, KernelLaunch, LayoutNeeds, Needs, Resources
from tilewright.kernels.functions import ElementFunction
from tilewright.kernels.further import Parts, launch_further
from tilewright.kernels.model import (
    Machine,
    Prediction,
    StepTimes,
    Tiling,
    lack_of_shared,
    predict_waves,
    resident_blocks,
)
from tilewright.kernels.multistage_plan import Plan, instruction_for, plan_for
from tilewright.kernels.problem import BLOCK, Configuration, Operand, Problem
from tilewright.kernels.split_k import launch_splits, sums_problem, with_splits
from tilewright.launch import Kernel
from tilewright.trace.host_numbers import NumberUse

# Blocks along M before the next along N: between 8 and 64, what an H200 does at 4096 and 8192 cubed hardly differs.
_GROUP = 32

# Tile, warps and stages of the configurations for each type that the instruction takes, and the microseconds of a step
# of K on an H200 with 1, 2, ... tiles on each multiprocessor: measured by `python -m benchmarks.matmul_model` on random
# normal data; benchmarks/results/matmul_model_h200.json holds the record.
#
# A row of a tile along K is 64 or 128 bytes: whole sectors of memory, and all banks of shared memory with a swizzle.
# Large tiles read least, and small ones fill the multiprocessors where the matrices are small.
_Table = Mapping[Tiling, tuple[float, ...]]
_Tilings = Mapping[DType, Sequence[Tiling]]
_HALF: _Table = {
    ((128, 256, 64), (2, 4), 3): (1.020,),
    ((128, 128, 64), (2, 4), 4): (0.658,),
    ((128, 64, 64), (2, 2), 4): (0.379, 0.666),
    ((64, 128, 64), (2, 2), 4): (0.398, 0.718),
    ((64, 64, 64), (2, 2), 4): (0.252, 0.414, 0.611),
    ((64, 64, 128), (2, 2), 3): (0.488, 0.839),
    ((32, 64, 128), (1, 2), 4): (0.405, 0.549),
    ((32, 32, 128), (1, 1), 4): (0.405, 0.429, 0.511),
}
_INTEGER: _Table = {
    ((128, 256, 128), (2, 4), 3): (1.041,),
    ((128, 256, 64), (2, 4), 4): (0.549,),
    ((128, 128, 128), (2, 4), 3): (0.621,),
    ((128, 64, 128), (2, 2), 4): (0.334, 0.638),
    ((64, 64, 128), (2, 2), 4): (0.170, 0.389, 0.583),
    ((32, 64, 128), (1, 2), 4): (0.149, 0.215, 0.403, 0.450),
}
# The instructions of these are emulated on Hopper, with registers of their own.
_FLOAT8: _Table = {
    ((128, 128, 64), (2, 4), 4): (0.620,),
    ((64, 64, 128), (2, 2), 4): (0.387, 0.720, 1.084),
}
_STEPS_US: Mapping[DType, _Table] = MappingProxyType(
    {
        t.float16: _HALF,
        t.bfloat16: _HALF,
        t.tfloat32: {
            ((128, 256, 32), (2, 4), 3): (1.068,),
            ((128, 128, 32), (2, 4), 4): (0.615,),
            ((128, 64, 32), (2, 2), 4): (0.411, 0.688),
            ((64, 64, 32), (2, 2), 4): (0.271, 0.436, 0.645),
            ((32, 64, 32), (1, 2), 4): (0.210, 0.288, 0.407, 0.478),
        },
        t.float8_e4m3fn: _FLOAT8,
        t.float8_e5m2: _FLOAT8,
        t.int8: _INTEGER,
        t.uint8: _INTEGER,
        t.float64: {
            ((128, 128, 16), (2, 4), 3): (1.091,),
            ((128, 64, 16), (4, 2), 4): (0.549,),
            ((64, 64, 16), (2, 2), 4): (0.331, 0.565, 0.870),
            ((32, 64, 16), (1, 2), 4): (0.316, 0.325, 0.574, 0.572),
        },
        t.float32: {
            ((128, 256, 8), (2, 4), 4): (1.304,),
            ((128, 128, 8), (2, 4), 4): (0.700,),
            ((64, 256, 8), (1, 4), 4): (0.831, 1.612),
            ((128, 64, 8), (2, 2), 4): (0.474, 0.813, 1.120),
            ((64, 128, 8), (1, 4), 4): (0.455, 0.801, 1.109),
            ((100, 100, 25), (1, 4), 3): (2.800, 3.913, 5.329),
            ((64, 64, 8), (2, 2), 4): (0.300, 0.522, 0.771, 1.025),
            ((64, 64, 8), (1, 2), 4): (0.417, 0.436, 0.749, 0.789, 1.126, 1.141),
            ((64, 32, 16), (2, 1), 4): (0.499, 0.608, 1.100, 1.161, 1.545, 1.727, 2.120, 2.244),
            ((32, 32, 16), (1, 1), 4): (0.485, 0.546, 0.637, 0.675, 1.02, 1.03, 1.13, 1.26, 1.62, 1.68, 1.77, 1.89),
        },
    }
)
STEP_TIMES = StepTimes(_STEPS_US)

# Tilings for sums of splits alone, whose threads are no whole warps, as epilogues need them; and for how many blocks a
# multiprocessor the compiler shall leave registers, where no edges need them. Of other tilings one will do: left to
# itself it would spill registers to make room for more. Here it takes more than it needs.
_BLOCKS: Mapping[Tiling, int] = MappingProxyType({((100, 100, 25), (1, 4), 3): 3})

# How much longer a step of products in parts takes than its products: fragments are cut, and chunks added. What the
# fastest at 4096 cubed took on an H200 (1.26 times of tf32x3; 1.9 and 1.6 of bf16x6 and bf16x9).
_CUTTING: Mapping[DType, float] = MappingProxyType({t.tfloat32: 1.26, t.bfloat16: 1.75})
# Of tf32x3 in tiles of 128 x 128 (478 us for 100 x 100 x 1000000, 271 for 2048 cubed) and of 32 x 64 (11 us for 1121 x
# 198 x 213, where 64 x 64 takes 9.7).
_CUTTING_OF = {(128, 128): 1.04, (32, 64): 1.4}

# Of a step that multiplies by tensor cores, for each further copy that its rows need in place of one of 16 bytes: on an
# H200 1.2 to 1.3 times as long by 8 bytes, and 1.5 to 2.6 times by 4.
_NARROW = 0.3

# Of results that are divided by scales, beside those of the table that take too much shared memory, or where none has a
# width for them. The formula of `StepTimes` predicts them.
_WIDE: _Tilings = MappingProxyType(
    {
        t.tfloat32: (((64, 256, 16), (2, 4), 3),),
        **dict.fromkeys((t.float16, t.bfloat16), (((64, 256, 32), (2, 4), 3),)),
        **dict.fromkeys((t.float8_e4m3fn, t.float8_e5m2), (((64, 256, 64), (2, 4), 3),)),
    }
)

# Of products in parts, by the type of a part: those for which NVRTC 13 spills no registers. The parts and the sums of
# chunks take them, beside the accumulators. The formula of `StepTimes` predicts them.
_IN_PARTS: _Tilings = MappingProxyType(
    {
        t.tfloat32: (
            ((128, 128, 16), (2, 4), 4),
            ((64, 128, 16), (2, 4), 4),
            ((128, 64, 16), (2, 2), 4),
            ((64, 64, 32), (2, 2), 3),
            ((32, 64, 32), (1, 2), 4),
        ),
        t.bfloat16: (
            ((64, 128, 32), (2, 4), 3),
            ((128, 64, 32), (4, 2), 3),
            ((64, 64, 32), (2, 2), 3),
            ((32, 64, 32), (1, 2), 4),
        ),
    }
)

# Those for which NVRTC 13 spills a few bytes when there are edges: element type, tile, and majors of A and B. With
# splits of K there are more.
_WITHOUT_EDGES = {
    (t.float64, (128, 128, 16), "KMN"),
    (t.float64, (128, 128, 16), "MNK"),
    (t.tfloat32, (128, 256, 32), "MNK"),
}
_SPLIT_WITHOUT_EDGES = {*_WITHOUT_EDGES, (t.float64, (128, 128, 16), "KK")}


class Multistage(Family):
    """Several tiles of K in shared memory, and one tile of D in each block."""

    name = "multistage"
    takes_parts = True
    takes_further = True
    takes_pairs = True

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return the table for the element type, and each of it with splits of K."""
        tilings = tuple(_STEPS_US.get(problem.compute, ())) if problem.parts is None else _IN_PARTS[problem.parts.part]
        whole = [Configuration(tile, warps, stages, _GROUP) for tile, warps, stages in tilings]
        if problem.quantises:  # a tile has whole blocks of columns
            whole += [Configuration(*x, _GROUP) for x in _WIDE.get(problem.compute, ()) if not problem.parts]
            whole = [c for c in whole if c.tile[1] // (1 + problem.is_gated) % BLOCK == 0]
        if problem.blocks:  # a step of K is of one block
            whole = [c for c in whole if BLOCK % c.tile[2] == 0]
        alone = [c for c in whole if _tiling(c) not in _BLOCKS]
        if problem.is_gated:  # sums of splits would be of all columns
            return alone
        return [*alone, *(c for x in whole for c in with_splits(x, problem, arch, _BLOCKS.get(_tiling(x), 4)))]

    def needs(self, problem: Problem) -> Needs:
        """Return the layouts that the tile loader reads: 4 bytes at a time at least, 8-bit elements along K.

        cp.async copies 4 bytes or more, and ldmatrix transposes elements of 16 bits but none of 8. Elements of 4 bytes
        and more are copied one by one where nothing wider is possible.
        """
        return Needs(a=_needs_of(problem.a), b=_needs_of(problem.b))

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        m, n, _ = configuration.tile
        accumulators = m * n * problem.accumulator.bits // 32 // configuration.threads * (2 if problem.blocks else 1)
        if instruction_for(problem.compute, problem.a.dtype, problem.b.dtype, arch) is None:
            return Resources(0, accumulators, f"{arch} has no matrix instruction for {problem.compute}")
        try:
            shared = _plan_for(problem, configuration, arch).shared_bytes
        except LayoutError as error:
            return Resources(0, accumulators, error.summary)
        rejection = _rejection(configuration, arch, shared, accumulators) or _rejection_at_edges(problem, configuration)
        return Resources(shared, accumulators, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        blocks = _resident(problem, configuration, resources, machine.arch)
        parts, narrowest = problem.parts, min(problem.a.alignment, problem.b.alignment)
        products = 1 if parts is None else len(parts.products)
        steps_us = STEP_TIMES.steps_us(problem.compute, configuration, blocks, machine, products)
        if parts is not None:
            cutting = _CUTTING[parts.part]
            if parts.part is t.tfloat32:
                cutting = _CUTTING_OF.get(configuration.tile[:2], cutting)
            steps_us = tuple(cutting * us for us in steps_us)
        elif problem.compute.bytes < 8 and problem.compute is not t.float32:
            steps_us = tuple((1 + _NARROW * (VECTOR_BYTES / narrowest - 1)) * us for us in steps_us)
        return predict_waves(problem, configuration, blocks, steps_us, machine)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        plan, splits = _plan_for(problem, configuration, arch), configuration.splits
        numbers: tuple[NumberUse, ...] = ()
        if isinstance(problem.epilogue, ElementFunction):
            numbers = problem.epilogue.uses(problem.accumulator, problem.elements, arch)
        tile_m, tile_n, _ = configuration.tile
        tile_n //= 1 + problem.is_gated
        blocks = -(-problem.m // tile_m) * -(-problem.n // tile_n) * problem.batch * splits
        if splits > 1:
            first = _kernel(len(problem.blocks), _blocks(problem, configuration, arch))[blocks, plan.threads]
            return launch_splits(problem, splits, arch, first, plan, numbers)
        plan = replace(plan, epilogue=replace(plan.epilogue, numbers=numbers))
        further = len(problem.blocks) + len(problem.operands) + len(problem.further) + len(numbers)
        launcher = _kernel(further)[blocks, plan.threads]
        parts = Parts(of_rows=-(-problem.n // tile_n), of_columns=-(-problem.m // tile_m))
        return launch_further(problem, parts, launcher, plan, numbers)


def _plan_for(problem: Problem, configuration: Configuration, arch: Arch) -> Plan:
    return plan_for(sums_problem(problem) if configuration.splits > 1 else problem, configuration, arch)


@cache
def _kernel(further: int, blocks: int = 1) -> Kernel:
    return matmul_tiles.numbered(further).configure(min_blocks=blocks)


def _tiling(configuration: Configuration) -> Tiling:
    return configuration.tile, configuration.warps, configuration.stages


def _blocks(problem: Problem, configuration: Configuration, arch: Arch) -> int:
    """Return for how many blocks a multiprocessor the compiler shall leave registers."""
    asked = _BLOCKS.get(_tiling(configuration), 1)
    is_whole = asked == 1 or not _plan_for(problem, configuration, arch).has_edges
    return asked if is_whole and problem.a.alignment == problem.b.alignment == VECTOR_BYTES else 1


def _resident(problem: Problem, configuration: Configuration, resources: Resources, arch: Arch) -> int:
    """Return how many blocks a multiprocessor holds."""
    asked, threads, shared = _blocks(problem, configuration, arch), configuration.threads, resources.shared_bytes
    if asked > 1:
        return min(asked, resident_blocks(threads, 0, shared, arch))
    return resident_blocks(threads, resources.accumulators, shared, arch)


def _needs_of(operand: Operand) -> LayoutNeeds:
    if operand.dtype.bytes >= 4:
        return LayoutNeeds()
    return LayoutNeeds(("K",) if operand.dtype.bits == 8 else ("K", "MN"), alignment=4)


def _rejection(configuration: Configuration, arch: Arch, shared: int, accumulators: int) -> str | None:
    """Reject what a block of the target cannot have."""
    if shared > arch.shared_bytes_optin:
        return lack_of_shared(shared, arch)
    if configuration.threads > arch.threads_per_block:
        return f"{configuration.threads} threads; a block of {arch} has {arch.threads_per_block}"
    # Addresses, fragments and loop counters take some 40 registers beside the accumulators.
    if accumulators + 40 > arch.registers_per_thread:
        return f"{accumulators} registers a thread for the accumulators alone; there are {arch.registers_per_thread}"
    return None


def _rejection_at_edges(problem: Problem, configuration: Configuration) -> str | None:
    """Reject what would spill registers because it has edges to look after."""
    found = _WITHOUT_EDGES if configuration.splits == 1 else _SPLIT_WITHOUT_EDGES
    if (problem.compute, configuration.tile, problem.a.major + problem.b.major) not in found:
        return None
    extents = zip("MNK", (problem.m, problem.columns, problem.k), configuration.tile, strict=True)
    edges = [f"{mode} is not a multiple of {tile}" for mode, extent, tile in extents if extent % tile]
    return f"{edges[0]}, and no registers are left for what edges need" if edges else None
