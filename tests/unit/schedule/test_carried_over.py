"""Programs of Accera as they are written there: functions without parameters, CONST arguments, waiting parts, `and`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule import (
    Array,
    Dimension,
    GridUnit,
    If,
    Location,
    Nest,
    Package,
    Role,
    Target,
    create_parameters,
)
from tilewright.schedule.schema import evaluate

A100 = Target("NVIDIA A100")


def test_a_function_without_parameters_is_logic() -> None:
    A, B = Array(Role.INPUT, tw.float32, (6,), name="A"), Array(Role.INPUT_OUTPUT, tw.float32, (6,), name="B")
    package, steps = Package(), []
    for factor in (2.0, 3.0):
        nest = Nest((6,))
        i = nest.get_indices()
        nest.iteration_logic(lambda i=i, factor=factor: B.__setitem__(i, B[i] + A[i] * factor))
        steps.append(package.add(nest, args=(A, B), base_name=f"add_{int(factor)}"))

    def main() -> None:
        for step in steps:
            step(A, B)

    function = package.add(main, args=(A, B), base_name="both")
    a, b = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    function(a, b)
    np.testing.assert_array_equal(b, 1 + 5 * a)


def test_a_function_that_makes_a_plan_still_takes_its_parameters() -> None:
    A = Array(Role.INPUT_OUTPUT, tw.float32, (6,), name="A")

    def make(parameters: Any) -> Any:
        nest = Nest((6,))
        i = nest.get_indices()
        nest.iteration_logic(lambda: A.__setitem__(i, A[i] + 1.0))
        return nest.create_plan(A100)

    a = np.zeros(6, np.float32)
    Package().add(make, args=(A,), base_name="one")(a)
    assert (a == 1).all()


@pytest.mark.parametrize("is_given", [True, False])
def test_a_const_array_among_the_arguments_is_the_callers(is_given: bool) -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    K, B = Array(Role.CONST, data=data, name="K"), Array(Role.OUTPUT, tw.float32, (3, 4), name="B")
    nest = Nest((3, 4))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: B.__setitem__((i, j), K[i, j] * 2.0))
    plan = nest.create_plan(A100)
    kernel = plan.build(args=(K, B) if is_given else (B,))
    assert len(kernel.constants) == (not is_given)
    given, b = data + 100, np.zeros((3, 4), np.float32)
    kernel(*((given, b) if is_given else (b,)))
    np.testing.assert_array_equal(b, 2 * (given if is_given else data))


def test_a_package_takes_a_const_argument_from_its_caller(tmp_path: Any) -> None:
    K = Array(Role.CONST, data=np.ones(8, np.float32), name="K")
    B = Array(Role.OUTPUT, tw.float32, (8,), name="B")
    nest = Nest((8,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: B.__setitem__(i, K[i]))
    package = Package()
    package.add(nest, args=(K, B), base_name="copy")
    package.build("given", format=Package.Format.SOURCE | Package.Format.HEADER, output_dir=tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    assert "const float *K" in (tmp_path / "given.h").read_text()


@pytest.mark.parametrize("size", [64, "N"])
def test_a_package_describes_memory_of_caches(tmp_path: Any, size: Any) -> None:
    """A launch needs as much as the kernel itself allocates: so many elements for each block."""
    N = Dimension("N") if size == "N" else size
    A, B = Array(Role.INPUT, tw.float32, (N, 8), name="A"), Array(Role.OUTPUT, tw.float32, (N, 8), name="B")
    nest = Nest((N, 8))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: B.__setitem__((i, j), A[i, j] * 2.0))
    schedule = nest.create_schedule()
    ii = schedule.split(i, 16)
    plan = schedule.create_plan(A100)
    plan.bind({i: GridUnit.BLOCK_X, j: GridUnit.THREAD_X})
    plan.cache(A, index=ii, location=Location.GLOBAL)
    package = Package()
    function = package.add(plan, args=(A, B), base_name="twice")
    package.build("kept", format=Package.Format.DEFAULT, output_dir=tmp_path)
    entry = json.loads((tmp_path / "kept.json").read_text())["functions"][0]
    (memory,) = entry["scratch"]
    assert memory["role"] == "temp" and memory["written"] and memory["strides"] == [1]
    assert memory["name"] in (parameter["argument"] for parameter in entry["machine_parameters"])
    for rows in (64,) if size == 64 else (1, 16, 40):
        sizes = dict.fromkeys(entry["sizes"], rows)
        assert evaluate(memory["shape"][0], sizes) == 16 * 8 * -(-rows // 16)
        a, b = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8), np.zeros((rows, 8), np.float32)
        function(a, b)
        np.testing.assert_array_equal(b, 2 * a)
    assert "memory that no other launch uses at the time" in (tmp_path / "kept.h").read_text()


@pytest.mark.parametrize("steps", [None, (1, 1), (2, 3)])
@pytest.mark.parametrize("layout", [Array.Layout.FIRST_MAJOR, Array.Layout.LAST_MAJOR])
def test_the_layout_of_a_part_whose_extents_wait(steps: Any, layout: Any) -> None:
    P, Q = create_parameters(2)
    A = Array(Role.INPUT, tw.float32, (32, 16), layout, name="A")
    waiting, known = A.sub_array((0, 0), (P, Q), steps), A.sub_array((0, 0), (4, 4), steps)
    assert waiting.layout == known.layout == waiting.strides
    later = waiting.sub_array((0, 0), (2, 2), (2, 2))
    assert later.layout == known.sub_array((0, 0), (2, 2), (2, 2)).layout if not steps else True


def test_the_layout_of_a_part_whose_array_waits() -> None:
    P = create_parameters(1)
    A = Array(Role.INPUT, tw.float32, (32, P), name="A")
    with pytest.raises(ScheduleError, match="no value yet"):
        A.sub_array((0, 0), (P, 4)).layout  # raises


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("is_given", [True, False])
def test_a_deferred_layout_that_nothing_gives(is_cached: bool, is_given: bool) -> None:
    A = Array(Role.CONST, data=np.zeros((4, 4), np.float32), layout=Array.Layout.DEFERRED, name="A")
    B = Array(Role.OUTPUT, tw.float32, (4, 4), name="B")
    nest = Nest((4, 4))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: B.__setitem__((i, j), A[i, j]))
    plan = nest.create_plan(A100)
    cache = plan.cache(A, index=i, layout=Array.Layout.LAST_MAJOR) if is_cached else None
    with pytest.raises(ScheduleError, match="the layout of A is DEFERRED, and no cache has given it one"):
        plan.build(args=(A, B) if is_given else (B,))
    if cache is not None:
        A.deferred_layout(cache=cache)
        plan.build(args=(A, B) if is_given else (B,))


# --- conditions of Python --------------------------------------------------------------------------------


def _first(shape: tuple[Any, ...], logic: Callable[..., Any]) -> Nest:
    nest = Nest(shape)
    nest.iteration_logic(lambda: logic(*nest.indices))
    return nest


def test_and_of_conditions_that_hold_everywhere() -> None:
    A = Array(Role.INPUT_OUTPUT, tw.float32, (8, 6), name="A")

    def logic(i: Any, j: Any) -> None:
        If(i < 8 and j < 4, lambda: A.__setitem__((i, j), A[i, j] + 1.0))
        if j >= 6 or i + j > 20:
            raise AssertionError
        if not i * 2 - j < 0:
            pass

    with pytest.raises(ScheduleError, match=r"cannot branch on \(2 \* i0 - i1\) < 0"):
        _first((8, 6), logic)
    nest = _first((8, 6), lambda i, j: If(i < 8 and j < 4, lambda: A.__setitem__((i, j), A[i, j] + 1.0)))
    assert "if i1 < 4" in str(nest) and "8:" not in str(nest)
    a = np.zeros((8, 6), np.float32)
    nest.create_plan(A100).build()(a)
    assert (a[:, :4] == 1).all() and not a[:, 4:].any()


def test_conditions_of_sizes_hold_whatever_these_are() -> None:
    N, M = Dimension("N"), Dimension("M")
    A = Array(Role.INPUT_OUTPUT, tw.float32, (N, M), name="A")
    assert "if" not in str(_first((N, M), lambda i, j: A.__setitem__((i, j), 1.0 if i < N and j >= 0 else 2.0)))
    for test in (lambda i, j: i < M, lambda i, j: i < 8, lambda i, j: i // 2 < N):
        with pytest.raises(ScheduleError, match="cannot branch on"):
            _first((N, M), lambda i, j, test=test: A.__setitem__((i, j), 1.0 if test(i, j) else 2.0))


def test_an_element_decides_no_branch() -> None:
    A = Array(Role.INPUT_OUTPUT, tw.float32, (8,), name="A")
    with pytest.raises(ScheduleError, match="cannot branch on A"):
        _first((8,), lambda i: A.__setitem__(i, 1.0 if A[i] > 0 else 2.0))
