from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from tests.helpers.sketch import Sketch

from tilewright.errors import TilewrightWarning
from tilewright.ir.facts import Facts
from tilewright.ir.ops import For
from tilewright.passes.unroll_register_loops import MAX_TRIPS, unroll_register_loops
from tilewright.source import SourceLocation


def unrolled(sketch: Sketch) -> list[int | None]:
    """Return what the loops ask for, outer ones first, of a kernel that gives no warning."""
    kernel = sketch.kernel()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unroll_register_loops(kernel)
    return [op.unroll for op in kernel.body.walk() if isinstance(op, For)]


def warned(sketch: Sketch) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        unroll_register_loops(sketch.kernel())
    assert all(w.category is TilewrightWarning for w in found)
    return found


def test_a_loop_over_registers_is_unrolled_and_others_are_not() -> None:
    s = Sketch()
    r, tile = s.registers("r", 4), s.shared("tile", 4)
    with s.loop(0, 4) as loop:
        s.store(r, s.binary("mul", loop.index, 1), 0)
    with s.loop(0, 4) as loop:
        s.store(tile, loop.index, s.load(r, 0))
    assert unrolled(s) == [0, None]


def test_only_the_loops_that_reach_the_index() -> None:
    s = Sketch()
    r = s.registers("r", 16)
    with s.loop(0, s.scalar("n")), s.loop(0, 4) as i, s.loop(0, 8), s.loop(0, 4) as j:
        s.store(r, s.binary("add", s.binary("mul", i.index, 4), j.index), 0)
    assert unrolled(s) == [None, 0, None, 0]


def test_bounds_that_depend_on_an_outer_loop() -> None:
    s = Sketch()
    r = s.registers("r", 4)
    with s.loop(0, 4) as i, s.loop(0, i.index) as j:
        s.store(r, j.index, 0)
    outer = s.kernel().body.ops[1]
    assert isinstance(outer, For)
    outer.body.arguments[0].facts = Facts(0, 3)
    assert unrolled(s) == [0, 0]


def test_carried_values_and_branches_are_followed() -> None:
    s = Sketch()
    r = s.registers("r", 8)
    with s.loop(0, 4, init=[0]) as loop:
        half = s.choice(s.compare("lt", loop.index, 2), 0, 4)
        s.store(r, s.binary("add", half, loop.carried[0]), 0)
        loop.yields = (s.binary("xor", loop.carried[0], 1),)
    s.store(r, loop.results[0], 1)
    assert unrolled(s) == [0]


def test_the_choice_of_the_user_stands() -> None:
    s = Sketch()
    r = s.registers("r", 4)
    with s.loop(0, 4, unroll=0) as loop:
        s.store(r, loop.index, 0)
    assert unrolled(s) == [0]
    s = Sketch()
    r = s.registers("r", 4)
    with s.loop(0, 4, unroll=2) as loop:
        s.store(r, loop.index, 0)
    (warning,) = warned(s)
    assert "asks for unroll=2" in str(warning.message)


def test_dynamic_indices_are_warned_of_once_a_line(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text("\n\nr[n] = 0; r[t] = 0\nr[n] = 1\n")
    s = Sketch()
    r = s.registers("r", 4)
    for line, index in ((3, s.scalar("n")), (3, s.special("thread_idx.x")), (4, s.load(s.out, 0))):
        s.store(r, index, 0, SourceLocation(str(file), line, "kernel"))
    found = warned(s)
    assert [(w.filename, w.lineno) for w in found] == [(str(file), 3), (str(file), 4)]
    assert str(found[0].message) == (
        "'r' lives in registers, which cannot be indexed at run time: 'n' is known only when the kernel runs. On a GPU "
        "the whole array moves to local memory, which is slow. Index it by constants and by loops over compile-time "
        "ranges, or keep it in shared memory."
    )


@pytest.mark.parametrize("stop", [None, MAX_TRIPS + 1])
def test_loops_that_are_too_long_are_left_and_warned_of(stop: int | None) -> None:
    s = Sketch()
    r = s.registers("r", 4)
    with s.loop(0, stop if stop is not None else s.scalar("n")) as loop:
        s.store(r, s.binary("and", loop.index, 3), 0)
    (warning,) = warned(s)
    assert ("'n' is known only" if stop is None else "more than 1024 times") in str(warning.message)
    assert loop.op is not None
    assert isinstance(loop.op, For)
    assert loop.op.unroll is None


def test_while_loops_stay_dynamic() -> None:
    s = Sketch()
    r = s.registers("r", 4)
    with s.while_loop([0], "lt", 4) as loop:
        s.store(r, loop.index, 0)
        loop.yields = (s.binary("add", loop.index, 1),)
    assert len(warned(s)) == 1
