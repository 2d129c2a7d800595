"""Tiles that a warpgroup multiplies: B in shared memory, A there or in registers, and sums in use until a wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.errors import LanguageError, ScheduleError
from tilewright.instructions.warpgroup_atoms import THREADS, WarpgroupMMAAtom
from tilewright.instructions.wgmma import wgmma_commit, wgmma_fence, wgmma_wait
from tilewright.language.copying import clear, copy
from tilewright.language.gemm import gemm
from tilewright.layout import ComposedLayout
from tilewright.layout.tuples import leaves
from tilewright.schedule.bulk_results import BulkResults
from tilewright.schedule.edges import guard_of
from tilewright.schedule.filling import Filling
from tilewright.schedule.fragments import HeldOperand, Side, View, place_from
from tilewright.schedule.loop_nest import Part
from tilewright.schedule.mma_shapes import MMAFragmentOp
from tilewright.schedule.register_operands import ComputedOperand
from tilewright.schedule.scope import Parts
from tilewright.schedule.tiles import SIDES, Tiles
from tilewright.schedule.values import Expression
from tilewright.tensors import Tensor, identity_tensor
from tilewright.tiled import TiledMMA
from tilewright.trace.control import nest
from tilewright.trace.threads import thread_idx


class WarpgroupTiles(Tiles):
    """Emits tiles of wgmma: a fence, the products of all passes, and a wait.

    With `is_deferred` the group is left open: who reads a ring of stages closes it, and waits a stage later. `defers`
    says that some are, before anything is emitted.
    """

    is_deferred: bool = False
    defers: bool = False
    _operand_in_use: Tensor | None = None  # A that is computed, where products read it while the next one is
    _results: BulkResults | None = None

    @property
    def lane(self) -> Any:  # Any: a device number
        """The thread's number in its warpgroup."""
        alone = self.scope.plan.block[0] == THREADS
        return thread_idx.x if alone else thread_idx.x % THREADS

    def begin(self) -> None:
        """Make the buffers through which results leave by TMA."""
        if any(cache.leaves_in_bulk for cache in self.scope.plan.caches):
            self._results = BulkResults(self.scope, self.tile)

    def declare(self) -> None:
        """Make the registers of sums that no cache holds, where tiles are emitted in more than one place."""
        kept = any(cache.array is self.tile.c.array and not cache.is_of_block for cache in self.scope.plan.caches)
        if self.scope.plan.nest.fusing and not kept:
            self._accumulators = self.accumulators()
        if self.defers and self.tile.computed is not None:
            computed = ComputedOperand(self, self.tile.computed)
            self._operand_in_use = computed.fragment(f"r{self.tile.a.array.name}_multiplied")

    def multiplies_at_once(self, depth: int, parts: Parts) -> bool:
        """Return False: each tile is one product of its own already."""
        return False

    def may_defer(self, depth: int) -> bool:
        """Whether nothing but tiles runs inside of `depth` serial loops, with sums held around the last of these.

        Sums are then touched by products alone, and one group of them may stay under way from stage to stage.
        """
        plan, c = self.scope.plan, self.tile.c.array
        held = any(x.array is c and not x.is_of_block and plan.depth(x) < depth for x in plan.caches)
        inside = [x for x in plan.caches if plan.depth(x) >= depth]
        return (
            held
            and len(plan.nest.parts) == 1
            and all(x.is_filled_in_bulk and x.stages > 1 and plan.depth(x) == depth for x in inside)
        )

    # --- products ----------------------------------------------------------------------------------------

    def emit(self, parts: Parts) -> None:
        """Emit the tile for each part: products, what computes their A, or what is done to each element of C."""
        for part in parts:
            if any(statement.store.array is self.tile.a.array for statement in part.statements):
                self._compute_held(part)
            else:
                super().emit((part,))

    def _compute_held(self, part: Part) -> None:
        """Emit a part that computes A, for the elements of it that each thread holds; it runs for no columns."""
        scope, (m, n, k) = self.scope, self.tile.indices
        storage = scope.storage[self.tile.a.array]
        assert isinstance(storage, HeldOperand), storage
        fragment = self.held_tile("A", storage)
        extents = self.tile.shape.m, self._depth
        places = self.mmas[0].get_slice(self.lane).partition_A(identity_tensor(extents))
        moving = tuple(c for c in part.conditions if c.value.factor(m) or c.value.factor(k))
        inside = replace(part, conditions=moving)

        def element(e: Any) -> None:  # Any: a device number
            row, column = places[e]
            storage.now = self.tile.a.place, fragment, e
            with scope.knowing({m: row, k: column}, {m: extents[0] - 1, k: extents[1] - 1}):
                scope.statements((inside,))

        def compute() -> None:
            if moving:
                clear(fragment)  # what is beyond the nest adds nothing
            nest((places.size,), element, unroll=True)

        with scope.knowing({n: 0}):
            scope.when(tuple(c for c in part.conditions if c not in moving), compute)

    def _multiply(self) -> None:
        accumulator = self._accumulator(0)
        sums = accumulator.begin()
        if self.tile.computed is not None:
            self._multiply_computed(self.tile.computed, sums)
        elif self.tile.has_a_in_registers:
            self._multiply_held(sums)
        else:
            factors = [self._factor(side) for side in SIDES]
            mma = self._with_majors(*factors)
            wgmma_fence()
            thread = mma.get_slice(self.lane)
            self._gemm(mma, thread.partition_A(factors[0]), thread.partition_B(factors[1]), sums, self._is_begun())
        if not self.is_deferred:
            wgmma_commit()
            wgmma_wait(0)
        accumulator.end()

    def _multiply_computed(self, value: Expression, sums: Tensor) -> None:
        """Emit products whose A the threads compute; where products go on into the next stage, while these run."""
        computed, name = ComputedOperand(self, value), f"r{self.tile.a.array.name}"
        b = self._factor("B")
        mma = self._with_majors(None, b)
        fragment = self._operand_in_use
        if fragment is None:
            fragment = computed.fragment(f"{name}_multiplied")
            computed.compute(fragment)
        else:
            coming = computed.fragment(f"{name}_coming")
            computed.compute(coming)
            wgmma_wait(0)  # of the products that read the registers
            copy(coming, fragment)
        wgmma_fence()
        self._gemm(mma, fragment, mma.get_slice(self.lane).partition_B(b), sums, self._is_begun())

    def _multiply_held(self, sums: Tensor) -> None:
        """Emit products whose A a cache holds in registers."""
        storage = self.scope.storage[self.tile.a.array]
        assert isinstance(storage, HeldOperand), storage
        b = self._factor("B")
        mma = self._with_majors(None, b)
        wgmma_fence()
        self._gemm(
            mma, self.held_tile("A", storage), mma.get_slice(self.lane).partition_B(b), sums, self._is_begun()
        )  # fmt: skip

    def _gemm(self, mma: TiledMMA, a: Tensor, b: Tensor, sums: Tensor, begun: Any) -> None:  # Any: a condition
        try:
            gemm(mma, a, b, sums, accumulate=begun)
        except LanguageError as error:
            raise ScheduleError(
                f"{self.tile.shape.name} cannot read its factors: {error.summary.removeprefix('tw.gemm: ')}",
                details=error.details,
                location=self.tile.statement.location,
                help="leave layout= of the cache out, or give FIRST_MAJOR or LAST_MAJOR: the plan then swizzles it",
            ) from None

    def _factor(self, side: Side) -> Tensor:
        """Return a factor's tile in shared memory: (rows, K of all passes)."""
        access = self.access(side)
        along = [(self.rows(side), self.extents[self.rows(side)]), (self.tile.indices[2], self._depth)]
        guard = guard_of(self.scope, self.tile, access, access.place, along)
        if guard:
            raise ScheduleError(
                f"a tile of {self.tile.shape.name} would cross the boundary at which {guard.conditions[0]}, where "
                f"{access.array.name} does not end: a warpgroup reads all of the tile",
                location=self.tile.statement.location,
                help="let K run to the end of the array, beyond which a cache has zeros, or in whole tiles",
            )
        return self.view(access, along)

    @property
    def _depth(self) -> int:
        return self.tile.shape.k * self.tile.passes

    def _with_majors(self, *factors: Tensor | None) -> TiledMMA:
        """Return the instruction for factors as they lie: with K contiguous, or with M or N. None is in registers."""
        atom = self.mmas[0].atom
        assert isinstance(atom, WarpgroupMMAAtom), atom
        majors = ["MN" if x is not None and _is_contiguous(x, 0) and not _is_contiguous(x, 1) else "K" for x in factors]
        if majors == ["K", "K"] or atom.dtype_b.bits != 16:
            return self.mmas[0]
        return TiledMMA(atom.with_majors(*majors), self.mmas[0].atom_layout)  # type: ignore[arg-type]  # of these two

    # --- sums --------------------------------------------------------------------------------------------

    def read_target(self, block: int, view: View, fragment: Tensor) -> None:
        """Read C into the registers of sums, unless the first products set them.

        Elements that are converted on their way get a fence of their own: NVRTC otherwise moves the conversions into
        the loop around the products, where ptxas lets each product wait for the one before (C7514).
        """
        if self._begins_by_products:
            return
        if self.tile.prologue[0] is MMAFragmentOp.SET and self.tile.prologue[1] == 0:
            clear(fragment)
            return
        super().read_target(block, view, fragment)
        if self.tile.c.array.element_type is not self.tile.recipe.dtype_c:
            wgmma_fence()

    def _write_back(self, filling: Filling, tiles: list[int], accumulators: list[Tensor]) -> None:
        """Emit the stores of all tiles of C in a region, by TMA where the cache says so."""
        results = self._results
        if results is None or not filling.cache.leaves_in_bulk:
            super()._write_back(filling, tiles, accumulators)
            return
        place = place_from(filling, self.tile.c, self.target_indices)
        modes = [
            next(mode for mode, at in enumerate(self.tile.c.place) if at.factor(index)) for index in self.target_indices
        ]

        def store(block: int, view: View, fragment: Tensor) -> None:
            self.finish_target(fragment)
            start = tuple(at.evaluate(self.scope.values) for at in place)
            results.store(fragment, start, (modes[0], modes[1]))

        self._each_tile(filling, tiles, accumulators, store)

    def finish(self) -> None:
        """Wait until the last results have left shared memory."""
        if self._results is not None:
            self._results.finish()

    @property
    def _begins_by_products(self) -> bool:
        """Whether sums begin with zeros, which the first products need not be given: they do not add to them."""
        kind, argument = self.tile.prologue
        return kind is MMAFragmentOp.SET and argument == 0 and self._first_is_known

    @property
    def _first_is_known(self) -> bool:
        """Whether the loops through K say which products of a sum are the first: no condition leaves some out."""
        part = self.scope.plan.nest.parts[self.tile.part]
        return not self.scope.plan.nest.fusing and not self.outer_conditions(part)

    def _is_begun(self) -> Any:  # Any: a condition of host or device
        """Return whether the products add to what is in the registers: not the first ones of sums that begin so."""
        if not self._begins_by_products:
            return True
        scope, c = self.scope, self.tile.c.array
        held = [x.inside for x in scope.plan.caches if x.array is c and not x.is_of_block]
        begun: Any = False
        for index in scope.carried:
            if any(index in inside for inside in held):
                later = scope.values[index] > 0
                begun = later if begun is False or later is True else begun if later is False else begun | later
        return begun


def _is_contiguous(tensor: Tensor, mode: int) -> bool:
    """Whether neighbours along a mode are neighbours in memory, but for a swizzle."""
    layout = tensor.layout.inner if isinstance(tensor.layout, ComposedLayout) else tensor.layout
    strides = list(leaves(layout[mode].stride))
    return bool(strides) and isinstance(strides[0], int) and strides[0] == 1
