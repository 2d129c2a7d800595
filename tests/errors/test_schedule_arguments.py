"""Arguments of the scheduling layer that are of another kind than they have to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewright.errors import ScheduleError
from tilewright.schedule import Array, Location, Nest, Plan, Role, Schedule, Target, fuse


def schedule() -> tuple[Schedule, Any, Any]:
    A, B = Array(Role.INPUT, "float32", (8, 8), name="A"), Array(Role.OUTPUT, "float32", (8, 8), name="B")
    nest = Nest((8, 8))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: B.__setitem__((i, j), A[i, j]))
    return nest.create_schedule(), i, j


def plan() -> tuple[Plan, Any, Any]:
    made, i, j = schedule()
    return made.create_plan(Target("A100")), i, j


def cached(**options: Any) -> Callable[[], Any]:
    def call() -> None:
        made, _, j = plan()
        where = {} if {"level", "max_elements"} & set(options) else {"index": j}
        made.cache(made.arguments[0], **where, **options)

    return call


TEXTS: list[tuple[Callable[[], Any], str]] = [
    (cached(location="SHARED"), "'SHARED' is not a Location of a cache"),
    (cached(strategy="BLOCKED"), "'BLOCKED' is not a Strategy of a cache"),
    (cached(double_buffer=True, double_buffer_location="PRIVATE"), "double_buffer_location='PRIVATE'"),
    (cached(double_buffer=True, double_buffer_location=Location.MMA_FRAGMENT), "double_buffer_location=<Location.MMA_"),
    (cached(pipeline_stages=2.5), "pipeline_stages=2.5"),
    (cached(pipeline_stages=0), "pipeline_stages=0"),
    (cached(level=1.5), "level=1.5"),
    (cached(max_elements="64"), "max_elements='64'"),
    (lambda: schedule()[0].create_plan("A100"), "'A100' is not a Target"),  # type: ignore[arg-type]
    (lambda: schedule()[0].split("i", 2), "'i' is not a loop of this schedule"),  # type: ignore[arg-type]
    (lambda: schedule()[0].tile(["i"]), "tile of ['i']"),  # type: ignore[arg-type]
    (lambda: schedule()[0].reorder(1, 0), "the order (1, 0) is not one of all loops"),  # type: ignore[arg-type]
    (lambda: fuse(schedule()[0], Nest((8, 8))), "fuse of Nest(8, 8), which is not a schedule"),  # type: ignore[arg-type]
    (lambda: plan()[0].tensorize(plan()[1], None), "None is not an MMAShape"),  # type: ignore[arg-type]
    (lambda: Nest(8), "a nest has the shape 8"),  # type: ignore[arg-type]
    (lambda: Array(Role.INPUT, "float32", 8, name="A"), "array A has the shape 8"),  # type: ignore[arg-type]
    (lambda: Array("input", "float32", (8,), name="A"), "array A: 'input' is not a Role"),  # type: ignore[arg-type]
    (lambda: Array(Role.INPUT, "float32", (8,), "FIRST_MAJOR", name="A"), "array A has the layout 'FIRST_MAJOR'"),
]


@pytest.mark.parametrize(("call", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_other_kinds_are_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        call()
    assert str(caught.value).startswith(text) and "\n  help: " in str(caught.value)


def test_one_index_for_many() -> None:
    made, i, j = plan()
    made.kernelize(i, j)
    assert made.nest.unrolled == {i, j} and made.vectorized == {j}
