"""The family of float32 in parts on Hopper: a pass cuts A and B into parts, and wgmma multiplies these; sm_90a only.

A step of K brings a tile of every part and multiplies the pairs that `Parts.products` lists, so a tile that was brought
once takes part in several products. What a step sums up begins at 0 and is added in float32, as `precision` asks for.

The kernels are in `_hopper_parts_kernel`; plan, epilogue and stores are those of `hopper_plan` and `_hopper_kernel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any  # Any: views of any library

from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType, bfloat16, tfloat32
from tilewright.errors import LayoutError
from tilewright.kernels._hopper_parts_kernel import cut_tiles, matmul_parts
from tilewright.kernels._packing_kernel import THREADS as CUTTERS
from tilewright.kernels._packing_kernel import TILE
from tilewright.kernels.family import KernelLaunch, Needs, Resources, Workspace
from tilewright.kernels.functions import ElementFunction
from tilewright.kernels.hopper import Hopper, step_us
from tilewright.kernels.hopper_plan import CONSUMERS, SPARE_BYTES, THREADS, HopperConfiguration, HopperPlan, plan_for
from tilewright.kernels.model import Machine, Prediction, pass_us
from tilewright.kernels.precision import Parts
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.launch import Kernel
from tilewright.pickling import hashed_once
from tilewright.runtime.views import View
from tilewright.trace.host_numbers import NumberUse
from tilewright.transactions import ROW

_GROUP = 8  # tiles along M before the next along N
# Tile (M, N), bytes of a row of K, cluster. Measured on an H200 at 1024 to 8192 cubed; left out is what was never
# fastest, as rows of 64 bytes with tf32 (1.2 times as long) and its clusters (1.00 to 1.03).
_Shape = tuple[tuple[int, int], int, int]
_SHAPES: Mapping[DType, Sequence[_Shape]] = MappingProxyType(
    {
        tfloat32: (((128, 128), ROW, 1), ((128, 64), ROW, 1)),
        bfloat16: (
            ((128, 128), ROW, 1),
            ((128, 128), ROW, 2),
            ((128, 192), ROW // 2, 1),
            ((128, 64), ROW // 2, 1),
        ),
    }
)
# How much longer a step of 64 columns takes than its products: no others run while a consumer adds up those of a step,
# and the fewer a step has, the more that is. On an H200 at 3072 to 6144 cubed 1.2 to 1.46 (tf32), and 1.07 to 1.15.
_NARROW: Mapping[DType, float] = MappingProxyType({tfloat32: 1.3, bfloat16: 1.1})
_LEAST_STAGES = 2
_RESULT_BYTES = 256  # of a row of results that wait in shared memory


@dataclass(frozen=True)
class CutPlan:
    """How a matrix is cut: into which parts, and how many bytes are read at once along K (0: it is read across)."""

    parts: Parts
    vector: int


@hashed_once
@dataclass(frozen=True)
class PartsPlan:
    """What the kernel knows: the parts, how many tiles of K of all parts the ring holds, and the plan of a product.

    The product's layouts have a stage for each part of each of the ring's stages.
    """

    parts: Parts
    stages: int
    product: HopperPlan


class HopperParts(Hopper):
    """Parts cut by a pass of their own, and the Hopper family's products of them."""

    name = "hopper in parts"
    takes_parts = True
    fits = False
    takes_further = False

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return the tiles of the table; none for other targets, other precisions, and K = 0."""
        if arch.name != "sm_90a" or problem.parts is None or problem.k == 0:
            return ()
        return [_configuration(problem.parts, shape, arch) for shape in _SHAPES[problem.parts.part]]

    def needs(self, problem: Problem) -> Needs:
        """Return that any layout will do: the pass that cuts reads it as it lies."""
        return Needs()

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        assert isinstance(configuration, HopperConfiguration), configuration
        try:
            plan = parts_plan(problem, configuration, arch).product
        except LayoutError as error:
            return Resources(0, 0, error.summary)
        rejection = None
        if plan.shared_bytes + SPARE_BYTES > arch.shared_bytes_optin or configuration.stages < _LEAST_STAGES:
            rejection = f"shared memory for fewer than {_LEAST_STAGES} stages of all parts"
        return Resources(plan.shared_bytes, 2 * plan.accumulators, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        """Return the time of the products of parts, and of cutting A and B into them."""
        assert isinstance(configuration, HopperConfiguration) and problem.parts is not None, configuration
        parts = problem.parts
        found = super().predict(problem, configuration, resources, machine)
        memory = replace(_product(problem), k=problem.k * parts.count).bytes / machine.bandwidth
        bytes = problem.k * problem.batch * (4 + parts.count * parts.part.storage.bytes)
        cut = sum(pass_us(rows * bytes, machine) for rows in (problem.m, problem.n))
        return replace(found, memory_us=memory, packing_us=cut)

    def step_us(self, problem: Problem, c: HopperConfiguration, busy: int, machine: Machine) -> float:
        """Return the microseconds of a tile of K of all parts."""
        parts = problem.parts
        assert parts is not None, problem
        us = step_us(_product(problem), c, busy, machine, len(parts.products), parts.count)
        return us * _NARROW[parts.part] if c.tile[1] == 64 else us

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        assert isinstance(configuration, HopperConfiguration) and problem.parts is not None, configuration
        c, parts = configuration, problem.parts
        plan = parts_plan(problem, c, arch)
        numbers: tuple[NumberUse, ...] = ()
        if isinstance(problem.epilogue, ElementFunction):
            numbers = problem.epilogue.uses(problem.accumulator, problem.elements, arch)
        product = replace(plan.product, epilogue=replace(plan.product.epilogue, numbers=numbers))
        plan = replace(plan, product=product)
        m, n, _ = c.tile
        clusters = -(-problem.m // (m * c.cluster)) * -(-problem.n // n) * problem.batch
        blocks = max(min(clusters, c.blocks // c.cluster), 1) * c.cluster
        multiply = _kernel(len(problem.operands) + len(numbers), c.cluster)[blocks, THREADS]
        width = VECTOR_BYTES // parts.part.storage.bytes
        row = -(-problem.k // width) * width
        height = problem.m + problem.n
        workspace = Workspace(parts.part.storage, (height, row, parts.count * problem.batch), (row, 1, height * row))
        return KernelLaunch(_launch(problem, parts, multiply), plan, numbers, workspace=workspace)


def _launch(problem: Problem, parts: Parts, multiply: Any) -> Callable[..., None]:
    """Return what cuts A and B into parts, in the workspace, and multiplies these."""
    plans = [CutPlan(parts, _vector(operand, problem.k)) for operand in (problem.a, problem.b)]

    def launch(space: View, D: View, A: View, B: View, alpha: Any, beta: Any, plan: PartsPlan, *rest: Any) -> None:
        cut = []
        for matrix, first, cutting in zip((A, B), (0, problem.m), plans, strict=True):
            rows, k, batch = matrix.shape
            if matrix.strides[2] == 0:
                batch = 1
            row, _, step = space.strides
            pointer = space.pointer + first * row * space.dtype.bytes
            kind, of = type(space), (space.dtype, space.device, True, space.owner, space.stream)
            target = kind(pointer, (rows, row, parts.count * batch), (row, 1, step), *of)
            source = type(matrix)(
                matrix.pointer, (rows, k, batch), matrix.strides, matrix.dtype, matrix.device, False, matrix.owner,
                matrix.stream,
            )  # fmt: skip
            cut_tiles[(-(-rows // TILE), -(-k // TILE), batch), CUTTERS](target, source, cutting)
            cut.append(kind(pointer, (rows, k, parts.count * batch), (row, 1, step), *of))
        multiply(D, A, B, *cut, alpha, beta, plan, *rest)

    return launch


@cache
def _kernel(further: int, cluster: int) -> Kernel:
    kernel = matmul_parts.numbered(further).configure(min_blocks=1)
    return kernel.configure(cluster=cluster) if cluster > 1 else kernel


def _configuration(parts: Parts, shape: _Shape, arch: Arch) -> HopperConfiguration:
    """Return a configuration with as many stages as shared memory holds beside the results."""
    (m, n), bytes, cluster = shape
    results = 64 * min(_RESULT_BYTES, 4 * n) * CONSUMERS
    stages = (arch.shared_bytes_optin - SPARE_BYTES - results) // (parts.count * (m + n) * bytes + 16)
    tile = m, n, bytes // parts.part.storage.bytes
    return HopperConfiguration(tile, (4 * CONSUMERS, 1), stages, _GROUP // cluster, cluster)


def _vector(operand: Operand, k: int) -> int:
    """Return the bytes that are read at once along K; 0 for an operand that is not contiguous there."""
    return math.gcd(operand.alignment, operand.dtype.bytes * k) if operand.major == "K" else 0


def _product(problem: Problem) -> Problem:
    """Return the product of one part of A and one of B, as they lie after the cut."""
    assert problem.parts is not None, problem
    part = Operand(problem.parts.part.storage, "K", VECTOR_BYTES)
    return replace(problem, a=part, b=part, parts=None)


def parts_plan(problem: Problem, configuration: HopperConfiguration, arch: Arch) -> PartsPlan:
    """Return the plan for a problem, or raise `LayoutError`."""
    parts = problem.parts
    assert parts is not None, problem
    stages = configuration.stages * parts.count
    product = plan_for(_product(problem), replace(configuration, stages=stages), arch)
    return PartsPlan(parts, configuration.stages, product)
