"""Grids of parameters, and plans that wait for them."""

import itertools

import numpy as np
import pytest
from tests.unit.schedule.plans import product

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.nest import Nest
from tilewright.schedule.parameters import (
    create_parameter_grid,
    create_parameters,
    get_parameters_from_grid,
)
from tilewright.schedule.schedule import fuse
from tilewright.schedule.targets import Target


def test_a_grid_is_the_product_of_its_choices():
    p, q, r = create_parameters(3)
    choices = {p: [1, 2, 3], q: ["a", "b"], r: [None, (4, 5)]}
    grid = create_parameter_grid(choices)
    assert [tuple(point.values()) for point in grid] == list(itertools.product(*choices.values()))
    assert all(list(point) == [p, q, r] for point in grid)
    assert get_parameters_from_grid(grid) == (p, q, r)


def test_a_choice_that_comes_twice_counts_once_and_types_tell_apart():
    assert len(create_parameter_grid({"p": [1, 1, True, 1.0]})) == 3


def test_the_filter_sees_values_in_the_order_of_the_parameters():
    grid = create_parameter_grid({"m": range(1, 9), "n": range(1, 9)}, filter_func=lambda m, n: m < n)
    assert {(x["m"], x["n"]) for x in grid} == {(m, n) for m in range(1, 9) for n in range(1, 9) if m < n}


def test_a_sample_is_drawn_without_replacement_from_what_the_filter_keeps():
    whole = create_parameter_grid({"m": range(20), "n": range(20)}, filter_func=lambda m, n: (m + n) % 2 == 0)
    samples = [
        create_parameter_grid({"m": range(20), "n": range(20)}, lambda m, n: (m + n) % 2 == 0, sample=30, seed=seed)
        for seed in (1, 1, 2)
    ]
    for sample in samples:
        places = [whole.index(point) for point in sample]
        assert len(set(places)) == 30 and places == sorted(places)
    assert samples[0] == samples[1] != samples[2]
    assert create_parameter_grid({"m": [1, 2]}, sample=7, seed=0) == [{"m": 1}, {"m": 2}]


@pytest.mark.parametrize(
    ("choices", "options", "words"),
    [
        ({}, {}, "at least one parameter"),
        ({"m": []}, {}, "no choices"),
        ({"m": "abc"}, {}, "list of values"),
        ({3: [1]}, {}, "3 is not a parameter"),
        ({"m": [1]}, {"sample": -1}, "sample=-1"),
        ({n: range(200) for n in "abcd"}, {}, "combinations"),
    ],
)
def test_a_grid_without_a_meaning_is_refused(choices, options, words):
    with pytest.raises(ScheduleError, match=words):
        create_parameter_grid(choices, **options)


def test_parameters_take_the_names_of_their_variables():
    tile_m, tile_n = create_parameters(2)
    assert (str(tile_m), str(tile_n)) == ("tile_m", "tile_n")
    assert [str(p) for p in create_parameters(2, "a", "b")] == ["a", "b"]
    with pytest.raises(ScheduleError):
        create_parameters(0)


def test_arithmetic_of_parameters_waits_too():
    p, q = create_parameters(2)
    assert ((3 * p - q) // 2 % 5 + 1).value_for({p: 7, "q": 4}) == (3 * 7 - 4) // 2 % 5 + 1
    with pytest.raises(ScheduleError, match="before the parameter has a value"):
        bool(p + 1)


def test_a_value_that_was_set_counts_where_none_is_chosen():
    p = create_parameters(1)
    with pytest.raises(ScheduleError, match="has no value"):
        p.get_value()
    p.set_value(8)
    assert (p.get_value(), p.value_for({}), p.value_for({p: 4})) == (8, 8, 4)


@pytest.mark.parametrize("sizes", [(24, 16, 16, 8, 8, 1), (20, 12, 13, 4, 8, 2), (7, 9, 5, 4, 2, 3)])
def test_a_plan_with_parameters_is_the_plan_with_their_values(sizes):
    parameters = create_parameters(6)
    waiting, arrays = product(*parameters)
    found = waiting.with_parameters(dict(zip(parameters, sizes, strict=True)))
    expected, _ = product(*sizes)
    assert found.nest.text() == expected.nest.text()
    assert found.block == expected.block
    names = [array.name for array in arrays]
    kernels = [
        plan.build("product", [next(a for a in plan.arguments if a.name == name) for name in names])
        for plan in (found, expected)
    ]
    assert kernels[0].source() == kernels[1].source()
    m, n, k = sizes[:3]
    random = np.random.default_rng(0)
    c, a, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((m, n), (m, k), (k, n)))
    wanted = c + a @ b
    kernels[0](c, a, b)
    assert np.array_equal(c, wanted)


def test_a_plan_that_waits_can_be_given_values_again_and_again():
    tile = create_parameters(1)
    plan, _ = product(24, 24, 8, tile)
    assert [plan.with_parameters({tile: t}).block for t in (4, 8, 4)] == [(4, 4, 1), (8, 8, 1), (4, 4, 1)]


def test_what_needs_a_value_is_refused_while_there_is_none():
    tile = create_parameters(1)
    plan, _ = product(24, 24, 8, tile)
    for ask in (plan.build, lambda: plan.block, lambda: plan.arguments, lambda: plan.serial):
        with pytest.raises(ScheduleError, match="no value"):
            ask()
    with pytest.raises(ScheduleError, match="tile has no value"):
        plan.with_parameters({})
    with pytest.raises(ScheduleError, match="threads"):
        plan.with_parameters({tile: 64})


def test_transforms_that_wait_pad_skew_unroll_and_fuse():
    amount, size = create_parameters(2)

    def schedules(amount, size):
        A = Array(Role.INPUT, tw.float32, (12, 10), name="A")
        B = Array(Role.OUTPUT, tw.float32, (12, 10), name="B")
        C = Array(Role.OUTPUT, tw.float32, (12, 10), name="C")
        made = []
        for target in (B, C):
            nest = Nest((12, 10))
            i, j = nest.get_indices()
            nest.iteration_logic(lambda target=target, i=i, j=j: target.__setitem__((i, j), A[i, j] * 2.0))
            schedule = nest.create_schedule()
            schedule.skew(j, i)
            schedule.pad(i, amount)
            jj = schedule.split(j, size)
            schedule.unroll(jj)
            made.append(schedule)
        fused = fuse(*made, partial=1)
        return fused, fused.get_fusing_index()

    waiting, index = schedules(amount, size)
    expected, _ = schedules(3, 4)
    plan = waiting.create_plan(Target("NVIDIA A100")).with_parameters({amount: 3, size: 4})
    assert plan.nest.text() == expected.nest.text()
    assert plan.nest.fusing == (index,)


def test_a_cache_that_was_made_before_the_plan_waits_can_be_cached_in_turn():
    vector = create_parameters(1)

    def plan_of(vectorize):
        A = Array(Role.INPUT, tw.float32, (16, 16), name="A")
        B = Array(Role.OUTPUT, tw.float32, (16, 16), name="B")
        nest = Nest((16, 16))
        i, j = nest.get_indices()
        nest.iteration_logic(lambda: B.__setitem__((i, j), A[i, j] + 1.0))
        schedule = nest.create_schedule()
        jj = schedule.split(j, 8)
        target = Target("NVIDIA A100")
        plan = schedule.create_plan(target)
        plan.bind({i: target.GridUnit.THREAD_X})
        shared = plan.cache(A, index=j)
        plan.cache(shared, index=jj, location=Location.PRIVATE, vectorize=vectorize)
        return plan

    found, expected = plan_of(vector).with_parameters({vector: True}), plan_of(True)
    assert found.caches[1].source is found.caches[0]
    assert found.build("k").source() == expected.build("k").source()


def sums_by_rows(size):
    A = Array(Role.INPUT, tw.int32, (8, 12), name="A")
    B, C = Array(Role.INPUT_OUTPUT, tw.int32, (8,), name="B"), Array(Role.OUTPUT, tw.int32, (8,), name="C")
    add, use = Nest((8, 12)), Nest((8,))
    i, j = add.get_indices()
    x = use.get_indices()
    add.iteration_logic(lambda: B.__setitem__(i, B[i] + A[i, j]))
    use.iteration_logic(lambda: C.__setitem__(x, B[x] * 2))
    schedule = add.create_schedule()
    schedule.split(j, size)
    return schedule, use.create_schedule(), (A, B, C)


def test_a_schedule_that_waits_tells_its_indices():
    """Splits, tiles, pads, skews and orders say which loops there are before a parameter has a value, and fuse too."""
    size, rows = create_parameters(2)
    first, second, arrays = sums_by_rows(size)
    fused = fuse((first, second), partial=1)
    i, f, j, jj = fused.get_indices()
    assert f is fused.get_fusing_index()
    assert (fused.get_fused_indices(), fused.get_unfused_indices()) == ((i,), (j, jj))
    ii, jjj = fused.tile({i: rows, jj: 2})
    assert fused.get_indices() == (i, ii, f, j, jj, jjj)
    fused.reorder(f, i, j, jj, ii, jjj)
    fused.pad(i, 1)
    fused.unroll(jjj)
    assert fused.get_indices() == (f, i, j, jj, ii, jjj)
    plan = fused.create_plan(Target("sm_80"))
    for values in ({size: 4, rows: 2}, {size: 5, rows: 3}):
        chosen = plan.with_parameters(values)
        assert chosen.nest.order == (f, i, j, jj, ii, jjj)
        a, b, c = np.arange(96, dtype=np.int32).reshape(8, 12), np.zeros(8, np.int32), np.zeros(8, np.int32)
        chosen.build("sums", arrays)(a, b, c)
        np.testing.assert_array_equal(c, 2 * a.sum(1))


def test_orders_of_a_schedule_that_waits_are_filtered_by_its_splits():
    size, order = create_parameters(2)
    schedule, second, _ = sums_by_rows(size)
    i, j, jj = schedule.get_indices()
    schedule.reorder(order)
    grid = create_parameter_grid(
        {size: [4], order: (i, j, jj)}, filter_func=lambda *choice: schedule.is_valid_loop_order(choice[0][1])
    )
    assert [point[order] for point in grid] == [(i, j, jj), (j, i, jj), (j, jj, i)]
    assert not schedule.is_valid_loop_order(i, j) and not schedule.is_valid_loop_order(i, j, jj, jj)
    fused = fuse(sums_by_rows(size)[0], second, partial=1)
    x, f, y, yy = fused.get_indices()
    orders = [p for p in itertools.permutations((x, f, y, yy)) if fused.is_valid_loop_order(p)]
    assert orders == [(x, f, y, yy), (f, x, y, yy), (f, y, x, yy), (f, y, yy, x)]


def test_an_order_may_be_a_parameter():
    size, order = create_parameters(2)
    schedule, _, (A, B, _) = sums_by_rows(size)
    i, j, jj = schedule.get_indices()
    schedule.reorder(order=order)
    with pytest.raises(ScheduleError, match="no values? yet"):
        schedule.get_indices()
    fused = fuse(schedule, sums_by_rows(size)[1], partial=1)
    for ask in (fused.get_indices, fused.get_fused_indices, fused.get_unfused_indices):
        with pytest.raises(ScheduleError, match="no values? yet"):
            ask()
    plan = schedule.create_plan(Target("sm_80"))
    for chosen in ((i, j, jj), (j, i, jj), (j, jj, i)):
        assert plan.with_parameters({size: 4, order: chosen}).nest.order == chosen
    with pytest.raises(ScheduleError, match=r"puts jj? outside of j|puts .* outside of"):
        plan.with_parameters({size: 4, order: (jj, i, j)})
    assert A.name == "A" and B.name == "B"
