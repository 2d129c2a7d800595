"""Indices that are divided by sizes of the launch, and modes that are split by expressions of sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.schedule import Array, Dimension, GridUnit, If, Nest, Package, Role, Target, cast

TARGET = Target("NVIDIA A100")


def _array(name: str, *shape: Any, role: Role = Role.INPUT_OUTPUT, type: Any = tw.float32) -> Array:
    return Array(role, type, shape, name=name)


@pytest.mark.parametrize("by", ["size", "quotient"])
def test_values_round_down(by: str) -> None:
    n, m = Dimension("N"), Dimension("M")
    out = _array("Out", n, 4, type=tw.int32)
    nest = Nest((n,))
    i = nest.get_indices()
    size = m if by == "size" else m // 2 + 1

    @nest.iteration_logic
    def _() -> None:
        out[i, 0] = (i - 5) // size
        out[i, 1] = (i - 5) % size
        out[i, 2] = (3 * i) // size + 1
        If((i - 5) // size < 0, lambda: out.__setitem__((i, 3), (7 - i) % size))

    schedule = nest.create_schedule()
    ii = schedule.split(i, 4)
    plan = schedule.create_plan(TARGET)
    plan.bind({i: GridUnit.BLOCK_X, ii: GridUnit.THREAD_X})
    kernel = plan.build(args=(m, out))
    for extent, divisor in ((9, 1), (14, 4), (23, 7)):
        found = np.zeros((extent, 4), np.int32)
        kernel(divisor, found)
        s, at = (divisor if by == "size" else divisor // 2 + 1), np.arange(extent)
        wanted = [(at - 5) // s, (at - 5) % s, 3 * at // s + 1, np.where((at - 5) // s < 0, (7 - at) % s, 0)]
        np.testing.assert_array_equal(found, np.stack(wanted, 1))
    with (
        pytest.raises(ArgumentError, match=r"an index is divided by M, which is below 1, where M=0")
        if (by == "size")
        else pytest.raises(ArgumentError, match="is a whole number from 0")
    ):
        kernel(0 if by == "size" else -1, np.zeros((9, 4), np.int32))


def _folded(fold: int) -> tuple[Nest, tuple[Any, ...], tuple[Any, ...]]:
    """Return a nest that reads rows of N elements as `fold` rows of N // fold each."""
    m, n, mn = Dimension("M"), Dimension("N"), Dimension("MN")
    given, out = _array("Given", mn, role=Role.INPUT), _array("Out", m, n)
    nest = Nest((m, n))
    i, j = nest.get_indices()  # type: ignore[misc]

    @nest.iteration_logic
    def _() -> None:
        part = n / fold
        rows = given.split_dimension(0, cast(part, tw.int64)).split_dimension(0, fold)
        out[i, j] = rows[i, j / part, j % part]

    return nest, (mn, m, n, given, out), (i, j)


@pytest.mark.parametrize("fold", [1, 4, 16])
def test_rows_of_a_part_of_a_size(fold: int) -> None:
    nest, arguments, (i, j) = _folded(fold)
    schedule = nest.create_schedule()
    jj = schedule.split(j, 8)
    schedule.reorder(j, i, jj)
    plan = schedule.create_plan(TARGET)
    plan.bind({i: GridUnit.BLOCK_Y, jj: GridUnit.THREAD_X})
    for kernel in (nest.create_plan(TARGET).build(args=arguments), plan.build(args=arguments)):
        for rows, columns in ((1, 16), (3, 32)):
            x, y = np.random.default_rng(rows).random(rows * columns, np.float32), np.zeros((rows, columns), np.float32)
            kernel(rows * columns, rows, columns, x, y)
            np.testing.assert_array_equal(y, x.reshape(rows, columns))
    if fold > 1:
        x, y = np.zeros(3 * (fold * 2 + 1), np.float32), np.zeros((3, fold * 2 + 1), np.float32)
        with pytest.raises(ArgumentError, match="is not a whole number|beyond mode"):  # the last element of a row
            kernel(x.size, 3, fold * 2 + 1, x, y)
        x, y = np.zeros(6, np.float32), np.zeros((6, 1), np.float32)
        with pytest.raises(ArgumentError, match="is not a whole number|below 1"):
            kernel(6, 6, 1, x, y)


def test_a_launch_knows_whether_all_is_within() -> None:
    n, s, rows, columns = (Dimension(name) for name in ("N", "S", "R", "C"))
    a, b = _array("A", n, role=Role.INPUT), _array("B", rows, columns)
    nest = Nest((n,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: b.__setitem__((i // s, i % s), a[i]))
    kernel = nest.create_plan(TARGET).build(args=(s, a, b))
    for length, size, shape, message in (
        (12, 4, (3, 4), ""),
        (11, 4, (3, 4), ""),
        (13, 4, (4, 5), ""),
        (13, 4, (3, 4), "beyond mode 0 of B"),
        (12, 5, (3, 4), "beyond mode 1 of B"),
        (3, 5, (1, 3), ""),
    ):
        x, y = np.arange(1, length + 1, dtype=np.float32), np.zeros(shape, np.float32)
        if message:
            with pytest.raises(ArgumentError, match=message):
                kernel(size, x, y)
            continue
        with tw.simulate(unwritten=False):
            kernel(size, x, y)
        wanted = np.zeros(shape, np.float32)
        wanted[np.arange(length) // size, np.arange(length) % size] = x
        np.testing.assert_array_equal(y, wanted)


def test_what_cannot_be_decided_before_a_launch() -> None:
    n, s = Dimension("N"), Dimension("S")
    a, b = _array("A", n, n), _array("B", n, n)
    nest = Nest((n, n))
    i, j = nest.get_indices()  # type: ignore[misc]
    nest.iteration_logic(lambda: a.__setitem__(((i + j) // s, 0), b[i, j]))
    schedule = nest.create_schedule()
    with pytest.raises(
        ScheduleError, match=r"may be of one element or not, which \(i \+ j\) // S says, a quotient or remainder"
    ):
        schedule.reorder(j, i)
    apart = Nest((n, n))  # what differs in another mode does not meet, whatever the size is
    i, j = apart.get_indices()  # type: ignore[misc]
    apart.iteration_logic(lambda: a.__setitem__((i, j), b[j, i // s] + b[i % s, j]))
    schedule = apart.create_schedule()
    schedule.reorder(j, i)
    plan = schedule.create_plan(TARGET)
    plan.bind({j: GridUnit.BLOCK_X})
    held = [np.zeros((6, 6), np.float32), np.random.default_rng(0).random((6, 6), np.float32)]
    plan.build(args=(s, a, b))(4, *held)
    r, c = np.meshgrid(np.arange(6), np.arange(6), indexing="ij")
    np.testing.assert_array_equal(held[0], held[1][c, r // 4] + held[1][r % 4, c])


def test_sizes_of_functions_are_divisors() -> None:
    """A number that a caller gives for a size makes its quotients known; an index cannot be divided by."""
    package = Package()
    n = Dimension("n")
    x, y = _array("X", 4, 3), _array("Y", 12)
    inner = Nest((12,))
    p = inner.get_indices()
    inner.iteration_logic(lambda: x.__setitem__((p // n, p % n), y[p]))
    function = package.add(inner, (n, x, y), "fold")
    a, b = _array("A", 4, 3), _array("B", 12)
    nest = Nest((1,))
    nest.iteration_logic(lambda: function(3, a, b))
    plan = nest.create_plan(TARGET)
    plan.bind({plan.nest.order[1]: GridUnit.THREAD_X})
    held = [np.zeros((4, 3), np.float32), np.arange(12, dtype=np.float32)]
    plan.build(args=(a, b))(*held)
    np.testing.assert_array_equal(held[0].reshape(-1), held[1])
    wrong = Nest((3,))
    i = wrong.get_indices()
    wrong.iteration_logic(lambda: function(i + 1, a, b))
    with pytest.raises(ScheduleError, match=r"is divided by i \+ 1, which depends on an index"):
        wrong.create_schedule()
