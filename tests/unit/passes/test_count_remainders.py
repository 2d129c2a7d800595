from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.interpreter import run
from tests.helpers.sketch import Sketch, lines

from tilewright.ir.core import Kernel
from tilewright.ir.ops import Binary
from tilewright.ir.verify import verify
from tilewright.passes.count_remainders import count_remainders


def counted(kernel: Kernel) -> Kernel:
    count_remainders(kernel)
    verify(kernel)
    return kernel


def remainders(kernel: Kernel) -> int:
    """Return how many remainders something uses."""
    used = {value for op in kernel.body.walk() for value in op.operands}
    return sum(isinstance(op, Binary) and op.kind == "rem" and op.result in used for op in kernel.body.walk())


def ring(start: int, stop: int, step: int, offset: int, divisor: int, scale: int = 1) -> Kernel:
    """Return a loop that stores ((i + offset) * scale / step) % divisor for each i."""
    s = Sketch()
    with s.loop(start, stop, step) as loop:
        shifted = s.binary("mul", s.binary("add", loop.index, offset), scale) if offset else loop.index
        s.store(s.out, loop.index, s.binary("rem", s.binary("div", shifted, step), divisor))
    return s.kernel()


def test_a_stage_is_counted() -> None:
    assert lines(counted(ring(0, 640, 64, 128, 3)))[:2] == [
        "%0: int32 = for 0 640 64 2",
        "  (%1.i: int32, %2.stage: int32) {",
    ]
    assert lines(counted(ring(0, 640, 64, 128, 3)))[5:] == [
        "    %6: int32 = binary kind=rem %5 3",
        "    store buffer=out %1.i %2.stage",
        "    %7: int32 = binary kind=add %2.stage 1",
        "    %8: bool = compare kind=eq %2.stage 2",
        "    %9: int32 = select %8 0 %7",
        "    yield %9",
        "  }",
    ]


def test_equal_remainders_share_a_counter() -> None:
    s = Sketch()
    with s.loop(0, 30) as loop:
        for offset in (1, 4, 2):
            s.store(s.out, loop.index, s.binary("rem", s.binary("add", loop.index, offset), 3))
    kernel = counted(s.kernel())
    assert lines(kernel)[1] == "  (%2.i: int32, %3.stage: int32, %4.stage: int32) {"
    assert remainders(kernel) == 0


def test_remainders_in_nested_blocks_count_the_loop_that_they_depend_on() -> None:
    s = Sketch()
    with s.loop(0, 30) as outer:
        with s.branch(s.compare("lt", outer.index, 7)), s.loop(0, 4) as inner:
            s.store(s.out, inner.index, s.binary("rem", outer.index, 5))
    kernel = s.kernel()
    before = run(copy.deepcopy(kernel), {}, {"out": [0] * 4, "fout": []})
    assert run(counted(kernel), {}, {"out": [0] * 4, "fout": []}) == before
    assert remainders(kernel) == 0


def test_what_stays() -> None:
    assert remainders(counted(ring(0, 640, 64, 128, 4))) == 1, "one instruction"
    assert remainders(counted(ring(0, 640, 64, 32, 3))) == 1, "no whole turns apart"
    assert remainders(counted(ring(0, 64, 64, 128, 3))) == 1, "one turn"
    s = Sketch()
    n = s.scalar("n")
    with s.loop(n, 30) as loop:
        s.store(s.out, 0, s.binary("rem", loop.index, 3))
    assert remainders(counted(s.kernel())) == 1, "a start that only the launch knows"
    s = Sketch()
    with s.loop(0, 30, unroll=0) as loop:
        s.store(s.out, 0, s.binary("rem", loop.index, 3))
    assert remainders(counted(s.kernel())) == 1, "an unrolled loop has numbers in its place"


@given(
    start=st.integers(0, 9), turns=st.integers(0, 12), step=st.integers(1, 6), offset=st.integers(0, 20),
    divisor=st.integers(3, 9), scale=st.integers(1, 5),
)  # fmt: skip
def test_the_same_numbers(start: int, turns: int, step: int, offset: int, divisor: int, scale: int) -> None:
    kernel = ring(start, start + turns * step, step, offset, divisor, scale)
    memory = {"out": [-1] * 100, "fout": []}
    before = run(copy.deepcopy(kernel), {}, memory)
    assert run(counted(kernel), {}, memory) == before
