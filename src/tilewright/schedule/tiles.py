"""Tiles of matrix instructions: what `plan.tensorize` becomes in a kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.instructions.compiler_fence import compiler_fence
from tilewright.language.copying import clear
from tilewright.language.gemm import gemm
from tilewright.layout import Layout, coalesce, make_layout
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import Array
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.edges import Guard
from tilewright.schedule.filling import Filling, divisor_of
from tilewright.schedule.fragments import (
    Fragments,
    HeldFragments,
    HeldOperand,
    HeldTarget,
    Side,
    View,
    place_from,
    refuse_other_tiles,
    tiles_along,
)
from tilewright.schedule.loop_nest import Access, Part
from tilewright.schedule.mma_shapes import MMASchedulingPolicy
from tilewright.schedule.plan_state import Tensorization
from tilewright.schedule.scope import Parts, Scope, Storage
from tilewright.tensors import Tensor, identity_tensor
from tilewright.trace.control import loop, nest

SIDES: tuple[Side, Side] = ("A", "B")


class Tiles(Fragments):
    """Emits tiles of matrix instructions, and the caches of fragments around them."""

    def __init__(self, scope: Scope, tile: Tensorization) -> None:
        super().__init__(scope, tile)
        self._loose: dict[Side, list[Tensor]] = {}
        self._accumulators: list[Tensor] = []

    def declare(self) -> None:
        """Make the registers of fragments that no cache holds, where tiles are emitted in more than one place.

        They are declared around all of them; those of one place are declared there.
        """
        plan = self.scope.plan
        held = [cache for cache in plan.caches if cache.location is Location.MMA_FRAGMENT]
        if not plan.nest.fusing and all(cache.stages == 1 for cache in held):
            return
        kept = {cache.array for cache in held}
        for side in SIDES:
            if self.access(side).array not in kept:
                self._loose_operands(side)
        if self.tile.c.array not in kept:
            self._accumulators = self.accumulators()

    # --- caches ------------------------------------------------------------------------------------------

    def with_fragments(self, cache: Cache, body: Callable[[], None]) -> None:
        """Keep an operand in fragments while a body is emitted."""
        if cache.array is self.tile.c.array:
            self._with_target(cache, body)
            return
        held = HeldFragments(self, cache, 1)
        if self.scope.is_filled(cache):
            held.read(0)
        with self.scope.holding({cache.array: held.operand(0)}):
            body()

    def _with_target(self, cache: Cache, body: Callable[[], None]) -> None:
        filling = Filling(self.scope, cache)
        refuse_other_tiles(filling, self.tile.c, [(index, self.extents[index]) for index in self.target_indices])
        tiles = [tiles_along(filling, self.tile.c, index, self.extents[index]) for index in self.target_indices]
        accumulators = self.accumulators(*tiles)
        plan = self.scope.plan
        users = tuple(part for part in plan.nest.parts if cache.array in _arrays(part))
        if self.scope.is_filled(cache) or self.tile.sets(cache.array):
            self.within(users, lambda: self._each_tile(filling, tiles, accumulators, self.read_target))
        elif plan.begins_with_zeros(cache):
            for fragment in accumulators:
                clear(fragment)
                self.apply(self.tile.prologue, fragment)
        with self.scope.holding({cache.array: HeldTarget(self.tile, accumulators, filling.region.origin)}):
            body()
        if plan.is_written(cache):
            self.within(users, lambda: self._write_back(filling, tiles, accumulators))

    def _write_back(self, filling: Filling, tiles: list[int], accumulators: list[Tensor]) -> None:
        """Emit the stores of all tiles of C in a region."""
        self._each_tile(filling, tiles, accumulators, self.write_target)

    def begin(self) -> None:
        """Make what all tiles of the kernel use: nothing."""

    def finish(self) -> None:
        """Emit what has to happen before the kernel ends: nothing."""

    def _each_tile(
        self, filling: Filling, tiles: list[int], accumulators: list[Tensor], body: Callable[[int, View, Tensor], None]
    ) -> None:
        """Emit something for each block and tile of C in a region: its number, its elements, and its fragment."""
        first, second = self.target_indices
        place = place_from(filling, self.tile.c, (first, second))
        access = Access(self.tile.c.statement, self.tile.c.array, place, True)
        along = [(index, self.extents[index]) for index in (first, second)]

        def at(row: Any, column: Any) -> None:  # Any: device numbers
            start = {first: row * self.extents[first], second: column * self.extents[second]}

            lasts = {index: (n - 1) * extent for n, (index, extent) in zip(tiles, along, strict=True)}

            def view() -> tuple[Tensor, Guard]:
                return self.view(access, along), self.guard(access, along)

            for block, fragment in enumerate(accumulators):
                with self.scope.knowing(start, lasts):
                    body(block, view, fragment[(None, None, None, row, column)])

        nest(tiles, at, unroll=True)

    def loose_accumulator(self, block: int) -> Tensor:
        """Return the registers of a block's accumulators that are not kept between tiles; one set serves all blocks."""
        in_turn = self.tile.policy is MMASchedulingPolicy.BLOCK_ORDER
        if not self._accumulators:
            self._accumulators = self.accumulators()
        return self._accumulators[0 if in_turn else block]

    # --- tiles -------------------------------------------------------------------------------------------

    def emit(self, parts: Parts) -> None:
        """Emit the tile of the innermost three loops for each part: instructions, or what is done to each element."""
        for part in parts:
            if self._multiplies(part):
                self.scope.when(self.outer_conditions(part), self._multiply)
            else:
                self._each_element(part)

    def _multiply(self) -> None:
        tile = self.tile
        accumulators = [self._accumulator(block) for block in range(len(self.mmas))]
        if tile.policy is MMASchedulingPolicy.PASS_ORDER:
            self._in_pass_order(accumulators)
        else:
            self._in_block_order(accumulators)

    # --- many tiles at once ------------------------------------------------------------------------------

    def multiplies_at_once(self, depth: int, parts: Parts) -> bool:
        """Whether the loops from `depth` inwards do nothing but number tiles whose fragments are all held.

        One product of all of them is then emitted: it goes back and forth through the columns, so that an instruction
        shares an operand with the one before.
        """
        scope, tile = self.scope, self.tile
        between = scope.loops[depth:-3]
        held = [scope.storage.get(access.array) for access in (tile.a, tile.b)]
        target = scope.storage.get(tile.c.array)
        if not between or tile.groups != 1 or len(self.mmas) != 1 or not isinstance(target, HeldTarget):
            return False
        if len(parts) != 1 or not self._multiplies(parts[0]):
            return False
        operands = [x for x in held if isinstance(x, HeldOperand)]
        if len(operands) != len(held):
            return False
        if any(scope.caches(d, parts) for d in range(depth + 1, len(scope.loops) - 2)):
            return False
        moving = dict.fromkeys(tile.indices[:2], 1)
        for outer in between:
            if outer.trips is None or any(c.value.factor(outer.index) for c in parts[0].conditions):
                return False
            sides = [
                index
                for index, access in zip(tile.indices[:2], (tile.a, tile.b), strict=True)
                if any(mode.mentions(outer.index) for mode in access.place)
            ]
            if len(sides) != 1 or any(m.divides(outer.index) for x in (tile.a, tile.b) for m in x.place):
                return False
            moving[sides[0]] *= outer.trips
        counts = [target.accumulators[0].layout[mode].size for mode in (3, 4)]
        return [moving[index] for index in self.target_indices] == counts and all(
            x.fragment.layout[3].size == moving[index] and x.fragment.layout[4].size == tile.passes
            for x, index in zip(operands, tile.indices[:2], strict=True)
        )

    def multiply_at_once(self) -> None:
        """Emit the product of all tiles that are held."""
        storage = self.scope.storage
        target = storage[self.tile.c.array]
        assert isinstance(target, HeldTarget), target
        accumulators = target.accumulators[0].map_layout(
            lambda layout: make_layout(layout[0], _both(layout, 1, 3), _both(layout, 2, 4))
        )
        operands = []
        for access in (self.access("A"), self.access("B")):
            held = storage[access.array]
            assert isinstance(held, HeldOperand), held
            operands.append(
                held.fragment.map_layout(
                    lambda layout: make_layout(layout[0], _both(layout, 1, 3), _both(layout, 2, 4))
                )
            )
        gemm(self.mmas[0], accumulators, *operands, accumulators)

    def _multiplies(self, part: Part) -> bool:
        return part.statements == self.scope.plan.nest.parts[self.tile.part].statements

    def _in_pass_order(self, accumulators: list[Accumulator]) -> None:
        fragments = [accumulator.begin() for accumulator in accumulators]

        def multiply(group: Any) -> None:  # Any: a number of host or device
            a, b = self._operands("A", group), self._operands("B", group)
            for block, fragment in enumerate(fragments):
                for left, right in zip(a, b, strict=True):
                    gemm(self.mmas[block], fragment, left, right, fragment)

        self._each_group(multiply, fragments)
        for accumulator in accumulators:
            accumulator.end()

    def _in_block_order(self, accumulators: list[Accumulator]) -> None:
        once = self.tile.groups == 1
        a, b = (self._operands("A", 0), self._operands("B", 0)) if once else ([], [])
        for block, accumulator in enumerate(accumulators):
            fragment = accumulator.begin()

            def multiply(group: Any, block: int = block, fragment: Tensor = fragment) -> None:  # Any: as above
                ours, theirs = (a, b) if once else (self._operands("A", group), self._operands("B", group))
                for left, right in zip(ours, theirs, strict=True):
                    gemm(self.mmas[block], fragment, left, right, fragment)

            self._each_group(multiply, [fragment])
            accumulator.end()

    def _each_group(self, body: Callable[[Any], None], fragments: Sequence[Tensor]) -> None:
        """Emit the groups of passes one after another, or as a loop of the kernel where that was asked for.

        Compilers would read the operands of all groups first, and hold more fragments than those of one group: a fence
        stands before each group. Across the iterations of a loop they do not.
        """
        tile = self.tile
        held = [isinstance(self.scope.storage[access.array], HeldOperand) for access in (tile.a, tile.b)]
        if tile.groups == 1 or tile.use_static_offsets or any(held):
            for group in range(tile.groups):
                if tile.groups > 1 and not all(held):
                    self._fence(fragments)
                body(group)
            return

        for side in SIDES:
            self._loose_operands(side)  # all groups use them: they are made outside
        loop(0, tile.groups, 1, body, unroll=False, name="group")

    def _fence(self, fragments: Sequence[Tensor]) -> None:
        """Keep the reads of the next group behind the products of the last one, to accumulators in `fragments`."""
        # Each instruction writes a mode of its own of the fragment, its first one.
        products: list[Any] = []  # Any: device numbers
        for fragment in fragments:
            counts = [range(divisor_of(fragment.layout[mode].size)) for mode in (1, 2)]
            for m, n in itertools.product(*counts):
                products.append(fragment[(0, m, n)])
        buffers = [self.scope.storage[access.array].tensor.engine.buffer for access in (self.tile.a, self.tile.b)]
        compiler_fence(products, *buffers)

    def _operands(self, side: Side, group: Any) -> list[Tensor]:  # Any: as above
        """Return the fragments of a group of passes, read now unless a cache holds them."""
        access = self.access(side)
        storage = self.scope.storage[access.array]
        passes = [group * self.tile.fused + number for number in range(self.tile.fused)]
        if isinstance(storage, HeldOperand):
            return [self._held(side, storage, number) for number in passes]
        fragments = self._loose_operands(side)
        k = self.tile.indices[2]
        for number, fragment in zip(passes, fragments, strict=True):
            along = [(self.rows(side), self.extents[self.rows(side)]), (k, self.tile.shape.k)]
            with self.scope.knowing({k: number * self.tile.shape.k}, {k: (self.tile.passes - 1) * self.tile.shape.k}):
                self.read(side, access, along, fragment)
        return fragments

    def _loose_operands(self, side: Side) -> list[Tensor]:
        """Return the fragments of a group of passes, which all groups use."""
        if side not in self._loose:
            self._loose[side] = [self.operand(side) for _ in range(self.tile.fused)]
        return self._loose[side]

    def _held(self, side: Side, storage: HeldOperand, number: int) -> Tensor:
        access, (rows, depth) = self.access(side), (self.rows(side), self.tile.indices[2])
        row, step = self.number(storage, access, rows), self.number(storage, access, depth)
        fragment: Tensor = storage.fragment[(None, None, None, row, step + number)]
        return fragment

    def held_tile(self, side: Side, storage: HeldOperand) -> Tensor:
        """Return a tile of an operand that a cache holds, with all passes: (values, rows, depth)."""
        access = self.access(side)
        row, first = self.number(storage, access, self.rows(side)), self.number(storage, access, self.tile.indices[2])
        held = storage.fragment[(None, None, None, row, None)]
        count, passes = storage.fragment.layout[4].size, self.tile.passes
        if isinstance(first, int) and first == 0 and count == passes:
            whole: Tensor = held.map_layout(lambda layout: make_layout(layout[0], layout[1], _both(layout, 2, 3)))
            return whole
        inner = make_layout(held.layout[2], Layout(passes, held.layout[3].stride))
        one = storage.fragment[(None, None, None, row, first)]
        part: Tensor = one.map_layout(lambda layout: make_layout(layout[0], layout[1], coalesce(inner)))
        return part

    def number(self, storage: Storage, access: Access, index: Index) -> Any:  # Any: device numbers
        """Return the number of the tile along an index, among those that are held from the storage's origin on."""
        extent = self.extents[index]
        total: Any = 0
        for mode, start in zip(access.place, storage.origin, strict=True):
            if mode.factor(index):
                total = (mode - start - mode.factor(index) * index).evaluate(self.scope.values)
        return total // extent

    def _accumulator(self, block: int) -> Accumulator:
        storage = self.scope.storage[self.tile.c.array]
        return (
            _HeldAccumulator(self, storage, block)
            if isinstance(storage, HeldTarget)
            else _LooseAccumulator(self, block)
        )

    # --- element by element ------------------------------------------------------------------------------

    def _each_element(self, part: Part) -> None:
        """Emit a part for the elements of the tile: each thread takes those that it holds of C."""
        scope = self.scope
        k = self.tile.indices[2]
        rows, columns = (self.extents[index] for index in self.target_indices)
        for block, mma in enumerate(self.mmas):
            places = mma.get_slice(self.lane).partition_C(identity_tensor((rows, columns)))
            accumulator = self._accumulator(block)
            held = accumulator.storage if isinstance(accumulator, _HeldAccumulator) else None
            fragment = accumulator.begin() if held is not None else None

            def element(e: Any, places: Tensor = places, held: Any = held, fragment: Any = fragment) -> None:
                row, column = places[e]
                first, second = self.target_indices
                if held is not None:
                    held.now = fragment, e
                last = {first: rows - 1, second: columns - 1}
                with scope.knowing({first: row, second: column, k: 0}, last):
                    scope.statements((part,))

            nest((places.size,), element, unroll=True)


def _both(layout: Layout, inner: int, outer: int) -> Layout:
    """Return a mode that runs through one mode of a layout and then through another."""
    joined: Layout = coalesce(make_layout(layout[inner], layout[outer]))
    return joined


def _arrays(part: Part) -> set[Array]:
    return {access.array for statement in part.statements for access in statement.accesses}


# --- fragments of C --------------------------------------------------------------------------------------


class Accumulator:
    """A fragment of C of one tile and block."""

    def begin(self) -> Tensor:
        """Return it with C in it."""
        raise NotImplementedError

    def end(self) -> None:
        """Store it."""
        raise NotImplementedError


class _LooseAccumulator(Accumulator):
    """A fragment of C that is read before the tile and stored after it."""

    def __init__(self, tiles: Tiles, block: int) -> None:
        self.tiles, self.block = tiles, block
        rows, columns = (tiles.extents[index] for index in tiles.target_indices)
        self.along = list(zip(tiles.target_indices, (rows, columns), strict=True))
        self.fragment: Tensor | None = None

    def begin(self) -> Tensor:
        tiles = self.tiles
        self.fragment = tiles.loose_accumulator(self.block)
        tiles.read_target(self.block, self._view, self.fragment)
        return self.fragment

    def end(self) -> None:
        assert self.fragment is not None
        self.tiles.write_target(self.block, self._view, self.fragment)

    def _view(self) -> tuple[Tensor, Guard]:
        return self.tiles.view(self.tiles.tile.c, self.along), self.tiles.guard(self.tiles.tile.c, self.along)


class _HeldAccumulator(Accumulator):
    """A fragment of C that a cache holds."""

    def __init__(self, tiles: Tiles, storage: HeldTarget, block: int) -> None:
        self.tiles, self.storage, self.block = tiles, storage, block

    def begin(self) -> Tensor:
        tiles = self.tiles
        row, column = (tiles.number(self.storage, tiles.tile.c, index) for index in tiles.target_indices)
        fragment: Tensor = self.storage.accumulators[self.block][(None, None, None, row, column)]
        return fragment

    def end(self) -> None:
        pass
