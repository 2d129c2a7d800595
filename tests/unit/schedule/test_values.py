"""Values that the logic of a nest computes: conditions of elements and of indices, and indices among the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule import Array, If, Nest, Role, Target, cast, where

TYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32"]
Logic = Callable[[Any, Any, Any, Any], Any]


def computed(logic: Logic, dtype: str, shape: tuple[int, int] = (6, 8), vectors: bool = False) -> tuple[Any, Any, Any]:
    """Return A, B and what C = logic(A[i, j], B[i, j], i, j) becomes."""
    A, B, C = (
        Array(role, dtype, shape, name=n) for role, n in zip((Role.INPUT, Role.INPUT, Role.OUTPUT), "ABC", strict=True)
    )
    nest = Nest(shape)
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: C.__setitem__((i, j), A[i, j] * 0 + B[i, j] * 0 + logic(A[i, j], B[i, j], i, j)))
    plan = nest.create_plan(Target("sm_80"))
    plan.bind({i: plan.target.GridUnit.THREAD_X})
    if vectors:
        plan.vectorize(j)
    random = np.random.default_rng(3)
    a, b = (random.integers(0 if dtype == "uint8" else -3, 4, shape).astype(A.element_type.numpy) for _ in "ab")
    c = np.zeros_like(a)
    plan.build()(a, b, c)
    return a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("choose", [where, tw.where])
@pytest.mark.spread(4)
def test_conditions_of_elements(dtype: str, vectors: bool, choose: Any) -> None:
    a, b, c = computed(lambda x, y, i, j: choose(x > y, x, y), dtype, vectors=vectors)
    np.testing.assert_array_equal(c, np.maximum(a, b))
    a, b, c = computed(lambda x, y, i, j: choose((x == y) | (y != 1), x, 3), dtype, vectors=vectors)
    np.testing.assert_array_equal(c, np.where((a == b) | (b != 1), a, 3))


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_conditions_of_indices(dtype: str, vectors: bool) -> None:
    i, j = np.indices((6, 8))
    cases: list[tuple[Logic, np.ndarray]] = [
        (lambda x, y, i, j: where(i == j, 1, 0), i == j),
        (lambda x, y, i, j: where(i + 1 == j, 1, 0), i + 1 == j),
        (lambda x, y, i, j: where(j != 3, 1, 0), j != 3),
        (lambda x, y, i, j: where((i >= j) & (2 * i != j + 2), 1, 0), (i >= j) & (2 * i != j + 2)),
    ]
    for logic, expected in cases:
        np.testing.assert_array_equal(computed(logic, dtype, vectors=vectors)[2], expected)


def test_indices_and_fractions() -> None:
    i, j = np.indices((6, 8))
    cases: list[tuple[Logic, np.ndarray]] = [
        (lambda x, y, i, j: i * 0.5 + 2.5 * j, i * 0.5 + 2.5 * j),
        (lambda x, y, i, j: (i + 0.5) - (0.25 - j), i + 0.25 + j),
        (lambda x, y, i, j: (i - 0.5) * (j - 1.5), (i - 0.5) * (j - 1.5)),
    ]
    for logic, expected in cases:
        np.testing.assert_array_equal(computed(logic, "float32")[2], expected)


def test_a_fraction_of_an_index_is_no_place() -> None:
    A = Array(Role.INPUT_OUTPUT, "float32", (8,), name="A")
    nest = Nest((8,))
    i = nest.get_indices()
    with pytest.raises(tw.ScheduleError, match="mode 0 of array A is indexed by i \\* 0.5, which is not affine"):
        nest.iteration_logic(lambda: A.__setitem__(i, A[i * 0.5]))


def test_outside_of_a_logic_indices_are_themselves() -> None:
    i, j = Nest((2, 2)).get_indices()
    assert i == i and i != j and i + 1 == 1 + i and i + j != i
    assert len({i, j, i}) == 2 and len({i + 1, 1 + i}) == 1


@pytest.mark.parametrize("vectors", [False, True])
def test_integers_among_floats_stay_integers(vectors: bool) -> None:
    """What is compared, and what `cast` converts, does not decide the type of the rest; float32 has 24 bits."""
    x, total, count, mask = (
        Array(role, dtype, (4,))
        for role, dtype in ((Role.INPUT, "float32"), (Role.INPUT_OUTPUT, "int64"), (Role.OUTPUT, "int32"),
                            (Role.OUTPUT, "float32"))
    )  # fmt: skip
    n, m = (Array(Role.INPUT, "int32", (4,)) for _ in "nm")
    nest = Nest((4,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        total[i] += cast(x[i], "int64")
        count[i] = where(x[i] < 2, n[i], 1)
        mask[i] = where(n[i] == m[i], x[i], -1)
        If((n[i] != m[i]) & (x[i] > 2), lambda: mask.__setitem__(i, 7))

    plan = nest.create_plan(Target("sm_80"))
    if vectors:
        plan.vectorize(i)
    numbers, large = np.arange(4, dtype=np.float32), np.full(4, 2**24 + 1, np.int32)
    found = np.full(4, 2**40, np.int64), np.zeros(4, np.int32), np.zeros(4, np.float32)
    plan.build(args=(x, total, count, mask, n, m))(numbers, *found, large, large - 1)
    assert (found[0] - 2**40).tolist() == [0, 1, 2, 3]
    assert found[1].tolist() == [2**24 + 1, 2**24 + 1, 1, 1]
    assert found[2].tolist() == [-1, -1, -1, 7]
