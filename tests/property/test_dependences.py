"""Which orders and bindings are refused, against all pairs of iterations of small nests."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.property.schedule_strategies import guarded, holds, keeping

from tilewright.errors import ScheduleError
from tilewright.schedule import transforms
from tilewright.schedule.affine import Affine, Dimension, Index
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.binding import Binding
from tilewright.schedule.calls import record_call
from tilewright.schedule.crossings import crossings
from tilewright.schedule.loop_nest import LoopNest
from tilewright.schedule.nest import Nest
from tilewright.schedule.orders import refuse_recurrences, refuse_violations
from tilewright.schedule.targets import GridUnit

SMALL = st.integers(-1, 2)


def _place(draw: Any, indices: tuple[Index, ...]) -> Affine:
    place = Affine.of({index: draw(SMALL) for index in indices}, draw(SMALL) + 8)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        divisor, factor = draw(st.integers(1, 4)), draw(st.sampled_from([-1, 1, 3]))
        term = (factor * place) // divisor if draw(st.booleans()) else (factor * place) % divisor
        place = term + draw(st.integers(-1, 1)) * draw(st.sampled_from(indices))
    return place


def _nest(draw: Any, arrays: list[Array]) -> LoopNest:
    nest = Nest(tuple(draw(st.integers(1, 3)) for _ in range(2)))
    for index, name in zip(nest.indices, "ij", strict=True):
        index.name = name

    @nest.iteration_logic
    def _() -> None:
        for _ in range(draw(st.integers(1, 2))):
            target, source = draw(st.sampled_from(arrays)), draw(st.sampled_from(arrays))
            places = [[_place(draw, nest.indices) for _ in a.shape] for a in (target, source)]

            def store(target: Array = target, source: Array = source, places: Any = places) -> None:
                if draw(st.integers(0, 3)) == 0:
                    target[tuple(places[0])] += 1
                else:
                    target[tuple(places[0])] = source[tuple(places[1])] * 2

            if draw(st.integers(0, 2)):
                store()
            else:
                guarded(draw, nest.indices, store)

    return nest.loop_nest()


def _calling(draw: Any, arrays: list[Array], inner: LoopNest) -> LoopNest:
    """A nest of statements and calls, with arguments that are one array sometimes."""
    outer = Nest((draw(st.integers(1, 2)),))
    (i,) = outer.indices

    def logic() -> None:
        for _ in range(draw(st.integers(1, 2))):
            if draw(st.booleans()):
                target, source = draw(st.sampled_from(arrays)), draw(st.sampled_from(arrays))
                places = [tuple(_place(draw, outer.indices) for _ in a.shape) for a in (target, source)]
                target[places[0]] = source[places[1]] * 2
            used = {access.array for part in inner.parts for s in part.statements for access in s.accesses}
            named = [array for array in arrays if array in used]
            others = [
                draw(st.sampled_from([array, Array(Role.TEMP, "int32", array.shape, name=f"other_{array.name}")]))
                for array in named
            ]
            record_call("inner", inner, named, others, None)

    outer.iteration_logic(logic)
    i.name = "o"
    return outer.loop_nest()


def _fused(nests: list[LoopNest], partial: int) -> LoopNest:
    """Fuse nests in the order in which they were declared: each after the one before it."""
    fusing = Index("f")
    fused = transforms.fuse(nests, partial, fusing)
    return transforms.reorder(fused, [fusing, *(index for index in fused.order if index is not fusing)])


@st.composite
def nests(draw: Any) -> LoopNest:
    """One nest, or two that are fused, with loops split, skewed and padded; the order is still the declared one."""
    arrays = [Array(Role.INPUT_OUTPUT, "int32", (64,), name="A"), Array(Role.TEMP, "int32", (64, 64), name="T")]
    nest = _nest(draw, arrays)
    if draw(st.booleans()):
        nest = _fused([nest, _nest(draw, arrays)], draw(st.integers(0, 2)))
    for _ in range(draw(st.integers(0, 1))):
        nest = transforms.split(nest, draw(st.sampled_from(nest.order)), draw(st.integers(1, 2)), Index("x"))
    if draw(st.booleans()):
        nest = transforms.pad(nest, draw(st.sampled_from(nest.order)), 1, draw(st.booleans()))
    if draw(st.booleans()):
        outer, inner = sorted(draw(st.permutations(range(len(nest.order))))[:2])
        if nest.loops[outer].step == nest.loops[inner].step == 1:
            nest = transforms.skew(nest, nest.order[inner], nest.order[outer])
    return nest


def _accesses(nest: LoopNest) -> list[tuple[Any, ...]]:
    """Return (declared time, time, element, is_write, reduction or None, loops) of each access that happens."""
    found = []
    for point in itertools.product(*(range(0, loop.stop.constant, loop.step) for loop in nest.loops)):
        loops = dict(zip(nest.order, point, strict=True))
        for number, part in enumerate(nest.parts):
            tests = [(c.value.evaluate(loops), c.is_equality) for c in part.conditions]
            if not all(value == 0 if is_equality else value >= 0 for value, is_equality in tests):
                continue
            own = {index: place.evaluate(loops) for index, place in part.places.items()}
            declared = tuple(x if isinstance(x, int) else own[x] for x in nest.sequence(number))
            for statement in part.statements:
                guards = [holds(guard.test, own) is guard.holds for guard in statement.store.guards]
                for access in statement.accesses:
                    if not all(guards[: access.under]):
                        continue
                    element = (access.array, *(mode.evaluate(own) for mode in access.place))
                    reduction = statement if statement.reduction is not None else None
                    times = (*declared, statement.number), (*point, number, statement.number)
                    found.append((*times, element, access.is_write, reduction, loops))
    return found


def _conflicts(nest: LoopNest) -> list[tuple[Any, Any]]:
    return [
        (a, b)
        for a, b in itertools.combinations(_accesses(nest), 2)
        if a[2] == b[2] and (a[3] or b[3])
    ]  # fmt: skip


def _is_refused(check: Any, *arguments: Any) -> bool:
    try:
        check(*arguments)
    except ScheduleError as error:
        note(str(error))
        return True
    return False


def _temporary(nest: LoopNest) -> set[Array]:
    """Return the arrays that points might have for themselves, as if somebody saw what is left in them."""
    arrays = {access.array.memory for part in nest.parts for s in part.statements for access in s.accesses}
    return {array for array in arrays if array.role is Role.TEMP}


@examples(40, 250, suppress_health_check=list(hypothesis.HealthCheck))
@given(nests(), st.data())
def test_orders(nest: LoopNest, data: Any) -> None:
    order = keeping(data.draw(st.permutations(nest.order)), nest.precedences)
    changed = transforms.reorder(nest, order)
    note(changed.text())
    expected = any(
        (a[0] < b[0]) != (a[1] < b[1])
        for a, b in _conflicts(changed)
        if a[0] != b[0] and not (a[4] is not None and a[4] is b[4])
    )
    assert _is_refused(refuse_violations, nest, changed, "it", _temporary(changed)) == expected


def _serial(access: Any, nest: LoopNest, chosen: list[Any]) -> tuple[int, ...]:
    return tuple(access[5][index] for index in nest.order if index not in chosen)


def _is_one_reduction(a: Any, b: Any) -> bool:
    return a[4] is not None and a[4] is b[4]


@st.composite
def calling_nests(draw: Any) -> LoopNest:
    """A nest that calls another one, or two that are fused; or fused with a nest after it."""
    arrays = [Array(Role.INPUT_OUTPUT, "int32", (64,), name="A")]
    nest = _nest(draw, arrays)
    other = draw(st.sampled_from(["none", "inside", "outside"]))
    if other == "inside":
        nest = _fused([nest, _nest(draw, arrays)], draw(st.integers(0, 2)))
    nest = _calling(draw, arrays, nest)
    if other == "outside":
        nest = _fused([nest, _calling(draw, arrays, _nest(draw, arrays))], 1)
    return nest


@examples(8, 60, suppress_health_check=list(hypothesis.HealthCheck))
@given(calling_nests(), st.data())
def test_orders_of_calls(nest: LoopNest, data: Any) -> None:
    test_orders.hypothesis.inner_test(nest, data)  # type: ignore[attr-defined]  # the test without its generator


@examples(40, 250, suppress_health_check=list(hypothesis.HealthCheck))
@given(nests(), st.sampled_from([GridUnit.THREAD_X, GridUnit.BLOCK_X]), st.data())
def test_bindings(nest: LoopNest, unit: GridUnit, data: Any) -> None:
    """Blocks share no element; threads do in different iterations of serial loops, in the order that was declared."""
    note(nest.text())
    chosen = data.draw(st.lists(st.sampled_from(nest.order), min_size=1, unique=True))
    bindings = (Binding(unit, tuple(map(nest.loop, chosen))),)
    apart = [(a, b) for a, b in _conflicts(nest) if any(a[5][index] != b[5][index] for index in chosen)]
    expected, waiting = bool(apart), set()
    if unit is GridUnit.THREAD_X:
        expected = False
        for a, b in apart:
            first, second = _serial(a, nest, chosen), _serial(b, nest, chosen)
            is_kept = _is_one_reduction(a, b) or (a[0] < b[0]) == (first < second)
            expected = expected or first == second or not is_kept
            loops = [index for index in nest.order if index not in chosen]
            waiting |= {next((x for x, n, m in zip(loops, first, second, strict=True) if n != m), None)}
    assert _is_refused(crossings, nest, bindings) == expected
    if not expected:
        assert {crossing.index for crossing in crossings(nest, bindings)} == waiting


@examples(40, 250, suppress_health_check=list(hypothesis.HealthCheck))
@given(nests(), st.data())
def test_lanes(nest: LoopNest, data: Any) -> None:
    """Lanes are innermost, and a statement reads in all of them, and writes, before the next one does."""
    lanes = data.draw(st.lists(st.sampled_from(nest.order), min_size=1, unique=True))
    lanes = [index for index in nest.order if index in lanes]
    order = [*(index for index in nest.order if index not in lanes), *lanes]
    after = replace(nest, loops=tuple(map(nest.loop, order)))
    note(f"{nest.text()}\nlanes {lanes}")

    def runs(access: Any) -> tuple[Any, ...]:
        statements = access[1][-2:]  # the part and its statement
        along = tuple(access[5][index] for index in lanes)
        return (*_serial(access, nest, lanes), *statements, access[3], *along)

    expected = any(
        (a[0] < b[0]) != (runs(a) < runs(b))
        for a, b in _conflicts(nest)
        if a[0] != b[0] and not _is_one_reduction(a, b)
    )

    def check() -> None:
        refuse_violations(nest, after, "it", _temporary(nest))
        refuse_recurrences(after, tuple(lanes))

    assert _is_refused(check) == expected


@pytest.mark.parametrize("shift", [0, 1])
def test_sizes_of_the_launch(shift: int) -> None:
    m, n = Dimension("M"), Dimension("N")
    a = Array(Role.INPUT_OUTPUT, "int32", (m, n), name="A")
    nest = Nest((m, n))
    i, j = nest.get_indices()  # type: ignore[misc]

    @nest.iteration_logic
    def _() -> None:
        a[i + 1, j] = a[i, j + shift] * 2

    assert nest.create_schedule().is_valid_loop_order(j, i) == (shift == 0)
