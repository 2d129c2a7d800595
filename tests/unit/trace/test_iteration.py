"""`map`, `iter` and objects with an `__iter__` of their own: in a kernel what they are in Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.helpers.language import zeros

import tilewright as tw


class Squares:
    """Squares of the numbers of a range, and the numbers."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start, self.stop, self.step = start, stop, step
        self.squared = 0

    @tw.function
    def square(self, number: Any) -> tuple[Any, Any]:
        self.squared += 1
        if number > 4:
            return number, -number
        return number, number * number

    @tw.function
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return map(self.square, range(self.start, self.stop, self.step))


class Tickets:
    """Numbers 3 * n from a counter, up to the end; it knows how many were taken."""

    def __init__(self, counter: Any, end: Any) -> None:
        self.counter, self.end, self.taken = counter, end, 0

    @tw.function
    def take(self) -> Any:
        self.taken += 1
        ticket = self.counter[0]
        self.counter[0] += 3
        return min(ticket, self.end)

    @tw.function
    def __iter__(self) -> Iterator[Any]:
        return iter(self.take, self.end)


def tripled(x: Any) -> Any:
    return -3 * x


@tw.function
def over_squares(o, start, stop, step, last):
    n = 0
    squares = Squares(start, stop, step)
    for number, square in squares:
        o[n] = square
        n += 1
        if number == last:
            break
    for k, (number, _) in enumerate(squares):
        o[n] = number + k
        n += 1
    for (_, a), b in zip(Squares(start, stop, step), range(start, stop), strict=False):
        o[n] = a + b
        n += 1
    for a in map(max, range(start, stop, step), range(3, stop)):
        o[n] = a
        n += 1
    for a in iter(range(start, stop, step)):
        o[n] = a
        n += 1
    o[n] = -100 - squares.squared


@tw.function
def over_tickets(o, counter, end, last):
    tickets = Tickets(counter, end)
    n = 0
    for ticket in tickets:
        o[n] = ticket
        n += 1
        if ticket == last:
            break
    for k in map(abs, map(tripled, tickets)):
        o[n] = k
        n += 1
    o[n] = tickets.taken


@tw.function
def first_above(counter, end, least):
    for ticket in Tickets(counter, end):
        if ticket % 2 == 1:
            continue
        for number, square in Squares(ticket, end, 1):
            if number + square > least:
                return number
    return -1


@tw.kernel
def squares(o, start, stop, step, last):
    over_squares(o, start, stop, step, last)


@tw.kernel
def tickets(o, counter, end, last):
    over_tickets(o, counter, end, last)
    o[90] = first_above(counter, end + 50, last + 60)


def test_maps_are_those_of_python() -> None:
    rng = random.Random(0)
    for _ in range(12):
        numbers = rng.randint(-4, 4), rng.randint(-2, 12), rng.choice((1, 2, 3, -1)), rng.randint(0, 8)
        found, expected = zeros(99), zeros(99)
        squares[1, 1](found, *map(np.int32, numbers))
        over_squares(expected, *numbers)
        assert found.tolist() == expected.tolist(), numbers


@pytest.mark.parametrize(("end", "last"), [(12, 100), (12, 3), (12, 0), (0, 0), (30, 27)])
def test_what_is_called_until_an_end_is_that_of_python(end: int, last: int) -> None:
    """State that the function changes is carried, and after a break nothing more is taken."""
    found, expected = zeros(99), zeros(99)
    counters = zeros(1), zeros(1)
    tickets[1, 1](found, counters[0], np.int32(end), np.int32(last))
    over_tickets(expected, counters[1], end, last)
    expected[90] = first_above(counters[1], end + 50, last + 60)
    assert found.tolist() == expected.tolist() and counters[0][0] == counters[1][0]


def test_calls_that_python_knows_run_while_tracing() -> None:
    given = [5, 4, 3, 0, 7]

    @tw.kernel
    def unrolled(o):
        left = list(given)
        for x in iter(lambda: left.pop(0), 0):
            o[x] = len(left)
        o[0] = sum(map(abs, left)) + 1
        o[1] = next(iter(lambda: 8, 9))

    o = zeros(8)
    unrolled[1, 1](o)
    assert o.tolist() == [8, 8, 0, 2, 3, 4, 0, 0]


class Down:
    """Numbers downwards, by an iterator of Python; it knows how often it was begun."""

    def __init__(self, first: int) -> None:
        self.first, self.begun = first, 0

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        self.left = self.first
        return self

    def __next__(self) -> int:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.left


def test_iterators_of_python_are_begun_once() -> None:
    @tw.kernel
    def count(o):
        down = Down(3)
        for x in down:
            o[x] = x
        for n, x in enumerate(down):
            o[3 + n] = x
        for x in map(abs, zip(down, strict=True).__next__()):
            o[6] = x
        o[7] = down.begun

    o = zeros(8)
    count[1, 1](o)
    assert o.tolist() == [0, 1, 2, 2, 1, 0, 2, 3]


def twice(o: Any, n: Any) -> None:
    items = map(abs, range(n))
    for i in items:
        o[i] = i
    for i in items:
        o[i] = i


def twice_called(o: Any, n: Any) -> None:
    items = iter(lambda: o[0], n)
    for i in items:
        o[i] = i
    for i in items:
        o[i] = i


class Range:
    def __init__(self, n: Any) -> None:
        self.n = n

    @tw.function
    def __iter__(self) -> Any:
        return range(self.n)


def a_range(o: Any, n: Any) -> None:
    for i in Range(n):
        o[i] = i


def next_called(o: Any, n: Any) -> None:
    o[0] = next(iter(lambda: o[0], n))


def not_called(o: Any, n: Any) -> None:
    for i in iter(3, n):
        o[i] = i


@pytest.mark.parametrize(("function", "message"), [
    (twice, "this map was looped over before"),
    (twice_called, "this iter was looped over before"),
    (a_range, "__iter__ of Range returns a range, which is not an iterator in Python either"),
    (next_called, "only the device knows where iter(function, end) ends"),
    (not_called, "iter(function, end) takes a function that is called, got int 3"),
])  # fmt: skip
def test_refusals(function: Callable[..., None], message: str) -> None:
    with pytest.raises(tw.LanguageError) as error:
        tw.kernel(function)[1, 1](zeros(8), np.int32(3))
    assert message in str(error.value)
    assert "test_iteration.py" in str(error.value)
