from __future__ import annotations

import copy
import re

from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.interpreter import run
from tests.helpers.sketch import Sketch, lines

from tilewright.ir.core import Kernel, Value
from tilewright.ir.verify import verify
from tilewright.passes.order_sums import order_sums


def ordered(sketch: Sketch) -> list[str]:
    kernel = sketch.kernel()
    order_sums(kernel)
    verify(kernel)
    return [re.sub(r"%\d+\.", "", line).strip() for line in lines(kernel)]


def test_what_stays_the_same_is_added_first() -> None:
    s = Sketch()
    row, warp = s.scalar("row"), s.scalar("warp")
    with s.loop(0, 8) as k, s.loop(0, 4) as inner:
        tile = s.binary("mul", s.binary("add", warp, inner.index), 64)
        s.store(s.out, s.binary("add", s.binary("add", row, s.binary("mul", k.index, 512)), tile), 0)
    found = [line for line in ordered(s) if "binary" in line or "store" in line]
    assert [line.split("int32 = ")[-1] for line in found] == [
        "binary kind=mul warp 64",
        "binary kind=add row %4",
        "binary kind=mul i 512",
        "binary kind=add %5 %6",
        "binary kind=mul i 64",
        "binary kind=add %7 %8",
        "store buffer=out %9 0",
    ]


def test_sums_in_order_stay() -> None:
    s = Sketch()
    n, m = s.scalar("n"), s.scalar("m")
    with s.loop(0, 8) as loop:
        s.store(s.out, s.binary("add", s.binary("add", n, m), s.binary("mul", loop.index, 4)), 0)
        s.store(s.out, s.binary("add", loop.index, s.binary("add", n, m)), 0)
        s.store(s.out, s.binary("mul", s.binary("add", n, loop.index), 4), 0)
    kernel = s.kernel()
    before = lines(kernel)
    order_sums(kernel)
    assert lines(kernel) == before


def test_what_has_another_use_or_a_name_is_kept_whole() -> None:
    s = Sketch()
    n, m = s.scalar("n"), s.scalar("m")
    with s.loop(0, 8) as loop:
        shared = s.binary("add", n, loop.index)
        s.store(s.out, s.binary("add", shared, m), shared)
        named = s.binary("add", m, loop.index)
        named.name = "column"
        s.store(s.out, s.binary("add", named, n), 0)
    kernel = s.kernel()
    before = lines(kernel)
    order_sums(kernel)
    assert lines(kernel) == before


def test_the_name_of_a_sum_is_kept() -> None:
    s = Sketch()
    n, m = s.scalar("n"), s.scalar("m")
    with s.loop(0, 8) as loop:
        place = s.binary("add", s.binary("add", n, loop.index), m)
        place.name = "place"
        s.store(s.out, place, 0)
    assert any("store buffer=out place 0" in line for line in ordered(s))


@st.composite
def sums(draw: st.DrawFn) -> Kernel:
    """A loop nest that stores a random sum of its indices and the arguments."""
    s = Sketch()
    arguments = [s.scalar("n"), s.scalar("m")]
    with s.loop(0, 3) as one, s.loop(0, 2) as two:

        def expression(depth: int) -> Value:
            if depth == 0 or draw(st.integers(0, 4)) == 0:
                return draw(st.sampled_from([*arguments, one.index, two.index]))
            kind = draw(st.sampled_from(["add", "sub", "mul", "constant"]))
            if kind == "mul":
                return s.binary("mul", expression(depth - 1), draw(st.integers(-5, 5)))
            if kind == "constant":
                return s.binary("add", expression(depth - 1), draw(st.integers(-5, 5)))
            return s.binary(kind, expression(depth - 1), expression(depth - 1))

        place = s.binary("add", s.binary("mul", one.index, 2), two.index)
        s.store(s.out, place, expression(5))
    return s.kernel()


@given(sums(), st.integers(-(2**31), 2**31 - 1), st.integers(-9, 9))
def test_the_same_numbers(kernel: Kernel, n: int, m: int) -> None:
    memory, inputs = {"out": [0] * 6, "fout": []}, {"n": n, "m": m}
    before = run(copy.deepcopy(kernel), inputs, memory)
    order_sums(kernel)
    verify(kernel)
    assert run(kernel, inputs, memory) == before
