"""Products C += A * B of a nest, as `plan.auto` sees them, and the transforms that bring their loops in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.schedule import transforms
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Array, Load
from tilewright.schedule.loop_nest import Loop, LoopNest, at_places
from tilewright.schedule.orders import refuse_violations
from tilewright.schedule.values import Apply, Convert, Expression


@dataclass(frozen=True)
class Product:
    """C += A * B: the loops that move C with A, C with B, A with B, and all three."""

    a: Array
    b: Array
    c: Array
    rows: tuple[Loop, ...]
    columns: tuple[Loop, ...]
    sums: tuple[Loop, ...]
    batches: tuple[Loop, ...]


def product_of(nest: LoopNest) -> Product | None:
    """Return the product that a nest computes, None where it computes anything else."""
    if len(nest.parts) != 1 or len(nest.parts[0].statements) != 1 or nest.parts[0].conditions:
        return None
    if nest.parts[0].statements[0].store.guards:
        return None
    statement = at_places(nest.parts[0].statements[0], nest.parts[0].places)
    factors = _factors(statement.reduction[1]) if statement.reduction and statement.reduction[0] == "+" else None
    if factors is None:
        return None
    a, b = factors
    in_a, in_b, in_c = (moving(place) for place in (a.place, b.place, statement.store.place))
    groups: dict[tuple[bool, bool, bool], list[Loop]] = {}
    for loop in nest.loops:
        groups.setdefault((loop.index in in_a, loop.index in in_b, loop.index in in_c), []).append(loop)
    found = [groups.pop(key, []) for key in ((True, False, True), (False, True, True), (True, True, False))]
    batches = groups.pop((True, True, True), [])
    if groups or not all(found):
        return None
    rows, columns, sums = map(tuple, found)
    return Product(a.array, b.array, statement.store.array, rows, columns, sums, tuple(batches))


def _factors(value: Expression) -> tuple[Load, Load] | None:
    while isinstance(value, Convert):
        value = value.value
    if not isinstance(value, Apply) or value.name != "*" or len(value.arguments) != 2:
        return None
    first, second = (x.value if isinstance(x, Convert) else x for x in value.arguments)
    return (first, second) if isinstance(first, Load) and isinstance(second, Load) else None


def moving(place: Sequence[Affine]) -> set[Any]:  # Any: indices and dimensions
    """Return what a place moves with."""
    return {symbol for mode in place for symbol in mode.symbols()}


def split_by(nest: LoopNest, index: Index, size: int, ending: str) -> tuple[LoopNest, Index]:
    """Return the nest with a loop split, and the inner index, named by the outer one and an ending."""
    name = index.name.partition("_")[0]
    inner = Index(f"{name}{ending}" if ending else f"{name}{name[-1]}")
    return transforms.split(nest, index, size, inner), inner


def ordered(nest: LoopNest, order: Sequence[Index]) -> LoopNest:
    """Return the nest in another order. Raises `ScheduleError` where that changes what it computes."""
    changed = transforms.reorder(nest, order)
    refuse_violations(nest, changed, f"the order ({', '.join(map(str, order))})")
    return changed
