"""Nests that call functions of a package: what is computed, which orders are legal, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule import Array, Dimension, GridUnit, If, Location, Nest, Package, Role, Target, fuse

TARGET = Target("NVIDIA A100")


def _array(name: str, *shape: Any, role: Role = Role.INPUT_OUTPUT, type: Any = tw.float32) -> Array:
    return Array(role, type, shape, name=name)


def _scale(package: Package, n: Any = 8, factor: float = 2.0, name: str = "scale") -> Any:
    """Return a function: Y[x] = X[x] * factor, in blocks of 3."""
    x, y = _array("X", n, role=Role.INPUT), _array("Y", n)
    nest = Nest((n,))
    p = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[p] = x[p] * factor

    schedule = nest.create_schedule()
    schedule.split(p, 3)
    return package.add(schedule, (x, y), name)


def test_statements_and_calls_run_in_their_order() -> None:
    package = Package()
    scale = _scale(package)
    a, b, c = (_array(name, 8) for name in "ABC")
    nest = Nest((4,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i] += 1.0
        scale(a, b)
        scale(b, c)
        a[i + 1] = c[i] + a[i + 1]

    for bind in (False, True):
        plan = nest.create_plan(TARGET)
        if bind:
            plan.cache(b, index=plan.nest.order[1], location=Location.PRIVATE)
        held = [np.random.default_rng(n).random(8, np.float32) for n in range(3)]
        expected = [x.copy() for x in held]
        for n in range(4):
            expected[0][n] += 1
            expected[1][:] = expected[0] * 2
            expected[2][:] = expected[1] * 2
            expected[0][n + 1] += expected[2][n]
        plan.build("kernel", (a, b, c))(*held)
        for array, result in zip(expected, held, strict=True):
            np.testing.assert_allclose(result, array, rtol=1e-6)


def test_sizes_are_those_of_the_arguments() -> None:
    package = Package()
    scale = _scale(package, Dimension("L"))
    m = Dimension("M")
    a, b = _array("A", m, role=Role.INPUT), _array("B", m)
    nest = Nest((2,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        If(i == 1, lambda: scale(a, b))

    function = package.add(nest, (a, b), "outer")
    given, out = np.arange(7, dtype=np.float32), np.zeros(7, np.float32)
    function(given, out)
    np.testing.assert_array_equal(out, given * 2)


def test_functions_call_functions_that_fuse() -> None:
    package = Package()
    x, y = _array("X", 4, 4), _array("Y", 4)
    first, second = Nest((4, 4)), Nest((4,))
    p, q = first.get_indices()  # type: ignore[misc]
    r = second.get_indices()

    @first.iteration_logic
    def _() -> None:
        x[p, q] += 1.0

    @second.iteration_logic
    def _() -> None:
        y[r] += x[r, 3 - r]

    inner = package.add(fuse(first.create_schedule(), second.create_schedule(), partial=1), (x, y), "inner")
    z, w = _array("Z", 4, 4), _array("W", 4)
    middle_nest = Nest((3,))
    k = middle_nest.get_indices()

    @middle_nest.iteration_logic
    def _() -> None:
        w[k] = 0.5
        inner(z, w)

    middle = package.add(middle_nest, (z, w), "middle")
    a, b = _array("A", 4, 4), _array("B", 4)
    nest = Nest((2,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        middle(a, b)
        b[i] += 8.0

    left, right = np.random.default_rng(0).random((4, 4), np.float32), np.zeros(4, np.float32)
    e, f = left.copy(), right.copy()
    for n in range(2):
        for m in range(3):
            f[m] = 0.5
            e += 1
            f += e[np.arange(4), 3 - np.arange(4)]
        f[n] += 8
    package.add(nest, (a, b), "outer")(left, right)
    np.testing.assert_allclose(left, e, rtol=1e-6)
    np.testing.assert_allclose(right, f, rtol=1e-6)


def test_loops_of_calls_are_bound_and_ordered() -> None:
    package = Package()
    x, y = _array("X", 4, 6, role=Role.INPUT), _array("Y", 4, 6)
    inner_nest = Nest((4, 6))
    p, q = inner_nest.get_indices()  # type: ignore[misc]

    @inner_nest.iteration_logic
    def _() -> None:
        y[p, q] = x[p, q] * 3.0

    inner = package.add(inner_nest, (x, y), "inner")
    a, b = _array("A", 4, 6, role=Role.INPUT), _array("B", 4, 6)
    nest = Nest((1,))

    @nest.iteration_logic
    def _() -> None:
        inner(a, b)

    schedule = nest.create_schedule()
    one, row, column = schedule.get_indices()
    schedule.reorder(column, one, row)
    plan = schedule.create_plan(TARGET)
    plan.bind({column: GridUnit.BLOCK_X, row: GridUnit.THREAD_X})
    given, out = np.random.default_rng(0).random((4, 6), np.float32), np.zeros((4, 6), np.float32)
    kernel = plan.build("kernel", (a, b))
    kernel(given, out)
    np.testing.assert_array_equal(out, given * 3)
    assert "blockIdx.x" in kernel.source()


def test_a_function_of_arrays_is_logic() -> None:
    package = Package()
    first, second = _scale(package, name="first"), _scale(package, factor=3.0, name="second")
    a, b = _array("A", 8, role=Role.INPUT), _array("B", 8)

    def both(a: Array, b: Array) -> None:
        t = Array(Role.TEMP, tw.float32, (8,), name="T")
        first(a, t)
        second(t, b)

    function = package.add(both, (a, b))
    assert function.name == "both"
    given, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    function(given, out)
    np.testing.assert_array_equal(out, given * 6)

    def wrong(a: Array, b: Array) -> None:
        first(b, a)

    with pytest.raises(ScheduleError, match=r"first takes Y: .* got A: input float32 \(8,\): first writes it"):
        package.add(wrong, (a, b))


def test_dependences_between_calls_are_kept() -> None:
    package = Package()
    scale = _scale(package)
    a, b, c = (_array(name, 8) for name in "ABC")
    nest = Nest((4,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        scale(a, b)
        scale(b, c)
        a[i] = c[7 - i]

    schedule = nest.create_schedule()
    i, call, *loops = schedule.get_indices()
    with pytest.raises(ScheduleError, match="two accesses of [ABC].* change places"):
        schedule.reorder(call, i, *loops)
    plan = schedule.create_plan(TARGET)
    with pytest.raises(ScheduleError, match="i cannot be bound to THREAD_X"):
        plan.bind({i: GridUnit.THREAD_X})


def test_one_array_as_two_arguments() -> None:
    """An order that is legal for different arrays is refused for one; one that is legal for both is taken."""
    package = Package()
    x, y = _array("X", 6, 6, role=Role.INPUT), _array("Y", 6, 6)
    functions = []
    for name in ("rows", "columns"):
        inner = Nest((5, 5))
        p, q = inner.get_indices()  # type: ignore[misc]

        @inner.iteration_logic
        def _(p: Any = p, q: Any = q) -> None:
            y[p + 1, q] = x[p, q + 1] + 1.0

        schedule = inner.create_schedule()
        if name == "columns":
            schedule.reorder(q, p)
        functions.append(package.add(schedule, (x, y), name))
    a = _array("A", 6, 6)
    for function, is_legal in zip(functions, (True, False), strict=True):
        nest = Nest((1,))

        @nest.iteration_logic
        def _(function: Any = function) -> None:
            function(a, a)

        if not is_legal:
            with pytest.raises(ScheduleError, match="calling columns lets two accesses of A"):
                nest.create_schedule()
            continue
        held = np.random.default_rng(0).random((6, 6), np.float32)
        expected = held.copy()
        for m in range(5):
            for n in range(5):
                expected[m + 1, n] = expected[m, n + 1] + 1
        package.add(nest, (a,), "outer")(held)
        np.testing.assert_allclose(held, expected, rtol=1e-6)


def test_what_is_refused() -> None:
    package = Package()
    scale = _scale(package)

    def refuse(message: str, *arguments: Any, guard: Any = None) -> None:
        nest = Nest((4,))
        i = nest.get_indices()

        def call() -> None:
            scale(*arguments)

        with pytest.raises(ScheduleError, match=message):
            nest.iteration_logic(call if guard is None else lambda: If(guard(i), call))
            nest.create_schedule()

    a, b = _array("A", 8), _array("B", 8)
    refuse(r"scale takes 2 arguments, \(X, Y\), got 1", a)
    refuse(r"scale takes Y: input_output float32 \(8,\), got D: .*\(8, 2\): 1 modes, got 2", a, _array("D", 8, 2))
    refuse(r"scale takes X: input float32 \(8,\), got D: .*\(9,\): an extent of 8, got 9", _array("D", 9), b)
    refuse(r"an extent of 8, got N", _array("D", Dimension("N")), b)
    refuse(r"elements of another type", a, _array("D", 8, type=tw.int32))
    refuse(r"got D: input float32 \(8,\): scale writes it", a, _array("D", 8, role=Role.INPUT))
    refuse(r"scale takes the array X: .* got 3", 3, b)
    refuse(r"scale is called under the condition B\[i\] > 0, and B is written", a, b, guard=lambda i: b[i] > 0)
    sized = _scale(package, Dimension("L"), name="sized")
    x = _array("X", 8)
    nest = Nest((4,))
    with pytest.raises(ScheduleError, match="sized takes one size L where the arguments have 8 and 9"):
        nest.iteration_logic(lambda: sized(x, _array("Z", 9)))
    bound = Nest((8,))
    p = bound.get_indices()
    bound.iteration_logic(lambda: x.__setitem__(p, 1.0))
    plan = bound.create_plan(TARGET)
    plan.bind({p: GridUnit.THREAD_X})
    function = package.add(plan, (x,), "bound")
    with pytest.raises(ScheduleError, match="bound binds p to THREAD_X and is called by a nest"):
        nest.iteration_logic(lambda: function(a))


def test_an_order_may_leave_the_loops_of_calls_out() -> None:
    package = Package()
    x, y, a, b = (_array(name, 8) for name in "XYAB")
    adding, nest = Nest((8,)), Nest((4, 6))
    p, (i, j) = adding.get_indices(), nest.get_indices()
    adding.iteration_logic(lambda: y.__setitem__(p, y[p] + x[p]))
    add = package.add(adding, (x, y), "add")
    nest.iteration_logic(lambda: add(a, b))
    schedule = nest.create_schedule()
    ii = schedule.split(i, 2)
    calls = tuple(index for index in schedule.get_indices() if index not in (i, j, ii))
    assert calls and schedule.is_valid_loop_order(j, i, ii)
    schedule.reorder(j, i, ii)
    assert schedule.get_indices() == (j, i, ii, *calls)
    schedule.reorder(j, i, *calls, ii)
    assert schedule.get_indices() == (j, i, *calls, ii)
    with pytest.raises(ScheduleError, match="is not one of all loops"):
        schedule.reorder(j, i)
    held = [np.arange(8, dtype=np.float32), np.zeros(8, np.float32)]
    schedule.create_plan(TARGET).build(args=(a, b))(*held)
    np.testing.assert_array_equal(held[1], 24 * held[0])


def test_a_function_of_one_array_is_logic_and_a_maker_of_a_plan_none() -> None:
    package = Package()
    a = _array("A", 8)
    scale = _scale(package)

    def logic(x: Array) -> None:
        scale(x, x)

    doubled = package.add(logic, args=(a,), base_name="doubled")
    held = np.arange(8, dtype=np.float32)
    doubled(held)
    np.testing.assert_array_equal(held, 2 * np.arange(8, dtype=np.float32))

    def make(values: Any) -> Any:
        nest = Nest((8,))
        i = nest.get_indices()
        nest.iteration_logic(lambda: a.__setitem__(i, 3.0))
        return nest

    package.add(make, args=(a,), base_name="threes")(held)
    np.testing.assert_array_equal(held, np.full(8, 3, np.float32))
