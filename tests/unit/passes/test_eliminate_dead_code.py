from __future__ import annotations

from tests.helpers.sketch import Sketch, lines

from tilewright.dtypes import bool_, float32, int32
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir.ops import Atomic, constant
from tilewright.ir.verify import verify
from tilewright.passes.eliminate_dead_code import eliminate_dead_code


def alive(sketch: Sketch) -> list[str]:
    kernel = sketch.kernel()
    eliminate_dead_code(kernel)
    verify(kernel)
    return lines(kernel)


def test_unused_values_and_loads_go() -> None:
    s = Sketch()
    s.binary("add", s.load(s.out, 0), 1)
    s.store(s.out, 1, s.load(s.out, 2))
    assert alive(s) == ["%0: int32 = load buffer=out 2", "store buffer=out 1 %0"]


def test_memory_that_is_never_read_goes_with_its_writes() -> None:
    s = Sketch()
    written, read = s.registers("written", 4), s.registers("read", 4)
    tile = s.shared("tile", 4, float32)
    for buffer in (written, read):
        s.store(buffer, 0, 1)
    s.builder.emit(AsyncCopy(tile, s.fout, 1, "ca", *(constant(0, int32),) * 2, constant(True, bool_)))
    s.builder.emit(AsyncCommit())
    s.store(s.out, 0, s.load(read, 0))
    assert alive(s) == [
        "allocate buffer=read",
        "store buffer=read 0 1",
        "asynccommit",
        "%0: int32 = load buffer=read 0",
        "store buffer=out 0 %0",
    ]


def test_a_buffer_that_only_feeds_itself_goes() -> None:
    s = Sketch()
    total = s.registers("total", 1)
    s.store(total, 0, 0)
    with s.loop(0, 8):
        s.store(total, 0, s.binary("add", s.load(total, 0), 1))
    assert alive(s) == []


def test_a_write_after_the_read_in_a_loop_stays() -> None:
    s = Sketch()
    last = s.registers("last", 1)
    s.store(last, 0, 0)
    with s.loop(0, 8) as loop:
        s.store(s.out, loop.index, s.load(last, 0))
        s.store(last, 0, loop.index)
    assert sum("store buffer=last" in line for line in alive(s)) == 2


def test_atomics_on_shared_memory_count_as_reads_only_where_their_result_does() -> None:
    s = Sketch()
    a, b = s.shared("a", 1), s.shared("b", 1)
    for buffer in (a, b):
        s.store(buffer, 0, 0)
    for buffer in (a, b, s.out):
        old = s.builder.emit(Atomic("add", buffer, constant(0, int32), constant(1, int32)), int32)[0]
        if buffer is b:
            s.store(s.out, 1, old)
    text = "\n".join(alive(s))
    assert "buffer=a" not in text
    assert text.count("buffer=b") == 3
    assert "atomic kind=add buffer=out" in text


def test_empty_branches_and_loops_go_and_barriers_stay() -> None:
    s = Sketch()
    n = s.scalar("n")
    with s.branch(s.compare("lt", n, 4)), s.loop(0, n):
        s.binary("add", n, 1)
    with s.loop(0, n):
        s.barrier()
    s.builder.emit(AsyncWait(None))
    assert alive(s) == ["for 0 %0.n 1", "  (%1.i: int32) {", "    barrier scope=block", "    yield", "  }", "asyncwait"]


def test_a_carried_value_that_only_feeds_itself_goes() -> None:
    s = Sketch()
    with s.loop(0, s.scalar("n"), init=[1, 2]) as loop:
        s.store(s.out, 0, loop.carried[1])
        loop.yields = (s.binary("mul", loop.carried[0], 3), s.binary("add", loop.carried[1], 1))
    assert alive(s)[:2] == ["%1: int32 = for 0 %0.n 1 2", "  (%2.i: int32, %3: int32) {"]


def test_a_while_stays_with_what_its_condition_needs() -> None:
    s = Sketch()
    with s.while_loop([0, 7], "lt", s.scalar("n")) as loop:
        loop.yields = (s.binary("add", loop.index, 1), s.binary("add", loop.carried[1], 1))
    text = alive(s)
    assert text[0] == "%1: int32 = while 0"
    assert sum("binary" in line for line in text) == 1


def test_unused_results_of_a_branch_go() -> None:
    s = Sketch()
    s.choice(s.scalar("c", bool_), 1, 2)
    assert alive(s) == []
