from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.helpers.sketch import Sketch, lines

from tilewright.dtypes import bool_, float32, int32
from tilewright.instructions.cp_async import AsyncWait
from tilewright.ir.ops import Atomic, Binary, Load, Print, constant
from tilewright.ir.verify import verify
from tilewright.passes.eliminate_common_subexpressions import eliminate_common_subexpressions


def count(sketch: Sketch, op: type) -> int:
    kernel = sketch.kernel()
    eliminate_common_subexpressions(kernel)
    verify(kernel)
    return sum(isinstance(o, op) for o in kernel.body.walk())


def test_equal_expressions_are_computed_once_in_either_order() -> None:
    s = Sketch()
    x, y = s.scalar("x"), s.scalar("y")
    s.store(s.out, s.binary("add", x, y), s.binary("add", y, x))
    s.store(s.out, s.binary("sub", x, y), s.binary("sub", y, x))
    s.store(s.out, s.binary("mul", x, 3), s.binary("mul", x, 3))
    assert count(s, Binary) == 4


def test_float_maxima_are_not_exchanged() -> None:
    s = Sketch()
    x, y = s.scalar("x", float32), s.scalar("y", float32)
    for a, b in ((x, y), (y, x)):
        s.store(s.fout, 0, s.binary("max", a, b))
    assert count(s, Binary) == 2, "which of -0.0 and 0.0, or of two NaN, comes out depends on the order"


def test_values_of_an_outer_block_serve_inner_blocks_and_not_the_reverse() -> None:
    s = Sketch()
    x = s.scalar("x")
    c = s.compare("lt", x, 4)
    with s.branch(c):
        s.store(s.out, 0, s.binary("mul", x, x))
    s.store(s.out, 1, s.binary("mul", x, x))
    with s.loop(0, x):
        s.store(s.out, 2, s.binary("mul", x, x))
    assert count(s, Binary) == 2


def test_the_first_value_takes_the_name_of_the_second() -> None:
    s = Sketch()
    x = s.scalar("x")
    first, second = s.binary("mul", x, x), s.binary("mul", x, x)
    second.name = "square"
    s.store(s.out, first, second)
    kernel = s.kernel()
    eliminate_common_subexpressions(kernel)
    assert lines(kernel)[-1] == "store buffer=out %1.square %1.square"


def nothing(s: Sketch) -> None:
    s.builder.emit(Print(("hello",), ()))


def store_elsewhere(s: Sketch) -> None:
    s.store(s.shared("other", 4), 0, 1)


def loop_with(change: Callable[[Sketch], object]) -> Callable[[Sketch], None]:
    def build(s: Sketch) -> None:
        with s.loop(0, 4):
            change(s)

    return build


CHANGES = {
    "nothing": (nothing, 1, 1),
    "a write to another shared buffer": (store_elsewhere, 1, 1),
    "a loop without writes": (loop_with(nothing), 1, 1),
    "a write to global memory": (lambda s: s.store(s.fout, 0, 1.0), 2, 1),
    "an atomic on global memory": (
        lambda s: s.builder.emit(Atomic("add", s.out, constant(3, int32), constant(1, int32)), int32), 2, 1,
    ),
    "a barrier": (lambda s: s.barrier(), 2, 2),
    "a barrier of the warp": (lambda s: s.barrier("warp"), 2, 2),
    "a wait": (lambda s: s.builder.emit(AsyncWait(0)), 2, 2),
    "a loop with a barrier": (loop_with(lambda s: s.barrier()), 2, 2),
}  # fmt: skip


@pytest.mark.parametrize(("change", "from_global", "from_shared"), CHANGES.values(), ids=CHANGES)
def test_loads_are_shared_until_their_memory_may_change(
    change: Callable[[Sketch], object], from_global: int, from_shared: int
) -> None:
    for shared, expected in ((False, from_global), (True, from_shared)):
        s = Sketch()
        buffer = s.shared("tile", 4) if shared else s.argument("a", int32)
        values = [s.load(buffer, 1)]
        change(s)
        values.append(s.load(buffer, 1))
        s.store(s.out, *values)
        assert count(s, Load) == expected


def test_a_loop_begins_without_loads_and_a_branch_with_those_before_it() -> None:
    s = Sketch()
    tile = s.shared("tile", 4)
    s.store(s.out, 0, s.load(tile, 1))
    with s.loop(0, 4):
        s.store(s.out, 0, s.load(tile, 1))
        s.store(tile, 1, 5)
    s.store(s.out, 0, s.load(tile, 2))
    with s.branch(s.scalar("c", bool_)):
        s.store(s.out, 0, s.load(tile, 2))
    assert count(s, Load) == 3
