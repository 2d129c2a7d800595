"""Parameters in the logic of a nest, in indices, conditions and orders: chosen when a function is added or built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule import Array, If, Nest, Package, Role, Target, cast, create_parameters


def _matmul(P: Any, Q: Any, size: Any) -> tuple[Nest, tuple[Array, ...]]:
    a, b = (Array(Role.INPUT, tw.float32, (size, size), name=name) for name in "AB")
    c = Array(Role.INPUT_OUTPUT, tw.float32, (size, size), name="C")
    nest = Nest((size, size, size))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        c[i, j] += P * a[i, k] * b[k, j] / Q - (P + 1) * cast(a[i, k], tw.float32)

    return nest, (a, b, c)


@pytest.mark.parametrize("size", [5, "parameter"])
def test_parameters_in_values(size: Any) -> None:
    p, q, n = create_parameters(3, "p", "q", "n")
    nest, arrays = _matmul(p, q, n if size == "parameter" else size)
    package = Package()
    for value in (2.0, -3.0):
        function = package.add(nest, arrays, f"f{int(abs(value))}", parameters={p: value, q: 4, n: 5})
        a, b, c = (np.random.default_rng(seed).random((5, 5), np.float32) for seed in range(3))
        expected = c + value * (a @ b) / 4 - (value + 1) * a.sum(1, keepdims=True)
        function(a, b, c)
        np.testing.assert_allclose(c, expected, rtol=1e-5)


def test_parameters_in_places_conditions_and_orders() -> None:
    p, q, order = create_parameters(3, "p", "q", "order")
    a = Array(Role.INPUT, tw.int32, (40,), name="A")
    b = Array(Role.INPUT_OUTPUT, tw.int32, (6, 4), name="B")
    nest = Nest((6, 4))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        If(cast(i, tw.int32) < p, lambda: b.__setitem__((i, j), a[i + q * j] + a[i // q] + q))

    schedule = nest.create_schedule()
    schedule.reorder(order)
    plan = schedule.create_plan(Target("NVIDIA A100"))
    function = Package().add(plan, (a, b), "f", parameters={p: 4, q: 3, order: (j, i)})
    assert function.kernel.plan.nest.order == (j, i)
    values, out = np.arange(100, 140, dtype=np.int32), np.zeros((6, 4), np.int32)
    function(values, out)
    expected = [[values[x + 3 * y] + values[x // 3] + 3 if x < 4 else 0 for y in range(4)] for x in range(6)]
    np.testing.assert_array_equal(out, expected)


def test_a_parameter_without_a_value_is_named() -> None:
    p, q = create_parameters(2, "p", "q")
    nest, arrays = _matmul(p, q, 4)
    with pytest.raises(ScheduleError, match="this depends on the parameters p, q, which have no values yet"):
        nest.create_plan(Target("NVIDIA A100")).build()
    with pytest.raises(ScheduleError, match="parameter q has no value"):
        Package().add(nest, arrays, "f", parameters={p: 1.0})
    with pytest.raises(ScheduleError, match="this depends on the parameter p that has no value yet"):
        _matmul(p, 2, 4)[0].create_plan(Target("NVIDIA A100")).build()


def test_a_place_that_is_not_affine_is_refused_when_it_is_known() -> None:
    p = create_parameters(1, "p")
    a = Array(Role.INPUT_OUTPUT, tw.float32, (8,), name="A")
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i * p] = 1.0

    with pytest.raises(ScheduleError, match="not affine"):
        Package().add(nest, (a,), "f", parameters={p: 0.5})
    with pytest.raises(ScheduleError, match="times"):
        Package().add(nest, (a,), "f", parameters={p: i})
