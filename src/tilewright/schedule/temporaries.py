"""Arrays that hold nothing at first: they are written before they are read, and caches of them live so long."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.errors import ScheduleError, TilewrightWarning
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.instances import Instance, Pair, difference, turns
from tilewright.schedule.integers import UndecidedError

if TYPE_CHECKING:
    from tilewright.schedule.plan import Plan


def refuse_unwritten(plan: Plan) -> None:
    """Raise `ScheduleError` for a TEMP array that is added to and never begun, and warn of such an OUTPUT array.

    What was in it before is then read: of a TEMP array nothing, of an OUTPUT array what the caller left there.
    """
    for array in plan.arrays:
        if array.role not in (Role.TEMP, Role.OUTPUT):
            continue
        if plan.tensorization is not None and plan.tensorization.sets(array):
            continue
        statements = [statement for part in plan.nest.parts for statement in part.statements]
        reads = [s for s in statements if any(x.array is array and not x.is_write for x in s.accesses)]
        if not reads or any(s.store.array is array for s in statements if s not in reads):
            continue
        message = f"{array.name} is {array.role.name} and is read, and nothing is written to it before"
        help = "store to it first, in a nest that is fused in front, or tensorize with prologue_op=SET"
        if array.role is Role.TEMP:
            raise ScheduleError(message, location=reads[0].location, help=help)
        where = reads[0].location
        text = f"{message}: it begins with what is in it (help: declare it INPUT_OUTPUT, or {help})"
        if where is None:
            warnings.warn(text, TilewrightWarning, stacklevel=2)
        else:
            warnings.warn_explicit(text, TilewrightWarning, where.file, where.line)


def refuse_forgotten(plan: Plan) -> None:
    """Raise `ScheduleError` where a TEMP array is read in other turns than it is written, and its cache ends between.

    That is so where no write of the element that a read needs is in the same turn of all loops around the outermost
    cache; a sum does not count as written by its own additions.
    """
    for array in plan.arrays:
        caches = [cache for cache in plan.caches if cache.array is array]
        if array.role is not Role.TEMP or not caches:
            continue
        longest = min(caches, key=lambda cache: cache.depth(plan))
        around = [index for index in plan.serial[: longest.depth(plan)] if plan.nest.loop(index).trips != 1]
        if not around or (plan.tensorization is not None and plan.tensorization.sets(array)):
            continue
        accesses = _instances(plan, array)
        for read in (x for x in accesses if not x.access.is_write):
            writes = [x for x in accesses if x.access.is_write and not _is_own_sum(x, read)]
            if not any(_meet(plan, write, read, around) for write in writes):
                loops = ", ".join(map(str, around))
                raise ScheduleError(
                    f"{longest.name} is filled anew in each turn of {loops}, and nothing is written there before the "
                    f"{read.access}",
                    location=read.access.statement.location,
                    help=f"{array.name} is TEMP and lives in its caches alone: cache it at an outer index first",
                )


def _instances(plan: Plan, array: Array) -> list[Instance]:
    return [
        Instance(plan.nest, number, access)
        for number, part in enumerate(plan.nest.parts)
        for statement in part.statements
        for access in statement.accesses
        if access.array is array
    ]


def _is_own_sum(write: Instance, read: Instance) -> bool:
    return write.number == read.number and Pair(write, read).is_of_one_reduction


def _meet(plan: Plan, write: Instance, read: Instance, around: Sequence[Index]) -> bool:
    """Whether a write and a read of one element can be in the same turn of the loops around."""
    pair = Pair(write, replace(read, side=1))
    system = pair.meets()
    for index in around:
        system = system.equal(*difference(*turns(plan.nest.loop(index))))
    try:
        return system.solve() is not None
    except UndecidedError:
        raise pair.undecided(
            f"{write.access.array.name} cannot be cached at {around[-1]}",
            f"access one element in the same iteration of {', '.join(map(str, around))}",
        ) from None
