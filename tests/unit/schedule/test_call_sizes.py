"""Sizes of called functions that indices give, and loops that are erased around calls: against NumPy, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.schedule import Array, Dimension, GridUnit, If, Nest, Package, Role, Target, cast, fuse
from tilewright.schedule.schema import evaluate

TARGET = Target("NVIDIA A100")


def _array(name: str, *shape: Any, role: Role = Role.INPUT_OUTPUT, type: Any = tw.float32) -> Array:
    return Array(role, type, shape, name=name)


def _tile_function(package: Package, extent: Any, split: int, way: str) -> Any:
    """Return a function of a tile of n elements from o on, whose size is in its loop, a place, a value or a condition."""
    n, o = Dimension("n"), Dimension("o")
    x, y = _array("X", extent, role=Role.INPUT), _array("Y", extent)
    nest = Nest((n,))
    p = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        if way == "place":
            y[o + n - 1 - p] += x[o + p]
        elif way == "value":
            y[o + p] += x[o + p] * n
        elif way == "condition":
            If(p < n - 1, lambda: y.__setitem__(o + p, x[o + p + 1])).Else(lambda: y.__setitem__(o + p, 0.5))
        else:
            y[o + p] += x[o + p]

    schedule = nest.create_schedule()
    if split:
        schedule.split(p, split)
    return package.add(schedule, (n, x, y, o), f"tile_{way}_{split}")


def _expected(x: Any, y: Any, tile: int, way: str) -> Any:
    y = y.copy()
    for start in range(0, len(x), tile):
        size = min(tile, len(x) - start)
        part = x[start : start + size]
        if way == "place":
            y[start : start + size] += part[::-1]
        elif way == "value":
            y[start : start + size] += part * size
        elif way == "condition":
            y[start : start + size] = [*part[1:], 0.5]
        else:
            y[start : start + size] += part
    return y


@pytest.mark.parametrize("way", ["loop", "place", "value", "condition"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.spread(4)
def test_a_tile_at_the_end_is_shorter(way: str, seed: int, is_dynamic: bool) -> None:
    random = np.random.default_rng([seed, len(way)])
    length, tile, split = int(random.integers(1, 40)), int(random.integers(1, 12)), int(random.integers(0, 6))
    extent = Dimension("N") if is_dynamic else length
    package = Package()
    function = _tile_function(package, extent, split, way)
    a, b = _array("A", extent, role=Role.INPUT), _array("B", extent)
    nest = Nest((extent,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: function(tw.minimum(cast(tile, tw.int64), extent - i), a, b, i))
    schedule = nest.create_schedule()
    ii = schedule.split(i, tile)
    plan = schedule.create_plan(TARGET)
    plan.erase_loops([ii])
    if seed:
        plan.bind({i: GridUnit.BLOCK_X})
    kernel = plan.build(args=(a, b))
    for n in (length, 1, tile, tile + 1) if is_dynamic else (length,):
        x, y = random.random(n, np.float32), random.random(n, np.float32)
        expected = _expected(x, y, tile, way)
        kernel(x, y)
        np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.spread(2)
def test_functions_give_sizes_to_functions(seed: int) -> None:
    """A triangle of tiles: sizes are minima, maxima and plain expressions of the indices of two levels of callers."""
    random = np.random.default_rng(seed)
    columns, tile = (int(x) for x in random.integers(2, 14, 2))
    rows = tile + int(random.integers(2, 14))
    package = Package()
    n, o, m = Dimension("n"), Dimension("o"), Dimension("m")
    y = _array("Y", rows, columns, type=tw.int32)
    row = Dimension("row")
    inner_nest = Nest((n,))
    p = inner_nest.get_indices()
    inner_nest.iteration_logic(lambda: y.__setitem__((row, o + p), y[row, o + p] + n * 100 + p + 1))
    inner = package.add(inner_nest, (n, y, row, o), "inner")
    middle_nest = Nest((m,))
    q = middle_nest.get_indices()
    middle_nest.iteration_logic(lambda: inner(tw.minimum(m - q, tw.minimum(3, q + 1)), y, row, q))
    middle = package.add(middle_nest, (m, y, row), "middle")
    a = _array("A", rows, columns, type=tw.int32)
    nest = Nest((rows,))
    i = nest.get_indices()
    least = tw.maximum(tw.minimum(i - tile, columns), 0)  # none in the first rows
    nest.iteration_logic(lambda: middle(least, a, i))
    held = np.zeros((rows, columns), np.int32)
    expected = held.copy()
    for r in range(rows):
        size = max(min(r - tile, columns), 0)
        for c in range(size):
            many = min(size - c, 3, c + 1)
            expected[r, c : c + many] += many * 100 + np.arange(many, dtype=np.int32) + 1
    schedule = nest.create_schedule()
    if seed % 2:
        schedule.split(i, 3)
    package.add(schedule, (a,), "outer")(held)
    np.testing.assert_array_equal(held, expected)


def test_dependences_know_where_a_tile_ends() -> None:
    """Tiles that end before the next one begins may change places; those that reach into it may not."""
    package = Package()
    function = _tile_function(package, 24, 0, "place")
    a, b = _array("A", 24, role=Role.INPUT), _array("B", 24)
    for most, is_legal in ((4, True), (5, False)):
        nest = Nest((6,))
        t = nest.get_indices()
        nest.iteration_logic(lambda most=most, t=t: function(tw.minimum(most, 24 - 4 * t), a, b, 4 * t))
        plan = nest.create_plan(TARGET)
        if is_legal:
            plan.bind({t: GridUnit.BLOCK_X})
        else:
            with pytest.raises(ScheduleError, match=r"t cannot be bound to BLOCK_X.*access B\[4\]"):
                plan.bind({t: GridUnit.BLOCK_X})


def test_minima_are_places() -> None:
    """An index may be clamped in a place, and dependences know to what."""
    a, b = _array("A", 16, role=Role.INPUT), _array("B", 16)
    nest = Nest((16,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        b[i] = a[tw.minimum(i + 3, 15)] - a[tw.maximum(i - 2, 0)]

    x, y = np.random.default_rng(0).random(16, np.float32), np.zeros(16, np.float32)
    schedule = nest.create_schedule()
    ii = schedule.split(i, 5)
    plan = schedule.create_plan(TARGET)
    plan.bind({ii: GridUnit.THREAD_X})
    plan.build(args=(a, b))(x, y)
    n = np.arange(16)
    np.testing.assert_allclose(y, x[np.minimum(n + 3, 15)] - x[np.maximum(n - 2, 0)])
    c = _array("C", 32)
    for least, is_legal in ((0, False), (24, True)):  # what is written is read, or only what lies behind it
        nest = Nest((24,))
        i = nest.get_indices()
        nest.iteration_logic(lambda i=i, least=least: c.__setitem__(i, c[tw.maximum(31 - i, least)] + 1.0))
        plan = nest.create_plan(TARGET)
        if is_legal:
            plan.bind({i: GridUnit.THREAD_X})
        else:
            with pytest.raises(ScheduleError, match="i cannot be bound to THREAD_X"):
                plan.bind({i: GridUnit.THREAD_X})
    out = Nest((16,))
    i = out.get_indices()
    out.iteration_logic(lambda: b.__setitem__(tw.minimum(i + 1, 16), 1.0))
    with pytest.raises(ScheduleError, match="beyond mode 0 of B"):
        out.create_plan(TARGET).build()


def _packed(package: Package, tile: int, size: int) -> tuple[Nest, tuple[Array, Array, Array], list[Any]]:
    """Return a nest that copies each tile into an array by one function, and adds it up by another one."""
    o = Dimension("o")
    x, t, y = _array("X", size, role=Role.INPUT), _array("T", tile), _array("Y", size)
    pack_nest, add_nest = Nest((tile,)), Nest((tile,))
    p, q = pack_nest.get_indices(), add_nest.get_indices()
    pack_nest.iteration_logic(lambda: t.__setitem__(p, x[o + p]))
    add_nest.iteration_logic(lambda: y.__setitem__(o + q, y[o + q] + t[tile - 1 - q]))
    pack = package.add(pack_nest, (x, t, o), "pack")
    add = package.add(add_nest, (y, t, o), "add")
    a, b, temporary = _array("A", size, role=Role.INPUT), _array("B", size), _array("Temp", tile)
    nest = Nest((4, size))
    j, i = nest.get_indices()  # type: ignore[misc]

    @nest.iteration_logic
    def _() -> None:
        pack(a, temporary, i)
        add(b, temporary, i)

    return nest, (a, b, temporary), [j, i]


def test_an_order_is_asked_of_what_is_left() -> None:
    nest, arrays, (j, i) = _packed(Package(), 4, 16)
    schedule = nest.create_schedule()
    jj, ii = schedule.tile({j: 2, i: 4})
    assert schedule.is_valid_loop_order(j, i, jj, ii) and not schedule.is_valid_loop_order(i, j, jj, ii)
    schedule.reorder(j, i, jj, ii)
    erased = schedule.create_plan(TARGET)
    erased.erase_loops([jj, ii])
    x, y = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    erased.build(args=arrays)(x, y, np.zeros(4, np.float32))
    np.testing.assert_array_equal(y, 2 * x.reshape(4, 4)[:, ::-1].reshape(16))
    for chosen in ([], [ii]):
        plan = schedule.create_plan(TARGET)
        plan.erase_loops(chosen)
        with pytest.raises(ScheduleError, match=r"the order \(j, i, jj, .* of Temp\[0\] change places") as error:
            plan.build(args=arrays)
        assert "plan.erase_loops" in str(error.value)
    with pytest.raises(ScheduleError, match=r"the order \(i, j, jj, ii\) lets two accesses of Temp\[0\] change"):
        schedule.reorder(i, j, jj, ii)  # whatever is erased


def test_bindings_wait_for_what_is_erased() -> None:
    package = Package()
    function = _tile_function(package, 17, 0, "condition")
    a, b = _array("A", 17, role=Role.INPUT), _array("B", 17)
    nest = Nest((2, 16))
    j, i = nest.get_indices()  # type: ignore[misc]
    nest.iteration_logic(lambda: function(4, a, b, i))
    schedule = nest.create_schedule()
    jj, ii = schedule.tile({j: 2, i: 4})
    schedule.reorder(j, i, jj, ii)
    plan = schedule.create_plan(TARGET)
    plan.bind({i: GridUnit.THREAD_X})
    plan.erase_loops([jj])
    plan.erase_loops([ii])
    x, y = np.random.default_rng(0).random(17, np.float32), np.zeros(17, np.float32)
    plan.build(args=(a, b))(x, y)
    np.testing.assert_array_equal(y[:16], np.where(np.arange(16) % 4 == 3, np.float32(0.5), x[1:]))
    plan = schedule.create_plan(TARGET)
    plan.bind({i: GridUnit.THREAD_X})
    plan.erase_loops([jj])
    with pytest.raises(ScheduleError, match=r"i cannot be bound to THREAD_X.*both of B\[4\]"):
        plan.build(args=(a, b))


def test_a_schedule_erases_before_it_is_ordered() -> None:
    x, y = _array("A", 10, 10), _array("B", 10, 10)
    nest = Nest((9, 9))
    i, j = nest.get_indices()  # type: ignore[misc]
    nest.iteration_logic(lambda: x.__setitem__((i + 1, j), x[i, j + 1] + y[i, j]))
    schedule = nest.create_schedule()
    ii = schedule.split(i, 3)
    with pytest.raises(ScheduleError, match="change places"):
        schedule.reorder(j, i, ii)
    schedule.erase_loops([ii])
    schedule.reorder(j, i, ii)
    assert str(schedule).splitlines() == [
        "for j in range(9):",
        "    for i in range(0, 9, 3):",
        "        for ii in range(1):",
        "            A[i + 1, j] = A[i, j + 1] + B[i, j]",
    ]
    held = [np.random.default_rng(n).random((10, 10), np.float32) for n in range(2)]
    expected = held[0].copy()
    for n in range(0, 9, 3):
        expected[n + 1, :9] = expected[n, 1:] + held[1][n, :9]
    schedule.create_plan(TARGET).build(args=(x, y))(*held)
    np.testing.assert_array_equal(held[0], expected)


def test_a_loop_that_does_not_run_is_not_run_once() -> None:
    n = Dimension("N")
    a = _array("A", n)
    nest = Nest((n, 3))
    i, _ = nest.get_indices()  # type: ignore[misc]
    nest.iteration_logic(lambda: a.__setitem__(i, a[i] + 1.0))
    plan = nest.create_plan(TARGET)
    plan._erase_loops([i])
    kernel = plan.build()
    for size in (0, 1, 5):
        held = np.zeros(size, np.float32)
        kernel(held)
        assert held.tolist() == ([3.0] + [0.0] * (size - 1) if size else [])


def test_what_is_refused() -> None:
    package = Package()
    function = _tile_function(package, 24, 0, "loop")
    a, b = _array("A", 24, role=Role.INPUT), _array("B", 24)

    def called(size: Any, start: Any = None) -> Nest:
        nest = Nest((6,))
        t = nest.get_indices()
        nest.iteration_logic(lambda: function(size(t), a, b, t if start is None else start(t)))
        return nest

    with pytest.raises(ScheduleError, match=r"takes the size n, got A\[t\], which is not affine"):
        called(lambda t: a[t])
    with pytest.raises(ScheduleError, match=r"takes the size o, got .*not affine"):
        called(lambda t: 3, lambda t: a[t])
    with pytest.raises(ScheduleError, match="loop p of tile_loop_0 would run to 0"):
        called(lambda t: 0).create_schedule()
    with pytest.raises(ScheduleError, match="loop p of tile_loop_0 would run to min"):
        called(lambda t: tw.minimum(-t, t - 20)).create_schedule()
    with pytest.raises(ScheduleError, match=r"is beyond mode 0 of B, which has 24: .* at t=5, p=19"):
        called(lambda t: tw.minimum(20, 26 - t), lambda t: t).create_plan(TARGET).build(args=(a, b))
    called(lambda t: tw.minimum(20, 24 - t), lambda t: t).create_plan(TARGET).build(args=(a, b))

    with pytest.raises(ScheduleError, match="is not a loop of this schedule"):
        called(lambda t: 2).create_plan(TARGET).erase_loops(Nest((2,)).get_indices())
    padded = called(lambda t: 2).create_schedule()
    padded.pad(padded.nest.order[0], 1)
    with pytest.raises(ScheduleError, match="is padded and is erased"):
        padded.create_plan(TARGET).erase_loops([padded.nest.order[0]])
    first, second = called(lambda t: 2).create_schedule(), called(lambda t: 3).create_schedule()
    fused = fuse(first, second, partial=0)
    with pytest.raises(ScheduleError, match="tells schedules or calls apart and is erased"):
        fused.create_plan(TARGET).erase_loops([fused.get_fusing_index()])
    sized = Nest((Dimension("N"), 4))
    _, j = sized.get_indices()  # type: ignore[misc]
    c = _array("C", 4)
    sized.iteration_logic(lambda: c.__setitem__(j, 1.0))
    bound = sized.create_plan(TARGET)
    bound.bind({j: GridUnit.THREAD_X})
    with pytest.raises(ScheduleError, match="erase of j, which is bound to THREAD_X"):
        bound.erase_loops([j])


def test_sizes_at_the_launch_are_checked() -> None:
    package = Package()
    n = Dimension("N")
    function = _tile_function(package, n, 0, "loop")
    a, b, m = _array("A", n, role=Role.INPUT), _array("B", n), Dimension("M")
    nest = Nest((m,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: function(tw.minimum(4, n - i), a, b, i))
    kernel = nest.create_plan(TARGET).build(args=(m, a, b))
    x, y = np.ones(6, np.float32), np.zeros(6, np.float32)
    kernel(6, x, y)
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 4, 4])
    kernel(9, x, y)  # nothing is left for the last three
    np.testing.assert_array_equal(y, [2, 4, 6, 8, 8, 8])
    reaching = Nest((m,))
    i = reaching.get_indices()
    reaching.iteration_logic(lambda: function(tw.minimum(4, n + 1 - i), a, b, i))
    kernel = reaching.create_plan(TARGET).build(args=(m, a, b))
    kernel(3, x, y)  # ends at the end
    with pytest.raises(ArgumentError, match=r"beyond mode 0 of B, which has N, where .*N=6"):
        kernel(4, x, y)


def test_what_is_erased_is_not_accessed() -> None:
    """A launch is asked for the elements that the iterations which are left access, and for no others."""
    n = Dimension("N")
    a = _array("A", n)
    nest = Nest((n,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: a.__setitem__(2 * i, 1.0))
    schedule = nest.create_schedule()
    ii = schedule.split(i, 4)
    plan = schedule.create_plan(TARGET)
    plan.erase_loops(ii)
    kernel = plan.build()
    held = np.zeros(4, np.float32)
    kernel(held)
    assert held.tolist() == [1, 0, 0, 0]
    with pytest.raises(ArgumentError, match="is beyond mode 0 of A, which has N, where N=8"):
        kernel(np.zeros(8, np.float32))


def _sum_in_parts(n: Any, x: Array, total: Array, package: Package) -> Nest:
    """Return a nest that adds 12 elements at a time, then 4, then what is left, by functions that are given the counts."""
    m, o, k = Dimension("m"), Dimension("o"), Dimension("k")
    a, t = _array("X", Dimension("n"), role=Role.INPUT), _array("T", 4)
    functions = []
    for name, shape in (("twelve", (m, 3, 4)), ("four", (m, 1, 4))):
        inner = Nest(shape)
        p, q, r = inner.get_indices()  # type: ignore[misc]
        step = 4 * shape[1]
        inner.iteration_logic(lambda p=p, q=q, r=r, step=step: t.__setitem__(r, t[r] + a[o + step * p + 4 * q + r]))
        functions.append(package.add(inner, (m, a, t, o), name))
    last = Nest((k,))
    p = last.get_indices()
    last.iteration_logic(lambda: t.__setitem__(p, t[p] + a[o + p]))
    rest = package.add(last, (k, a, t, o), "rest")
    nest = Nest((1,))

    @nest.iteration_logic
    def _() -> None:
        total[0] = 0.0
        total[1] = 0.0
        total[2] = 0.0
        total[3] = 0.0
        first = n // 12
        If(first > 0, lambda: functions[0](first, x, total, 0))
        second = (n - first * 12) // 4
        If(second > 0, lambda: functions[1](second, x, total, first * 12))
        rest(n - first * 12 - second * 4, x, total, first * 12 + second * 4)

    return nest


@pytest.mark.parametrize("is_bound", [False, True])
def test_loops_run_to_quotients_of_sizes(is_bound: bool) -> None:
    package, n = Package(), Dimension("N")
    x, total = _array("A", n, role=Role.INPUT), _array("B", 4)
    plan = _sum_in_parts(n, x, total, package).create_plan(TARGET)
    if is_bound:  # by the four partial sums
        plan.vectorize(next(index for index in reversed(plan.nest.order) if index.name == "r"))
    kernel = plan.build(args=(x, total))
    for size in (1, 3, 4, 5, 11, 12, 13, 40, 59):
        given = np.random.default_rng(size).integers(-9, 9, size).astype(np.float32)
        found = np.full(4, np.nan, np.float32)
        kernel(given, found)
        padded = np.zeros(-(-size // 4) * 4, np.float32)
        padded[:size] = given
        np.testing.assert_array_equal(found, padded.reshape(-1, 4).sum(0), str(size))


def test_packages_write_grids_of_quotients() -> None:
    package, n, m = Package(), Dimension("N"), Dimension("m")
    x, y = _array("X", Dimension("n"), role=Role.INPUT), _array("Y", Dimension("n"))
    inner = Nest((m, 3))
    p, q = inner.get_indices()  # type: ignore[misc]
    inner.iteration_logic(lambda: y.__setitem__(3 * p + q, x[3 * p + q] * 2))
    function = package.add(inner, (m, x, y), "inner")
    a, b = _array("A", n, role=Role.INPUT), _array("B", n)
    for number, size in enumerate((n // 3, (2 * n - 1) // 6, (n // 3 * 6 + 5) // 6, n - 12, (n - n % 3) // 3)):
        nest = Nest((1,))
        nest.iteration_logic(lambda size=size: function(size, a, b))
        plan = nest.create_plan(TARGET)
        plan.bind({plan.nest.order[1]: GridUnit.BLOCK_X})
        given, out = np.arange(15, dtype=np.float32), np.zeros(15, np.float32)
        with tw.simulate(unwritten=False):
            plan.build(args=(a, b))(given, out)
        np.testing.assert_array_equal(out[:9], 2 * given[:9])
        outer = package.add(plan, (a, b), f"outer{number}")
        if number == 3:
            with pytest.raises(
                ScheduleError, match=r"function outer\d: .* may be below 0 where a caller in C computes it"
            ):
                print(outer.grid)
        else:
            assert evaluate(outer.grid[0], {"N": 17}) == 5, outer.grid
    if_any = Nest((1,))
    if_any.iteration_logic(lambda: function(n - 12, a, b))
    plan = if_any.create_plan(TARGET)
    plan.bind({plan.nest.order[1]: GridUnit.BLOCK_X})
    out = np.ones(4, np.float32)
    plan.build(args=(a, b))(out, out.copy())  # no blocks
