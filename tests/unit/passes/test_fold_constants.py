from __future__ import annotations

from tests.helpers.sketch import Sketch, lines

from tilewright.dtypes import bool_
from tilewright.ir.facts import Facts
from tilewright.ir.ops import Assert, For, Store, constant
from tilewright.ir.verify import verify
from tilewright.passes.fold_constants import fold_constants


def folded(sketch: Sketch) -> list[str]:
    kernel = sketch.kernel()
    fold_constants(kernel)
    verify(kernel)
    return lines(kernel)


def test_arithmetic_is_folded_through_its_users() -> None:
    s = Sketch()
    four = s.binary("add", s.binary("mul", s.binary("sub", s.scalar("n"), 0), 0), 4)
    s.store(s.out, 0, four)
    assert folded(s) == ["store buffer=out 0 4"]


def test_the_block_size_decides_special_registers() -> None:
    s = Sketch(block=(8, 1, 1))
    tid = s.special("thread_idx.x")
    s.store(s.out, s.binary("div", tid, 8), s.special("block_dim.x"))
    s.store(s.out, s.binary("rem", tid, 8), s.special("thread_idx.y"))
    assert folded(s) == ["%0: int32 = special name=thread_idx.x", "store buffer=out 0 8", "store buffer=out %0 0"]


def test_a_decided_branch_is_inlined() -> None:
    s = Sketch()
    n = s.scalar("n")
    with s.branch(True):
        s.store(s.out, 0, n)
    with s.branch(False):
        s.store(s.out, 1, n)
    s.store(s.out, 2, s.choice(False, n, 7))
    assert folded(s) == ["store buffer=out 0 %0.n", "store buffer=out 2 7"]


def test_a_loop_that_never_runs_gives_its_initial_values() -> None:
    s = Sketch()
    n = s.scalar("n", facts=Facts(-5, 0))
    with s.loop(0, n, init=[3]) as loop:
        loop.yields = (loop.index,)
    s.store(s.out, 0, loop.results[0])
    assert folded(s) == ["store buffer=out 0 3"]


def test_a_loop_that_runs_once_is_inlined() -> None:
    s = Sketch()
    n = s.scalar("n", facts=Facts(0, 7))
    with s.loop(n, 8, 8, init=[n]) as loop:
        loop.yields = (s.binary("mul", loop.carried[0], loop.index),)
    s.store(s.out, 0, loop.results[0])
    assert folded(s) == ["%1: int32 = binary kind=mul %0.n %0.n", "store buffer=out 0 %1"]


def test_a_loop_that_runs_twice_stays() -> None:
    s = Sketch()
    with s.loop(0, 2) as loop:
        s.store(s.out, s.binary("div", loop.index, 2), loop.index)
    assert folded(s)[2] == "    store buffer=out 0 %0.i", "the index is less than 2"


def test_a_downward_loop_has_an_index_between_its_bounds() -> None:
    s = Sketch()
    with s.loop(7, -1, -1) as loop:
        s.store(s.out, s.binary("div", loop.index, 8), 1)
    kernel = s.kernel()
    fold_constants(kernel)
    (op,) = kernel.body.ops
    assert isinstance(op, For)
    assert op.body.arguments[0].facts == Facts(0, 7)


def test_a_while_that_never_runs_keeps_what_its_condition_does() -> None:
    s = Sketch()
    with s.while_loop([3], "lt", 3) as loop:
        s.store(s.out, 0, 1)
        loop.yields = (loop.index,)
    condition = loop.op.blocks[0]  # type: ignore[union-attr]
    condition.ops.insert(0, Store(s.out, constant(5, s.out.dtype), constant(6, s.out.dtype)))
    condition.ops[-1].values = (constant(False, bool_),)  # type: ignore[attr-defined]
    s.store(s.out, 1, loop.results[0])
    assert [line for line in folded(s) if "store" in line] == ["store buffer=out 5 6", "store buffer=out 1 3"]


def test_a_true_assertion_goes_and_a_false_one_stays() -> None:
    s = Sketch()
    for truth in (True, False):
        s.builder.emit(Assert(constant(truth, bool_), str(truth)))
    assert folded(s) == ["assert message=False False"]


def test_results_have_the_facts_of_what_they_may_be() -> None:
    s = Sketch()
    choice = s.choice(s.compare("lt", s.scalar("n"), 4), 8, 24)
    s.store(s.out, s.binary("rem", choice, 8), 1)
    assert folded(s)[-1] == "store buffer=out 0 1"


def test_a_replacement_takes_over_the_users_name() -> None:
    s = Sketch()
    tid = s.special("thread_idx.x")
    column = s.binary("add", tid, 0)
    column.name = "column"
    s.store(s.out, 0, column)
    assert folded(s)[-1] == "store buffer=out 0 %0.column"
