"""What collectives take and refuse, and what they are lowered to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.helpers.language import compiles, run, zeros
from tests.helpers.slow import rest_is_slow

import tilewright as tw
from tilewright.errors import LanguageError
from tilewright.instructions.redux import Redux
from tilewright.instructions.shuffle import Shuffle
from tilewright.ir.ops import Allocate

SPECS = tw.spec("float32", 1), tw.spec("float32", 1)


class Moments(NamedTuple):
    count: Any
    total: Any


# --- values ----------------------------------------------------------------------------------------------


def test_tuples_keep_their_class() -> None:
    @tw.kernel
    def moments(out, x):
        i = tw.thread_idx.x
        found = tw.reduce(Moments(1, x[i]), lambda a, b: Moments(a.count + b.count, a.total + b.total))
        nested = tw.reduce([(x[i], i), x[i]], "max")
        out[0, i], out[1, i] = found.count * found.total, nested[0][1] + nested[1]

    x = np.arange(48, dtype=np.float32)
    out = run(moments, np.zeros((2, 48), np.float32), x, block=48)
    assert (out[0] == 48 * x.sum()).all() and (out[1] == 94).all()


def test_sums_of_bools_count() -> None:
    @tw.kernel
    def count(out, x):
        i = tw.thread_idx.x
        out[0, i] = tw.reduce(x[i] > 2)
        out[1, i] = tw.scan(x[i] > 2)
        out[2, i] = tw.reduce(x[i] > 2, "max").to(tw.int32) + 10 * tw.reduce(x[i] > 2, "min").to(tw.int32)
        out[3, i] = tw.scan(x[i] > 2, "or", exclusive=True).to(tw.int32)

    x = np.arange(40, dtype=np.int32) % 5
    out = run(count, np.zeros((4, 40), np.int32), x, block=40)
    holds = x > 2
    assert (out[0] == holds.sum()).all() and (out[1] == np.cumsum(holds)).all() and (out[2] == 1).all()
    assert (out[3] == np.concatenate([[0], np.maximum.accumulate(holds)[:-1]])).all()


def test_all_elements_of_a_fragment_take_part() -> None:
    @tw.kernel
    def total(out, x):
        own = tw.fragment_like(x[:, :, tw.thread_idx.x])
        tw.copy(x[:, :, tw.thread_idx.x], own)
        out[0, tw.thread_idx.x] = tw.reduce(own)
        out[1, tw.thread_idx.x] = tw.reduce((own, own), "min")[1]

    x = np.arange(3 * 2 * 64, dtype=np.float32).reshape(3, 2, 64)
    out = zeros((2, 64), np.float32)
    total[1, 64](out, tw.static(x))
    assert (out[0] == x.sum()).all() and (out[1] == 0).all()


@pytest.mark.parametrize(
    ("op", "neutral"),
    [("add", 0), ("mul", 1), ("min", 2**31 - 1), ("max", -(2**31)), ("and", -1), ("or", 0), ("xor", 0)],
)
def test_what_exclusive_scans_begin_with(op: str, neutral: int) -> None:
    @tw.kernel
    def first(out):
        out[tw.thread_idx.x] = tw.scan(tw.thread_idx.x, op, exclusive=True)

    assert run(first, zeros(64, np.int32), block=64)[0] == neutral


@pytest.mark.parametrize("block", [70, 128, 256, 288, 1000, 1024])
@pytest.mark.spread(2)
def test_initial_is_in_front_of_all(block: int) -> None:
    @tw.kernel
    def shifted(out):
        found, total = tw.scan(tw.thread_idx.x, exclusive=True, initial=100, with_total=True)
        least, lowest = tw.scan(50 - tw.thread_idx.x, "min", with_total=True)
        out[0, tw.thread_idx.x], out[1, tw.thread_idx.x] = found, total
        out[2, tw.thread_idx.x], out[3, tw.thread_idx.x] = least, lowest

    out, i = run(shifted, np.zeros((4, block), np.int32), block=block), np.arange(block)
    assert (out[0] == 100 + np.cumsum(i) - i).all() and (out[1] == i.sum()).all()
    assert (out[2] == 50 - i).all() and (out[3] == 51 - block).all()


def test_index_by_name() -> None:
    @tw.kernel
    def last(out, x):
        i = tw.thread_idx.x
        _, place = tw.argmax(x[i], index=1000 - i)
        out[i] = place

    x = np.array([1, 5, 5, 5, 2], np.float32)
    assert (run(last, zeros(5, np.int32), x, block=5) == 997).all()


@pytest.mark.parametrize("block", [32, 40, 300, 320])
def test_nothing_is_computed_that_is_not_of_the_result(block: int) -> None:
    """Lanes outside of the tree add nothing to themselves, which here would be infinite."""

    @tw.kernel
    def near_the_limit(out, x):
        i = tw.thread_idx.x
        out[0, i] = tw.reduce(x[i], lambda a, b: a + b)
        out[1, i] = tw.scan(x[i], lambda a, b: a + b)
        out[2, i] = tw.scan(x[i], exclusive=True)
        out[3, i] = tw.reduce(x[i])

    x = np.zeros(block, np.float32)
    x[-1] = 3e38
    out = zeros((4, block), np.float32)
    with tw.simulate(nan=True):
        near_the_limit[1, block](out, x)
    assert (out[0] == x[-1]).all() and (out[1] == x).all() and (out[2] == 0).all() and (out[3] == x[-1]).all()


def test_in_the_condition_of_a_loop() -> None:
    """The loop goes on while any thread has more to do: a collective in each test, and one after the loop."""

    @tw.kernel
    def countdown(out, x):
        i = tw.thread_idx.x
        left, rounds = x[i], 0
        while tw.reduce(left, "max") > 0:
            left -= 1
            rounds += 1
        out[i] = rounds + 100 * tw.reduce(rounds, "max")

    x = np.arange(96, dtype=np.int32) % 7
    assert (run(countdown, zeros(96, np.int32), x, block=96) == 606).all()
    compiles(countdown, tw.spec("int32", 1), tw.spec("int32", 1), block=96)


NARROW_AND_WIDE = [tw.bool_, tw.int8, tw.uint8, tw.int16, tw.uint16, tw.uint64, tw.bfloat16]


@pytest.mark.parametrize(
    "type", rest_is_slow(NARROW_AND_WIDE, tw.bool_, tw.uint8, tw.int16, tw.uint64, tw.bfloat16), ids=str
)
@pytest.mark.spread(3)
def test_narrow_and_wide_types(type: tw.DType) -> None:
    @tw.kernel
    def all_of_them(out, found, x, places):
        i = tw.thread_idx.x
        out[0, i], out[1, i] = tw.sort(x[i]), tw.sort(x[i], descending=True)
        best, where = tw.argmax(x[i], index=places[i])
        out[2, i], found[i] = best != 0 if out.dtype is tw.bool_ else best, where
        out[3, i] = tw.reduce(x[i], "max")
        out[4, i] = tw.broadcast(x[i], 70)

    x = np.random.default_rng(0).integers(0, 2 if type is tw.bool_ else 100, 96).astype(type.numpy)
    out, found, places = np.zeros((5, 96), type.numpy), np.zeros(96, np.int64), np.arange(96) * 2**33
    all_of_them[1, 96](out, found, x, places)
    order = np.sort(x.astype(np.float64)).astype(type.numpy)
    assert (out[0] == order).all() and (out[1] == order[::-1]).all()
    assert (out[2] == order[-1]).all() and (out[3] == order[-1]).all() and (out[4] == x[70]).all()
    assert (found == places[x.astype(np.float64).argmax()]).all()
    compiles(all_of_them, tw.spec(type, 2), tw.spec("int64", 1), tw.spec(type, 1), tw.spec("int64", 1), block=96)


# --- what they become ------------------------------------------------------------------------------------


def ops(kernel: tw.Kernel, *specs: Any, block: Any = 128, arch: str = "sm_90a") -> list[Any]:
    return list(kernel[1, block].lower(*specs, arch=arch).kernel.body.walk())


@tw.kernel
def total_of_warp(out, x):
    out[tw.thread_idx.x] = tw.reduce(x[tw.thread_idx.x], "max", "warp")


def test_integers_of_a_whole_warp_take_one_instruction() -> None:
    integers = tw.spec("int32", 1), tw.spec("int32", 1)
    for specs, block, arch, expected in (
        (integers, 128, "sm_80", (1, 0)),
        (integers, 128, "sm_75", (0, 5)),
        (integers, 100, "sm_90a", (0, 6)),
        (SPECS, 128, "sm_90a", (0, 5)),
    ):
        found = ops(total_of_warp, *specs, block=block, arch=arch)
        assert (sum(isinstance(op, Redux) for op in found), sum(isinstance(op, Shuffle) for op in found)) == expected


def test_groups_within_a_warp_need_no_memory() -> None:
    @tw.kernel
    def small(out, x):
        i = tw.thread_idx.x
        out[i] = tw.reduce(x[i], "add", 8) + tw.scan(x[i], "add", "warp") + tw.sort(x[i], group=16)

    assert not any(isinstance(op, Allocate) for op in ops(small, *SPECS))
    compiles(small, *SPECS, block=128)


def test_two_in_a_row_share_bytes_with_the_third() -> None:
    @tw.kernel
    def many(out, x):
        i = tw.thread_idx.x
        s = x[i]
        for _ in tw.static_range(6):
            s = tw.reduce(s)
        out[i] = s

    lowered = many[1, 256].lower(*SPECS)
    assert lowered.kernel.shared_bytes <= 2 * 128


def test_without_a_launch() -> None:
    @tw.kernel
    def by_warp(out, x):
        out[tw.thread_idx.x] = tw.reduce(x[tw.thread_idx.x], group="warp")

    assert "__shfl_xor_sync" in by_warp.source(*SPECS)

    @tw.kernel
    def by_block(out, x):
        out[tw.thread_idx.x] = tw.reduce(x[tw.thread_idx.x])

    with pytest.raises(LanguageError, match="needs the number of threads, and the kernel is traced without a launch"):
        by_block.source(*SPECS)


def test_on_amd() -> None:
    @tw.kernel
    def both(out, x):
        i = tw.thread_idx.x
        out[i] = tw.reduce(x[i], "max") + tw.scan(x[i], group="warp")

    text = both[1, 256].source(tw.spec("int32", 1), tw.spec("int32", 1), arch="gfx90a")
    assert "__shfl_xor(" in text and "__reduce" not in text


# --- what is refused -------------------------------------------------------------------------------------


def refused(call: Any, match: str, block: Any = 128, x: Any = None) -> LanguageError:
    @tw.kernel
    def kernel(out, x):
        out[tw.thread_idx.x] = call(x[tw.thread_idx.x])

    with pytest.raises(LanguageError, match=match) as caught:
        kernel[1, block](np.zeros(2048, np.float32), np.zeros(2048, np.float32) if x is None else x)
    assert caught.value.help
    return caught.value


@pytest.mark.parametrize("group", [0, -1, 3, 33, 48, True, 2.0, "grid", None, (32,)])
@pytest.mark.spread(3)
def test_groups_that_there_are_not(group: Any) -> None:
    for call in (tw.reduce, tw.scan, tw.argmax, tw.sort, tw.broadcast):
        refused(lambda x, call=call: call(x, group=group), 'group is "block", "warp", "warpgroup" or a number')


def test_groups_that_the_block_has_not() -> None:
    refused(lambda x: tw.reduce(x, group="warpgroup"), "groups of 128 threads do not divide a block of 192", block=192)
    refused(lambda x: tw.reduce(x, group=64), "groups of 64 threads do not divide a block of 32", block=32)
    refused(lambda x: tw.reduce(x, group=64), "16 groups of 64 threads need a named barrier each", block=1024)


def test_barriers_that_are_in_use() -> None:
    @tw.kernel
    def both(out, x, number: tw.constexpr, is_first: tw.constexpr):
        if is_first:
            tw.named_barrier(number, 256).sync()
        out[tw.thread_idx.x] = tw.reduce(x[tw.thread_idx.x], group="warpgroup")
        if not is_first:
            tw.named_barrier(number, 256).sync()

    x = np.ones(256, np.float32)
    for is_first in (True, False):
        for number in (14, 15):
            with pytest.raises(LanguageError, match=f"named barrier {number} is used by"):
                both[1, 256](zeros(256, np.float32), x, number, is_first)
        both[1, 256](zeros(256, np.float32), x, 13, is_first)

    @tw.kernel
    def two_sizes(out, x):
        i = tw.thread_idx.x
        out[i] = tw.reduce(x[i], group="warpgroup") + tw.reduce(x[i], group=64)

    out = zeros(512, np.float32)
    two_sizes[1, 512](out, np.ones(512, np.float32))
    assert (out == 192).all()
    with pytest.raises(LanguageError, match="16 groups of 64 threads need a named barrier each, and 7 are left of 15"):
        two_sizes[1, 1024](zeros(1024, np.float32), np.ones(1024, np.float32))


def test_operations_that_there_are_not() -> None:
    for call in (tw.reduce, tw.scan):
        with pytest.raises(LanguageError, match="op is one of add, mul, min"):
            run_one(lambda x, call=call: call(x, "sum"))
    refused(lambda x: tw.reduce(x, lambda a, b: (a + b).to(tw.float64)), "two values of float32 and returns float64")
    refused(lambda x: tw.reduce((x, x), lambda a, b: a[0])[0], r"of \(float32, float32\) and returns float32")
    refused(lambda x: tw.scan(x, lambda a, b: a + b, exclusive=True), "needs initial=: what the first thread gets")
    refused(lambda x: tw.scan(x, initial=1), "is what an exclusive scan begins with")
    with pytest.raises(LanguageError, match="& is not defined on float32"):
        run_one(lambda x: tw.reduce(x, "and"))


def run_one(call: Any) -> None:
    @tw.kernel
    def kernel(out, x):
        out[tw.thread_idx.x] = call(x[tw.thread_idx.x])

    kernel[1, 64](np.zeros(64, np.float32), np.zeros(64, np.float32))


def test_values_that_do_not_fit() -> None:
    def mixed(x):
        return tw.reduce((x, tw.registers(tw.float32, 4)), "add")[0]

    refused(mixed, "a tuple holds numbers, or fragments of the same number of elements")
    with pytest.raises(LanguageError, match="takes numbers, fragments, and tuples of them"):
        run_one(lambda x: tw.reduce({"a": x}))
    refused(lambda x: tw.sort(tw.registers(tw.float32, 3))[0], "1, 2, 4, 8 ... elements, not 3")
    refused(lambda x: tw.topk(x, 129)[0][0], "k is a number from 1 to the 128 elements")
    refused(lambda x: tw.topk(x, 9, group=8)[0][0], "k is a number from 1 to the 8 elements")
    with pytest.raises(LanguageError, match="source is a thread of the group, 0 to 63"):
        run_one(lambda x: tw.broadcast(x, 64))
    with pytest.raises(LanguageError, match="index holds an integer for each element"):
        run_one(lambda x: tw.argmax(x, index=x)[0])


def test_a_block_of_which_some_threads_are_elsewhere() -> None:
    @tw.kernel
    def divergent(out, x):
        if tw.thread_idx.x < 64:
            out[tw.thread_idx.x] = tw.reduce(x[tw.thread_idx.x])

    with pytest.raises(LanguageError, match="is in a branch that only some threads of the block may run"):
        divergent[1, 128](np.zeros(128, np.float32), np.zeros(128, np.float32))


def test_warps_and_warpgroups_may_branch() -> None:
    @tw.kernel
    def roles(out, x):
        i = tw.thread_idx.x
        if tw.warp_id() < 4:
            out[i] = tw.reduce(x[i], "max", "warpgroup")
        else:
            if tw.warp_id() % 2 == 0:
                out[i] = tw.scan(x[i], "add", "warp")
            else:
                out[i] = x[i]

    x = np.random.default_rng(0).integers(0, 99, 256).astype(np.float32)
    out = run(roles, zeros(256, np.float32), x, block=256)
    assert (out[:128] == x[:128].max()).all()
    assert (out[128:160] == np.cumsum(x[128:160])).all() and (out[160:192] == x[160:192]).all()


@pytest.mark.parametrize("group", [128, 256])
def test_consumers_beside_a_producer(group: int) -> None:
    """Groups of several warps in a block that has another warp behind them, which they leave out."""

    @tw.kernel
    def roles(out, x):
        i = tw.thread_idx.x
        if tw.warp_id() < 8:
            for _ in range(3):
                out[i] = tw.reduce(x[i], "add", group) + tw.broadcast(x[i], 100, group)
        else:
            out[i] = x[i]

    x = np.random.default_rng(0).integers(0, 99, 288).astype(np.float32)
    out = run(roles, zeros(288, np.float32), x, block=288)
    groups = x[:256].reshape(-1, group)
    assert (out[:256] == (groups.sum(axis=1) + groups[:, 100]).repeat(group)).all() and (out[256:] == x[256:]).all()

    @tw.kernel
    def everywhere(out, x):
        if tw.thread_idx.x >= 256:
            out[tw.thread_idx.x] = tw.reduce(x[tw.thread_idx.x], group=group)

    with pytest.raises((tw.CheckError, tw.LanguageError), match="deadlock|this wait never ends"):
        everywhere[1, 288](zeros(288, np.float32), x)


@tw.function
def farther(a, b):  # type: ignore[no-untyped-def]  # device numbers
    """The pair with the greater distance, by a branch."""
    result = a
    if b[0] > a[0]:
        result = b
    return result


def test_functions_that_branch() -> None:
    @tw.kernel
    def pairs(out, x):
        i = tw.thread_idx.x
        out[0, i] = tw.reduce((x[i], i), farther)[1]
        out[1, i] = tw.reduce((x[i], i), lambda a, b: b if b[0] > a[0] else a)[1]
        out[2, i] = tw.scan((x[i], i), lambda a, b: b if b[0] > a[0] else a, "warp")[1]
        out[3, i] = tw.reduce(x[i], tw.maximum).to(tw.int32)

    x = np.random.default_rng(0).permutation(200)[:100].astype(np.float32)
    out = run(pairs, np.zeros((4, 100), np.int32), x, block=100)
    assert (out[:2] == x.argmax()).all() and (out[3] == x.max()).all()
    assert (out[2] == [n // 32 * 32 + x[n // 32 * 32 : n + 1].argmax() for n in range(100)]).all()
    compiles(pairs, tw.spec("int32", 2), tw.spec("float32", 1), block=100)


def test_redux_refuses_what_it_does_not_take() -> None:
    refused(lambda x: tw.redux(x, "add"), "takes an int32 or uint32, got a float32")
    refused(lambda x: tw.redux(tw.thread_idx.x, "mul"), "computes add, and, max, min, or, xor, not 'mul'")
    refused(lambda x: tw.redux(tw.thread_idx.x, "add"), "is done by 32 lanes together", block=40)

    @tw.kernel
    def old(out):
        out[tw.thread_idx.x] = tw.redux(tw.thread_idx.x, "add")

    with pytest.raises(Exception, match="needs sm_80 or later, and the target is sm_75"):
        old[1, 32].source(tw.spec("int32", 1), arch="sm_75")


def test_a_broadcast_between_warps_has_one_source() -> None:
    @tw.kernel
    def kernel(out, x):
        i = tw.thread_idx.x
        out[i] = tw.broadcast(x[i], i // 2)

    with pytest.raises(tw.LanguageError, match="the same in all threads"):
        kernel[1, 64](np.zeros(64, np.int32), np.arange(64, dtype=np.int32))
