"""TEMP arrays that live in caches: in one, and in several inside of one another."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tilewright.errors import ScheduleError, TilewrightWarning
from tilewright.schedule import Array, If, Location, MMAShape, Nest, Role, Target, fuse


@pytest.mark.parametrize("outer", [Location.SHARED, Location.PRIVATE])
@pytest.mark.parametrize("threads", [False, True])
def test_registers_inside_of_a_cache_that_lives_longer(outer: Location, threads: bool) -> None:
    """T is written in one iteration of the fusing loop and read in the next: it has to be kept between them."""
    A, T, R = (
        Array(role, "float32", (32,), name=n) for role, n in ((Role.INPUT, "A"), (Role.TEMP, "T"), (Role.OUTPUT, "R"))
    )
    first, second = Nest((32,)), Nest((32,))
    i, x = first.get_indices(), second.get_indices()
    first.iteration_logic(lambda: T.__setitem__(i, A[i] * 2.0))
    second.iteration_logic(lambda: R.__setitem__(x, T[x] + 1.0))
    schedule = fuse(first.create_schedule(), second.create_schedule())
    z, f = schedule.get_indices()
    inner = schedule.split(z, 8)
    schedule.reorder(f, z, inner)
    plan = schedule.create_plan(Target("A100"))
    if threads:
        plan.bind({inner: plan.target.GridUnit.THREAD_X})
    if not threads or outer is Location.SHARED:
        plan.cache(T, index=f, location=outer)
        plan.cache(T, index=z, location=Location.PRIVATE)
    else:
        plan.cache(T, index=f, location=outer)
    a, o = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    plan.build()(a, o)
    np.testing.assert_array_equal(o, 2 * a + 1)


@pytest.mark.parametrize("target", ["sm_80", "gfx908"])
@pytest.mark.parametrize("kept", ["fragments", "shared", "both", "shared around fragments"])
@pytest.mark.spread(3)
def test_sums_of_a_product(kept: str, target: str) -> None:
    """C = 0; C += A B; D = C + bias, with C nowhere in global memory."""
    A, B = Array(Role.INPUT, "float16", (32, 64), name="A"), Array(Role.INPUT, "float16", (64, 32), name="B")
    C, D = Array(Role.TEMP, "float32", (32, 32), name="C"), Array(Role.OUTPUT, "float32", (32, 32), name="D")
    bias = Array(Role.INPUT, "float32", (32,), name="bias")
    begin, product, end = Nest((32, 32)), Nest((32, 32, 64)), Nest((32, 32))
    u, v = begin.get_indices()
    i, j, k = product.get_indices()
    x, y = end.get_indices()
    begin.iteration_logic(lambda: C.__setitem__((u, v), 0.0))
    product.iteration_logic(lambda: C.__setitem__((i, j), C[i, j] + A[i, k] * B[k, j]))
    end.iteration_logic(lambda: D.__setitem__((x, y), C[x, y] + bias[y]))
    schedule = fuse(*(nest.create_schedule() for nest in (begin, product, end)), partial=2)
    i1, j1, f, k1 = schedule.get_indices()
    i2, j2, k2 = schedule.tile({i1: 16, j1: 16, k1: 16})
    schedule.reorder(i1, j1, f, k1, i2, j2, k2)
    plan = schedule.create_plan(Target(target))
    plan.bind({i1: plan.target.GridUnit.BLOCK_Y, j1: plan.target.GridUnit.BLOCK_X})
    plan.tensorize((i2, j2, k2), MMAShape.M16N16K16)
    if kept != "fragments":
        plan.cache(C, index=f)
    if kept != "shared":
        plan.cache(C, index=k1 if kept == "shared around fragments" else f, location=Location.MMA_FRAGMENT)
    random = np.random.default_rng(1)
    a, b = (random.integers(-2, 3, shape).astype(np.float16) for shape in ((32, 64), (64, 32)))
    added, d = np.arange(32, dtype=np.float32), np.zeros((32, 32), np.float32)
    plan.build(args=(A, B, bias, D))(a, b, added, d)
    np.testing.assert_array_equal(d, a.astype(np.float32) @ b.astype(np.float32) + added)


@pytest.mark.parametrize("location", [Location.SHARED, Location.PRIVATE])
def test_a_cache_that_ends_between_write_and_read(location: Location) -> None:
    A, T, R = (Array(x, "float32", (32,), name=n) for x, n in ((Role.INPUT, "A"), (Role.TEMP, "T"), (Role.OUTPUT, "R")))
    first, second = Nest((32,)), Nest((32,))
    i, x = first.get_indices(), second.get_indices()
    first.iteration_logic(lambda: T.__setitem__(i, A[i] * 2.0))
    second.iteration_logic(lambda: R.__setitem__(x, T[x] + 1.0))
    schedule = fuse(first.create_schedule(), second.create_schedule())
    z, f = schedule.get_indices()
    schedule.reorder(f, z)
    plan = schedule.create_plan(Target("A100"))
    plan.cache(T, index=z, location=location)
    name = "sT" if location is Location.SHARED else "rT"
    with pytest.raises(ScheduleError) as caught:
        plan.build()
    assert str(caught.value).startswith(
        f"{name} is filled anew in each iteration of f, and nothing is written there before the read of T["
    )
    assert "help: T is TEMP and lives in its caches alone: cache it at an outer index first" in str(caught.value)
    schedule.reorder(z, f)
    plan = schedule.create_plan(Target("A100"))
    plan.cache(T, index=f, location=location)
    a, r = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    plan.build()(a, r)
    np.testing.assert_array_equal(r, 2 * a + 1)


@pytest.mark.parametrize("middle", ["some", "where", "none"])
@pytest.mark.parametrize("inner", [Location.SHARED, Location.PRIVATE, None])
@pytest.mark.parametrize("outer", [Location.SHARED, Location.PRIVATE])
def test_an_inner_cache_preserves_what_its_parts_do_not_write(
    outer: Location, inner: Location | None, middle: str
) -> None:
    """The box is that of all parts: one that writes some of it, or reads none, leaves the rest as it is around it."""
    X, T, Y = (
        Array(role, "int32", (n,), name=x)
        for x, role, n in (("X", Role.INPUT, 4), ("T", Role.TEMP, 5), ("Y", Role.OUTPUT, 4))
    )
    first, second, third = Nest((4,)), Nest((4,)), Nest((4,))
    z, a, b = (nest.get_indices() for nest in (first, second, third))

    @first.iteration_logic
    def _() -> None:
        T[z] = X[z] + 100
        if middle != "none":
            T[z + 1] = X[z] + 200

    if middle == "where":
        second.iteration_logic(lambda: If(X[a] > 2, lambda: T.__setitem__(a, 0)))
    else:
        second.iteration_logic(lambda: T.__setitem__(a, X[a] * 2))
    third.iteration_logic(lambda: Y.__setitem__(b, T[b + 1]))
    schedule = fuse(*(nest.create_schedule() for nest in (first, second, third)))
    i, f = schedule.get_indices()
    schedule.reorder(f, i)
    plan = schedule.create_plan(Target("sm_80"))
    plan.cache(T, index=f, location=outer)
    if inner is not None and (outer, inner) != (Location.PRIVATE, Location.SHARED):
        plan.cache(T, index=i, location=inner)
    y = np.zeros(4, np.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)  # without the second write T begins with zeros
        plan.build(args=(X, Y))(np.arange(1, 5, dtype=np.int32), y)
    assert y.tolist() == {"some": [4, 6, 8, 204], "where": [102, 0, 0, 204], "none": [4, 6, 8, 0]}[middle]
