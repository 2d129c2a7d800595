from __future__ import annotations

from tests.helpers.sketch import Sketch, lines

from tilewright.dtypes import float32
from tilewright.ir.facts import Facts
from tilewright.ir.ops import Binary, Load
from tilewright.ir.verify import verify
from tilewright.passes.hoist_invariants import hoist_invariants


def hoisted(sketch: Sketch) -> list[str]:
    """Return the kinds of the ops that stand outside of all loops."""
    kernel = sketch.kernel()
    hoist_invariants(kernel)
    verify(kernel)
    found = []
    for op in kernel.body.ops:
        if isinstance(op, Binary):
            found.append(op.kind)
        elif isinstance(op, Load):
            found.append("load")
    return found


def test_an_address_goes_in_front_of_the_loop() -> None:
    s = Sketch()
    tile, stride = s.scalar("tile"), s.scalar("stride")
    with s.loop(0, 8) as loop:
        base = s.binary("add", s.binary("mul", tile, 128), s.special("thread_idx.x"))
        s.store(s.out, s.binary("add", s.binary("mul", loop.index, stride), base), 0)
    kernel = s.kernel()
    hoist_invariants(kernel)
    assert lines(kernel) == [
        "%2: int32 = binary kind=mul %0.tile 128",
        "%3: int32 = special name=thread_idx.x",
        "%4: int32 = binary kind=add %2 %3",
        "for 0 8 1",
        "  (%5.i: int32) {",
        "    %6: int32 = binary kind=mul %5.i %1.stride",
        "    %7: int32 = binary kind=add %6 %4",
        "    store buffer=out %7 0",
        "    yield",
        "  }",
    ]


def test_a_single_operation_stays_where_it_reads_best() -> None:
    s = Sketch()
    with s.loop(0, 8) as loop:
        s.store(s.out, s.binary("add", loop.index, s.binary("mul", s.scalar("n"), 4)), 0)
    assert hoisted(s) == []


def test_a_division_is_worth_a_line_if_it_cannot_fail() -> None:
    s = Sketch()
    n, m = s.scalar("n"), s.scalar("m", facts=Facts(1, 9))
    with s.loop(0, 8) as loop:
        s.store(s.out, s.binary("add", loop.index, s.binary("div", n, m)), 0)
        s.store(s.out, s.binary("add", loop.index, s.binary("rem", m, n)), 0)
    assert hoisted(s) == ["div"]


def test_a_shift_that_may_be_too_far_stays() -> None:
    s = Sketch()
    n = s.scalar("n")
    with s.loop(0, 8) as loop:
        s.store(s.out, s.binary("add", loop.index, s.binary("shl", s.binary("mul", n, n), n)), 0)
    assert hoisted(s) == []


def test_expressions_leave_as_many_loops_as_they_can() -> None:
    s = Sketch()
    n = s.scalar("n")
    with s.loop(0, 8) as outer, s.loop(0, 8) as inner:
        far = s.binary("add", s.binary("mul", n, 4), 3)
        near = s.binary("add", s.binary("mul", outer.index, 8), far)
        s.store(s.out, s.binary("add", inner.index, near), 0)
    kernel = s.kernel()
    hoist_invariants(kernel)
    verify(kernel)
    kinds = [(line.index(line.strip()), line.split("kind=")[1][:3]) for line in lines(kernel) if "kind=" in line]
    assert kinds == [(0, "mul"), (0, "add"), (4, "mul"), (4, "add"), (8, "add")]


def test_loads_and_floats_stay() -> None:
    s = Sketch()
    x = s.scalar("x", float32)
    with s.loop(0, 8) as loop:
        s.store(s.fout, loop.index, s.binary("add", s.binary("mul", x, x), s.load(s.fout, 0)))
    assert hoisted(s) == []


def test_what_only_a_nested_block_uses_is_used() -> None:
    s = Sketch()
    n = s.scalar("n")
    with s.loop(0, 8) as loop:
        base = s.binary("add", s.binary("mul", n, 4), 3)
        with s.branch(s.compare("lt", loop.index, 4)):
            s.store(s.out, base, 0)
    assert hoisted(s) == ["mul", "add"]


def test_while_loops_too() -> None:
    s = Sketch()
    n = s.scalar("n")
    with s.while_loop([0], "lt", n) as loop:
        base = s.binary("add", s.binary("mul", n, 4), 3)
        s.store(s.out, base, 0)
        loop.yields = (s.binary("add", loop.index, 1),)
    assert hoisted(s) == ["mul", "add"]
