"""What collectives compute, in NumPy and in the documented order: a list of values for each thread of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Value = Any  # Any: a NumPy number, or a tuple of them
Op = Callable[[Value, Value], Value]

WARP = 32


def group_size(group: str | int, threads: int) -> int:
    sizes = {"block": threads, "warp": WARP, "warpgroup": 128}
    return sizes[group] if isinstance(group, str) else group


def groups(values: Sequence[Value], group: str | int) -> list[list[Value]]:
    """Return the values of each group of a block; the last group may be partial."""
    size = group_size(group, len(values))
    return [list(values[n : n + size]) for n in range(0, len(values), size)]


def rows(values: Sequence[Value]) -> list[list[Value]]:
    return [list(values[n : n + WARP]) for n in range(0, len(values), WARP)]


def tree(values: Sequence[Value], op: Op) -> Value:
    """Combine neighbours, then pairs of them; what has no neighbour goes on."""
    level = list(values)
    while len(level) > 1:
        level = [op(*level[n : n + 2]) if n + 1 < len(level) else level[n] for n in range(0, len(level), 2)]
    return level[0]


def reduced(values: Sequence[Sequence[Value]], op: Op, group: str | int) -> list[Value]:
    """Return what each thread gets of a reduction; `values[t]` are the elements of thread t."""
    own = [tree(elements, op) for elements in values]
    found: list[Value] = []
    for members in groups(own, group):
        total = tree([tree(row, op) for row in rows(members)], op)
        found += [total] * len(members)
    return found


def by_distances(values: Sequence[Value], op: Op) -> list[Value]:
    """Scan as lanes do it: each combines with the one 1, 2, 4 ... below."""
    level = list(values)
    distance = 1
    while distance < len(level):
        level = [op(level[n - distance], x) if n >= distance else x for n, x in enumerate(level)]
        distance *= 2
    return level


def scanned_group(
    values: Sequence[Value], op: Op, *, is_whole: bool, is_named: bool
) -> tuple[list[Value], list[Value]]:
    """Scan one value of each thread of a group, and the totals of its warps; `is_whole` says whether the last one is."""
    warps = [by_distances(row, op) for row in rows(values)]
    totals = [row[-1] for row in warps]
    if len(warps) <= 4 or not is_whole:
        upto = [totals[0]]
        for total in totals[1:]:
            upto.append(op(upto[-1], total))
    elif is_named:
        upto = [tree(totals[: n + 1], op) for n in range(len(totals))]
    else:
        upto = by_distances(totals, op)
    found = list(warps[0])
    for n, row in enumerate(warps[1:]):
        found += [op(upto[n], x) for x in row]
    return found, upto


def scanned(
    values: Sequence[Sequence[Value]],
    op: Op,
    group: str | int,
    *,
    exclusive: bool = False,
    neutral: Value = None,
    initial: Value = None,
    is_named: bool = True,
) -> tuple[list[list[Value]], list[Value]]:
    """Return the elements that each thread gets of a scan, and the totals."""
    found: list[list[Value]] = []
    totals: list[Value] = []
    for members in groups(list(values), group):
        own = []
        for elements in members:
            sums = [elements[0]]
            for x in elements[1:]:
                sums.append(op(sums[-1], x))
            own.append(sums)
        upto, warps = scanned_group([sums[-1] for sums in own], op, is_whole=len(values) % WARP == 0, is_named=is_named)
        totals += [warps[-1]] * len(members)
        for t, sums in enumerate(own):
            before = None if t == 0 else upto[t - 1] if t % WARP else warps[t // WARP - 1]
            if not exclusive:
                alone = len(sums) == 1
                found.append([upto[t]] if alone else [x if t == 0 else op(before, x) for x in sums])
            elif initial is not None:
                start = op(initial, before) if t else initial
                found.append([start, *(op(start, x) for x in sums[:-1])])
            else:
                rest = [op(before, x) if t else x for x in sums[:-1]]
                found.append([before if t else neutral, *rest])
    return found, totals
