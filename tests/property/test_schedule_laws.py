"""Every transform and every plan keeps what a nest computes: random ones against an interpreter in plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, note
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.property.schedule_strategies import Case, cases, interpret, plan_of, transform, visits

from tilewright.errors import ScheduleError
from tilewright.schedule.arrays import Array
from tilewright.schedule.loop_nest import LoopNest
from tilewright.schedule.plan import Plan
from tilewright.schedule.scheduled import strides_for
from tilewright.schedule.targets import Target

_OPTIONS: dict[str, Any] = {
    "report_multiple_bugs": False,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}


def _memory(case: Case, seed: int) -> dict[Array, Any]:
    """Return random arrays in the strides that were declared."""
    random = np.random.default_rng(seed)
    found = {}
    for array in case.arrays:
        shape = tuple(case.sizes.get(extent, extent) for extent in array.shape)  # type: ignore[call-overload]
        # Products are exact in float32, so that a fused multiplication and addition rounds as the two do; sums are not.
        values = random.integers(-1000, 1000, shape)
        if array.element_type.is_float:
            values = values * 2.0 ** random.integers(-12, 12, shape)
        values = random.integers(0, case.reach[array], shape) if array in case.reach else values
        strides = tuple(step * array.element_type.bytes for step in strides_for(array, shape))
        held = np.zeros(int(np.prod(shape)), array.element_type.numpy)
        found[array] = np.lib.stride_tricks.as_strided(held, shape, strides)
        found[array][...] = values
    return found


def _contributions(nests: tuple[LoopNest, ...], sizes: Mapping[Any, int]) -> dict[Any, list[Any]]:
    """Return for each element that is written the points that write it, in order."""
    found: dict[Any, list[Any]] = {}
    for nest in nests:
        for part, values in visits(nest, sizes):
            for statement in part.statements:
                place = tuple(mode.evaluate(values) for mode in statement.store.place)
                point = tuple(values[index] for index in part.indices)
                found.setdefault((statement.store.array, place), []).append((id(statement), point))
    return found


@examples(20, 150, **_OPTIONS)
@given(st.data())
def test_transforms_visit_the_same_points(data: Any) -> None:
    case = data.draw(cases())
    transform(data.draw, case, note)
    was, now = _contributions(case.before, case.sizes), _contributions((case.schedule.nest,), case.sizes)
    assert {key: sorted(points) for key, points in was.items()} == {key: sorted(points) for key, points in now.items()}


@examples(12, 300, **_OPTIONS)
@given(st.data(), st.integers(0, 2**32))
def test_kernels_compute_what_the_untransformed_nest_does(data: Any, seed: int) -> None:
    case = data.draw(cases())
    transform(data.draw, case, note)
    _check(case, plan_of(data.draw, case, note), seed)


@examples(4, 150, **_OPTIONS)
@given(st.data(), st.integers(0, 2**32))
def test_chosen_plans_compute_what_the_untransformed_nest_does(data: Any, seed: int) -> None:
    case = data.draw(cases())
    transform(data.draw, case, note)
    _check(case, case.schedule.create_plan(Target("sm_80")).auto(), seed)


def _check(case: Case, plan: Plan, seed: int) -> None:
    note(str(plan))
    memory = _memory(case, seed)
    expected = {array: held.copy() for array, held in memory.items()}
    expected.update((x, np.zeros(x.shape, x.element_type.numpy)) for x in case.temporary)
    for nest in case.before:
        interpret(nest, expected, case.sizes)
    try:
        kernel = plan.build("kernel", case.arrays)
        note(kernel.source())
    except ScheduleError as error:
        note(f"refused: {error}")
        return
    kernel(*(memory[array] for array in case.arrays))
    in_order = _contributions(case.before, case.sizes) == _contributions((case.schedule.nest,), case.sizes)
    # Reductions over lanes are combined pairwise, and threads that wait for one another add in turns.
    is_kept = in_order and not plan.vectorized and not plan.crossings
    for array in case.arrays:
        if array.element_type.is_float and not is_kept:
            np.testing.assert_allclose(memory[array], expected[array], rtol=1e-4, atol=1e3)
        else:
            np.testing.assert_array_equal(memory[array], expected[array])
