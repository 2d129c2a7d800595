"""Sorting in a group of threads, and the greatest values of a group.

A group's elements are numbered thread by thread: thread t of n elements has those from n * t on. Sorting compares
pairs of elements in rounds (a bitonic network). A pair is in one thread, in two lanes of a warp, which exchange by
shuffles, or in two warps, which exchange through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.dtypes import DType, bool_, int8, int16, int32, int64
from tilewright.errors import LanguageError
from tilewright.language.collectives import Extreme, elements_of, indices
from tilewright.language.combining import Values
from tilewright.language.groups import Exchange, Group
from tilewright.tensors import Tensor
from tilewright.trace.mathematics import isnan, maximum, minimum, where
from tilewright.trace.memory import registers
from tilewright.trace.scalar import Scalar, as_scalar

# --- sort ------------------------------------------------------------------------------------------------


def sort(x: Any, *, group: Any = "block", descending: bool = False, values: Any = None) -> Any:
    """Return the elements of a group in order: thread t of n elements gets those of rank n * t to n * t + n - 1.

    `x` is a number or a fragment of 2^k elements; the result is of the same kind. With `values`, a number or fragment
    of as many elements or a tuple of them, the result is a pair: the keys in order, and the values that belong to
    them; of equal keys, the values keep their order. NaN comes last, in both directions; -0.0 is below 0.0. `group`
    is as in `tw.reduce`, of any number of threads.

    >>> import numpy as np, tilewright as tw
    >>> @tw.kernel
    ... def ordered(out, x):
    ...     i = tw.thread_idx.x
    ...     out[i] = tw.sort(x[i])
    >>> out = np.zeros(5, np.int32)
    >>> ordered[1, 5](out, np.array([3, 1, 2, 5, 4], np.int32))
    >>> out.tolist()
    [1, 2, 3, 4, 5]

    Raises `LanguageError` for a group that the block cannot have, and a fragment of another number of elements.
    """
    members = Group.of(group, "tw.sort")
    given = Values.of(x, "tw.sort")
    elements = elements_of(x, "tw.sort")
    count, type = len(elements), elements[0].dtype
    if count & (count - 1):
        raise LanguageError(
            f"tw.sort takes a fragment of 1, 2, 4, 8 ... elements, not {count}",
            help="fill it up with the greatest number of the type, which sorts last",
        )
    forward, back = _keys(type, descending=descending)
    columns = [[forward(element)] for element in elements]
    brought = None if values is None else Values.of(values, "tw.sort with values=")
    if brought is not None:
        if len(brought.elements) != count:
            raise LanguageError(f"tw.sort: values has {len(brought.elements)} elements, and the keys are {count}")
        places = indices(members, count)
        columns = [[*key, place, *value] for key, place, value in zip(columns, places, brought.elements, strict=True)]
    sorted_columns = _Network(members, columns).sorted()
    was_bool = given.leaves[0].dtype is bool_
    keys = [back(column[0]) for column in sorted_columns]
    ordered = given.like([[key.to(bool_) if was_bool else key] for key in keys])
    if brought is None:
        return ordered
    return ordered, brought.like([column[2:] for column in sorted_columns])


_Change = Callable[[Scalar], Scalar]


def _keys(type: DType, *, descending: bool) -> tuple[_Change, _Change]:
    """Return the functions from numbers to integers in the order that is asked for, and back.

    A float's bits, read as an integer, are in order among the positive ones, and in reverse among the negative ones.
    """
    if not type.is_float:
        flip: _Change = (lambda x: ~x) if descending else (lambda x: x)
        return flip, flip
    bits = {8: int8, 16: int16, 32: int32, 64: int64}[type.bits]

    def mirrored(x: Scalar) -> Scalar:
        ordered = x ^ ((x >> (bits.bits - 1)) & bits.highest)
        result: Scalar = ordered
        return result

    def forward(x: Scalar) -> Scalar:
        key = mirrored(x.bitcast(bits))
        return as_scalar(where(isnan(x), bits.highest, ~key if descending else key), bits)

    def back(key: Scalar) -> Scalar:
        number = mirrored(~key if descending else key).bitcast(type)
        return as_scalar(where(key == bits.highest, float("nan"), number), type)

    return forward, back


class _Network:
    """A bitonic network over the elements of a group, each a column of numbers of which the first decides.

    Every comparison leaves the lesser element at the lower place. So places behind the last element, as if they held
    the greatest numbers, never change, and the number of threads is free. Columns of several numbers have their
    place second, by which equal ones stay in order.
    """

    def __init__(self, group: Group, columns: list[list[Scalar]]) -> None:
        self.group, self.columns, self.count = group, columns, len(columns)
        self.row = group.row()
        self.rank = group.rank()
        self.reach = self.count * self.row.width  # elements of a row
        steps = self._steps()
        between_warps = sum(1 for step in steps if step[1] >= self.reach)
        self.steps = steps
        self.exchange = None
        if between_warps:
            types = [x.dtype for x in columns[0]]
            self.exchange = Exchange(group, types, group.size * self.count, steps=between_warps)

    def _steps(self) -> list[tuple[int, int]]:
        """Return the rounds: the bits in which the places of a pair differ, and the highest of them.

        Runs of 1, 2, 4 ... elements are merged two at a time. The first round compares one run with the other one
        backwards, the following ones the halves of each run, and so on.
        """
        places = self.group.size * self.count
        steps = []
        run = 1
        while run < places:
            steps.append((2 * run - 1, run))
            distance = run // 2
            while distance:
                steps.append((distance, distance))
                distance //= 2
            run *= 2
        return steps

    def sorted(self) -> list[list[Scalar]]:
        """Return the thread's elements of the sorted ones."""
        for bits, highest in self.steps:
            if highest < self.count:
                self._in_thread(bits, highest)
            else:
                self._between_threads(bits, highest)
        return self.columns

    def _in_thread(self, bits: int, highest: int) -> None:
        for low in range(self.count):
            if not low & highest:
                high = low ^ bits
                a, b = self.columns[low], self.columns[high]
                self.columns[low], self.columns[high] = _lesser(a, b), _greater(a, b)

    def _between_threads(self, bits: int, highest: int) -> None:
        """Compare with elements of another thread, `bits // count` away; within it they may be in reverse."""
        threads, inner = bits // self.count, bits % self.count
        if highest < self.reach:
            others = [self.row.shuffle("xor", self.columns[n ^ inner], threads) for n in range(self.count)]
        else:
            others = self._of_other_warp(threads, inner)
        is_low = (self.rank & (highest // self.count)) == 0
        exists = self._exists(threads)
        columns = []
        for own, other in zip(self.columns, others, strict=True):
            if len(own) == 1:
                taken, moves = [where(is_low, minimum(own[0], other[0]), maximum(own[0], other[0]))], exists
            else:  # one condition for all columns: nested choices take clang exponential time
                taken, moves = other, _is_less(own, other) ^ is_low
                moves = moves if exists is None else moves & exists
            kept = taken if moves is None else [where(moves, x, y) for x, y in zip(taken, own, strict=True)]
            columns.append([as_scalar(x) for x in kept])
        self.columns = columns

    def _exists(self, threads: int) -> Any:  # Any: a condition, or None where it always holds
        """Say whether the thread so far away is in the group."""
        size = self.group.size
        if size & (size - 1) == 0 and self.group.is_whole:
            return None
        if size <= self.row.width:  # a row, of which the block's last one may lack lanes
            return (self.row.lane ^ threads) < self.row.count
        return (self.rank ^ threads) < size

    def _of_other_warp(self, threads: int, inner: int) -> list[list[Scalar]]:
        assert self.exchange is not None, self.group
        memory = self.exchange.next()
        size = self.group.size
        # Neighbouring threads write neighbouring places, which are in different banks.
        for n, column in enumerate(self.columns):
            for tensor, value in zip(memory, column, strict=True):
                tensor[self.rank + n * size] = value
        self.group.meet()
        other = self.rank ^ threads
        if size & (size - 1):
            other = minimum(other, size - 1)
        return [[tensor[other + (n ^ inner) * size] for tensor in memory] for n in range(self.count)]


def _is_less(a: Sequence[Scalar], b: Sequence[Scalar]) -> Any:  # Any: a condition
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))


def _lesser(a: list[Scalar], b: list[Scalar]) -> list[Scalar]:
    if len(a) == 1:
        return [as_scalar(minimum(a[0], b[0]))]
    less = _is_less(a, b)
    return [as_scalar(where(less, x, y)) for x, y in zip(a, b, strict=True)]


def _greater(a: list[Scalar], b: list[Scalar]) -> list[Scalar]:
    if len(a) == 1:
        return [as_scalar(maximum(a[0], b[0]))]
    less = _is_less(a, b)
    return [as_scalar(where(less, y, x)) for x, y in zip(a, b, strict=True)]


# --- topk ------------------------------------------------------------------------------------------------


def topk(x: Any, k: int, *, group: Any = "block", largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k greatest values of a group and their indices, as two fragments of k that every thread gets.

    The greatest comes first, and among equal ones that with the lowest index; `largest=False` returns the least. The
    index is the thread's number in the group, for a fragment of n elements n * thread + element. NaN comes only after
    all numbers. Each of the k values takes one reduction: for large k, `tw.sort` is faster.

    Raises `LanguageError` where the group has fewer than k elements, and a k that is not known while tracing.
    """
    members = Group.of(group, "tw.topk")
    elements = elements_of(x, "tw.topk")
    least = members.size
    if not members.is_whole and members.threads is not None:  # the last of several groups has fewer threads
        least = members.threads % members.size or members.size
    if type(k) is not int or not 1 <= k <= least * len(elements):
        raise LanguageError(
            f"tw.topk: k is a number from 1 to the {least * len(elements)} elements of the group, not {k!r}",
            help="it has to be known while tracing: a Python int, or a tw.constexpr parameter",
        )
    places = indices(members, len(elements))
    extreme = Extreme("max" if largest else "min", members, elements[0].dtype, int32, steps=k)
    values, found = registers(elements[0].dtype, k), registers(int32, k)
    counts: list[Scalar] | None = None
    for n in range(k):
        value, place = extreme.find(elements, places, counts)
        values[n], found[n] = value, place
        if n < k - 1:
            others = [as_scalar(p != place) for p in places]
            counts = others if counts is None else [a & b for a, b in zip(counts, others, strict=True)]
    return values, found
