from __future__ import annotations

from tests.helpers.sketch import Sketch, lines

from tilewright.dtypes import bool_, float32
from tilewright.ir.ops import constant
from tilewright.ir.verify import verify
from tilewright.passes.forward_unchanged_values import forward_unchanged_values


def forwarded(sketch: Sketch) -> list[str]:
    kernel = sketch.kernel()
    forward_unchanged_values(kernel)
    verify(kernel)
    return lines(kernel)


def test_a_carried_value_that_stays_is_its_initial_value() -> None:
    s = Sketch()
    x = s.scalar("x")
    with s.loop(0, s.scalar("n"), init=[x, 5, 0]) as loop:
        s.store(s.out, loop.carried[0], loop.carried[1])
        loop.yields = (loop.carried[0], 5, loop.index)
    s.store(s.out, loop.results[0], loop.results[2])
    assert forwarded(s) == [
        "%2: int32 = for 0 %1.n 1 0",
        "  (%3.i: int32, %4: int32) {",
        "    store buffer=out %0.x 5",
        "    yield %3.i",
        "  }",
        "store buffer=out %0.x %2",
    ]


def test_a_value_that_passes_through_an_inner_loop_is_followed() -> None:
    s = Sketch()
    with s.loop(0, 4, init=[s.scalar("x")]) as outer:
        with s.loop(0, 4, init=[outer.carried[0]]) as inner:
            s.store(s.out, inner.index, inner.carried[0])
            inner.yields = (inner.carried[0],)
        outer.yields = (inner.results[0],)
    s.store(s.out, 0, outer.results[0])
    assert [line.strip() for line in forwarded(s) if "store" in line] == [
        "store buffer=out %2.i %0.x",
        "store buffer=out 0 %0.x",
    ]


def test_values_that_swap_are_carried_on() -> None:
    s = Sketch()
    with s.loop(0, 4, init=[s.scalar("x"), s.scalar("y")]) as loop:
        loop.yields = (loop.carried[1], loop.carried[0])
    s.store(s.out, *loop.results)
    before = lines(s.kernel())
    assert forwarded(s) == before


def test_while_loops_too() -> None:
    s = Sketch()
    x = s.scalar("x")
    with s.while_loop([0, x], "lt", 4) as loop:
        loop.yields = (s.binary("add", loop.index, 1), loop.carried[1])
    s.store(s.out, 0, loop.results[1])
    assert forwarded(s)[-1] == "store buffer=out 0 %0.x"


def test_a_result_that_both_branches_agree_on() -> None:
    s = Sketch()
    c, x = s.scalar("c", bool_), s.scalar("x")
    s.store(s.out, 0, s.choice(c, x, x))
    s.store(s.out, 1, s.choice(c, 4, 4))
    s.store(s.out, 2, s.choice(c, 4, 5))
    assert [line.split(" ", 2)[2] for line in forwarded(s) if "store" in line] == ["0 %1.x", "1 4", "2 %2"]


def test_zeros_of_both_signs_are_different() -> None:
    s = Sketch()
    with s.loop(0, 4, init=[s.scalar("z", float32)]) as loop:
        loop.yields = (0.0,)
    assert loop.op is not None
    loop.op.init = (constant(-0.0, float32),)
    s.store(s.fout, 0, loop.results[0])
    assert forwarded(s)[-1] == "store buffer=fout 0 %1"
