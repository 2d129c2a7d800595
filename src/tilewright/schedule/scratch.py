"""TEMP arrays that no cache keeps: which of them fit the registers of a thread, and which the launch allocates."""

from __future__ import annotations

from tilewright.errors import ScheduleError
from tilewright.schedule.arrays import Array
from tilewright.schedule.caches import region_of
from tilewright.schedule.memory_spaces import IN_MEMORY, IN_REGISTERS
from tilewright.schedule.plan_state import PlanState

_MOST_BYTES = 255 * 4  # of registers, which is what a thread has at most: beyond it they are memory all the same


def scratch_of(plan: PlanState) -> tuple[Array, ...]:
    """Return the TEMP arrays that a launch allocates: those that no cache keeps and no thread can hold.

    A TEMP array is one array, whoever accesses it, so that both places mean the same: a binding under which two threads
    would access one element, and one of them writes, is refused. Raises `ScheduleError` for an array that its flags put
    into registers and whose elements in a thread only the launch counts.
    """
    found = []
    shared = {crossing.pair.write.array.memory for crossing in plan.crossings}  # of threads that wait for one another
    for array in plan.memories:
        if not plan.is_temporary(array) or any(cache.array.memory is array for cache in plan.caches):
            continue
        if is_constant(plan, array):
            continue
        forms = [form for form in plan.arrays if form.memory is array and form is not array]
        if array.flags in IN_REGISTERS:
            if forms:
                raise ScheduleError(
                    f"{array.name} is kept in registers and is seen as {forms[0].name}",
                    help="leave its flags out, or take AllocateFlags.HEAP: memory can be seen as other elements",
                )
            _elements(plan, array)
        elif array.flags in IN_MEMORY or forms or array in shared or not _fits(plan, array):
            found.append(array)
    return tuple(found)


def is_constant(plan: PlanState, array: Array) -> bool:
    """Whether a TEMP array is nothing but zeros: it begins with them, and no statement writes it."""
    statements = (statement for part in plan.nest.parts for statement in part.statements)
    return array.memory in plan.begun and all(
        statement.store.array.memory is not array.memory for statement in statements
    )


def _fits(plan: PlanState, array: Array) -> bool:
    try:
        return _elements(plan, array) * array.element_type.bytes <= _MOST_BYTES
    except ScheduleError:
        return False


def _elements(plan: PlanState, array: Array) -> int:
    """Return how many elements a thread touches. Raises `ScheduleError` where they are not a box of known size."""
    loops = [plan.nest.loop(index) for index in plan.serial]
    return region_of(array, plan.accesses(array), loops).size
