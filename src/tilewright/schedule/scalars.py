"""Numbers that a kernel takes or writes: scalars, and sizes of the launch that are arguments of their own."""

from __future__ import annotations

import keyword
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension
from tilewright.schedule.arrays import Array
from tilewright.schedule.elements import record_store
from tilewright.schedule.memory_spaces import Role
from tilewright.schedule.naming import assigned_names, calling_frame
from tilewright.schedule.parameters import Delayed
from tilewright.schedule.values import expression


class Scalar(Array):
    """A number: a launch argument (role INPUT), or one that the kernel writes by `set`. For a value, the value itself.

    >>> import tilewright as tw
    >>> from tilewright.schedule import Role, Scalar
    >>> scale = Scalar(tw.float32)
    >>> total = Scalar(tw.float32, Role.OUTPUT)
    >>> scale, total, str(Scalar(0.2))
    (scale: input float32 (), total: output float32 (1,), '0.2')

    A written one is memory of one element: the launch gives an array of the shape (1,) or (). Source: Accera, `Scalar`.
    """

    def __new__(cls, value: Any = None, *args: Any, **kwargs: Any) -> Any:  # Any: a type or a value; as in __init__
        if value is None or isinstance(value, (DType, Delayed, type, str)):
            return super().__new__(cls)
        return expression(value)

    def __init__(
        self,
        element_type: Any = None,  # Any: whatever names an element type
        role: Role = Role.INPUT,
        name: str | None = None,
        *,
        type: Any = None,  # Any: another name of element_type
    ) -> None:
        names = assigned_names(calling_frame()) if name is None else (name,)
        if role is Role.CONST:
            raise ScheduleError("a number of role CONST", help="write the number itself: Scalar(0.5), or 0.5")
        super().__init__(role, element_type if type is None else type, (), name=names[0] if names else "scalar")
        if not names:
            self.name: str = f"scalar{self.number[0]}"


def number_of(size: Dimension) -> Array:
    """Return the number that stands for a size where it is an argument: read, or written where its role is OUTPUT."""
    if size.cell is None:
        name = size.name if size.name.isidentifier() and not keyword.iskeyword(size.name) else f"n{size.number[0]}"
        is_read = size.role is Role.INPUT
        size.cell = Array(size.role, "int32" if is_read else "int64", (), name=name)
        size.cell.number = size.number
        size.cell.stands_for = size if is_read else None
    cell: Array = size.cell
    return cell


def _set(self: Dimension, value: Any) -> None:  # Any: whatever is an expression
    """Write a size of role OUTPUT, in the logic of a nest."""
    if self.role is Role.INPUT:
        raise ScheduleError(f"{self} is a size that the launch gives", help="Dimension(role=Role.OUTPUT)")
    record_store(number_of(self), (Affine((), 0),), value)


Dimension.set = _set  # type: ignore[method-assign]  # what is written is an array, which is made of sizes
