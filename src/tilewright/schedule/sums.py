"""The fragments of C that a tile adds to: loaded and stored by each tile, or held by a cache around all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.schedule.fragments import HeldTarget
from tilewright.tensors import Tensor

if TYPE_CHECKING:
    from tilewright.schedule.tiles import Tiles


class Sum:
    """A fragment of C of one tile and block."""

    def begin(self) -> Tensor:
        """Return it with C in it."""
        raise NotImplementedError

    def end(self) -> None:
        """Store it."""
        raise NotImplementedError


class LooseSum(Sum):
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

    def _view(self) -> Tensor:
        return self.tiles.view(self.tiles.tile.c, self.along)


class HeldSum(Sum):
    """A fragment of C that a cache holds."""

    def __init__(self, tiles: Tiles, storage: HeldTarget, block: int) -> None:
        self.tiles, self.storage, self.block = tiles, storage, block

    def begin(self) -> Tensor:
        tiles = self.tiles
        row, column = (tiles.number(self.storage, tiles.tile.c, index) for index in tiles.target_indices)
        found: Tensor = self.storage.sums[self.block][(None, None, None, row, column)]
        return found

    def end(self) -> None:
        pass
