"""A in the registers from which a warpgroup multiplies: kept there as it is, or computed there by each thread."""

from __future__ import annotations

from typing import Any

from tilewright.errors import ScheduleError
from tilewright.language.copying import copy
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import Load
from tilewright.schedule.edges import Guard, may_fail, when_whole
from tilewright.schedule.elements import index_loads
from tilewright.schedule.fragments import HeldOperand, tile_view
from tilewright.schedule.scope import Storage, compute_type, evaluate
from tilewright.schedule.tiles import Tiles
from tilewright.schedule.values import Expression
from tilewright.tensors import Tensor, identity_tensor
from tilewright.trace.carry import rename
from tilewright.trace.control import branch, nest
from tilewright.trace.memory import registers
from tilewright.trace.scalar import as_scalar


class ComputedOperand:
    """A of a tile that each thread computes, for the elements that the instruction takes from its registers.

    What moves with M and K is read as a fragment, in as wide accesses as it allows; all else is read for each element.
    Beyond the boundaries of the nest A is zero, whatever its value would be there.
    """

    def __init__(self, tiles: Tiles, value: Expression) -> None:
        self.tiles = tiles
        self.value = value
        m, _, k = tiles.tile.indices
        self.along: list[tuple[Index, int]] = [(m, tiles.tile.shape.m), (k, tiles.tile.shape.k * tiles.tile.passes)]
        self.extents: tuple[int, int] = (self.along[0][1], self.along[1][1])

    def fragment(self, name: str) -> Tensor:
        """Return registers for the tile: (values, rows, depth) of all passes."""
        tiles = self.tiles
        tensor = registers(tiles.tile.recipe.dtype_a.storage, tiles.mmas[0].partition_shape(self.extents, "A"))
        rename(name, tensor)
        tiles.roles[tensor.engine.buffer] = "A"
        return tensor

    def compute(self, fragment: Tensor) -> None:
        """Emit the computation at the present values of the loops."""
        tiles, scope, tile = self.tiles, self.tiles.scope, self.tiles.tile
        (m, rows), (k, depth) = self.along
        thread = tiles.mmas[0].get_slice(tiles.lane)
        places = thread.partition_A(identity_tensor(self.extents))
        edges = tuple(edge for edge in tile.edges if edge.value.factor(m) or edge.value.factor(k))
        guard = Guard(scope, tuple(edge for edge in edges if may_fail(scope, edge, self.along)), self.along)
        type = compute_type(tile.statement)

        def emit(raw: Tensor | None, masked: bool) -> None:
            def element(e: Any) -> None:  # Any: a device number
                row, column = places[e]

                def load(x: Load) -> Any:  # Any: a device number
                    if raw is not None and self._is_main(x):
                        return raw[e]
                    return self._storage_of(x).load(x.place, scope.values)

                def result() -> None:
                    with scope.knowing({m: row, k: column}, {m: rows - 1, k: depth - 1}):
                        value = evaluate(self.value, type, load, lambda place: place.evaluate(scope.values))
                        fragment[e] = as_scalar(value, None).to(fragment.dtype)

                if masked:
                    branch(guard.inside((row, column)), result, lambda: fragment.__setitem__(e, 0))
                else:
                    result()

            nest((places.size,), element, unroll=True)

        held = self._held()
        when_whole(
            guard,
            lambda: emit(self._raw(thread) if held is None else held, masked=False),
            lambda: emit(held, masked=True),
        )

    def _is_main(self, load: Load) -> bool:
        a = self.tiles.tile.a
        return load.array is a.array and load.place == a.place and load.element_type is a.array.element_type

    def _storage_of(self, load: Load) -> Storage:
        storage = self.tiles.scope.storage[load.array]
        if isinstance(storage, HeldOperand):
            own = Load(self.tiles.tile.a.array, self.tiles.tile.a.place)
            raise ScheduleError(
                f"{load.array.name} is held in fragments, which have {own}, and the factor is computed from {load} too",
                location=self.tiles.tile.statement.location,
                help=f"cache {load.array.name} in shared memory, or not at all",
            )
        return storage

    def _held(self) -> Tensor | None:
        """Return the elements of A's array for this thread where a cache keeps them in registers."""
        storage = self.tiles.scope.storage[self.tiles.tile.a.array]
        return self.tiles.held_tile("A", storage) if isinstance(storage, HeldOperand) else None

    def _raw(self, thread: Any) -> Tensor | None:  # Any: a thread of a tiled mma
        """Return the elements of A's array for this thread, read at once, None where they are not a fragment."""
        tiles, scope, access = self.tiles, self.tiles.scope, self.tiles.tile.a
        storage = scope.storage[access.array]
        if next(index_loads(access.place), None) is not None or any(
            mode.divides(index) for mode in access.place for index in tiles.tile.indices
        ):
            return None
        starts = dict.fromkeys(tiles.tile.indices, 0)
        try:
            view = tile_view(storage, access.place, self.along, {**scope.values, **starts}, tiles.divisor)
        except ScheduleError:
            return None
        part = thread.partition_A(view)
        raw = registers(view.dtype, tiles.mmas[0].partition_shape(self.extents, "A"))
        rename(f"r{access.array.name}", raw)
        copy(part, raw)
        return raw
