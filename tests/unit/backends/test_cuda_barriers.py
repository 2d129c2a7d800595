"""The CUDA C++ of barriers that part of a block meets at, compiled to machine code for the targets."""

from __future__ import annotations

import pytest
from tests.helpers.language import TARGETS

import tilewright as tw

OUT = tw.spec("int32", (64,))


@tw.kernel
def everything(out, n):
    full = tw.mbarrier(32, stages=4)
    one = tw.mbarrier(n)
    tw.sync_threads()
    if tw.warp_id() == 0:
        tw.named_barrier(3, 64).arrive()
        full[n].arrive()
        full[2].arrive(n)
        if tw.elect_one():
            one.cp_async_arrive()
    else:
        tw.named_barrier(1 + n, 64).sync()
        full[n].wait(n % 2)
        tries = 0
        while not one.test(1):
            tries += 1
        out[tw.lane_id()] = tries


def body(source: str) -> str:
    return source[source.index('extern "C"') :]


def test_calls() -> None:
    text = body(everything.source(OUT, 3, block=64, arch="sm_90a"))
    for line in (
        "__shared__ __align__(16) unsigned long long full[4];",
        "mbarrier_init(full, 32);",
        "mbarrier_init(&full[3], 32);",
        "mbarrier_init(one, n);",
        "named_barrier_arrive<64>(3);",
        "named_barrier_sync<64>(n + 1);",
        "mbarrier_arrive(&full[n]);",
        "mbarrier_arrive(&full[2], n);",
        "cp_async_mbarrier_arrive(one);",
        "mbarrier_wait(&full[n], n % 2);",
        "mbarrier_test(one, 1)",
        "elect_one()",
    ):
        assert line in text, line


@pytest.mark.parametrize("arch", TARGETS)
def test_instructions_of_the_target(arch: str) -> None:
    ptx = everything[1, 64].ptx(OUT, 3, arch=arch)
    assert everything[1, 64].resources(OUT, 3, arch=arch) is not None
    is_hopper = arch == "sm_90a"
    for instruction, there in {
        "mbarrier.init.shared": True,
        "fence.mbarrier_init": is_hopper,
        "mbarrier.try_wait.parity": is_hopper,
        "mbarrier.test_wait.parity": True,
        "mbarrier.arrive.noComplete": not is_hopper,
        "elect.sync": is_hopper,
        "cp.async.mbarrier.arrive.noinc": True,
        "barrier.sync": True,
        "barrier.arrive": True,
    }.items():
        assert (instruction in ptx) == there, instruction


def test_mbarriers_need_ampere() -> None:
    with pytest.raises(tw.LanguageError, match="an mbarrier needs sm_80 or later, and the target is sm_75"):
        everything.source(OUT, 3, block=64, arch="sm_75")


@tw.kernel
def around(out, x):
    """A value is read behind the barrier that it is waited for with."""
    tile = tw.shared(tw.int32, 32)
    tile[tw.lane_id()] = x[tw.lane_id()]
    tw.named_barrier(1, 32).sync()
    before = tile[31 - tw.lane_id()]
    tw.named_barrier(1, 32).sync()
    tile[tw.lane_id()] = before + 1
    tw.named_barrier(1, 32).sync()
    out[tw.lane_id()] = tile[31 - tw.lane_id()] + before


def test_accesses_do_not_move_across_barriers() -> None:
    lines = [line.strip() for line in body(around.source(OUT, OUT, block=32, arch="sm_80")).split("\n")]
    order = [n for n, line in enumerate(lines) if "named_barrier_sync" in line]
    first = next(n for n, line in enumerate(lines) if "before = tile[" in line)
    last = next(n for n, line in enumerate(lines) if line.startswith("out["))
    assert order[0] < first < order[1] < order[2] < last
    assert "tile[" in lines[last]
