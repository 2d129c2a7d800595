"""What statements compute: expressions evaluated with device numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.dtypes import DType, float32, int32, promote
from tilewright.errors import ScheduleError
from tilewright.lang.scalar import as_scalar
from tilewright.schedule.affine import Affine
from tilewright.schedule.expressions import Apply, Convert, Expression, Load, Number, Position
from tilewright.schedule.statements import Statement

_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})


def compute_type(statement: Statement) -> DType:
    """Return the type that a statement computes in: that of its widest array, float32 or int32 at least.

    >>> from tilewright.schedule import Array, Nest, Role
    >>> A, C = Array(Role.INPUT, "float16", (4,), name="A"), Array(Role.OUTPUT, "float16", (4,), name="C")
    >>> nest = Nest((4,))
    >>> i = nest.get_indices()
    >>> @nest.iteration_logic
    ... def _(): C[i] = A[i] * 2.0
    >>> compute_type(nest.statements[0])
    tw.float32
    """
    found = statement.store.array.element_type
    for load in statement.store.value.loads():
        found = promote(found, load.array.element_type)
    if found.is_float:
        return found if found.bits >= 32 else float32
    return promote(found, int32) if found.bits < 32 else found


def evaluate(
    x: Expression, type: DType, load: Callable[[Load], Any], affine: Callable[[Affine], Any]
) -> Any:  # Any: device numbers
    """Return an expression's value: `load` reads elements, which are converted to `type`, `affine` gives indices."""
    if isinstance(x, Load):
        value = as_scalar(load(x))
        return value if value.dtype.kind == "bool" else value.to(type)
    if isinstance(x, Number):
        return x.value
    if isinstance(x, Position):
        place = as_scalar(affine(x.place))
        return place.to(type) if type.is_float else place
    if isinstance(x, Convert):
        return as_scalar(evaluate(x.value, type, load, affine)).to(x.dtype)
    if isinstance(x, Apply):
        # Indices are compared with one another as the integers that they are.
        is_test_of_indices = x.name in _COMPARISONS and next(iter(x.loads()), None) is None
        operands = [evaluate(part, int32 if is_test_of_indices else type, load, affine) for part in x.arguments]
        return x.function(*operands)
    raise ScheduleError(f"{x} is no expression")
