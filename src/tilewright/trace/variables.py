"""The variables that a block of rewritten code assigns: the cells that it shares with the function around it.

The rewriter makes each block a function that declares them `nonlocal`. So every function that the user defines beside
or inside of the block, a lambda say, sees what the block assigns, as in Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tilewright.trace.carry import Names, Undefined


class Variables:
    """Variables of a user's function, read and set through the closures of the blocks that assign them.

    A variable without a value gets `Undefined`, which says so where it is read.
    """

    def __init__(self, names: Names, blocks: Iterable[Callable[..., Any]]) -> None:
        cells: dict[str, types.CellType] = {}
        for block in blocks:
            cells.update(zip(block.__code__.co_freevars, block.__closure__ or (), strict=True))
        self.names = names
        self.cells: list[types.CellType] = [cells[name] for name in names]
        for name, cell in zip(names, self.cells, strict=True):
            try:
                cell.cell_contents  # noqa: B018  # asks whether there is one
            except ValueError:
                cell.cell_contents = Undefined(name, "it is not assigned before this point")

    @staticmethod
    def of(**values: Any) -> Variables:  # Any: device values
        """Return variables of our own."""
        made = Variables((), ())
        made.names, made.cells = tuple(values), [types.CellType(value) for value in values.values()]
        return made

    def __add__(self, other: Variables) -> Variables:
        """Return the variables of both."""
        made = Variables((), ())
        made.names, made.cells = (*self.names, *other.names), [*self.cells, *other.cells]
        return made

    def read(self) -> list[Any]:  # Any: what the user's variables hold
        """Return the values."""
        return [cell.cell_contents for cell in self.cells]

    def write(self, values: Sequence[Any]) -> None:
        """Set the values."""
        for cell, value in zip(self.cells, values, strict=True):
            cell.cell_contents = value

    def get(self, name: str) -> Any:
        """Return the value of one variable."""
        return self.cells[self.names.index(name)].cell_contents

    def set(self, name: str, value: Any) -> None:
        """Set the value of one variable."""
        self.cells[self.names.index(name)].cell_contents = value
