"""Matrix products through `plan.tensorize`, of every form that the tests of the tensor path need, and what is expected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.mma_shapes import MMAFragmentOp, MMASchedulingPolicy, MMAShape
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.report import Report
from tilewright.schedule.targets import Target

FIRST, LAST = Array.Layout.FIRST_MAJOR, Array.Layout.LAST_MAJOR


@dataclass(frozen=True)
class Product:
    """C += A B on one target. Blocks of `warps` (rows, columns) of warps, each of `tiles` tiles, `steps` tiles of K.

    `size` counts blocks along M and N, and turns of the loop over K. `source` is where tiles read A and B from: global,
    shared (filled in each iteration of K) or a pipeline in shared memory; `fragments` reads them a step ahead. Extents are
    `short` of whole blocks.
    """

    target: str = "sm_80"
    shape: str = "M16N16K16"
    dtype: str = "float16"
    output: str = "float32"
    passes: int = 1
    fused: int | None = None
    policy: str = "PASS_ORDER"
    warps: tuple[int, int] = (1, 1)
    tiles: tuple[int, int] = (1, 1)
    steps: int = 1
    size: tuple[int, int, int] = (1, 1, 2)
    batch: int = 0
    shared: bool = False
    stages: int = 1
    fragments: bool = False
    keep: bool = False
    staged: bool = False
    layouts: tuple[Any, Any, Any] = (FIRST, FIRST, FIRST)
    transposed: tuple[bool, bool] = (False, False)
    prologue: tuple[Any, Any] = (MMAFragmentOp.NONE, None)
    epilogue: tuple[Any, Any] = (MMAFragmentOp.NONE, None)
    static: bool = True
    short: tuple[int, int, int] = (0, 0, 0)
    dtype_b: str = ""  # that of A

    @property
    def mma(self) -> MMAShape:
        return MMAShape[self.shape]

    @cached_property
    def block(self) -> tuple[int, int, int]:
        """The extents of what a block computes, and of one turn of K."""
        m, n, k = Target(self.target).tensor_core_info.compute_tensor_splits(self.mma, self.passes)
        return m * self.warps[0] * self.tiles[0], n * self.warps[1] * self.tiles[1], k * self.steps

    @cached_property
    def extents(self) -> tuple[int, int, int]:
        m, n, k = (
            max(count * extent - short, 1)
            for count, extent, short in zip(self.size, self.block, self.short, strict=True)
        )
        return m, n, k

    @cached_property
    def arrays(self) -> tuple[Array, Array, Array]:
        m, n, k = self.extents
        batch = (self.batch,) if self.batch else ()
        shapes = [(k, m) if self.transposed[0] else (m, k), (n, k) if self.transposed[1] else (k, n), (m, n)]
        types = [self.dtype, self.dtype_b or self.dtype, self.output]
        roles = [Role.INPUT, Role.INPUT, Role.INPUT_OUTPUT]
        a, b, c = (
            Array(role, dtype, (*batch, *shape), layout, name=name)
            for role, dtype, shape, layout, name in zip(roles, types, shapes, self.layouts, "ABC", strict=True)
        )
        return a, b, c

    @cached_property
    def plan(self) -> Plan:
        A, B, C = self.arrays
        nest = Nest((*((self.batch,) if self.batch else ()), *self.extents))
        *z, i, j, k = nest.get_indices()

        @nest.iteration_logic
        def _() -> None:
            left = A[(*z, k, i)] if self.transposed[0] else A[(*z, i, k)]
            right = B[(*z, j, k)] if self.transposed[1] else B[(*z, k, j)]
            C[(*z, i, j)] += left * right

        schedule, target = nest.create_schedule(), Target(self.target)
        m, n, depth = target.tensor_core_info.compute_tensor_splits(self.mma, self.passes)
        i1, j1, k1 = schedule.tile(dict(zip((i, j, k), self.block, strict=True)))
        i2, j2 = schedule.tile({i1: m * self.tiles[0], j1: n * self.tiles[1]})
        i3, j3, k3 = schedule.tile({i2: m, j2: n, k1: depth})
        schedule.reorder(*z, i, j, k, i1, j1, k1, i2, j2, i3, j3, k3)
        plan, unit = schedule.create_plan(target), target.GridUnit
        plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, i1: unit.WARP_Y, j1: unit.WARP_X})
        if z:
            plan.bind({z[0]: unit.BLOCK_Z})
        plan.tensorize(
            (i3, j3, k3), self.mma, self.passes, use_static_offsets=self.static, num_fused_passes=self.fused,
            scheduling_policy=MMASchedulingPolicy[self.policy], prologue_op=self.prologue[0],
            prologue_arg=self.prologue[1], epilogue_op=self.epilogue[0], epilogue_arg=self.epilogue[1],
        )  # fmt: skip
        for array in (A, B):
            if self.shared:
                plan.cache(array, index=k1, pipeline_stages=self.stages)
            if self.fragments:
                plan.cache(array, index=i2, location=Location.MMA_FRAGMENT, double_buffer=True)
        if self.keep:
            source = plan.cache(C, index=k) if self.staged else C
            plan.cache(source, index=k, location=Location.MMA_FRAGMENT)
        return plan

    @cached_property
    def values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Small whole numbers, whose products and sums every type holds exactly."""
        random = np.random.default_rng(7)
        low, high = (0, 4) if self.dtype == "uint8" else (-3, 4)
        found = []
        for array in self.arrays:
            order = "C" if array.layout is FIRST else "F"
            numbers = random.integers(low, high, array.shape)
            found.append(np.array(numbers, array.element_type.numpy, order=order))  # type: ignore[call-overload]
        return found[0], found[1], found[2]

    def expected(self) -> np.ndarray:
        a, b, c = (x.astype(np.float64) for x in self.values)
        a = a.swapaxes(-1, -2) if self.transposed[0] else a
        b = b.swapaxes(-1, -2) if self.transposed[1] else b
        return self._applied(self.epilogue, a @ b + self._applied(self.prologue, c))

    @staticmethod
    def _applied(operation: tuple[Any, Any], x: np.ndarray) -> np.ndarray:
        kind, argument = operation
        if kind is MMAFragmentOp.NONE:
            return x
        if kind is MMAFragmentOp.SET:
            return np.full_like(x, argument)
        if kind is MMAFragmentOp.SCALE:
            return x * argument
        return np.maximum(x, 0) if isinstance(kind, MMAFragmentOp) else kind(x)

    def run(self) -> np.ndarray:
        """Return what the simulator computes."""
        a, b, c = self.values
        c = c.copy(order="K")
        if self.prologue[0] is MMAFragmentOp.SET and np.issubdtype(c.dtype, np.floating):
            c[...] = np.nan
        self.plan.build("product")(a, b, c)
        return c

    def check(self) -> None:
        """Compare with NumPy, exactly: the numbers are small and whole."""
        np.testing.assert_array_equal(self.run().astype(np.float64), self.expected())

    @property
    def blocks(self) -> int:
        return self.mma.num_blocks

    def refuse_other_counts(self, report: Report) -> None:
        """Compare a report with the law of passes, groups and blocks. One tile for each warp, nothing read ahead."""
        passes, blocks = self.passes, self.blocks
        fused = self.fused or passes
        in_order = self.policy == "PASS_ORDER"
        again = 1 if in_order or fused == passes else blocks
        law = {
            "fragments_a": fused, "fragments_b": fused,
            "fragments_c": blocks if in_order or self.keep else 1,
            "loads_a": passes * again, "loads_b": passes * again,
            "loads_c": 0 if self.prologue[0] is MMAFragmentOp.SET else blocks, "stores_c": blocks,
            "mma": passes * blocks,
            "k_trips": self.extents[2] // (self.mma.k * passes),
        }  # fmt: skip
        assert {name: getattr(report, name) for name in law} == law
