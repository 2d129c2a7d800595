"""Collectives: what the threads of a block, of a warp or of some of its lanes compute together.

    reduce      op over the values of all threads
    scan        op over the values of each thread and those before it
    argmax      the greatest value and where it is; argmin likewise
    broadcast   the value of one thread

Values go along rows of lanes by shuffles; between warps they go through shared memory, with one barrier. The order in
which values are combined depends on nothing but the size of the group, and the order of operands is kept, so that
operations need not commute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.arguments import shown
from tilewright.dtypes import DType, bool_, float32, int32
from tilewright.errors import LanguageError
from tilewright.instructions.redux import Redux, has_redux
from tilewright.language.combining import Operation, Values, tree
from tilewright.language.groups import Exchange, Group, Row, pass_on, read_all, where_else
from tilewright.tensors import Tensor
from tilewright.trace.mathematics import isnan, maximum, minimum, where
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.threads import is_of_thread
from tilewright.trace.tracer import current

_Candidate = tuple[Scalar, Scalar, "Scalar | None"]  # a value, its index, and whether it takes part

# Values of so many warps are read by every thread, those of more by the lanes of a row. A scan selects among them too.
_READ_BY_EACH = 4
_READ_BY_EACH = 4


# --- reduce ----------------------------------------------------------------------------------------------


def reduce(x: Any, op: Any = "add", group: Any = "block") -> Any:  # Any: numbers, fragments, tuples; a name or function
    """Return `op` over the values of all threads of a group, in each of them.

    `op` is "add", "mul", "min", "max", "and", "or" or "xor", or an associative function of two values; for tuples, a
    function takes and returns tuples, and a name applies to each item. Sums of bools are int32. All elements of a
    fragment take part: those of a thread are combined first. `group` is "block", "warp", "warpgroup" (128 threads) or a
    number of threads: a power of two up to a warp, or a multiple of a warp that divides the block.

    Law: the values in the order of threads, and of elements in a thread, are combined by a tree: neighbours first, then
    pairs of neighbours, and so on; a value without a neighbour passes to the next level unchanged. The elements of a
    thread form a tree of their own, and so do the values of a warp. In a block of several warps all threads must take
    part, as in `tw.sync_threads`; in a warpgroup all its threads.

    >>> import numpy as np, tilewright as tw
    >>> @tw.kernel
    ... def total(out, x):
    ...     found = tw.reduce(x[tw.thread_idx.x])
    ...     if tw.thread_idx.x == 0:
    ...         out[0] = found
    >>> out = np.zeros(1, np.int32)
    >>> total[1, 100](out, np.arange(100, dtype=np.int32))
    >>> int(out[0])
    4950

    Raises `LanguageError` for a group that the block cannot have, and an operation that changes types.
    """
    where_used = Group.of(group, "tw.reduce")
    values = Values.of(x, "tw.reduce")
    operation = Operation.of(op, values, "tw.reduce")
    own = tree(operation, [operation.prepared(element) for element in values.elements])
    types = [x.dtype for x in own]
    if operation.name in ("min", "max"):  # exact in float32, in which they are computed anyway
        own = [x.to(float32) if x.dtype.is_narrow_float else x for x in own]
    found = _over_group(where_used, operation, own)
    return values.rebuild([x.to(type) for x, type in zip(found, types, strict=True)])


def _over_group(group: Group, operation: Operation, values: list[Scalar]) -> list[Scalar]:
    if group.rows == 1:
        return _over_row(group.row(), operation, values)
    row = group.row()
    values = _over_row(row, operation, values, everywhere=False)
    exchange = Exchange(group, [x.dtype for x in values], group.rows)
    memory = pass_on(group, exchange, values, group.row_number(), row.lane == 0)
    if group.rows <= _READ_BY_EACH or not group.is_whole:
        return tree(operation, read_all(memory, group.rows))
    lanes = group.row_of_warps()
    return _over_row(lanes, operation, _by_lanes(lanes, memory))


def _by_lanes(lanes: Row, memory: Sequence[Tensor]) -> list[Scalar]:
    """Return in each lane what the warp of its number passed on; in the lanes behind, what the last one did."""
    place = lanes.lane if lanes.is_full else minimum(lanes.lane, lanes.count - 1)
    return [tensor[place] for tensor in memory]


def _over_row(row: Row, operation: Operation, values: list[Scalar], *, everywhere: bool = True) -> list[Scalar]:
    """Combine the values of a row of lanes, in all of them, or at least in the first."""
    is_warp = row.is_full and row.width == row.warp
    if operation.name is not None and (is_warp or (row.has_spares and operation.is_idempotent)):
        tracer, name = current("a reduction"), operation.name
        if all(has_redux(tracer, name, x.dtype) for x in values):
            return [Scalar(tracer.emit(Redux(name, x.value), x.dtype)[0]) for x in values]
    if operation.commutes and (row.is_full or (row.has_spares and operation.is_idempotent)):
        for distance in row.distances:
            values = operation(values, row.shuffle("xor", values, distance))
        return values
    return _towards_first_lane(row, operation, values, everywhere=everywhere)


def _towards_first_lane(row: Row, operation: Operation, values: list[Scalar], *, everywhere: bool) -> list[Scalar]:
    """Combine pairs of lanes in the lower of the two, so that operands stay in order, then tell the others.

    The other lanes compute nothing: what they would combine is not a value of the tree, and might overflow.
    """
    for distance in row.distances:
        above = row.shuffle("down", values, distance)
        takes = row.lane % (2 * distance) == 0
        if not row.is_full:
            takes = takes & (row.lane + distance < row.count)
        values = _combined_where(takes, operation, values, above)
    return row.shuffle("idx", values, 0) if everywhere and row.width > 1 else values


def _combined_where(
    condition: Any,  # Any: of host or device
    operation: Operation,
    values: list[Scalar],
    above: list[Scalar],
) -> list[Scalar]:
    return where_else(condition, lambda: operation(values, above), values)


# --- scan ------------------------------------------------------------------------------------------------


def scan(
    x: Any,  # Any: numbers, fragments, tuples
    op: Any = "add",  # Any: a name or a function
    group: Any = "block",
    *,
    exclusive: bool = False,
    initial: Any = None,
    with_total: bool = False,
) -> Any:
    """Return `op` over the values of each thread of a group and all threads before it.

    With `exclusive`, over those of the threads before it only: the first thread gets `initial`, by default the neutral
    value of an operation with a name (0 for "add", 1 for "mul", the lowest number for "max", and so on), and the others
    combine `initial` in front if it is given. With `with_total` the result is a pair, of the scan and of op over all
    threads (without `initial`), which every thread gets. In fragments, a thread's elements are consecutive: thread t of
    n elements has the elements n * t to n * t + n - 1, and the result is a new fragment. `op`, tuples and `group` are
    as in `tw.reduce`; a function keeps the order of its operands.

    The order of combination is fixed: a thread's elements from the first to the last; the lanes of a warp at distances
    1, 2, 4, 8, 16; up to 4 warps, or warps of which the last is partial, one after the other, otherwise those before a
    warp as in `tw.reduce`, or at distances if `op` is a function.

    >>> import numpy as np, tilewright as tw
    >>> @tw.kernel
    ... def places(out, keep):
    ...     i = tw.thread_idx.x
    ...     before = tw.scan(keep[i] != 0, exclusive=True)
    ...     if keep[i] != 0:
    ...         out[before] = i
    >>> out = np.zeros(3, np.int32)
    >>> places[1, 6](out, np.array([0, 1, 0, 0, 1, 1], np.int32))
    >>> out.tolist()
    [1, 4, 5]

    Raises `LanguageError` for a group that the block cannot have, an operation that changes types, and an exclusive
    scan by a function without `initial`.
    """
    members = Group.of(group, "tw.scan")
    values = Values.of(x, "tw.scan")
    operation = Operation.of(op, values, "tw.scan")
    own = [operation.prepared(values.elements[0])]
    for element in values.elements[1:]:
        own.append(operation(own[-1], operation.prepared(element)))
    first = _initial(operation, own[0], initial, exclusive=exclusive)
    upto, before_warp, total = _scan_over_group(members, operation, own[-1], with_total=with_total)
    if len(own) == 1 and not exclusive:
        result = [upto]
    else:
        before = _before(members, upto, before_warp)
        result = _behind(operation, members, own, before, first, is_given=initial is not None)
    scanned = values.like(result)
    return (scanned, values.rebuild(total)) if with_total else scanned


def _initial(operation: Operation, like: list[Scalar], initial: Any, *, exclusive: bool) -> list[Scalar] | None:
    """Return what an exclusive scan begins with, as leaves."""
    types = [x.dtype for x in like]
    if not exclusive:
        if initial is not None:
            raise LanguageError(
                f"tw.scan: initial={shown(initial)} is what an exclusive scan begins with",
                help="write exclusive=True, or combine it with the result",
            )
        return None
    if initial is not None:
        return operation.in_types(initial, types, "initial")
    neutral = operation.neutral(types)
    if neutral is None:
        raise LanguageError(
            "tw.scan with exclusive=True by a function needs initial=: what the first thread gets",
            help="give the function's neutral value, such as initial=0 for sums",
        )
    return neutral


def _scan_over_group(
    group: Group, operation: Operation, values: list[Scalar], *, with_total: bool
) -> tuple[list[Scalar], list[Scalar], list[Scalar]]:
    """Scan one value of each thread, inclusively.

    Return the scan, op over all warps before the thread's (undefined in the first warp; nothing where there is only
    one), and the total, if it is asked for.
    """
    row = group.row()
    values = _scan_over_row(row, operation, values)
    last = row.count - 1
    if group.rows == 1:
        return values, [], row.shuffle("idx", values, last) if with_total else []
    number = group.row_number()
    exchange = Exchange(group, [x.dtype for x in values], group.rows)
    memory = pass_on(group, exchange, values, number, row.lane == last)
    if group.rows <= _READ_BY_EACH or not group.is_whole:
        before, total = _before_warp(operation, number, read_all(memory, group.rows), with_total=with_total)
    else:
        lanes = group.row_of_warps()
        warps = _by_lanes(lanes, memory)
        if operation.commutes:
            before = _over_first(lanes, operation, warps, number)
            total = _over_first(lanes, operation, warps, group.rows) if with_total else []
        else:
            warps = _scan_over_row(lanes, operation, warps)
            before = lanes.shuffle("idx", warps, maximum(number - 1, 0))
            total = lanes.shuffle("idx", warps, group.rows - 1) if with_total else []
    return where_else(number > 0, lambda: operation(before, values), values), before, total


def _before_warp(
    operation: Operation, number: Any, warps: list[list[Scalar]], *, with_total: bool
) -> tuple[list[Scalar], list[Scalar]]:
    """Combine the values of warps from the first on: those before warp `number`, and all if that is asked for."""
    total = before = warps[0]
    for n, value in enumerate(warps[1:-1], 1):
        total = operation(total, value)
        before = [where(number > n, x, y) for x, y in zip(total, before, strict=True)]
    return before, operation(total, warps[-1]) if with_total else []


def _over_first(lanes: Row, operation: Operation, values: list[Scalar], count: Any) -> list[Scalar]:
    """Combine the values of the first `count` lanes, in all lanes: the others bring what changes nothing.

    That takes fewer instructions than a scan, of which each lane needs one value only.
    """
    neutral = operation.unchanging([x.dtype for x in values])
    taken = [as_scalar(where(lanes.lane < count, x, y)) for x, y in zip(values, neutral, strict=True)]
    return _over_row(replace(lanes, count=lanes.width, has_spares=False), operation, taken)


def _scan_over_row(row: Row, operation: Operation, values: list[Scalar]) -> list[Scalar]:
    for distance in row.distances:
        if isinstance(row.count, int) and distance >= row.count:
            break
        below = row.shuffle("up", values, distance)
        takes = row.lane >= distance
        if row.has_spares and not row.is_full:
            takes = takes & (row.lane < row.count)
        values = _combined_above(takes, operation, below, values)
    return values


def _combined_above(condition: Any, operation: Operation, below: list[Scalar], values: list[Scalar]) -> list[Scalar]:
    return where_else(condition, lambda: operation(below, values), values)


def _before(group: Group, upto: list[Scalar], before_warp: list[Scalar]) -> list[Scalar]:
    """Return op over the threads before this one, which is undefined in the first, from the inclusive scan."""
    row = group.row()
    before = row.shuffle("up", upto, 1)
    if before_warp:
        before = [where(row.lane == 0, x, y) for x, y in zip(before_warp, before, strict=True)]
    return before


def _behind(
    operation: Operation,
    group: Group,
    own: list[list[Scalar]],
    before: list[Scalar],
    first: list[Scalar] | None,
    *,
    is_given: bool,
) -> list[list[Scalar]]:
    """Put what is before the thread in front of its own elements; `first` is what an exclusive scan begins with."""
    has_before = group.rank() > 0
    if first is None:
        return _all_where(has_before, operation, before, own)
    if is_given:
        start = where_else(has_before, lambda: operation(first, before), first)
        return [start, *(operation(start, element) for element in own[:-1])]
    start = [as_scalar(where(has_before, x, y)) for x, y in zip(before, first, strict=True)]
    return [start, *_all_where(has_before, operation, before, own[:-1])]


def _all_where(
    condition: Any, operation: Operation, before: list[Scalar], own: list[list[Scalar]]
) -> list[list[Scalar]]:
    """Put a value in front of several, where a condition holds, under one branch."""
    if not own:
        return []
    flat = where_else(
        condition,
        lambda: [x for element in own for x in operation(before, element)],
        [x for element in own for x in element],
    )
    width = len(before)
    return [flat[n : n + width] for n in range(0, len(flat), width)]


# --- extremes and where they are -------------------------------------------------------------------------


def argmax(x: Any, *, index: Any = None, group: Any = "block") -> tuple[Any, Any]:  # Any: numbers or fragments
    """Return the greatest value of a group and its index, in each thread: `value, index = tw.argmax(x)`.

    The index is the thread's number in the group, for a fragment of n elements n * thread + element; `index`, an
    integer or a fragment of them, gives other indices. Among equal values the lowest index wins. NaN is returned only
    if all values are NaN, as in `tw.maximum`. `group` is as in `tw.reduce`.

    >>> import numpy as np, tilewright as tw
    >>> @tw.kernel
    ... def greatest(value, place, x):
    ...     best, where = tw.argmax(x[tw.thread_idx.x])
    ...     if tw.thread_idx.x == 0:
    ...         value[0], place[0] = best, where
    >>> value, place = np.zeros(1, np.float32), np.zeros(1, np.int32)
    >>> greatest[1, 4](value, place, np.array([1, 7, 7, 3], np.float32))
    >>> float(value[0]), int(place[0])
    (7.0, 1)
    """
    return _extreme("max", x, index, group)


def argmin(x: Any, *, index: Any = None, group: Any = "block") -> tuple[Any, Any]:  # Any: numbers or fragments
    """Return the least value of a group and its index, in each thread; everything else is as in `tw.argmax`."""
    return _extreme("min", x, index, group)


def _extreme(kind: str, x: Any, index: Any, group: Any) -> tuple[Scalar, Scalar]:
    what = f"tw.arg{kind}"
    members = Group.of(group, what)
    elements = elements_of(x, what)
    if index is None:
        places = indices(members, len(elements))
    else:
        places = elements_of(index, f"{what} with index=")
        if len(places) != len(elements) or not places[0].dtype.is_integer:
            raise LanguageError(
                f"{what}: index holds an integer for each element of x: {len(elements)} of them, not {len(places)} of "
                f"{places[0].dtype}"
            )
    return Extreme(kind, members, elements[0].dtype, places[0].dtype).find(elements, places)


def elements_of(x: Any, what: str) -> list[Scalar]:
    """Return the elements that a thread brings: those of a fragment, or one number; bools as int32."""
    values = Values.of(x, what)
    if len(values.leaves) != 1:
        raise LanguageError(f"{what} takes one number, or one fragment, not {shown(x)}")
    return [element.to(int32) if element.dtype is bool_ else element for (element,) in values.elements]


def indices(group: Group, count: int) -> list[Scalar]:
    """Return the number in the group of each of the `count` elements of a thread."""
    first = group.rank() * count
    return [as_scalar(first + n, int32) for n in range(count)]


class Extreme:
    """The greatest or least value of a group and the lowest index that has it.

    First the value is found, then the lowest index of those that are equal to it; both are reductions of one number,
    which takes fewer instructions than to compare pairs. `steps` says how often it will be looked for.
    """

    def __init__(self, kind: str, group: Group, type: DType, index: DType, steps: int = 1) -> None:
        self.group = group
        self.type = type
        self.index = index
        values = Values((), [], lambda given: given[0])
        self.best: Operation = Operation.of(kind, values, f"tw.arg{kind}")
        self.first: Operation = Operation.of("min", values, f"tw.arg{kind}")
        # Loses against all others, or is equal to them: of floats that is NaN.
        neutral = float("nan") if type.is_float else type.lowest if kind == "max" else type.highest
        self.neutral: Scalar = as_scalar(neutral, type)
        self.no_index: Scalar = as_scalar(index.highest, index)
        self.exchange: Exchange | None = Exchange(group, [type, index], group.rows, steps) if group.rows > 1 else None

    def find(
        self, elements: Sequence[Scalar], places: Sequence[Scalar], counts: Sequence[Scalar] | None = None
    ) -> tuple[Scalar, Scalar]:
        """Return value and index, in each thread; only elements whose flag in `counts` holds take part."""
        offered = list(elements)
        if counts is not None:
            offered = [as_scalar(where(flag, x, self.neutral)) for x, flag in zip(elements, counts, strict=True)]
        flags: Sequence[Scalar | None] = [None] * len(offered) if counts is None else counts
        (value,) = tree(self.best, [[x] for x in offered])
        row = self.group.row()
        value, place = self._over_row(row, value, [*zip(offered, places, flags, strict=True)])
        if self.exchange is None:
            return value, place
        memory = pass_on(self.group, self.exchange, (value, place), self.group.row_number(), row.lane == 0)
        if self.group.is_whole:
            lanes = self.group.row_of_warps()
            value, place = _by_lanes(lanes, memory)
            return self._over_row(lanes, value, [(value, place, None)])
        warps = read_all(memory, self.group.rows)
        (value,) = tree(self.best, [[x] for x, _ in warps])
        return value, self._lowest(value, [(x, place, None) for x, place in warps])

    def _over_row(self, row: Row, value: Scalar, candidates: Sequence[_Candidate]) -> tuple[Scalar, Scalar]:
        (best,) = _over_row(row, self.best, [value])
        (place,) = _over_row(row, self.first, [self._lowest(best, candidates)])
        return best, place

    def _lowest(self, best: Scalar, candidates: Sequence[_Candidate]) -> Scalar:
        """Return the lowest index of a thread's elements that are equal to the best value.

        Conditions are selected by one after the other: for an `or` of them compilers branch.
        """
        equal = []
        for value, place, counts in candidates:
            found = where(value == best, place, self.no_index)
            if self.type.is_float:
                found = where(isnan(best), place, found)
            if counts is not None:
                found = where(counts, found, self.no_index)
            equal.append([as_scalar(found)])
        return tree(self.first, equal)[0]


# --- broadcast -------------------------------------------------------------------------------------------


def broadcast(x: Any, source: Any = 0, group: Any = "block") -> Any:  # Any: numbers, fragments, tuples
    """Return the value that thread number `source` of the group has, in each of its threads.

    `source` may be a device value, the same in all threads of the group. Fragments and tuples are passed as a whole.
    Raises `LanguageError` for a source that the group does not have, and between warps for one that differs by thread.
    """
    members = Group.of(group, "tw.broadcast")
    values = Values.of(x, "tw.broadcast")
    if not isinstance(source, Scalar) and (type(source) is not int or not 0 <= source < members.size):
        raise LanguageError(
            f"tw.broadcast: source is a thread of the group, 0 to {members.size - 1}, not {shown(source)}"
        )
    if members.rows > 1 and isinstance(source, Scalar) and is_of_thread(source.value):
        raise LanguageError(
            "tw.broadcast: source is computed of tw.thread_idx, and it has to be the same in all threads of the group",
            help="to read values of different threads, write them to shared memory; tw.shuffle(x, lane) reads within a "
            "warp",
        )
    flat = [x for element in values.elements for x in element]
    if members.rows == 1:
        flat = members.row().shuffle("idx", flat, source)
    else:
        exchange = Exchange(members, [x.dtype for x in flat], 1)
        flat = [tensor[0] for tensor in pass_on(members, exchange, flat, 0, members.rank() == source)]
    width = len(values.leaves)
    return values.like([flat[n : n + width] for n in range(0, len(flat), width)])
