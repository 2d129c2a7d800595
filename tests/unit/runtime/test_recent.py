"""Tables that forget what was not used for long, and those of kernels and launches that are made of them."""

from __future__ import annotations

import gc
import random
import tracemalloc
import weakref
from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest

import tilewright as tw
import tilewright.compile as compile_module
from tilewright.kernel_code import _MAX_VARIANTS
from tilewright.launch import _MAX_LAUNCHERS, Kernel
from tilewright.runtime import plan
from tilewright.runtime.recent import Recent

MOST = 32  # compiled forms of a kernel in these tests; there may be more elsewhere
VALUES = 125


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_what_was_used_last_is_kept_and_twice_as_much_at_most(limit: int) -> None:
    table: Recent[int, str] = Recent(limit)
    used: OrderedDict[int, str] = OrderedDict()  # the last is the one used last
    rng = random.Random(limit)
    for _ in range(2000):
        key = rng.randrange(3 * limit)
        value = table.get(key)
        if value is None:
            assert key not in list(used)[-limit:], "one of the entries used last was forgotten"
            value = table.add(key, str(key))
        assert value == str(key)
        used[key] = value
        used.move_to_end(key)
        assert len(table) == len(list(table)) <= 2 * limit


def test_a_second_value_for_a_key_is_the_first() -> None:
    table: Recent[str, int] = Recent(4)
    assert (table.add("a", 1), table.add("a", 2), table.get("a")) == (1, 1, 1)


@tw.kernel
def fill(x, value: tw.constexpr):
    x[tw.thread_idx.x] = value


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are traced."""
    seen: list[str] = []
    trace = compile_module.trace

    def counted(function, *args, **options):
        seen.append(function.__name__)
        return trace(function, *args, **options)

    monkeypatch.setattr(compile_module, "trace", counted)
    monkeypatch.setattr(plan, "MAX_KERNELS", MOST)
    return seen


def test_specialisations_for_compile_time_values_are_bounded(traces: list[str]) -> None:
    x = np.zeros(2, np.int32)
    launch = fill[1, 2]
    launch(x, -1)
    compiled = weakref.ref(next(iter(launch._variant.signature.last.kernels.young.values())))
    assert compiled() is not None
    for value in range(MOST):
        launch(x, value)
    held = []
    tracemalloc.start()
    for value in range(MOST, MOST + VALUES):
        launch(x, value)
        assert x.tolist() == [value] * 2
        if value % MOST == MOST - 1:
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(traces) == 1 + MOST + VALUES
    assert len(launch._variant.signature.last.kernels) <= 2 * MOST
    # When the table is full, as much is released as comes. Tables of other parts of the library may grow meanwhile, but
    # not in every round.
    assert min(after - before for before, after in pairwise(held)) < 100_000, held
    assert compiled() is None
    for value in range(MOST + VALUES - MOST, MOST + VALUES):  # the last ones are still there
        launch(x, value)
    assert len(traces) == 1 + MOST + VALUES


def test_a_kernel_in_use_is_not_forgotten(traces: list[str]) -> None:
    x, y = np.zeros(2, np.int32), np.zeros(2, np.int32)
    for value in range(1000, 1000 + 3 * MOST):
        fill[1, 2](x, value)
        fill[1, 2](y, -7)
    assert y.tolist() == [-7, -7]
    assert len(traces) == 3 * MOST + 1


def test_launch_tables_and_variants_are_bounded() -> None:
    @tw.kernel
    def nothing(x):
        pass

    for grid in range(1, 3 * _MAX_LAUNCHERS):
        assert nothing[grid, 32].grid == grid
    assert len(nothing._recent) <= 2 * _MAX_LAUNCHERS
    assert nothing[5, 32] is nothing[5, 32]
    for n in range(3 * _MAX_VARIANTS):
        nothing.configure(min_blocks=n % 8)[1, 1 + n]
    assert _MAX_VARIANTS <= len(nothing._code.variants) <= 2 * _MAX_VARIANTS
    held = nothing.variant(5)
    assert nothing.variant(5) is nothing.configure(stream=7).variant((5, 1)) is held


FACTOR = 2


def test_what_a_table_forgot_is_traced_anew_when_a_captured_value_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    @tw.kernel
    def scale(x):
        x[tw.thread_idx.x] = FACTOR * x[tw.thread_idx.x]

    x = np.ones(1, np.int32)
    kept, configured = scale[1, 1], scale.configure(min_blocks=1)
    kept(x)
    configured[1, 1](x)
    for n in range(2, 2 + 2 * _MAX_VARIANTS):  # what both hold is in no table any more
        scale.variant(n)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    kept(x)
    assert x.tolist() == [20]
    configured[1, 1](x)
    assert x.tolist() == [100]


def test_a_first_launch_is_looked_up_in_one_dict() -> None:
    """What a launch costs is what it executes: the way to a known launcher has no call of a table in it."""
    code = Kernel.__getitem__.__code__
    assert code.co_names[0] == "_launchers"
    assert isinstance(fill._launchers, dict) and fill._launchers is fill._recent.young
    x = np.zeros(2, np.int32)
    fill[1, 2](x, 1)
    plan = fill[1, 2]._variant.signature.last
    assert plan.read.__globals__["calls"] is plan.calls is plan._calls.young
